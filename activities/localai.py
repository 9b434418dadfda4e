"""Follows an operation on a LocalAI worker: one long request, no cancel; only its backend list shows its disk."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nodesmith.activities.send_command import NotSent, Sender
from nodesmith.contracts.nats.messages import CommandReply, Installed, Outcome, Progress, Result
from nodesmith.contracts.temporal.dispatch import (
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    Refused,
    Silent,
)
from nodesmith.domain.errors import LinkDown, NoAnswer, NodeAway, ServiceUnavailable
from nodesmith.domain.identity import family_of
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason
from nodesmith.services.ports import NodeLink, Reports

LIST_TIMEOUT_S = 30.0
REMOVAL_ANSWER_S = 120.0
_NOT_FOUND = "not found"


class LocalaiWorker:
    """Serves one `run_on_node` activity; sends only requests that are safe to repeat."""

    def __init__(
        self, link: NodeLink, sender: Sender, task: DispatchTask, report_phase: Callable[[Phase], Awaitable[None]]
    ) -> None:
        self._link = link
        self._sender = sender
        self._node_id = task.request.node_id
        self._task = task
        self._wanted = task.request.wanted
        self._report_phase = report_phase
        self._deadline = time.monotonic() + task.policy.request_timeout.total_seconds()
        self.last_progress: Progress | None = None

    async def until_outcome(self) -> DispatchResult:
        if not self._wanted.kind.rules.localai:
            return Refused(why="A LocalAI worker keeps no previous version to roll back to.")
        async with self._link.attach(self._node_id, self._task.request.op_id) as reports:
            watching = asyncio.create_task(self._record_progress(reports))
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
        """Send the request; a repeated install attaches, but an upgrade would download again: read the list first."""
        if self._task.accepted and self._wanted.kind is Kind.UPGRADE:
            installed = await self._find_installed()
            if installed is not None and self._is_from_this_operation(installed):
                return self._ended(Result.SUCCEEDED, after=installed)
        reply = await self._send()
        if reply.success:
            return self._ended(Result.SUCCEEDED, after=await self._find_installed_if_reachable())
        return await self._failed(reply)

    async def _send(self) -> CommandReply:
        within = REMOVAL_ANSWER_S if self._wanted.kind is Kind.REMOVE else self._deadline - time.monotonic()
        try:
            return await self._sender.send(within=within)
        except NodeAway:
            if self._wanted.kind is not Kind.UPGRADE:
                raise
        await self._find_installed()  # raises when the node is away; an old worker only lacks the subject
        return await self._sender.send(within=self._deadline - time.monotonic(), as_forced_install=True)

    async def _failed(self, reply: CommandReply) -> Ended:
        if self._wanted.kind is Kind.REMOVE:
            is_gone = _NOT_FOUND in reply.error
            return (
                self._ended(Result.SUCCEEDED, changed=False)
                if is_gone
                else self._ended(Result.FAILED, error=reply.error)
            )
        installed = await self._find_installed_if_reachable()
        if installed is not None and self._is_from_this_operation(installed):
            error = f"installed, process did not start: {reply.error}"
            return self._ended(Result.FAILED, reason=Reason.DID_NOT_START, error=error, after=installed)
        return self._ended(Result.FAILED, error=reply.error)

    async def _find_installed(self) -> Installed | None:
        listed = await self._link.list_backends(self._node_id, within=LIST_TIMEOUT_S)
        family = self._wanted.family
        return next((each for each in listed.backends if family in {family_of(each.name), each.family}), None)

    async def _find_installed_if_reachable(self) -> Installed | None:
        """Return the list entry, or None without an answer: a missing list must not fail a finished operation."""
        with suppress(NodeAway, NoAnswer):
            return await self._find_installed()
        return None

    def _is_from_this_operation(self, installed: Installed) -> bool:
        return installed.installed_at is not None and installed.installed_at >= self._task.request.created_at

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
            op_id=self._task.request.op_id,
            node_id=self._node_id,
            backend=self._wanted.backend,
            family=self._wanted.family,
            decision=self._task.decision,
            result=result,
            reason=reason or (Reason.NODE_ERROR if result is Result.FAILED else None),
            error=error,
            changed=result is Result.SUCCEEDED if changed is None else changed,
            after=after,
        )
        return Ended(outcome=outcome)

    async def _record_progress(self, reports: Reports) -> None:
        """Record progress and report the first phase; a worker need not send progress."""
        reported: Phase | None = None
        while True:
            report = await reports.next(self._task.policy.silence.total_seconds())
            if isinstance(report, Progress):
                self.last_progress = report
                if reported is None:
                    reported = report.phase
                    with suppress(ServiceUnavailable):
                        await self._report_phase(report.phase)
