"""Following an operation on its node over a real NATS server, with a simulated node."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.activities.dispatch import Dispatcher
from nodesmith.activities.follow_operation import OperationFollower, Stagger
from nodesmith.activities.send_command import Sender
from nodesmith.bus.commands import NodeClient, serve
from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.bus.reports import NodeReports, ReportHub
from nodesmith.contracts.nats.messages import (
    Answer,
    Command,
    CommandReply,
    NodeOperationStatus,
    OpReply,
    Outcome,
    Progress,
    Result,
)
from nodesmith.contracts.temporal.dispatch import (
    Accepted,
    Busy,
    DispatchResult,
    DispatchTask,
    Ended,
    HeldBack,
    NatsUnreachable,
    NodeUnreachable,
    NotAdmitted,
    OrderNotValid,
    Refused,
    RowEnded,
    Silent,
)
from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Policy, RowEnd
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason, State
from tests.conftest import NatsFactory
from tests.fakes.node import SimulatedNode
from tests.fakes.permits import MemoryPermits
from tests.servers import NatsForTests

QUICK = Policy(
    accept_timeout=timedelta(seconds=1), silence=timedelta(seconds=0.5), request_timeout=timedelta(seconds=30)
)


class ReportingNode(SimulatedNode):
    """The simulated node, with its own connection for reports."""

    def __init__(self, node_id: str, bus: Bus) -> None:
        super().__init__()
        self.knows_operations = False
        self.reports = NodeReports(bus, node_id)


class Scene:
    """A control plane, a node and one operation between them."""

    def __init__(self, link: NodeClient, node: ReportingNode, node_id: str) -> None:
        self.node = node
        self.op_id = str(uuid.uuid4())
        self.phases: list[Phase] = []
        self.reported = asyncio.Event()
        self.temporal_is_away = 0
        """how many of the next phase reports fail"""
        self.permits = MemoryPermits()
        self._link = link
        self._node_id = node_id

    def following(
        self, policy: Policy = QUICK, *, kind: Kind = Kind.INSTALL, decision: int = 1, accepted: bool = False
    ) -> OperationFollower:
        task = self._task(policy, kind, decision).model_copy(update={"accepted": accepted})
        return OperationFollower(self._link, Sender(self._link, self.permits, task), task, self._report)

    async def dispatch(self, *, decision: int = 1) -> DispatchResult:
        task = self._task(QUICK, Kind.INSTALL, decision)
        return await Dispatcher(self._link, Sender(self._link, self.permits, task), task).send()

    def _task(self, policy: Policy, kind: Kind, decision: int) -> DispatchTask:
        request = OperationRequest(
            op_id=self.op_id,
            node_id=self._node_id,
            node_name="node-7",
            wanted=Intent(kind=kind, backend="echo", family="echo", version="2"),
            created_at=datetime.now(UTC),
        )
        self.permits.request = request
        return DispatchTask(request=request, policy=policy, decision=decision)

    async def _report(self, phase: Phase) -> None:
        if self.temporal_is_away:
            self.temporal_is_away -= 1
            raise ServiceUnavailable("Temporal does not answer.")
        self.phases.append(phase)
        self.reported.set()

    def ended(self, result: Result = Result.SUCCEEDED, reason: Reason | None = None) -> Outcome:
        return Outcome(op_id=self.op_id, node_id=self._node_id, decision=1, result=result, reason=reason)

    def progress(self, done: int, phase: Phase = Phase.DOWNLOADING) -> Progress:
        return Progress(op_id=self.op_id, node_id=self._node_id, decision=1, seq=done, bytes_done=done, phase=phase)


def read(result: DispatchResult) -> DispatchResult:
    """Return the result without its verified signature."""
    assert isinstance(result, Ended)
    assert result.outcome.signed
    return Ended(outcome=result.outcome.model_copy(update={"signed": ""}))


@asynccontextmanager
async def scene_on(
    nats: NatsForTests, *, served: bool = True, node_class: type[ReportingNode] = ReportingNode
) -> AsyncIterator[Scene]:
    node_id = str(uuid.uuid4())
    control = await connect_control(nats.url, nats.issuer, keys=nats.issuer, name="test")
    credential = nats.issuer.node_credential(node_id, lifetime=timedelta(hours=1))
    bus = node_bus(nats.url, node_id, lambda: credential)
    bus.start()
    await bus.wait_up(10)
    hub = ReportHub(control)
    await hub.start()
    node = node_class(node_id, bus)
    if served:
        await serve(bus, node_id, node)
    try:
        yield Scene(NodeClient(control, hub), node, node_id)
    finally:
        await bus.close()
        await control.close()


@pytest.fixture
async def scene(nats_server: NatsForTests) -> AsyncIterator[Scene]:
    async with scene_on(nats_server) as scene:
        yield scene


async def test_published_outcome_is_the_result(scene: Scene) -> None:
    following = asyncio.create_task(scene.following().until_outcome())
    await scene.node.commands.get()
    await scene.node.reports.outcome(scene.ended())
    assert read(await following) == Ended(outcome=scene.ended())
    assert scene.phases == [], "an instant install needs no signal that it began"


async def test_node_without_subscriber_is_unreachable_and_received_nothing(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, served=False) as scene:
        assert await scene.following().until_outcome() == NodeUnreachable()
        assert scene.permits.sent == 0


async def test_long_install_reports_its_start_and_progress(scene: Scene) -> None:
    """S40."""
    following = scene.following()
    running = asyncio.create_task(following.until_outcome())
    await scene.node.commands.get()
    await scene.node.reports.progress(scene.progress(7))
    await scene.node.questions.get()  # silence came after the announcement
    assert scene.phases == [Phase.DOWNLOADING]
    assert following.last_progress is not None
    assert following.last_progress.bytes_done == 7
    await scene.node.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


class EarlyReportingNode(ReportingNode):
    """Reports before it replies."""

    def __init__(self, node_id: str, bus: Bus) -> None:
        super().__init__(node_id, bus)
        self.early_reports: list[Progress] = []

    async def command(self, command: Command) -> CommandReply | None:
        for progress in self.early_reports:
            await self.reports.progress(progress)
        return await super().command(command)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
async def test_reports_sent_before_the_reply_are_received(nats_server: NatsForTests, kind: Kind) -> None:
    """S23: the command carries the operation id, and the follower subscribes before it sends."""
    async with scene_on(nats_server, node_class=EarlyReportingNode) as scene:
        assert isinstance(scene.node, EarlyReportingNode)
        scene.node.early_reports = [scene.progress(7, Phase.VERIFYING)]
        following = scene.following(kind=kind)
        running = asyncio.create_task(following.until_outcome())
        sent = await scene.node.commands.get()
        assert (sent.kind, sent.op_id) == (kind, scene.op_id)
        await asyncio.wait_for(scene.reported.wait(), 10)
        await scene.node.reports.outcome(scene.ended())
        await running
    assert scene.phases == [Phase.VERIFYING], "what was said before the answer"
    assert following.last_progress is not None
    assert following.last_progress.bytes_done == 7


async def test_an_outcome_that_was_missed_is_asked_for(scene: Scene) -> None:
    scene.node.knows_operations = True
    scene.node.standing = [OpReply(op_id=scene.op_id, standing=NodeOperationStatus.ENDED, outcome=scene.ended())]
    assert read(await scene.following().until_outcome()) == Ended(outcome=scene.ended())
    assert scene.node.commands.empty(), "the node is asked before anything is sent"


@pytest.mark.parametrize("standing", [NodeOperationStatus.UNKNOWN, NodeOperationStatus.INTERRUPTED])
async def test_a_node_that_lost_the_operation_gets_the_command_again(
    scene: Scene, standing: NodeOperationStatus
) -> None:
    scene.node.standing = [OpReply(op_id=scene.op_id, standing=standing)]
    running = asyncio.create_task(scene.following().until_outcome())
    first, second = await scene.node.commands.get(), await scene.node.commands.get()
    assert first == second, "the same operation and the same decision"
    await scene.node.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


async def test_failure_of_an_earlier_decision_is_not_the_outcome_of_this_one(scene: Scene) -> None:
    """The command of the second decision was lost: the node still reports how the first one failed."""
    scene.node.knows_operations = True
    earlier = scene.ended(Result.FAILED, Reason.NODE_ERROR)
    scene.node.standing = [OpReply(op_id=scene.op_id, standing=NodeOperationStatus.ENDED, outcome=earlier)]
    running = asyncio.create_task(scene.following(decision=2).until_outcome())
    assert (await asyncio.wait_for(scene.node.commands.get(), 30)).decision == 2
    await scene.node.reports.outcome(earlier)
    await scene.node.reports.outcome(scene.ended().model_copy(update={"decision": 2}))
    result = await running
    assert isinstance(result, Ended)
    assert (result.outcome.result, result.outcome.decision) == (Result.SUCCEEDED, 2)


END = RowEnd(state=State.CANCELLED, reason=Reason.REQUESTED)


async def test_follower_of_an_ended_row_sends_nothing(scene: Scene) -> None:
    """Promise 3: Temporal was restored to an earlier time than PostgreSQL, and the node has no record."""
    scene.permits.end = END
    assert await scene.following().until_outcome() == RowEnded(end=END)
    assert await scene.dispatch() == RowEnded(end=END)
    assert scene.node.commands.empty()


async def test_hold_applies_only_to_operations_not_on_their_node(scene: Scene) -> None:
    scene.permits.hold = "freeze, by ada"
    assert await scene.dispatch() == HeldBack(why="freeze, by ada")
    assert (scene.node.commands.empty(), scene.permits.sent) == (True, 0)
    running = asyncio.create_task(scene.following(accepted=True).until_outcome())
    await scene.node.commands.get()
    await scene.node.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


class SilentNode(ReportingNode):
    """Does not answer its first command, like an agent that is shutting down or suspended."""

    async def command(self, command: Command) -> CommandReply | None:
        if self.commands.empty() and not self.answers:
            self.answers = [CommandReply(answer=Answer.ACCEPTED)]
            await asyncio.sleep(10 * QUICK.accept_timeout.total_seconds())
        return await super().command(command)


async def test_unanswered_command_is_queried_before_the_silence_limit(nats_server: NatsForTests) -> None:
    """A node that restarted during the command is asked after a second, not after ten."""
    async with scene_on(nats_server, node_class=SilentNode) as scene:
        scene.node.standing = [OpReply(op_id=scene.op_id, standing=NodeOperationStatus.UNKNOWN)]
        patient = QUICK.model_copy(update={"silence": timedelta(minutes=5)})
        running = asyncio.create_task(scene.following(patient).until_outcome())
        await asyncio.wait_for(scene.node.commands.get(), 10)
        await scene.node.reports.outcome(scene.ended())
        assert read(await running) == Ended(outcome=scene.ended())


async def test_request_timeout_releases_the_slot_without_an_outcome(scene: Scene) -> None:
    """S38: a timeout proves nothing about the node's work."""
    short = QUICK.model_copy(update={"request_timeout": timedelta(seconds=1)})
    assert await scene.following(short).until_outcome() == Silent(accepted=True)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (CommandReply(answer=Answer.BUSY, busy_op_id="other"), Busy(op_id="other")),
        (CommandReply(answer=Answer.REFUSED, error="cancelled before"), Refused(why="cancelled before")),
    ],
)
async def test_other_answers_are_passed_on(scene: Scene, reply: CommandReply, expected: DispatchResult) -> None:
    scene.node.answers = [reply, reply]
    assert await scene.following().until_outcome() == expected
    assert await scene.dispatch() == expected


