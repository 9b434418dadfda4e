"""A whole agent over time: heartbeats, credential renewal, a new node id."""

import asyncio
from datetime import timedelta

from nodesmith.agent.run.launcher import landlock_abi
from nodesmith.bus.signed_messages import unverified
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import CancelCommand, Outcome, Result
from nodesmith.contracts.nats.presence import Heartbeat
from tests.agent.archives import big, packed
from tests.agent.nodes import LONG, StartAgent
from tests.agent.waiting import until

ECHO = packed(run_sh=b"echo 1")


async def test_heartbeats_name_the_boot_and_the_open_operations(start_agent: StartAgent, nats_server, control):
    beats: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def hear(message):
        beats.put_nowait(Heartbeat.decode(unverified(message.data)))

    node = await start_agent(heartbeat_interval=0.02)
    await control._bus.subscribe(subjects.heartbeat(node.id), hear)
    first = await asyncio.wait_for(beats.get(), LONG)
    assert (first.node_id, first.open_ops) == (node.id, [])
    assert first.resources.total_ram
    assert first.boot_id == node.site.registrations[0]["boot_id"]
    command = node.command(big(1_000_000))
    node.served(command).stops_at = 500_000
    await node.send(command)
    async with asyncio.timeout(LONG):
        while (await beats.get()).open_ops != [command.op_id]:
            pass
    await node.control.cancel(node.id, CancelCommand(op_id=command.op_id), within=LONG)


async def test_registration_says_how_backends_are_confined(start_agent: StartAgent):
    node = await start_agent()
    reported = node.site.registrations[0]["confinement"]
    assert (reported["mode"], reported.get("landlock_abi", 0)) == ("on", landlock_abi())
    assert reported["user"]


async def test_long_unpack_delays_no_heartbeat_and_no_query(start_agent: StartAgent):
    """Blocking work runs in threads, so the event loop keeps answering."""
    node = await start_agent()
    command = node.command(big(30_000_000))
    async with node.control.attach(node.id, command.op_id) as reports:
        await node.send(command)
        asked = 0
        while not isinstance(await reports.next(0.001), Outcome):
            await node.control.ask(node.id, command.op_id, within=LONG)
            asked += 1
    assert asked > 5


async def test_a_credential_is_renewed_before_it_ends(start_agent: StartAgent, control_plane):
    control_plane.lifetime = timedelta(seconds=3)
    node = await start_agent()
    await until(lambda: len(control_plane.registrations) >= 2, within=LONG, pause=0.05)
    control_plane.lifetime = timedelta(hours=1)
    renewed = len(control_plane.registrations)
    await until(lambda: len(control_plane.registrations) > renewed, within=LONG, pause=0.05)
    await asyncio.sleep(3)  # the short-lived credentials have expired now
    await node.linked()
    assert {each["boot_id"] for each in control_plane.registrations} == {control_plane.registrations[0]["boot_id"]}
    assert (await node.outcome_of(node.command(ECHO))).result is Result.SUCCEEDED


async def test_agent_adopts_a_new_node_id_after_the_database_was_wiped(start_agent: StartAgent, control_plane):
    """A wiped database assigns a new id to the same name, and the agent adopts it."""
    control_plane.lifetime = timedelta(seconds=2)
    node = await start_agent()
    old = node.id
    control_plane.nodes.clear()
    await until(lambda: node.name in control_plane.nodes, within=LONG, pause=0.05)
    assert node.id != old
    await node.linked()
