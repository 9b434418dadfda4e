"""Start and stop of an agent: deregistration, a second process of the same node, and removal."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing
from structlog.typing import EventDict

from nodesmith.agent import node
from nodesmith.agent.link import registration
from nodesmith.agent.main import run
from nodesmith.agent.settings import AgentSettings
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.presence import Presence
from nodesmith.contracts.nats.presence import StopOrder, StopWhy
from nodesmith.domain.errors import NoAnswer, NodeAway
from tests.agent.nodes import LONG, Node
from tests.agent.waiting import until
from tests.agent.web import Web


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(registration, "APPROVAL_POLL_S", 0.05)


@pytest.fixture
def presence(control: NodeClient) -> Presence:
    return Presence(control._bus)


class Process:
    """An agent that can be stopped and started by the test."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._stop = asyncio.Event()
        self._running: asyncio.Task[int] | None = None

    def start(self) -> None:
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(run(AgentSettings(**self.node.environment()), self._stop))

    async def stop(self) -> None:
        """Stop as SIGTERM does."""
        assert self._running is not None
        assert not self._running.done()
        self._stop.set()
        assert await asyncio.wait_for(self._running, LONG) == 0


@pytest.fixture
async def process(control_plane: Web, control: NodeClient, tmp_path) -> AsyncIterator[Process]:
    process = Process(Node("agent-1", tmp_path / "agent-1", control_plane, control))
    process.start()
    await process.node.linked()
    yield process
    await process.stop()


def boot_of(site: Web) -> str:
    return str(site.registrations[-1]["boot_id"])


async def is_linked(node: Node) -> bool:
    """Repeat the query, because one that arrives while the node unsubscribes gets no reply."""
    while True:
        try:
            await node.control.list_backends(node.id, within=1)
        except NodeAway:
            return False
        except NoAnswer:
            continue
        return True


async def until_unlinked(node: Node) -> None:
    async with asyncio.timeout(LONG):
        while await is_linked(node):  # noqa: ASYNC110 - the agent is another end of the bus
            await asyncio.sleep(0.01)


async def test_stopping_node_deregisters_and_registers_on_return(process: Process, control_plane: Web):
    first = boot_of(control_plane)
    await process.stop()
    assert control_plane.left == [(process.node.id, first)]
    process.start()
    await until(lambda: boot_of(control_plane) != first, within=LONG, pause=0.01)
    await process.node.linked()


async def test_only_the_boot_that_is_asked_for_answers(process: Process, control_plane: Web, presence: Presence):
    assert await presence.is_alive(process.node.id, boot_of(control_plane))
    assert not await presence.is_alive(process.node.id, "another")


async def test_stop_order_for_another_boot_is_ignored(process: Process, presence: Presence):
    await presence.stop(process.node.id, StopOrder(why=StopWhy.REMOVED, boot_id="another"))
    await process.node.linked()
    assert not (process.node.home / "retired.json").exists()


@pytest.mark.parametrize("why", [StopWhy.ASKED, StopWhy.REMOVED, StopWhy.CREDENTIAL_RESET])
async def test_forged_order_to_stop_only_makes_the_node_ask_the_control_plane(
    process: Process, control_plane: Web, presence: Presence, why: StopWhy
):
    """Anyone who controls NATS can send it, so nothing is stopped or deleted without a 410 from the API."""
    asked = len(control_plane.registrations)
    await presence.stop(process.node.id, StopOrder(why=why))
    await until(lambda: len(control_plane.registrations) > asked, within=LONG, pause=0.01)
    assert await is_linked(process.node)
    assert not (process.node.home / "retired.json").exists()
    assert (process.node.home / "identity.json").exists()


async def test_flood_of_forged_orders_to_stop_costs_two_questions(
    process: Process, control_plane: Web, presence: Presence
):
    """One for the first, and one for all that came while it was asked."""
    asked = len(control_plane.registrations)
    for _ in range(200):
        await presence.stop(process.node.id, StopOrder())
    await until(lambda: len(control_plane.registrations) > asked, within=LONG, pause=0.01)
    await asyncio.sleep(1)
    assert len(control_plane.registrations) <= asked + 2
    assert await is_linked(process.node)