async def test_ended_operation_returns_its_outcome_without_running_again(scene: Scene) -> None:
    scene.node.answers = [CommandReply(answer=Answer.ENDED, outcome=scene.ended(Result.FAILED, Reason.NO_DISK))]
    result = await scene.following().until_outcome()
    assert isinstance(result, Ended)
    assert result.outcome.reason is Reason.NO_DISK


async def test_a_node_that_dies_on_the_way_is_away_after_a_while(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server) as scene:
        running = asyncio.create_task(scene.following().until_outcome())
        await scene.node.commands.get()
        await scene.node.reports._bus.close()
        assert await running == NodeUnreachable(accepted=True)


@pytest.mark.private_stack
async def test_a_restart_of_nats_loses_no_outcome(private_nats: NatsFactory) -> None:
    nats = await private_nats()
    async with scene_on(nats) as scene:
        policy = QUICK.model_copy(update={"silence": timedelta(seconds=20)})
        running = asyncio.create_task(scene.following(policy).until_outcome())
        await scene.node.commands.get()
        await nats.kill()
        scene.node.standing = [OpReply(op_id=scene.op_id, standing=NodeOperationStatus.ENDED, outcome=scene.ended())]
        await nats.restart()
        assert read(await running) == Ended(outcome=scene.ended())


