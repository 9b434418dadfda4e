"""Loads over NATS: signed orders, one lock per replica, and reports in signed heartbeats."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nodesmith.contracts.nats.messages import Answer, Command, CommandReply, Result
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.domain.kinds import Kind
from tests.agent.model_server import file_order, install, load, unload
from tests.agent.nodes import LONG, Node, StartAgent
from tests.agent.test_simulator import reports
from tests.agent.waiting import until
from tests.servers import NatsForTests

FAST: dict[str, Any] = {"stop_grace": 1, "health_timeout": 20, "keep_backends": False, "heartbeat_interval": 30}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    return folder


async def an_agent(start_agent: StartAgent, sources: Path) -> Node:
    node = await start_agent(**FAST)
    assert (await node.outcome_of(install(sources))).result is Result.SUCCEEDED
    return node


async def test_a_change_is_reported_at_once(start_agent: StartAgent, nats_server: NatsForTests, sources: Path) -> None:
    """The heartbeat interval is 30 s; the reports come with the changes."""
    async with reports(nats_server) as seen:
        node = await an_agent(start_agent, sources)
        outcome = await node.outcome_of(load(sources))
        assert outcome.result is Result.SUCCEEDED, outcome.error
        await until(lambda: seen.get(node.id, (0, {}))[1] == outcome.addresses, within=LONG / 2, pause=0.02)
        assert seen[node.id][0] > outcome.report
        await node.outcome_of(unload())
        await until(lambda: seen[node.id][1] == {}, within=LONG / 2, pause=0.02)


async def test_orders_of_other_replicas_of_one_backend_may_arrive_in_any_order(
    start_agent: StartAgent, sources: Path
) -> None:
    """An order is only older than another one of the same replica."""
    node = await an_agent(start_agent, sources)
    early, late = load(sources, "early"), load(sources, "late", index=1)
    first = node.orders.signed(node.id, early)
    assert (await node.outcome_of(late)).result is Result.SUCCEEDED
    assert (await _send(node, early, first)).answer is Answer.ACCEPTED
    stale = node.orders.signed(node.id, load(sources, "stale", index=2))
    assert (await node.outcome_of(load(sources, "newer", index=2))).result is Result.SUCCEEDED
    refused = await _send(node, load(sources, "stale", index=2), stale)
    assert (refused.answer, "newer order for llama#2" in refused.error) == (Answer.REFUSED, True)
    await until(lambda: len(list((node.home / "running").glob("*.json"))) == 3, within=LONG, pause=0.02)


async def _send(node: Node, command: Command, signed: SignedCommand) -> CommandReply:
    return await node.control.order(node.id, command.kind, signed, within=LONG)


async def test_environment_and_arguments_are_covered_by_the_signature(start_agent: StartAgent, sources: Path) -> None:
    node = await an_agent(start_agent, sources)
    signed = node.orders.signed(node.id, load(sources, environment={"A": "b"}))
    forged = signed.order.model_copy(update={"payload": signed.order.payload.replace('"b"', '"c"')})
    assert forged != signed.order
    reply = await node.control.order(node.id, Kind.LOAD, SignedCommand(order=forged, decision=1), within=LONG)
    assert (reply.answer, "signature" in reply.error) == (Answer.REFUSED, True)


async def test_loads_and_installs_of_one_backend_do_not_cancel_each_other(
    start_agent: StartAgent, sources: Path
) -> None:
    """A workflow stops whatever makes its node answer "busy", so a node must not answer that here."""
    node = await an_agent(start_agent, sources)
    loading = load(sources, arguments=["--ready-after", "1"], files=[file_order(sources)])
    replies = await asyncio.gather(
        node.send(loading), node.send(install(sources, "2", op_id="two")), node.send(load(sources, "other", index=1))
    )
    assert [reply.answer for reply in replies] == [Answer.ACCEPTED] * 3
    await until(lambda: len(list((node.home / "running").glob("*.json"))) == 2, within=LONG, pause=0.02)
