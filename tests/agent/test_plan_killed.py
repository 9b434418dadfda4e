"""A real agent killed during a change: the repeated operation completes once, as requested."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodesmith.agent.disk.durable_files import target_of
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import connect_control
from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    Command,
    NodeOperationStatus,
    Outcome,
    Result,
    UpgradePolicy,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.backends import ECHO, echo, wait_running
from tests.agent.nodes import LONG, Node
from tests.agent.test_process import Process, process_of
from tests.agent.waiting import until
from tests.agent.web import Web
from tests.orders import shared_keyring
from tests.servers import NatsForTests

FAST: dict[str, Any] = {"stop_grace": 1, "health_timeout": 20}


@pytest.fixture
async def models(nats_server: NatsForTests) -> AsyncIterator[ModelsClient]:
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="models")
    yield ModelsClient(bus, shared_keyring().seal_request)
    await bus.close()


@pytest.fixture
async def agent(control_plane: Web, control: NodeClient, tmp_path: Path) -> AsyncIterator[Process]:
    node = Node("agent-1", tmp_path / "a", control_plane, control)
    async with process_of(node) as process:
        yield process
    for pid in _pids(node):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _pids(node: Node) -> list[int]:
    return [json.loads(path.read_bytes())["pid"] for path in (node.home / "running").glob("*.*")]


def blocked_until(version: str, marker: Path) -> bytes:
    """An echo that starts to listen only while a file exists."""
    script = f'#!/bin/sh\nwhile [ ! -e "{marker}" ]; do sleep 0.05; done\nexec "${{PYTHON:-python3}}" server.py "$@"\n'
    release = {"version": version, "healthy": True, "signs_answers": True}
    return built(
        regular("run.sh", script.encode()),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", json.dumps(release).encode()),
    )


def pointers(node: Node, family: str = "echo") -> tuple[str, str]:
    folder = node.home / "backends" / family
    return target_of(folder / "current") or "", target_of(folder / "previous") or ""


def versions(node: Node, family: str = "echo") -> set[str]:
    folder = node.home / "backends" / family
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()}


async def ended(node: Node, command: Command) -> Outcome:
    outcome = await node.outcome_of(command)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    return outcome


async def begin(agent: Process, command: Command) -> None:
    with contextlib.suppress(Exception):  # the agent may die before it answers
        await agent.node.send(command)


async def until_starting(node: Node, version: str) -> None:
    """Wait until a process of that version runs and is still pending."""

    def is_starting() -> bool:
        drafts = (node.home / "running").glob("*.pending")
        return any(json.loads(path.read_bytes())["version"] == version for path in drafts)

    await until(is_starting, within=LONG, pause=0.01)


async def standing(node: Node, command: Command) -> NodeOperationStatus:
    return (await node.control.ask(node.id, command.op_id, within=LONG)).standing


@pytest.mark.parametrize("policy", [UpgradePolicy.RESTART, UpgradePolicy.OVERLAP])
async def test_a_rollback_killed_while_the_old_version_starts_goes_back_once(
    agent: Process, models: ModelsClient, tmp_path: Path, policy: UpgradePolicy
):
    """The requested 2 -> 1 ends as 2 -> 1; if the restarted agent repeated it, it would be 1 -> 2."""
    node, marker = agent.node, tmp_path / "marker"
    marker.touch()
    await ended(node, node.command(blocked_until("1", marker), start=True))
    await ended(node, node.command(echo("2"), version="2", kind=Kind.UPGRADE))
    marker.unlink()
    rollback = node.command(b"", kind=Kind.ROLLBACK, policy=policy)
    await begin(agent, rollback)
    await until_starting(node, "1")
    await agent.killed()
    await agent.start(**FAST)
    assert await standing(node, rollback) is NodeOperationStatus.INTERRUPTED
    assert pointers(node) == ("2", "1")
    await wait_running(models, node, lambda them: [each.version for each in them.values()] == ["2"])
    marker.touch()
    outcome = await ended(node, rollback)
    assert outcome.before is not None
    assert outcome.after is not None
    assert (outcome.before.version, outcome.after.version, pointers(node)) == ("2", "1", ("1", "2"))
    await wait_running(models, node, lambda them: [each.version for each in them.values()] == ["1"])
    assert (await node.send(rollback)).answer is Answer.ENDED
    assert pointers(node) == ("1", "2")


@pytest.mark.parametrize("pointer", ["current", "previous"])
async def test_a_rollback_killed_as_a_pointer_moved_goes_back_once(agent: Process, pointer: str):
    node = agent.node
    await ended(node, node.command(echo("1")))
    await ended(node, node.command(echo("2"), version="2", kind=Kind.UPGRADE))
    await agent.killed()
    await agent.start(dies_after=f"rename:*/{pointer}", **FAST)
    rollback = node.command(b"", kind=Kind.ROLLBACK)
    await begin(agent, rollback)
    await agent.died()
    await agent.start(**FAST)
    assert (pointers(node), versions(node)) == (("2", "1"), {"1", "2"})
    outcome = await ended(node, rollback)
    assert outcome.after is not None
    assert (outcome.after.version, pointers(node), versions(node)) == ("1", ("1", "2"), {"1", "2"})


async def test_a_forced_install_killed_after_the_swap_keeps_the_previous_version(agent: Process):
    """Until the command is repeated, the old tree with its previous version serves; then it is applied once."""
    node = agent.node
    await ended(node, node.command(echo("1")))
    await ended(node, node.command(echo("2"), version="2", kind=Kind.UPGRADE))
    before = node.tree()
    await agent.killed()
    await agent.start(dies_after="rename:*/current", **FAST)
    forced = node.command(echo("2"), version="2", force=True)
    await begin(agent, forced)
    await agent.died()
    await agent.start(**FAST)
    assert pointers(node) == ("2", "1")
    assert before.items() <= node.tree().items()
    requests = len(node.site.requests(forced.uri))
    outcome = await ended(node, forced)
    again = pointers(node)
    assert (again[1], outcome.changed, len(node.site.requests(forced.uri))) == ("2", True, requests)
    assert again[0].startswith("2-")
    assert node.partial_bytes() == 0
    assert versions(node) == set(again)


async def test_an_upgrade_that_never_gets_healthy_killed_while_it_starts_never_succeeds(
    agent: Process, models: ModelsClient
):
    node = agent.node
    await ended(node, node.command(echo("1"), start=True))
    before = node.tree()
    upgrade = node.command(echo("3", healthy=False), version="3", kind=Kind.UPGRADE)
    await begin(agent, upgrade)
    await until_starting(node, "3")
    await agent.killed()
    await agent.start(**FAST | {"health_timeout": 2})
    assert pointers(node) == ("1", "")
    await wait_running(models, node, lambda them: [each.version for each in them.values()] == ["1"])
    outcome = await node.outcome_of(upgrade)
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.ROLLED_BACK)
    assert node.tree() == before
    await wait_running(models, node, lambda them: [each.version for each in them.values()] == ["1"])
    assert (await node.send(upgrade)).answer is Answer.ENDED


async def test_a_removal_killed_after_its_rename_says_what_it_removed(agent: Process, models: ModelsClient):
    node = agent.node
    await ended(node, node.command(echo("1"), start=True))
    await agent.killed()
    await agent.start(dies_after="rename:*/.removed-*", **FAST)
    removal = node.command(b"", kind=Kind.REMOVE)
    await begin(agent, removal)
    await agent.died()
    await agent.start(**FAST)
    assert await standing(node, removal) is NodeOperationStatus.INTERRUPTED
    await wait_running(models, node, lambda them: [each.version for each in them.values()] == ["1"])
    outcome = await ended(node, removal)
    assert outcome.before is not None
    assert (outcome.changed, outcome.before.version, node.tree()) == (True, "1", {})
    await wait_running(models, node, lambda them: not them)


async def test_a_cancelled_plan_is_undone_and_what_it_kept_is_dropped(agent: Process):
    node = agent.node
    await ended(node, node.command(echo("1")))
    before = node.tree()
    await agent.killed()
    await agent.start(dies_after="rename:*/current", **FAST)
    upgrade = node.command(echo("2"), version="2", kind=Kind.UPGRADE)
    await begin(agent, upgrade)
    await agent.died()
    await agent.start(**FAST)
    assert versions(node) == {"1", "2"}
    reply = await node.control.cancel(node.id, CancelCommand(op_id=upgrade.op_id), within=LONG)
    assert (reply.answer, node.tree()) == (CancelAnswer.STOPPED, before)
    assert (await node.send(upgrade)).answer is Answer.REFUSED
    await agent.killed()
    await agent.start(**FAST)
    assert ((await node.send(upgrade)).answer, node.tree()) == (Answer.REFUSED, before)
    assert await asyncio.to_thread(versions, node) == {"1"}