@pytest.mark.private_stack
async def test_nats_outage_is_not_reported_as_absent_node(private_nats: NatsFactory) -> None:
    """The node may be working, so it must not count as absent."""
    nats = await private_nats()
    async with scene_on(nats) as scene:
        running = asyncio.create_task(scene.following().until_outcome())
        await asyncio.wait_for(scene.reported.wait(), 10)
        await nats.kill()
        assert await asyncio.wait_for(running, 30) == NatsUnreachable(accepted=True)
        assert await asyncio.wait_for(scene.following().until_outcome(), 30) == NatsUnreachable()
        scene.permits.sent = 0
        assert await asyncio.wait_for(scene.dispatch(), 30) == NatsUnreachable()
        assert scene.permits.sent == 0, "it provably did not leave"


def test_stagger_spaces_out_a_burst() -> None:
    stagger = Stagger(after_s=2, apart_s=0.5)
    assert [stagger.next_time(10.0) for _ in range(3)] == [12.0, 12.5, 13.0]
    assert stagger.next_time(20.0) == 22.0


# dispatch -----------------------------------------------------------------------------------------------------


async def test_dispatch_returns_the_outcome_of_what_ends_at_once(scene: Scene) -> None:
    sending = asyncio.create_task(scene.dispatch())
    assert (await scene.node.commands.get()).decision == 1
    await scene.node.reports.progress(scene.progress(7))
    await scene.node.reports.outcome(scene.ended())
    assert read(await sending) == Ended(outcome=scene.ended())
    assert scene.permits.sent == 1


