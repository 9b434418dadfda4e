"""Operations on LocalAI workers: one long request, optional progress, and the backend list as evidence."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.msg import Msg

from nodesmith.activities.localai import LocalaiWorker
from nodesmith.activities.send_command import Sender
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.bus.reports import ReportHub
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import BackendList, Command, CommandReply, Installed, Outcome, Result
from nodesmith.contracts.nats.wire import Message
from nodesmith.contracts.temporal.dispatch import (
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    RowEnded,
    Silent,
)
from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Policy, RowEnd
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Phase, Reason, State
from tests.activities.permits import MemoryPermits
from tests.conftest import NatsFactory
from tests.servers import NatsForTests

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Worker:
    """Answers on LocalAI's subjects only, as the test says; `subjects` it does not serve have no responders."""

    def __init__(self, bus: Bus, node_id: str) -> None:
        self._bus = bus
        self._node_id = node_id
        self.backends: list[Installed] = []
        self.heard: list[tuple[str, Command]] = []

    async def serves(self, subject: str, reply: CommandReply, *, installs: Installed | None = None) -> None:
        async def answer(message: Msg) -> None:
            self.heard.append((subject, Command.decode(message.data)))
            if installs is not None:
                self.backends = [installs]
            await message.respond(reply.encode() or b"{}")

        await self._bus.subscribe(subject, answer)

    async def lists(self) -> None:
        async def answer(message: Msg) -> None:
            await message.respond(_encoded(BackendList(backends=self.backends)))

        await self._bus.subscribe(subjects.list_backends(self._node_id), answer)


def _encoded(message: Message) -> bytes:
    return message.model_dump_json().encode()


class Scene:
    def __init__(self, link: NodeClient, worker: Worker, node_id: str) -> None:
        self.worker = worker
        self.node_id = node_id
        self.permits = MemoryPermits()
        self._link = link
        self.asked_at = datetime.now(UTC)

    def installed(self, at: datetime | None = None) -> Installed:
        return Installed(name="llama-cpp", version="7", installed_at=at or self.asked_at + timedelta(seconds=1))

    def asks(self, kind: Kind, *, accepted: bool = False, timeout: float = 10) -> LocalaiWorker:
        request = OperationRequest(
            op_id=str(uuid.uuid4()),
            node_id=self.node_id,
            node_name="old-shelf",
            protocol=Protocol.LOCALAI,
            wanted=Intent(kind=kind, backend="llama-cpp", family="llama-cpp"),
            created_at=self.asked_at,
        )
        self.permits.request = request
        policy = Policy(request_timeout=timedelta(seconds=timeout))
        task = DispatchTask(request=request, policy=policy, decision=1, accepted=accepted)
        return LocalaiWorker(self._link, Sender(self._link, self.permits, task), task, _nobody)

    async def outcome(self, kind: Kind, *, accepted: bool = False) -> Outcome:
        """Of an operation that ends."""
        result: DispatchResult = await self.asks(kind, accepted=accepted).until_outcome()
        assert isinstance(result, Ended)
        return result.outcome


async def _nobody(_: Phase) -> None:
    return


@asynccontextmanager
async def scene_on(nats_server: NatsForTests) -> AsyncIterator[Scene]:
    node_id = str(uuid.uuid4())
    control = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="test")
    credential = nats_server.issuer.node_credential(node_id, protocol=1, lifetime=timedelta(hours=1))
    node = node_bus(nats_server.url, node_id, lambda: credential, signs=False)
    node.start()
    await node.wait_up(10)
    hub = ReportHub(control)
    await hub.start()
    try:
        yield Scene(NodeClient(control, hub), Worker(node, node_id), node_id)
    finally:
        await node.close()
        await control.close()


@pytest.fixture
async def scene(nats_server: NatsForTests) -> AsyncIterator[Scene]:
    async with scene_on(nats_server) as scene:
        yield scene


async def test_a_silent_install_succeeds_by_its_reply_alone(scene: Scene) -> None:
    """S35, S40: a worker need not send progress; its reply decides."""
    await scene.worker.serves(subjects.install(scene.node_id), CommandReply(success=True, address="10.0.0.1:50051"))
    outcome = await scene.outcome(Kind.INSTALL)
    assert outcome.result is Result.SUCCEEDED


