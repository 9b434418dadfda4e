"""Following an operation on its node, over a real NATS server, with a desk that the test plays."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from activities.dispatch import Dispatcher
from activities.following import Following, Pace
from activities.sending import Sender
from bus.commands import NodeClient, serve
from bus.connection import Bus, connect_control, node_bus
from bus.reports import NodeReports, ReportHub
from contracts.dispatch import (
    Accepted,
    Busy,
    DispatchResult,
    DispatchTask,
    Ended,
    Held,
    NatsUnreachable,
    NodeUnreachable,
    Refused,
    RowEnded,
    Silent,
)
from contracts.messages import (
    Answer,
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
    OpStanding,
    Outcome,
    Progress,
    Result,
    StopOrder,
)
from contracts.temporal import OperationRequest, Policy, RowEnd, Wanted
from domain.errors import ServiceUnavailable
from domain.operation import Kind, Phase, Reason, State
from tests.activities.permits import MemoryPermits
from tests.conftest import NatsFactory
from tests.servers import NatsForTests

QUICK = Policy(
    accept_timeout=timedelta(seconds=1), silence=timedelta(seconds=0.5), request_timeout=timedelta(seconds=30)
)


class PlayedDesk:
    """Answers commands and questions as the test says; satisfies `bus.commands.NodeDesk`."""

    def __init__(self, node_id: str, bus: Bus) -> None:
        self.has_begun = False
        """before that, the follower's first question is answered with `unknown`"""
        self.answers: list[CommandReply] = []
        self.standing: list[OpReply] = []
        self.commands: asyncio.Queue[Command] = asyncio.Queue()
        self.questions: asyncio.Queue[OpQuestion] = asyncio.Queue()
        self.reports = NodeReports(bus, node_id)

    async def command(self, command: Command) -> CommandReply:
        self.has_begun = True
        self.commands.put_nowait(command)
        return self.answers.pop(0) if self.answers else CommandReply(answer=Answer.ACCEPTED)

    async def ask(self, question: OpQuestion) -> OpReply:
        if not self.has_begun:
            return OpReply(op_id=question.op_id)
        self.questions.put_nowait(question)
        return self.standing.pop(0) if self.standing else OpReply(op_id=question.op_id, standing=OpStanding.RUNNING)

    async def cancel(self, command: CancelCommand) -> CancelReply:
        raise AssertionError(command)

    async def list_backends(self) -> BackendList:
        raise AssertionError

    async def stop_backend(self, command: Command) -> None:
        raise AssertionError(command)

    async def stop_node(self, order: StopOrder) -> None:
        raise AssertionError


class Scene:
    """A control plane, a node and one operation between them."""

    def __init__(self, link: NodeClient, desk: PlayedDesk, node_id: str) -> None:
        self.desk = desk
        self.op_id = str(uuid.uuid4())
        self.phases: list[Phase] = []
        self.told = asyncio.Event()
        self.temporal_is_away = 0
        """for so many of the next news"""
        self.permits = MemoryPermits()
        self._link = link
        self._node_id = node_id

    def following(
        self, policy: Policy = QUICK, *, kind: Kind = Kind.INSTALL, decision: int = 1, accepted: bool = False
    ) -> Following:
        task = self._task(policy, kind, decision).model_copy(update={"accepted": accepted})
        return Following(self._link, Sender(self._link, self.permits, task), task, self._tell)

    async def dispatch(self, *, decision: int = 1) -> DispatchResult:
        task = self._task(QUICK, Kind.INSTALL, decision)
        return await Dispatcher(self._link, Sender(self._link, self.permits, task), task).send()

    def _task(self, policy: Policy, kind: Kind, decision: int) -> DispatchTask:
        request = OperationRequest(
            op_id=self.op_id,
            node_id=self._node_id,
            node_name="shelf-7",
            wanted=Wanted(kind=kind, backend="echo", family="echo", version="2"),
            created_at=datetime.now(UTC),
        )
        return DispatchTask(request=request, policy=policy, decision=decision)

    async def _tell(self, phase: Phase) -> None:
        if self.temporal_is_away:
            self.temporal_is_away -= 1
            raise ServiceUnavailable("Temporal does not answer.")
        self.phases.append(phase)
        self.told.set()

    def ended(self, result: Result = Result.SUCCEEDED, reason: Reason | None = None) -> Outcome:
        return Outcome(op_id=self.op_id, node_id=self._node_id, decision=1, result=result, reason=reason)

    def progress(self, done: int, phase: Phase = Phase.DOWNLOADING) -> Progress:
        return Progress(op_id=self.op_id, node_id=self._node_id, decision=1, seq=done, bytes_done=done, phase=phase)