class InstantNode(ReportingNode):
    """Finishes before it replies."""

    async def command(self, command: Command) -> CommandReply | None:
        await self.reports.outcome(Outcome(op_id=command.op_id, decision=command.decision, result=Result.SUCCEEDED))
        return await super().command(command)


async def test_dispatch_receives_an_outcome_sent_before_the_reply(nats_server: NatsForTests) -> None:
    """S23: the dispatcher also subscribes before it sends."""
    async with scene_on(nats_server, node_class=InstantNode) as scene:
        result = await scene.dispatch()
    assert isinstance(result, Ended)
    assert result.outcome.result is Result.SUCCEEDED


@pytest.mark.parametrize("result", [None, Result.INTERRUPTED], ids=["it goes on", "it was interrupted"])
async def test_dispatch_leaves_started_work_to_the_follower(scene: Scene, result: Result | None) -> None:
    sending = asyncio.create_task(scene.dispatch())
    await scene.node.commands.get()
    if result is not None:
        await scene.node.reports.outcome(scene.ended(result))
    assert await sending == Accepted()


async def test_dispatch_without_subscriber_withdraws_its_mark(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, served=False) as scene:
        assert await scene.dispatch() == NodeUnreachable()
        assert scene.permits.sent == 0
        scene.permits.sent = 1
        assert await scene.dispatch() == NodeUnreachable()
        assert scene.permits.sent == 1, "another sender set this mark, and its command may have arrived"


