"""Running backends: start, restart, upgrade, rollback, stop, logs."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from structlog.testing import capture_logs

from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.confinement import Confinement
from nodesmith.agent.run.supervisor import ProcessKeeper, SupervisorRules
from nodesmith.agent.run.tcp_ports import Ports
from nodesmith.bus.commands import ask_node
from nodesmith.bus.connection import connect_control
from nodesmith.bus.presence import Presence
from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Command, Result, StopBackend, UpgradePolicy
from nodesmith.contracts.nats.running_models import LogsQuestion, ModelQuestion, ModelReply, ModelStopped
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.backends import ECHO, Caller, echo, polite, running, wait_running, with_a_child
from tests.agent.nodes import LONG, Node, StartAgent
from tests.agent.test_process import Process, process_of
from tests.agent.waiting import until
from tests.orders import shared_keyring
from tests.servers import NatsForTests

FAST: dict[str, Any] = {"stop_grace": 1, "health_timeout": 20, "keep_backends": False}


@pytest.fixture
async def models(nats_server: NatsForTests) -> AsyncIterator[ModelsClient]:
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="models")
    yield ModelsClient(bus, shared_keyring().seal_request)
    await bus.close()


def pids(node: Node) -> dict[str, int]:
    """Read the agent's process records."""
    folder = node.home / "running"
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json")] if folder.is_dir() else []
    return {each["key"]: each["pid"] for each in found}


@asynccontextmanager
async def called(models: ModelsClient, node: Node) -> AsyncIterator[Caller]:
    """Call the backend continuously in the background."""
    caller, stop = Caller(models, node), asyncio.Event()
    calling = asyncio.create_task(caller.call_until(stop))
    await until(lambda: len(caller.answers) > 3, within=LONG, pause=0.01)
    caller.failures, caller.longest_outage = 0, 0.0
    yield caller
    stop.set()
    await calling


async def install(node: Node, version: str = "1", **fields: Any) -> Any:
    content = echo(version, healthy=not version.endswith("broken"))
    return await node.outcome_of(node.command(content, version=version, **fields))


async def test_an_install_starts_nothing_unless_it_is_asked_to(start_agent: StartAgent, models: ModelsClient):
    """H42."""
    node = await start_agent(**FAST)
    quiet = await install(node)
    assert (quiet.addresses, await running(models, node)) == ({}, {})
    loud = await install(node, start=True)
    assert (loud.changed, list(loud.addresses)) == (True, ["echo#0"]), "it was installed, but did not run"
    (model,) = (await running(models, node)).values()
    assert (model.address, model.version) == (loud.addresses["echo#0"], "1")
    again = await install(node, start=True)
    assert (again.changed, again.addresses) == (False, loud.addresses)


async def test_a_backend_that_does_not_become_healthy_says_why(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST | {"health_timeout": 1})
    outcome = await install(node, "3-broken", start=True)
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.DID_NOT_START)
    assert "echo 3-broken listens on" in outcome.error
    assert (await running(models, node), pids(node)) == ({}, {})