@asynccontextmanager
async def scene_on(
    nats: NatsForTests, *, served: bool = True, desk_of: type[PlayedDesk] = PlayedDesk
) -> AsyncIterator[Scene]:
    node_id = str(uuid.uuid4())
    control = await connect_control(nats.url, nats.issuer, name="test")
    credential = nats.issuer.node_credential(node_id, protocol=2, lifetime=timedelta(hours=1))
    node = node_bus(nats.url, node_id, lambda: credential)
    node.start()
    await node.wait_up(10)
    hub = ReportHub(control)
    await hub.start()
    desk = desk_of(node_id, node)
    if served:
        await serve(node, node_id, desk)
    try:
        yield Scene(NodeClient(control, hub), desk, node_id)
    finally:
        await node.close()
        await control.close()


@pytest.fixture
async def scene(nats_server: NatsForTests) -> AsyncIterator[Scene]:
    async with scene_on(nats_server) as scene:
        yield scene


async def test_the_published_outcome_is_the_word_of_the_node(scene: Scene) -> None:
    following = asyncio.create_task(scene.following().until_outcome())
    await scene.desk.commands.get()
    await scene.desk.reports.outcome(scene.ended())
    assert await following == Ended(outcome=scene.ended())
    assert scene.phases == [], "an instant install needs no signal that it began"


async def test_a_node_that_nobody_serves_is_away_and_nothing_was_delivered(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, served=False) as scene:
        assert await scene.following().until_outcome() == NodeUnreachable()
        assert scene.permits.sent == 0


async def test_a_lasting_install_is_announced_and_its_progress_heard(scene: Scene) -> None:
    """S40."""
    following = scene.following()
    running = asyncio.create_task(following.until_outcome())
    await scene.desk.commands.get()
    await scene.desk.reports.progress(scene.progress(7))
    await scene.desk.questions.get()  # silence came after the announcement
    assert scene.phases == [Phase.DOWNLOADING]
    assert following.last_progress is not None
    assert following.last_progress.bytes_done == 7
    await scene.desk.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


class HastyDesk(PlayedDesk):
    """Speaks before it answers."""

    def __init__(self, node_id: str, bus: Bus) -> None:
        super().__init__(node_id, bus)
        self.first_words: list[Progress] = []

    async def command(self, command: Command) -> CommandReply:
        for words in self.first_words:
            await self.reports.progress(words)
        return await super().command(command)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
async def test_what_a_node_says_before_it_answers_is_heard(nats_server: NatsForTests, kind: Kind) -> None:
    """S23: the id of the operation goes with the command, and we listen before we send it."""
    async with scene_on(nats_server, desk_of=HastyDesk) as scene:
        assert isinstance(scene.desk, HastyDesk)
        scene.desk.first_words = [scene.progress(7, Phase.VERIFYING)]
        following = scene.following(kind=kind)
        running = asyncio.create_task(following.until_outcome())
        sent = await scene.desk.commands.get()
        assert (sent.kind, sent.op_id) == (kind, scene.op_id)
        await asyncio.wait_for(scene.told.wait(), 10)
        await scene.desk.reports.outcome(scene.ended())
        await running
    assert scene.phases == [Phase.VERIFYING], "what was said before the answer"
    assert following.last_progress is not None
    assert following.last_progress.bytes_done == 7


async def test_an_outcome_that_was_missed_is_asked_for(scene: Scene) -> None:
    scene.desk.has_begun = True
    scene.desk.standing = [OpReply(op_id=scene.op_id, standing=OpStanding.ENDED, outcome=scene.ended())]
    assert await scene.following().until_outcome() == Ended(outcome=scene.ended())
    assert scene.desk.commands.empty(), "the node is asked before anything is sent"


@pytest.mark.parametrize("standing", [OpStanding.UNKNOWN, OpStanding.INTERRUPTED])
async def test_a_node_that_lost_the_operation_gets_the_command_again(scene: Scene, standing: OpStanding) -> None:
    scene.desk.standing = [OpReply(op_id=scene.op_id, standing=standing)]
    running = asyncio.create_task(scene.following().until_outcome())
    first, second = await scene.desk.commands.get(), await scene.desk.commands.get()
    assert first == second, "the same operation and the same decision"
    await scene.desk.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