async def test_dispatch_without_an_answer_leaves_the_mark(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, node_class=SilentNode) as scene:
        assert await scene.dispatch() == Silent()
        assert scene.permits.sent == 1


async def test_dispatch_of_an_ended_operation_is_repeated_from_the_nodes_journal(scene: Scene) -> None:
    scene.node.answers = [CommandReply(answer=Answer.ENDED, outcome=scene.ended())]
    assert read(await scene.dispatch()) == Ended(outcome=scene.ended())


async def test_follower_of_accepted_operation_does_not_report_its_start_again(scene: Scene) -> None:
    following = asyncio.create_task(scene.following(accepted=True).until_outcome())
    await scene.node.commands.get()
    await scene.node.reports.progress(scene.progress(7))
    await scene.node.questions.get()
    await scene.node.reports.outcome(scene.ended())
    await following
    assert scene.phases == []


async def test_failed_phase_report_is_retried(scene: Scene) -> None:
    """Without the retry, a busy Temporal would leave the row `queued` until the end."""
    scene.temporal_is_away = 2
    following = asyncio.create_task(scene.following().until_outcome())
    await scene.node.commands.get()
    await asyncio.wait_for(scene.reported.wait(), 10)
    await scene.node.reports.outcome(scene.ended())
    await following
    assert (scene.phases, scene.temporal_is_away) == ([Phase.RESOLVING], 0)


async def test_command_is_what_the_order_says_and_not_what_the_run_was_given(scene: Scene) -> None:
    """An attacker with access to Temporal can start a run under this id with another input."""
    scene._task(QUICK, Kind.INSTALL, 1)
    admitted = scene.permits.request
    assert admitted is not None
    evil = admitted.model_copy(update={"wanted": admitted.wanted.model_copy(update={"uri": "https://evil.example/x"})})
    task = DispatchTask(request=evil, policy=QUICK, decision=1)
    await Dispatcher(scene._link, Sender(scene._link, scene.permits, task), task).send()
    assert (await scene.node.commands.get()).uri == admitted.wanted.uri


async def test_order_of_another_node_is_not_sent(scene: Scene) -> None:
    scene._task(QUICK, Kind.INSTALL, 1)
    admitted = scene.permits.request
    assert admitted is not None
    scene.permits.request = admitted.model_copy(update={"node_id": "another"})
    task = DispatchTask(request=admitted, policy=QUICK, decision=1)
    result = await Dispatcher(scene._link, Sender(scene._link, scene.permits, task), task).send()
    assert result == NotAdmitted(has_order=False)
    assert (scene.node.commands.qsize(), scene.permits.sent) == (0, 0)


async def test_follower_waits_for_an_order_written_after_the_start(scene: Scene) -> None:
    """The API writes the order right after it starts the run."""
    scene.permits.is_admitted = scene.permits.has_order = False
    dispatching = asyncio.create_task(scene.dispatch())
    await asyncio.sleep(0)
    scene.permits.is_admitted = scene.permits.has_order = True
    await scene.node.commands.get()
    dispatching.cancel()


async def test_order_that_the_node_cannot_accept_now_is_no_failure(scene: Scene) -> None:
    expired = CommandReply(answer=Answer.REFUSED, reason=Reason.ORDER, error="The order has expired.")
    scene.node.answers.append(expired)
    assert await scene.dispatch() == OrderNotValid(why="The order has expired.")