async def test_a_backend_that_ends_is_started_again(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    await install(node, start=True)
    first = pids(node)["echo#0"]
    os.killpg(first, signal.SIGKILL)
    await wait_running(models, node, lambda them: them and pids(node).get("echo#0") not in (None, first))


async def test_an_upgrade_restarts_the_same_set_and_a_rollback_too(start_agent: StartAgent, models: ModelsClient):
    """H40."""
    node = await start_agent(**FAST)
    await install(node, start=True)
    await install(node, start=True, replica_index=1)
    outcome = await install(node, "2", kind=Kind.UPGRADE)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert set(outcome.addresses) == set(outcome.stopped_process_keys) == {"echo#0", "echo#1"}
    assert {model.version for model in (await running(models, node)).values()} == {"2"}
    back = await node.outcome_of(node.command(b"", kind=Kind.ROLLBACK))
    assert back.result is Result.SUCCEEDED, back.error
    assert {model.version for model in (await running(models, node)).values()} == {"1"}


async def test_an_overlapping_upgrade_is_not_noticed_by_callers(start_agent: StartAgent, models: ModelsClient):
    """H40; S36, superseded: callers do not notice it."""
    node = await start_agent(**FAST)
    await install(node, start=True)
    async with called(models, node) as caller:
        outcome = await install(node, "2", kind=Kind.UPGRADE, policy=UpgradePolicy.OVERLAP)
        assert outcome.result is Result.SUCCEEDED, outcome.error
        await until(lambda: caller.answers[-1] == "2", within=LONG, pause=0.01)
    assert caller.longest_outage < 10


def looking_at(process: int) -> bytes:
    """An echo that records whether another process was alive when it started."""
    script = f"""#!/bin/sh
if [ -d /proc/{process} ]; then echo "the old one is alive"; else echo "the old one is gone"; fi
exec "${{PYTHON:-python3}}" server.py "$@"
"""
    release = {"version": "2", "healthy": True, "signs_answers": True}
    return built(
        regular("run.sh", script.encode()),
        regular("server.py", (ECHO / "server.py").read_bytes()),
        regular("release.json", json.dumps(release).encode()),
    )


@pytest.mark.parametrize(
    ("policy", "line"),
    [(UpgradePolicy.OVERLAP, "the old one is alive"), (UpgradePolicy.RESTART, "the old one is gone")],
)
async def test_the_old_process_ends_after_the_new_one_is_ready_or_before_it_starts(
    start_agent: StartAgent, models: ModelsClient, policy: UpgradePolicy, line: str
):
    """H40: with `overlap` the new process finds the old one alive; with `restart` it does not."""
    node = await start_agent(**FAST)
    await install(node, start=True)
    old = pids(node)["echo#0"]
    upgrade = node.command(looking_at(old), version="2", kind=Kind.UPGRADE, policy=policy)
    outcome = await node.outcome_of(upgrade)
    assert (outcome.result, outcome.stopped_process_keys) == (Result.SUCCEEDED, ["echo#0"]), outcome.error
    logs = await models.logs(node.id, LogsQuestion(backend="echo#0@2"), within=LONG)
    assert line in logs.lines
    assert not _is_alive(old)


@pytest.mark.parametrize("policy", [UpgradePolicy.OVERLAP, UpgradePolicy.RESTART])
async def test_an_upgrade_lets_a_request_in_flight_finish(start_agent: StartAgent, policy: UpgradePolicy):
    """H40: a process answers requests that arrived before the upgrade, then ends."""
    node = await start_agent(**FAST | {"stop_grace": 20})
    before = await node.outcome_of(node.command(polite("1"), start=True))
    assert before.result is Result.SUCCEEDED, before.error
    async with httpx2.AsyncClient(timeout=LONG, trust_env=False) as http:
        asking = asyncio.create_task(http.get(f"http://{before.addresses['echo#0']}/slow"))
        await connected_to(before.addresses["echo#0"])
        upgrade = node.command(polite("2"), version="2", kind=Kind.UPGRADE, policy=policy)
        after = await node.outcome_of(upgrade)
        answer = await asking
    assert (after.result, answer.text, answer.headers["X-Echo-Version"]) == (Result.SUCCEEDED, "slow", "1")


async def connected_to(address: str) -> None:
    """Wait until this process has a connection to that address."""
    port = int(address.rpartition(":")[2])
    mine = psutil.Process()

    def there() -> bool:
        return any(each.raddr and each.raddr.port == port for each in mine.net_connections("tcp"))

    await until(there, within=LONG, pause=0.01)


@pytest.mark.parametrize("policy", [UpgradePolicy.OVERLAP, UpgradePolicy.RESTART])
async def test_an_upgrade_that_is_not_healthy_is_rolled_back_by_itself(
    start_agent: StartAgent, models: ModelsClient, policy: UpgradePolicy
):
    node = await start_agent(**FAST | {"health_timeout": 3})
    await install(node, start=True)
    before = node.tree()
    async with called(models, node) as caller:
        outcome = await install(node, "3-broken", kind=Kind.UPGRADE, policy=policy)
        seen = len(caller.answers)
        await until(lambda: len(caller.answers) > seen + 5, within=LONG, pause=0.01)
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.ROLLED_BACK)
    assert "echo#0@3-broken was not healthy in time" in outcome.error
    assert '"GET /healthz HTTP/1.1" 503' in outcome.error
    assert set(caller.answers) == {"1"}
    assert node.tree() == before
    if policy is UpgradePolicy.OVERLAP:
        assert caller.failures == 0
    (model,) = (await running(models, node)).values()
    assert model.version == "1"