async def test_refused_install_fails_with_the_error_of_the_worker(scene: Scene) -> None:
    """S7: the success field of the reply counts, not only its arrival."""
    await scene.worker.serves(subjects.install(scene.node_id), CommandReply(error='backend "x" not found'))
    outcome = await scene.outcome(Kind.INSTALL)
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NODE_ERROR)
    assert "not found" in outcome.error


async def test_failed_install_with_backend_on_disk_reports_a_failed_start(scene: Scene) -> None:
    """An error although it is on the disk: installed, the process did not start."""
    await scene.worker.lists()
    reply = CommandReply(error="process died")
    await scene.worker.serves(subjects.install(scene.node_id), reply, installs=scene.installed())
    outcome = await scene.outcome(Kind.INSTALL)
    assert outcome.reason is Reason.DID_NOT_START
    assert "installed, process did not start" in outcome.error


async def test_no_reply_in_time_is_still_installing(scene: Scene) -> None:
    """S38."""
    heard = asyncio.Event()

    async def never(_: object) -> None:
        heard.set()

    await scene.worker._bus.subscribe(subjects.install(scene.node_id), never)
    result = await scene.asks(Kind.INSTALL, timeout=0.5).until_outcome()
    assert heard.is_set()
    assert result == Silent(accepted=True)


async def test_an_upgrade_that_was_sent_before_is_not_sent_again_when_it_is_done(scene: Scene) -> None:
    """S57."""
    await scene.worker.lists()
    scene.worker.backends = [scene.installed()]
    await scene.worker.serves(subjects.upgrade(scene.node_id), CommandReply(success=True))
    outcome = await scene.outcome(Kind.UPGRADE, accepted=True)
    assert outcome.result is Result.SUCCEEDED
    assert scene.worker.heard == []


async def test_an_upgrade_is_sent_again_when_the_list_shows_no_change(scene: Scene) -> None:
    await scene.worker.lists()
    scene.worker.backends = [scene.installed(LONG_AGO)]
    await scene.worker.serves(subjects.upgrade(scene.node_id), CommandReply(success=True))
    await scene.outcome(Kind.UPGRADE, accepted=True)
    assert len(scene.worker.heard) == 1


async def test_a_worker_without_the_upgrade_subject_gets_an_install_with_force(scene: Scene) -> None:
    """S37."""
    await scene.worker.lists()
    await scene.worker.serves(subjects.install(scene.node_id), CommandReply(success=True))
    await scene.outcome(Kind.UPGRADE)
    [(_, command)] = scene.worker.heard
    assert command.force


async def test_a_worker_that_is_away_is_away_for_upgrades_too(scene: Scene) -> None:
    assert await scene.asks(Kind.UPGRADE).until_outcome() == NodeUnreachable()
    assert scene.permits.sent == 0


async def test_worker_gets_nothing_for_an_operation_whose_row_has_ended(scene: Scene) -> None:
    await scene.worker.serves(subjects.install(scene.node_id), CommandReply(success=True))
    scene.permits.end = RowEnd(state=State.CANCELLED)
    assert await scene.asks(Kind.INSTALL).until_outcome() == RowEnded(end=scene.permits.end)
    assert scene.worker.heard == []


@pytest.mark.private_stack
async def test_nats_outage_sends_nothing_and_reports_no_start(private_nats: NatsFactory) -> None:
    """The operation waits for NATS, instead of 15 minutes for a worker that received nothing."""
    nats = await private_nats()
    async with scene_on(nats) as scene:
        await nats.kill()
        assert await asyncio.wait_for(scene.asks(Kind.INSTALL, timeout=900).until_outcome(), 60) == NatsUnreachable()
        assert scene.permits.sent == 0


async def test_removing_a_missing_backend_succeeds_without_a_change(scene: Scene) -> None:
    """G7: a refused delete is never recorded as done."""
    await scene.worker.serves(subjects.delete(scene.node_id), CommandReply(error='backend "x": backend not found'))
    outcome = await scene.outcome(Kind.REMOVE)
    assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, False)


async def test_a_refused_removal_is_a_failure(scene: Scene) -> None:
    """G7, S44."""
    await scene.worker.serves(subjects.delete(scene.node_id), CommandReply(error="process survived"))
    outcome = await scene.outcome(Kind.REMOVE)
    assert outcome.result is Result.FAILED