async def test_failure_of_an_earlier_decision_is_not_the_outcome_of_this_one(scene: Scene) -> None:
    """The command of the second decision was lost: the node still reports how the first one failed."""
    scene.desk.has_begun = True
    earlier = scene.ended(Result.FAILED, Reason.NODE_ERROR)
    scene.desk.standing = [OpReply(op_id=scene.op_id, standing=OpStanding.ENDED, outcome=earlier)]
    running = asyncio.create_task(scene.following(decision=2).until_outcome())
    assert (await asyncio.wait_for(scene.desk.commands.get(), 30)).decision == 2
    await scene.desk.reports.outcome(earlier)
    await scene.desk.reports.outcome(scene.ended().model_copy(update={"decision": 2}))
    result = await running
    assert isinstance(result, Ended)
    assert (result.outcome.result, result.outcome.decision) == (Result.SUCCEEDED, 2)


END = RowEnd(state=State.CANCELLED, reason=Reason.REQUESTED)


async def test_follower_of_an_ended_row_sends_nothing(scene: Scene) -> None:
    """Promise 3: Temporal was restored to an older moment than PostgreSQL, and the node has forgotten it."""
    scene.permits.end = END
    assert await scene.following().until_outcome() == RowEnded(end=END)
    assert await scene.dispatch() == RowEnded(end=END)
    assert scene.desk.commands.empty()


async def test_hold_concerns_only_what_is_not_on_its_node(scene: Scene) -> None:
    scene.permits.hold = "freeze, by ada"
    assert await scene.dispatch() == Held(why="freeze, by ada")
    assert (scene.desk.commands.empty(), scene.permits.sent) == (True, 0)
    running = asyncio.create_task(scene.following(accepted=True).until_outcome())
    await scene.desk.commands.get()
    await scene.desk.reports.outcome(scene.ended())
    assert isinstance(await running, Ended)


class Deaf(PlayedDesk):
    """Does not answer its first command: it is ending, or was stopped by a signal."""

    async def command(self, command: Command) -> CommandReply:
        if self.commands.empty() and not self.answers:
            self.answers = [CommandReply(answer=Answer.ACCEPTED)]
            await asyncio.sleep(10 * QUICK.accept_timeout.total_seconds())
        return await super().command(command)


async def test_a_command_without_an_answer_is_asked_after_long_before_a_silence(nats_server: NatsForTests) -> None:
    """A node that was told in its last moment, and is back after a second, is not left waiting for ten."""
    async with scene_on(nats_server, desk_of=Deaf) as scene:
        scene.desk.standing = [OpReply(op_id=scene.op_id, standing=OpStanding.UNKNOWN)]
        patient = QUICK.model_copy(update={"silence": timedelta(minutes=5)})
        running = asyncio.create_task(scene.following(patient).until_outcome())
        await asyncio.wait_for(scene.desk.commands.get(), 10)
        await scene.desk.reports.outcome(scene.ended())
        assert await running == Ended(outcome=scene.ended())


async def test_no_outcome_in_time_gives_the_slot_back_without_a_verdict(scene: Scene) -> None:
    """S38: a timeout says nothing about the node's work."""
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
    scene.desk.answers = [reply, reply]
    assert await scene.following().until_outcome() == expected
    assert await scene.dispatch() == expected


async def test_an_ended_operation_is_repeated_not_done_again(scene: Scene) -> None:
    scene.desk.answers = [CommandReply(answer=Answer.ENDED, outcome=scene.ended(Result.FAILED, Reason.NO_DISK))]
    result = await scene.following().until_outcome()
    assert isinstance(result, Ended)
    assert result.outcome.reason is Reason.NO_DISK


async def test_a_node_that_dies_on_the_way_is_away_after_a_while(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server) as scene:
        running = asyncio.create_task(scene.following().until_outcome())
        await scene.desk.commands.get()
        await scene.desk.reports._bus.close()
        assert await running == NodeUnreachable(accepted=True)


@pytest.mark.private_stack
async def test_a_restart_of_nats_loses_no_outcome(private_nats: NatsFactory) -> None:
    nats = await private_nats()
    async with scene_on(nats) as scene:
        policy = QUICK.model_copy(update={"silence": timedelta(seconds=20)})
        running = asyncio.create_task(scene.following(policy).until_outcome())
        await scene.desk.commands.get()
        await nats.kill()
        scene.desk.standing = [OpReply(op_id=scene.op_id, standing=OpStanding.ENDED, outcome=scene.ended())]
        await nats.restart()
        assert await running == Ended(outcome=scene.ended())