@pytest.mark.parametrize("why", [StopWhy.REMOVED, StopWhy.CREDENTIAL_RESET])
async def test_removed_node_stays_retired_after_restart_until_allowed(
    process: Process, control_plane: Web, presence: Presence, why: StopWhy
):
    """H8: it logs the removal, stops registering, keeps running idle, and returns only after a manual step."""
    control_plane.removed.add(control_plane.nodes["agent-1"].credential)
    control_plane.removed_why = why
    with structlog.testing.capture_logs() as log_lines:
        await presence.stop(process.node.id, StopOrder(why=why))
        await until_unlinked(process.node)
        retired = process.node.home / "retired.json"
        await until(retired.exists, within=LONG, pause=0.01)
        await until(lambda: any(line["event"] == "agent.retired" for line in log_lines), within=LONG, pause=0.01)
    (entry,) = [line for line in log_lines if line["event"] == "agent.retired"]
    assert str(retired) in entry["remedy"]
    assert json.loads(retired.read_text())["why"] == why
    assert not (process.node.home / "identity.json").exists()
    asked = len(control_plane.registrations)
    await process.stop()
    with structlog.testing.capture_logs() as log_lines:
        process.start()
        await until(lambda: any(line["event"] == "agent.retired" for line in log_lines), within=LONG, pause=0.01)
    assert len(control_plane.registrations) == asked
    await process.stop()
    retired.unlink()
    process.start()
    await process.node.linked()


async def test_node_removed_while_offline_retires_at_registration(process: Process, control_plane: Web):
    """H8: the API knows its credential as removed, so it does not fall back to the shared token."""
    await process.stop()
    control_plane.removed.add(control_plane.nodes["agent-1"].credential)
    process.start()
    await until((process.node.home / "retired.json").exists, within=LONG, pause=0.01)
    assert not await is_linked(process.node)


async def test_unknown_node_registers_again(process: Process, control_plane: Web, presence: Presence):
    before = len(control_plane.registrations)
    await presence.stop(process.node.id, StopOrder(why=StopWhy.NOT_KNOWN))
    await until(lambda: len(control_plane.registrations) > before, within=LONG, pause=0.01)
    await process.node.linked()


async def test_copy_waits_and_takes_over_when_the_first_process_ends(
    process: Process, control_plane: Web, presence: Presence
):
    """It never connects while it is refused, although its credential has not expired."""
    control_plane.in_use_by = "the-first"
    await presence.stop(process.node.id, StopOrder(why=StopWhy.IDENTITY_IN_USE, boot_id=boot_of(control_plane)))
    await until_unlinked(process.node)
    await process.stop()
    process.start()
    with structlog.testing.capture_logs() as log_lines:
        await until(lambda: sum("refused" in line["event"] for line in log_lines) > 0, within=LONG, pause=0.01)
    assert not await is_linked(process.node)
    control_plane.in_use_by = ""
    await process.node.linked()


def copy_of(process: Process, home: Path) -> Process:
    """Another machine cloned from this one."""
    shutil.copytree(process.node.home, home)
    return Process(replace(process.node, home=home))


def times_stepped_aside(log_lines: list[EventDict]) -> int:
    return sum(line["event"] in ("agent.other_process_active", "agent.stepped_aside") for line in log_lines)


async def test_copy_started_while_the_control_plane_is_down_does_not_act(
    process: Process, control_plane: Web, tmp_path
):
    """It receives heartbeats of the first process, then waits for the control plane's decision."""
    copy = copy_of(process, tmp_path / "copy")
    control_plane.is_away = True
    with structlog.testing.capture_logs() as log_lines:
        copy.start()
        await until(lambda: times_stepped_aside(log_lines) > 0, within=LONG, pause=0.01)
    await process.stop()
    assert not await is_linked(copy.node)
    control_plane.is_away = False
    await copy.node.linked()
    await copy.stop()
    process.start()


@pytest.mark.parametrize("moments", [(1.2, 2.2), (1.2, 1.2)], ids=["one after the other", "at the same moment"])
async def test_one_of_two_copies_acts_while_the_control_plane_is_down(
    process: Process, control_plane: Web, tmp_path, monkeypatch, moments
):
    monkeypatch.setattr(node, "LISTEN_HEARTBEATS", moments)
    await process.stop()
    copy = copy_of(process, tmp_path / "copy")
    control_plane.is_away = True
    with structlog.testing.capture_logs() as log_lines:
        process.start()
        copy.start()
        await until(lambda: times_stepped_aside(log_lines) > 0, within=LONG, pause=0.01)
        await process.node.linked()
    assert times_stepped_aside(log_lines) == 1
    await copy.stop()
