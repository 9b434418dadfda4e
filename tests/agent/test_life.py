"""An agent comes and goes: it says goodbye, makes way for the one that is the node, and stays away when removed."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing
from structlog.typing import EventDict

from agent import node, registration
from agent.main import run
from agent.settings import AgentSettings
from bus.commands import NodeClient
from bus.presence import Presence
from contracts.messages import StopOrder, StopWhy
from domain.errors import NoAnswer, NodeAway
from tests.agent.nodes import LONG, Node
from tests.agent.waiting import until
from tests.agent.web import Web


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(registration, "ASK_AGAIN_S", 0.05)


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
        """As SIGTERM does it."""
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
    """A question that arrives while the node unsubscribes gets no answer at all: then it is asked again."""
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


async def test_a_node_that_stops_says_goodbye_and_registers_when_it_is_back(process: Process, control_plane: Web):
    first = boot_of(control_plane)
    await process.stop()
    assert control_plane.left == [(process.node.id, first)]
    process.start()
    await until(lambda: boot_of(control_plane) != first, within=LONG, pause=0.01)
    await process.node.linked()


async def test_only_the_boot_that_is_asked_for_answers(process: Process, control_plane: Web, presence: Presence):
    assert await presence.is_there(process.node.id, boot_of(control_plane))
    assert not await presence.is_there(process.node.id, "another")


async def test_an_order_for_another_process_is_not_obeyed(process: Process, presence: Presence):
    await presence.stop(process.node.id, StopOrder(why=StopWhy.REMOVED, boot_id="another"))
    await process.node.linked()
    assert not (process.node.home / "retired.json").exists()


@pytest.mark.parametrize("why", [StopWhy.REMOVED, StopWhy.CREDENTIAL_RESET])
async def test_a_removed_node_stays_away_also_after_a_restart_until_somebody_lets_it(
    process: Process, control_plane: Web, presence: Presence, why: StopWhy
):
    """H8: it says so, stops asking, keeps running so that nothing starts it in a loop, and needs a hand to return."""
    with structlog.testing.capture_logs() as said:
        await presence.stop(process.node.id, StopOrder(why=why))
        await until_unlinked(process.node)
        retired = process.node.home / "retired.json"
        await until(retired.exists, within=LONG, pause=0.01)
        await until(lambda: any(line["event"] == "agent.retired" for line in said), within=LONG, pause=0.01)
    (told,) = [line for line in said if line["event"] == "agent.retired"]
    assert str(retired) in told["remedy"]
    assert json.loads(retired.read_text())["why"] == why
    assert not (process.node.home / "identity.json").exists()
    asked = len(control_plane.registrations)
    await process.stop()
    with structlog.testing.capture_logs() as said:
        process.start()
        await until(lambda: any(line["event"] == "agent.retired" for line in said), within=LONG, pause=0.01)
    assert len(control_plane.registrations) == asked
    await process.stop()
    retired.unlink()
    process.start()
    await process.node.linked()


async def test_a_node_that_was_removed_while_it_was_away_learns_it_when_it_registers(
    process: Process, control_plane: Web
):
    """H8: its own credential is known as a removed one, so it does not fall back to the shared token."""
    await process.stop()
    control_plane.removed.add(control_plane.nodes["agent-1"].credential)
    process.start()
    await until((process.node.home / "retired.json").exists, within=LONG, pause=0.01)
    assert not await is_linked(process.node)


async def test_a_node_that_nobody_knows_any_more_registers_again(
    process: Process, control_plane: Web, presence: Presence
):
    before = len(control_plane.registrations)
    await presence.stop(process.node.id, StopOrder(why=StopWhy.NOT_KNOWN))
    await until(lambda: len(control_plane.registrations) > before, within=LONG, pause=0.01)
    await process.node.linked()


async def test_a_copy_makes_way_and_takes_over_when_the_first_is_gone(
    process: Process, control_plane: Web, presence: Presence
):
    """It never links while it is refused, although its credential still lives."""
    control_plane.in_use_by = "the-first"
    await presence.stop(process.node.id, StopOrder(why=StopWhy.IDENTITY_IN_USE, boot_id=boot_of(control_plane)))
    await until_unlinked(process.node)
    await process.stop()
    process.start()
    with structlog.testing.capture_logs() as said:
        await until(lambda: sum("refused" in line["event"] for line in said) > 0, within=LONG, pause=0.01)
    assert not await is_linked(process.node)
    control_plane.in_use_by = ""
    await process.node.linked()


def copy_of(process: Process, home: Path) -> Process:
    """Another machine from the image of this one."""
    shutil.copytree(process.node.home, home)
    return Process(replace(process.node, home=home))


def made_way(said: list[EventDict]) -> int:
    return sum(line["event"] in ("agent.another_is_there", "stop.ordered") for line in said)


async def test_a_copy_that_starts_while_the_control_plane_is_away_does_not_act(
    process: Process, control_plane: Web, tmp_path
):
    """It hears the first one beat, and then waits until the control plane decides."""
    copy = copy_of(process, tmp_path / "copy")
    control_plane.is_away = True
    with structlog.testing.capture_logs() as said:
        copy.start()
        await until(lambda: made_way(said) > 0, within=LONG, pause=0.01)
    await process.stop()
    assert not await is_linked(copy.node)
    control_plane.is_away = False
    await copy.node.linked()
    await copy.stop()
    process.start()


@pytest.mark.parametrize("moments", [(1.2, 2.2), (1.2, 1.2)], ids=["one after the other", "at the same moment"])
async def test_of_two_copies_that_start_together_while_the_control_plane_is_away_one_acts(
    process: Process, control_plane: Web, tmp_path, monkeypatch, moments
):
    monkeypatch.setattr(node, "LISTENS", moments)
    await process.stop()
    copy = copy_of(process, tmp_path / "copy")
    control_plane.is_away = True
    with structlog.testing.capture_logs() as said:
        process.start()
        copy.start()
        await until(lambda: made_way(said) > 0, within=LONG, pause=0.01)
        await process.node.linked()
    assert made_way(said) == 1
    await copy.stop()
