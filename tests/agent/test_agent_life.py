"""The life of a whole agent: its heartbeats, its credential, its end."""

import asyncio
from datetime import timedelta

from agent.main import run
from agent.settings import AgentSettings
from contracts import subjects
from contracts.messages import (
    CancelCommand,
    Heartbeat,
    Outcome,
    Result,
)
from tests.agent.archives import big, packed
from tests.agent.nodes import LONG, Node, StartAgent
from tests.agent.waiting import until

ECHO = packed(run_sh=b"echo 1")


async def test_heartbeats_name_the_boot_and_the_open_operations(start_agent: StartAgent, nats_server, control):
    beats: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def hear(message):
        beats.put_nowait(Heartbeat.decode(message.data))

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


async def test_a_long_unpack_holds_up_no_heartbeat_and_no_question(start_agent: StartAgent):
    """Blocking work is in threads: the loop answers all the while."""
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
    await asyncio.sleep(3)  # the short-lived ones are over now
    await node.linked()
    assert {each["boot_id"] for each in control_plane.registrations} == {control_plane.registrations[0]["boot_id"]}
    assert (await node.outcome_of(node.command(ECHO))).result is Result.SUCCEEDED


async def test_a_control_plane_that_lost_its_memory_gets_a_new_link(start_agent: StartAgent, control_plane):
    """A wiped database gives the same name another id: the agent follows."""
    control_plane.lifetime = timedelta(seconds=2)
    node = await start_agent()
    old = node.id
    control_plane.nodes.clear()
    await until(lambda: node.name in control_plane.nodes, within=LONG, pause=0.05)
    assert node.id != old
    await node.linked()


async def test_the_control_plane_may_stop_the_agent(control_plane, control, tmp_path):
    node = Node("agent-1", tmp_path / "agent-1", control_plane, control)
    running = asyncio.create_task(run(AgentSettings(**node.environment()), asyncio.Event()))
    await node.linked()
    await control._bus.publish(subjects.stop_node(node.id), b"null")
    assert await asyncio.wait_for(running, LONG) == 0
