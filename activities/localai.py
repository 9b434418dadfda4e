"""A LocalAI worker: one long request, no cancel, and a list that alone can tell what is on its disk."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from activities.sending import NotSent, Sender
from contracts.dispatch import (
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    Refused,
    Silent,
)
from contracts.messages import CommandReply, Installed, Outcome, Progress, Result
from domain.errors import LinkDown, NoAnswer, NodeAway, ServiceUnavailable
from domain.identity import family_of
from domain.operation import Kind, Phase, Reason
from services.ports import NodeLink, Reports

LIST_ANSWER_S = 30.0
REMOVAL_ANSWER_S = 120.0
_GONE = "not found"


class LocalaiWorker:
    """Lives as long as one `run_on_node`; sends only what is safe to send again."""

    def __init__(
        self, link: NodeLink, sender: Sender, task: DispatchTask, tell_phase: Callable[[Phase], Awaitable[None]]
    ) -> None:
        self._link = link
        self._sender = sender
        self._node_id = task.request.node_id
        self._task = task
        self._command = sender.command
        self._tell_phase = tell_phase
        self._ends = time.monotonic() + task.policy.request_timeout.total_seconds()
        self.last_progress: Progress | None = None

    async def until_outcome(self) -> DispatchResult:
        if self._command.kind is Kind.ROLLBACK:
            return Refused(why="A LocalAI worker keeps no previous version to roll back to.")
        async with self._link.attach(self._node_id, self._command.op_id) as reports:
            watching = asyncio.create_task(self._watch(reports))
            try:
                return await self._request()
            except NotSent as refused:
                return refused.why
            except NodeAway:
                return NodeUnreachable()
            except LinkDown:
                return NatsUnreachable()
            except NoAnswer:
                return Silent(accepted=True)
            finally:
                watching.cancel()

    async def _request(self) -> Ended:
        """An install that is repeated attaches; an upgrade would download again, so the list is asked first."""
        if self._task.accepted and self._command.kind is Kind.UPGRADE:
            present = await self._present()
            if present is not None and self._is_news(present):
                return self._ended(Result.SUCCEEDED, after=present)
        reply = await self._send()
        if reply.success:
            return self._ended(Result.SUCCEEDED, after=await self._listed())
        return await self._failed(reply)

    async def _send(self) -> CommandReply:
        within = REMOVAL_ANSWER_S if self._command.kind is Kind.REMOVE else self._ends - time.monotonic()
        try:
            return await self._sender.send(within=within)
        except NodeAway:
            if self._command.kind is not Kind.UPGRADE:
                raise
        await self._present()  # raises when the node is away; an old one only lacks the subject
        legacy = self._command.model_copy(update={"kind": Kind.INSTALL, "force": True})
        return await self._sender.send(within=self._ends - time.monotonic(), instead=legacy)

    async def _failed(self, reply: CommandReply) -> Ended:
        if self._command.kind is Kind.REMOVE:
            gone = _GONE in reply.error
            return (
                self._ended(Result.SUCCEEDED, changed=False) if gone else self._ended(Result.FAILED, error=reply.error)
            )
        present = await self._listed()
        if present is not None and self._is_news(present):
            error = f"installed, process did not start: {reply.error}"
            return self._ended(Result.FAILED, reason=Reason.DID_NOT_START, error=error, after=present)
        return self._ended(Result.FAILED, error=reply.error)

    async def _present(self) -> Installed | None:
        listed = await self._link.list_backends(self._node_id, within=LIST_ANSWER_S)
        family = self._command.family
        return next((each for each in listed.backends if family in {family_of(each.name), each.family}), None)

    async def _listed(self) -> Installed | None:
        """What the list says, if it can be had: an operation does not fail because of a question afterwards."""
        with suppress(NodeAway, NoAnswer):
            return await self._present()
        return None

    def _is_news(self, present: Installed) -> bool:
        return present.installed_at is not None and present.installed_at >= self._task.request.created_at

    def _ended(
        self,
        result: Result,
        *,
        reason: Reason | None = None,
        error: str = "",
        after: Installed | None = None,
        changed: bool | None = None,
    ) -> Ended:
        outcome = Outcome(
            op_id=self._command.op_id,
            node_id=self._node_id,
            backend=self._command.backend,
            family=self._command.family,
            decision=self._command.decision,
            result=result,
            reason=reason or (Reason.NODE_ERROR if result is Result.FAILED else None),
            error=error,
            changed=result is Result.SUCCEEDED if changed is None else changed,
            after=after,
        )
        return Ended(outcome=outcome)

    async def _watch(self, reports: Reports) -> None:
        """Silent workers are legal; one that talks is heard."""
        told: Phase | None = None
        while True:
            report = await reports.next(self._task.policy.silence.total_seconds())
            if isinstance(report, Progress):
                self.last_progress = report
                if told is None:
                    told = report.phase
                    with suppress(ServiceUnavailable):
                        await self._tell_phase(report.phase)
