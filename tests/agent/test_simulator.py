"""The simulator runs many nodes over the real protocol."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from nodesmith.agent.link.registration import CredentialRefused
from nodesmith.agent.simulator.simulated_agent import SimulationTotals
from nodesmith.agent.simulator.simulation import SimulationOptions, run_simulation
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import connect_control
from nodesmith.bus.heartbeats import HeartbeatSink
from nodesmith.bus.presence import Presence
from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    Command,
    CommandReply,
    Outcome,
    Progress,
    Result,
)
from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from nodesmith.domain.replica import ReplicaState
from tests.agent.nodes import LONG
from tests.agent.waiting import until
from tests.agent.web import Web
from tests.orders import OrderBook
from tests.servers import NatsForTests


@pytest.fixture
def options(control_plane: Web) -> SimulationOptions:
    return SimulationOptions(
        url=control_plane.url,
        registration_token=control_plane.registration_token,
        admin_token=control_plane.admin_token,
        nodes=3,
        install_seconds=0.2,
        size=1000,
    )


@asynccontextmanager
async def playing(options: SimulationOptions) -> AsyncIterator[asyncio.Task[SimulationTotals]]:
    stop = asyncio.Event()
    running = asyncio.create_task(run_simulation(options, stop))
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait_for(running, LONG)


async def all_linked(site: Web, control: NodeClient, nodes: int) -> list[str]:
    await until(lambda: sum(node.approved for node in site.nodes.values()) == nodes, within=60, pause=0.02)
    ids = [node.id for node in site.nodes.values()]
    for node_id in ids:
        await answering(control, node_id)
    return ids


async def answering(control: NodeClient, node_id: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await control.list_backends(node_id, within=1)
            except (NodeAway, NoAnswer):  # the node is renewing its credential
                await asyncio.sleep(0.02)
            else:
                return


def install(**fields: object) -> Command:
    op_id = str(uuid.uuid4())
    return Command(op_id=op_id, kind=Kind.INSTALL, backend="echo", family="echo", decision=1, **fields)


BOOK = OrderBook()


async def ordered(control: NodeClient, node_id: str, command: Command) -> CommandReply:
    return await control.order(node_id, command.kind, BOOK.signed(node_id, command), within=LONG)


async def outcome_on(control: NodeClient, node_id: str, command: Command) -> tuple[Outcome, list[Progress]]:
    ticks: list[Progress] = []
    async with control.attach(node_id, command.op_id) as reports:
        assert (await ordered(control, node_id, command)).answer is Answer.ACCEPTED
        while not isinstance(report := await reports.next(LONG), Outcome):
            assert report is not None
            ticks.append(report)
    return report, ticks


async def test_two_hundred_nodes_install_at_once(control_plane: Web, control: NodeClient, options, capsys):
    control_plane.approves = False
    async with playing(replace(options, nodes=200, install_seconds=0.5)) as running:
        ids = await all_linked(control_plane, control, 200)
        results = await asyncio.gather(*(outcome_on(control, node_id, install()) for node_id in ids))
        assert {outcome.result for outcome, _ in results} == {Result.SUCCEEDED}
        assert all(ticks for _, ticks in results)
    totals = running.result()
    assert (totals.linked, totals.begun, totals.ended) == (200, 200, {Result.SUCCEEDED: 200})
    assert "200 of 200 nodes linked, 200 operations begun: 200 succeeded" in capsys.readouterr().out


async def test_simulated_node_follows_the_rules_of_a_real_one(control_plane: Web, control: NodeClient, options):
    async with playing(replace(options, nodes=1, install_seconds=3600)):
        (node_id,) = await all_linked(control_plane, control, 1)
        command = install()
        assert (await ordered(control, node_id, command)).answer is Answer.ACCEPTED
        assert (await ordered(control, node_id, command)).answer is Answer.ATTACHED
        assert (await ordered(control, node_id, install())).answer is Answer.BUSY
        cancelled = await control.cancel(node_id, CancelCommand(op_id=command.op_id), within=LONG)
        assert cancelled.answer is CancelAnswer.STOPPED
        assert (await ordered(control, node_id, command)).answer is Answer.REFUSED


async def test_fail_rate_is_applied(control_plane: Web, control: NodeClient, options):
    async with playing(replace(options, nodes=1, fail_rate=1.0)):
        (node_id,) = await all_linked(control_plane, control, 1)
        outcome, _ = await outcome_on(control, node_id, install())
        assert (outcome.result, outcome.error) == (Result.FAILED, "simulated failure")


@pytest.mark.parametrize("size", [1000, 0])
async def test_an_install_is_as_large_as_was_said_whatever_the_gallery_says(
    control_plane: Web, control: NodeClient, options, size: int
):
    async with playing(replace(options, nodes=1, size=size)):
        (node_id,) = await all_linked(control_plane, control, 1)
        outcome, _ = await outcome_on(control, node_id, install(size=50))
        assert (outcome.result, outcome.bytes_fetched) == (Result.SUCCEEDED, size)


async def test_what_was_installed_is_listed_and_removed(control_plane: Web, control: NodeClient, options):
    async with playing(replace(options, nodes=1)):
        (node_id,) = await all_linked(control_plane, control, 1)
        await outcome_on(control, node_id, install(version="7", sha256="a" * 64))
        (listed,) = (await control.list_backends(node_id, within=LONG)).backends
        assert (listed.name, listed.version) == ("echo", "7")
        await outcome_on(control, node_id, install().model_copy(update={"kind": Kind.REMOVE}))
        assert (await control.list_backends(node_id, within=LONG)).backends == []


async def test_simulated_localai_workers_reply_at_the_end(control_plane: Web, control: NodeClient, options):
    async with playing(replace(options, nodes=2, protocol=1, heartbeat_interval=0.05)):
        node_id, _ = await all_linked(control_plane, control, 2)
        command = install()
        async with control.attach(node_id, command.op_id) as reports:
            first = asyncio.create_task(control.command(node_id, command, within=LONG))
            second = asyncio.create_task(control.command(node_id, command, within=LONG))
            report = await reports.next(LONG)
        assert isinstance(report, Progress)
        assert (report.seq, report.decision, report.backend) == (0, 0, "echo")
        assert [(await each).success for each in (first, second)] == [True, True]
        with pytest.raises(NodeAway):
            await control.cancel(node_id, CancelCommand(op_id=command.op_id), within=LONG)
        await until(lambda: node_id in control_plane.heartbeats, pause=0.01)
        registered = control_plane.registrations[0]
        assert (registered["address"], "protocol" in registered) == ("127.0.0.1:50051", False)


async def test_a_wrong_token_ends_the_simulation_with_its_reason(control_plane: Web, options):
    with pytest.raises(CredentialRefused):
        await run_simulation(replace(options, registration_token="wrong"), asyncio.Event())


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_removed_node_ends_and_the_others_go_on(
    control_plane: Web, control: NodeClient, options, capsys, protocol: int, is_told: bool
):
    """The node learns of its removal over NATS or when it renews its credential."""
    control_plane.lifetime = timedelta(hours=24) if is_told else timedelta(seconds=3)
    async with playing(replace(options, protocol=protocol)) as running:
        await all_linked(control_plane, control, 3)
        removed, other = control_plane.nodes["sim-1"], control_plane.nodes["sim-2"]
        control_plane.removed.add(removed.credential)
        if is_told:
            await Presence(control._bus).stop(removed.id, StopOrder(why=StopWhy.REMOVED))
        output: list[str] = []
        await until(lambda: "sim-1 was removed" in "".join(collected_output(capsys, output)), within=60, pause=0.02)
        assert not running.done()
        await answering(control, other.id)
    assert running.result().removed == 1


async def test_a_simulation_whose_nodes_are_all_removed_is_over(
    control_plane: Web, control: NodeClient, options, capsys
):
    async with playing(options) as running:
        await all_linked(control_plane, control, 3)
        for node in list(control_plane.nodes.values()):
            control_plane.removed.add(node.credential)
            await Presence(control._bus).stop(node.id, StopOrder(why=StopWhy.REMOVED))
        assert (await asyncio.wait_for(asyncio.shield(running), LONG)).removed == 3
    assert "sim-1 was removed" in capsys.readouterr().out


def collected_output(capsys: pytest.CaptureFixture[str], output: list[str]) -> list[str]:
    output.append(capsys.readouterr().out)
    return output


async def test_simulated_node_loads_reports_and_unloads_models(
    control_plane: Web, control: NodeClient, nats_server: NatsForTests, options
):
    """Loads of one backend run side by side; the next heartbeat names what is loaded."""
    async with (
        playing(replace(options, nodes=1, load_seconds=0.2, heartbeat_interval=0.2)),
        reports(nats_server) as seen,
    ):
        (node_id,) = await all_linked(control_plane, control, 1)
        missing, _ = await outcome_on(control, node_id, load(0))
        assert missing.reason is Reason.NOT_INSTALLED
        await outcome_on(control, node_id, install())
        loaded = await asyncio.gather(*(outcome_on(control, node_id, load(index)) for index in range(2)))
        addresses = {key: address for outcome, _ in loaded for key, address in outcome.addresses.items()}
        assert sorted(addresses) == ["llama#0", "llama#1"]
        assert len(set(addresses.values())) == 2
        numbers = [outcome.report for outcome, _ in loaded]
        await until(lambda: seen.get(node_id, (0, {}))[0] > max(numbers), within=LONG, pause=0.02)
        assert seen[node_id][1] == addresses
        unload = load(0).model_copy(update={"kind": Kind.UNLOAD, "load": None})
        outcome, _ = await outcome_on(control, node_id, unload)
        assert (outcome.changed, outcome.stopped_process_keys) == (True, ["llama#0"])
        removal, _ = await outcome_on(control, node_id, install().model_copy(update={"kind": Kind.REMOVE}))
        assert removal.stopped_process_keys == ["llama#1"]
        await until(lambda: seen[node_id][1] == {}, within=LONG, pause=0.02)


def load(index: int) -> Command:
    return Command(
        op_id=str(uuid.uuid4()),
        kind=Kind.LOAD,
        backend=f"llama#{index}",
        family="echo",
        model_id="llama",
        replica_index=index,
        decision=1,
        load=LoadOrder(model="llama", revision=1, backend="echo"),
    )


@asynccontextmanager
async def reports(nats: NatsForTests) -> AsyncIterator[dict[str, tuple[int, dict[str, str]]]]:
    """The newest verified report of each node: number, and loaded replicas with their addresses."""
    seen: dict[str, tuple[int, dict[str, str]]] = {}

    async def take(beats: list[Heartbeat]) -> None:
        for beat in beats:
            replicas = [each for each in beat.replicas or [] if each.state is ReplicaState.LOADED]
            seen[beat.node_id] = (beat.number, {f"{each.model}#{each.index}": each.address for each in replicas})

    bus, stop = await connect_control(nats.url, nats.issuer, keys=nats.issuer, name="sink"), asyncio.Event()
    listening = asyncio.create_task(HeartbeatSink(bus, take, every=0.05).run(stop))
    try:
        yield seen
    finally:
        stop.set()
        await listening
        await bus.close()