async def test_a_removal_stops_the_whole_family_of_processes_first(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    outcome = await node.outcome_of(node.command(with_a_child(), start=True))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    logs = await models.logs(node.id, LogsQuestion(backend="echo"), within=LONG)
    child = next(int(match[1]) for line in logs.lines if (match := re.match(r"my child is (\d+)", line)))
    leader = pids(node)["echo#0"]
    removed = await node.outcome_of(node.command(b"", kind=Kind.REMOVE))
    assert (removed.result, removed.stopped_process_keys) == (Result.SUCCEEDED, ["echo#0"])
    await until(lambda: not _is_alive(leader) and not _is_alive(child), within=LONG, pause=0.01)
    assert (node.tree(), pids(node)) == ({}, {})


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_output_is_read_from_the_end_and_followed(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    outcome = await install(node, start=True)
    tail = await models.logs(node.id, LogsQuestion(backend="echo"), within=LONG)
    assert (tail.key, tail.lines[0]) == ("echo#0@1", f"echo 1 listens on {outcome.addresses['echo#0']}")
    following = asyncio.create_task(
        models.logs(node.id, LogsQuestion(backend=tail.key, cursor=tail.cursor, wait_s=20), within=LONG)
    )
    host, _, port = outcome.addresses["echo#0"].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /followed HTTP/1.0\r\n\r\n")
    await reader.read()
    writer.close()
    more = await following
    assert any("/followed" in line for line in more.lines)
    assert more.cursor > tail.cursor
    unknown = await models.logs(node.id, LogsQuestion(backend="none"), within=LONG)
    assert (unknown.keys, bool(unknown.error)) == (["echo#0@1"], True)


async def test_model_is_stopped_only_at_the_expected_address(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    outcome = await install(node, start=True, model_id="llama")
    address = outcome.addresses["llama#0"]
    wrong = await models.stop(node.id, ModelQuestion(process_key="llama#0", expected_address="10.0.0.1:1"), within=LONG)
    assert (wrong.matched, wrong.terminated, bool(wrong.error)) == (True, False, True)
    port = address.rsplit(":", 1)[1]
    right = await models.stop(
        node.id, ModelQuestion(process_key="llama#0", expected_address=f"node.example:{port}"), within=LONG
    )
    assert (right.matched, right.freed, right.terminated, right.address) == (True, True, True, address)
    absent = await models.stop(node.id, ModelQuestion(process_key="llama#0"), within=LONG)
    assert (absent.matched, absent.terminated) == (False, True)
    assert (await models.unload(node.id, ModelQuestion(model_name="llama"), within=LONG)).success
    assert await running(models, node) == {}


async def test_the_files_of_a_model_are_deleted_and_nothing_outside(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    folder = node.home / "models"
    (folder / "tree").mkdir(parents=True)
    for name in ("tree/weights", "file", "file.yaml", "kept"):
        (folder / name).write_text("x")
    for name, is_fine in (("tree", True), ("file", True), ("none", True), ("../identity.json", False), ("", False)):
        reply = await models.delete(node.id, ModelQuestion(model_name=name), within=LONG)
        assert reply.success is is_fine
    assert {path.name for path in folder.iterdir()} == {"kept"}
    assert (node.home / "identity.json").exists()


@pytest.mark.parametrize("name", ["echo", "llama", "llama#0", ""], ids=["backend", "model", "key", "everything"])
async def test_stop_accepts_a_backend_a_model_a_key_or_nothing_for_all(
    start_agent: StartAgent, models: ModelsClient, name: str
):
    node = await start_agent(**FAST)
    await install(node, start=True, model_id="llama")
    unsigned = Command(backend=name).encode() if name else b"null"
    with capture_logs() as logged:
        await models._bus.publish(subjects.stop_backend(node.id), unsigned)
        await until(lambda: "stop.refused" in {line["event"] for line in logged}, within=10, pause=0.01)
    presence = Presence(models._bus, shared_keyring().seal_request)
    assert len(await running(models, node)) == 1, "what is not signed stops nothing"
    assert await presence.stop_backend(node.id, StopBackend(backend=name))
    await wait_running(models, node, lambda them: not them)
    await until(lambda: pids(node) == {}, within=LONG, pause=0.01)


async def test_unload_stop_and_delete_that_are_not_signed_change_nothing(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    await install(node, start=True, model_id="llama")
    weights = node.home / "models" / "llama"
    weights.parent.mkdir(exist_ok=True)
    weights.write_text("x")
    unsigned = ModelQuestion(model_name="llama", process_key="llama#0")
    for subject in (subjects.unload_model(node.id), subjects.delete_model(node.id)):
        assert "not signed" in (await ask_node(models._bus, subject, unsigned, ModelReply, LONG)).error
    stopped = await ask_node(models._bus, subjects.stop_model(node.id), unsigned, ModelStopped, LONG)
    assert "not signed" in stopped.error
    assert weights.exists()
    assert len(await running(models, node)) == 1


# backends of a killed agent -----------------------------------------------------------------------------------


@pytest.fixture
async def outlived(control_plane, control, tmp_path) -> AsyncIterator[Process]:
    node = Node("agent-1", tmp_path / "a", control_plane, control)
    async with process_of(node) as process:
        yield process
    for pid in pids(node).values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


async def test_backends_survive_a_killed_agent_and_are_adopted(outlived: Process, models: ModelsClient):
    """kill -9 under load: no call fails, and the restarted agent adopts the same process."""
    node = outlived.node
    outcome = await install(node, start=True)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    pid = pids(node)["echo#0"]
    async with called(models, node) as caller:
        await outlived.killed()
        seen = len(caller.answers)
        await until(lambda: len(caller.answers) > seen + 20, within=LONG, pause=0.01)
        await outlived.start(stop_grace=1)
        assert set(await running(models, node)) == {"echo#0"}
    assert (caller.failures, pids(node)["echo#0"]) == (0, pid)
    outcome = await install(node, "2", kind=Kind.UPGRADE)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert not _is_alive(pid)


async def test_a_process_whose_folder_was_replaced_is_never_used_again(outlived: Process, models: ModelsClient):
    node = outlived.node
    outcome = await install(node, start=True)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    pid = pids(node)["echo#0"]
    await outlived.killed()
    folder = node.live().resolve()
    folder.rename(folder.with_name("aside"))
    folder.mkdir()
    for path in folder.with_name("aside").iterdir():
        path.rename(folder / path.name)
    await outlived.start(stop_grace=1)
    await wait_running(models, node, lambda them: them and pids(node).get("echo#0") not in (None, pid))
    assert not _is_alive(pid)


async def test_the_backends_of_a_removed_node_are_stopped(outlived: Process, models: ModelsClient):
    node = outlived.node
    outcome = await install(node, start=True)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    pid = pids(node)["echo#0"]
    node.site.removed.add(node.site.nodes[node.name].credential)
    await models._bus.publish(subjects.stop_node(node.id), b"null")
    await until(lambda: not _is_alive(pid), within=LONG, pause=0.05)


class Slow(Ports):
    """Another program takes the first port right after it was found free."""

    stranger: HTTPServer | None = None

    def acquire(self, key: str) -> int:
        port = super().acquire(key)
        if self.stranger is None:
            self.stranger = HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
            threading.Thread(target=self.stranger.serve_forever, daemon=True).start()
        return port


async def test_backend_gets_another_port_if_its_first_is_taken(tmp_path: Path):
    """A foreign server on the port is not mistaken for the backend, which gets another port."""
    for path in ECHO.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "release.json").write_text('{"version": "1", "healthy": true, "signs_answers": true}')
    ports = Slow("127.0.0.1", 23000, 23050)
    rules = SupervisorRules(
        home=tmp_path, host="127.0.0.1", health_timeout=20, log_limit=1_000_000, confinement=Confinement(tmp_path)
    )
    keeper = ProcessKeeper(ProcessRecord(key="echo#0", family="echo", folder=tmp_path), rules, ports)
    await keeper.start()
    assert ports.stranger is not None
    assert keeper.record.port != ports.stranger.server_port
    assert keeper.is_alive
    await keeper.stop(1.0)
    ports.stranger.shutdown()
    ports.stranger.server_close()