@pytest.mark.private_stack
async def test_without_nats_it_is_not_the_node_that_is_away(private_nats: NatsFactory) -> None:
    """The node may be well, and at work: who counts absent nodes must not count this one."""
    nats = await private_nats()
    async with scene_on(nats) as scene:
        running = asyncio.create_task(scene.following().until_outcome())
        await asyncio.wait_for(scene.told.wait(), 10)
        await nats.kill()
        assert await asyncio.wait_for(running, 30) == NatsUnreachable(accepted=True)
        assert await asyncio.wait_for(scene.following().until_outcome(), 30) == NatsUnreachable()
        scene.permits.sent = 0
        assert await asyncio.wait_for(scene.dispatch(), 30) == NatsUnreachable()
        assert scene.permits.sent == 0, "it provably did not leave"


def test_a_burst_is_told_bit_by_bit_and_what_comes_later_at_once() -> None:
    pace = Pace(after_s=2, apart_s=0.5)
    assert [pace.moment(10.0) for _ in range(3)] == [12.0, 12.5, 13.0]
    assert pace.moment(20.0) == 22.0


# dispatch -----------------------------------------------------------------------------------------------------


async def test_dispatch_returns_the_outcome_of_what_ends_at_once(scene: Scene) -> None:
    sending = asyncio.create_task(scene.dispatch())
    assert (await scene.desk.commands.get()).decision == 1
    await scene.desk.reports.progress(scene.progress(7))
    await scene.desk.reports.outcome(scene.ended())
    assert await sending == Ended(outcome=scene.ended())
    assert scene.permits.sent == 1


class InstantDesk(PlayedDesk):
    """Is done before it answers."""

    async def command(self, command: Command) -> CommandReply:
        await self.reports.outcome(Outcome(op_id=command.op_id, decision=command.decision, result=Result.SUCCEEDED))
        return await super().command(command)


async def test_dispatch_hears_an_outcome_from_before_the_answer(nats_server: NatsForTests) -> None:
    """S23: also here we listen before we send."""
    async with scene_on(nats_server, desk_of=InstantDesk) as scene:
        result = await scene.dispatch()
    assert isinstance(result, Ended)
    assert result.outcome.result is Result.SUCCEEDED


@pytest.mark.parametrize("result", [None, Result.INTERRUPTED], ids=["it goes on", "it was interrupted"])
async def test_dispatch_leaves_what_has_begun_to_the_follower(scene: Scene, result: Result | None) -> None:
    sending = asyncio.create_task(scene.dispatch())
    await scene.desk.commands.get()
    if result is not None:
        await scene.desk.reports.outcome(scene.ended(result))
    assert await sending == Accepted()


async def test_dispatch_to_a_node_where_nobody_listens_takes_its_mark_back(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, served=False) as scene:
        assert await scene.dispatch() == NodeUnreachable()
        assert scene.permits.sent == 0
        scene.permits.sent = 1
        assert await scene.dispatch() == NodeUnreachable()
        assert scene.permits.sent == 1, "another sender set this mark, and its command may have arrived"


async def test_dispatch_without_an_answer_leaves_the_mark(nats_server: NatsForTests) -> None:
    async with scene_on(nats_server, desk_of=Deaf) as scene:
        assert await scene.dispatch() == Silent()
        assert scene.permits.sent == 1


async def test_dispatch_of_an_ended_operation_is_repeated_from_the_nodes_journal(scene: Scene) -> None:
    scene.desk.answers = [CommandReply(answer=Answer.ENDED, outcome=scene.ended())]
    assert await scene.dispatch() == Ended(outcome=scene.ended())


async def test_who_follows_what_has_begun_does_not_announce_it_again(scene: Scene) -> None:
    following = asyncio.create_task(scene.following(accepted=True).until_outcome())
    await scene.desk.commands.get()
    await scene.desk.reports.progress(scene.progress(7))
    await scene.desk.questions.get()
    await scene.desk.reports.outcome(scene.ended())
    await following
    assert scene.phases == []


async def test_news_that_could_not_be_told_are_told_again(scene: Scene) -> None:
    """Temporal may be busy in just that moment; the row would say `queued` until the end."""
    scene.temporal_is_away = 2
    following = asyncio.create_task(scene.following().until_outcome())
    await scene.desk.commands.get()
    await asyncio.wait_for(scene.told.wait(), 10)
    await scene.desk.reports.outcome(scene.ended())
    await following
    assert (scene.phases, scene.temporal_is_away) == ([Phase.RESOLVING], 0)
