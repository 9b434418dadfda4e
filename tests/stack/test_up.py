"""`up`: the whole system with one command, its clean-up, its restarts, and its refusals."""

import asyncio
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal.operations import CONTROL_QUEUE, SEARCH_ATTRIBUTES
from nodesmith.runtime.temporal import connect
from nodesmith.stack.lock import holder
from nodesmith.stack.processes.own import WORKER_QUEUE
from nodesmith.stack.secrets import ORDER_KEYS
from nodesmith.stack.servers import namespace, temporal
from tests import servers
from tests.conftest import NatsFactory
from tests.servers import PostgresForTests
from tests.stack.commands import NODESMITH, Machine
from tests.stack.endings import assert_ends
from tests.stack.waiting import until

pytestmark = pytest.mark.private_stack

SERVERS = {"postgres", "nats", "temporal"}
CONTROL = {"api", "worker", "gateway"}
NOBODY = 65534


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A home without a running system; a system that runs at the end of the test is stopped."""
    machine = Machine(tmp_path / "home")
    yield machine
    machine.down()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A stack for tests that only read."""
    machine = Machine(tmp_path_factory.mktemp("shared") / "home")
    machine.up(agents=2)
    yield machine
    machine.down()


def test_everything_runs_and_the_local_agents_are_approved(shared: Machine):
    found = shared.status()
    assert {process["name"] for process in found["processes"]} == SERVERS | CONTROL | {"agent-1", "agent-2"}
    assert {process["condition"] for process in found["processes"]} == {"running"}
    assert found["fleet"] == {"healthy": 2, "nodes": 2, "open_operations": 0}


def test_only_their_owner_reads_the_secrets(shared: Machine):
    files = secret_files(shared)
    folders = {path.parent for path in files}
    assert {folder.name for folder in folders} == {"secrets", ORDER_KEYS}
    assert len([path for path in files if path.parent.name == "secrets"]) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in {shared.folder, *folders}} == {0o700}


def secret_files(machine: Machine) -> list[Path]:
    return [path for path in machine.home.secrets.rglob("*") if path.is_file()]


def test_no_secret_is_on_a_command_line(shared: Machine):
    lines = " ".join(" ".join(psutil.Process(pid).cmdline()) for pid in shared.pids().values())
    assert not [path.name for path in secret_files(shared) if path.read_text().strip() in lines]


def test_everything_listens_on_loopback_and_on_the_ports_that_were_asked_for(shared: Machine):
    ports = range(shared.base, shared.base + 10)
    connections = psutil.net_connections(
        "tcp"
    )  # machine-wide, because Temporal's forwarded ports belong to another process
    listening = [tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN]
    ours = [(ip, port) for ip, port in listening if port in ports]
    assert {ip for ip, _ in ours} == {"127.0.0.1"}
    assert {shared.base + offset for offset in range(6)} <= {port for _, port in ours}


@pytest.mark.skipif(not namespace.is_permitted(), reason="network namespaces are not permitted here")
async def test_embedded_temporal_requires_a_certificate_of_the_home(shared: Machine):
    with pytest.raises(RuntimeError):
        await Client.connect(f"127.0.0.1:{shared.base + 1}")
    client = await connect(shared.temporal_settings())
    assert (await client.count_workflows()).count >= 1


def test_temporal_web_ui_requires_sign_in(shared: Machine):
    url = f"{shared.status()['temporal_ui_url']}/api/v1/namespaces"
    token = (shared.home.secrets / "admin-token").read_text().strip()
    with httpx2.Client(trust_env=False) as client:
        assert client.get(url).status_code == 401
        assert "namespaces" in client.get(url, headers={"Authorization": f"Bearer {token}"}).json()


def test_the_parent_has_loaded_no_driver(shared: Machine):
    loaded = Path(f"/proc/{shared.status()['pid']}/maps").read_text()
    assert not re.findall(r"temporal_sdk_bridge|sqlalchemy|psycopg|pydantic_core.*fastapi", loaded)
    heavy = "('temporalio', 'sqlalchemy', 'fastapi')"
    ours = "nodesmith.cli.main, nodesmith.cli.commands.up"
    check = f"import sys, {ours}; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_new_database_knows_every_search_attribute():
    assert set(temporal.SEARCH_ATTRIBUTES) == {key.name for key in SEARCH_ATTRIBUTES}


def test_worker_readiness_checks_the_queue_that_it_polls():
    assert WORKER_QUEUE == CONTROL_QUEUE


def test_second_up_is_refused_and_names_the_first(shared: Machine):
    first = shared.status()["pid"]
    second = shared.run("up", "--port-base", str(shared.base))
    assert second.returncode == 1
    assert f"pid {first}" in second.stderr
    assert shared.status()["pid"] == first


def test_up_works_again_after_down_left_no_process_and_no_lock(machine: Machine):
    first = machine.up(agents=2)
    pids = [first["pid"], *(child.pid for child in psutil.Process(first["pid"]).children(recursive=True))]
    machine.down()
    assert_ends(*pids, within=0)
    assert not machine.home.lock_file.exists()
    second = machine.up(agents=2)
    assert second["agents"] == first["agents"]
    assert second["ports"] == first["ports"]


def test_up_works_again_after_its_parent_was_killed(machine: Machine):
    first = machine.up()
    assert set(machine.pids()) == SERVERS | CONTROL | {"agent-1"}
    family = [child.pid for child in psutil.Process(first["pid"]).children(recursive=True)]
    os.kill(first["pid"], signal.SIGKILL)
    assert_ends(*family)
    assert machine.up()["agents"] == first["agents"]


@pytest.mark.parametrize(
    ("number", "reported"), [(signal.SIGTERM, "was stopped before"), (signal.SIGKILL, "was killed by SIGKILL")]
)
def test_terminated_detached_start_is_reported(machine: Machine, number: signal.Signals, reported: str):
    command = [NODESMITH, "up", "--detach", "--home", str(machine.folder), "--port-base", str(machine.base)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=machine.full_environment()) as up:
        until(lambda: "postgres" in machine.pids())
        os.kill(holder(machine.home.lock_file) or 0, number)
        assert up.stderr is not None
        assert reported in up.stderr.read()
        assert up.wait(60) == 1


def test_a_child_that_dies_is_restarted(machine: Machine):
    machine.up()
    before = machine.pids()
    os.kill(before["nats"], signal.SIGKILL)
    assert_ends(before["nats"])
    until(lambda: machine.pids().get("nats", before["nats"]) != before["nats"])
    restarts = {process["name"]: process["restarts"] for process in machine.status()["processes"]}
    assert restarts.pop("nats") == 1
    assert set(restarts.values()) == {0}


def test_ctrl_c_stops_everything_and_exits_with_0(machine: Machine):
    command = [NODESMITH, "up", "--home", str(machine.folder), "--port-base", str(machine.base), "--agents", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=machine.full_environment()) as up:
        assert up.stdout is not None
        summary = []
        for line in up.stdout:
            summary.append(line)
            if line.startswith("Try"):
                break
        pids = machine.pids()
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    assert_ends(*pids.values(), within=0)
    text = "".join(summary)
    for expected in (f"http://127.0.0.1:{machine.base}/docs", f"http://127.0.0.1:{machine.base + 2}", "agent-1"):
        assert expected in text
    assert f"backends install echo --on agent-1 --watch --home {machine.folder}" in text


def test_on_a_terminal_a_board_shows_the_processes_and_no_log_lines(machine: Machine):
    parent_end, child_end = pty.openpty()
    command = [NODESMITH, "up", "--home", str(machine.folder), "--port-base", str(machine.base), "--agents", "1"]
    environment = {**machine.full_environment(), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=child_end, stdout=child_end, stderr=child_end, env=environment) as up:
        os.close(child_end)
        shown = _read_until(parent_end, "1 of 1 nodes healthy, 0 open operations")
        up.send_signal(signal.SIGINT)
        rest = _read_until(parent_end, None)
        assert up.wait(60) == 0
    os.close(parent_end)
    assert "PROCESS" in shown
    assert "{" not in shown + rest, "our logs are JSON"


def test_a_taken_port_of_a_base_is_named_before_anything_is_started(machine: Machine):
    with socket.create_server(("127.0.0.1", machine.base + 3)):
        refused = machine.run("up", "--detach", "--port-base", str(machine.base))
    assert refused.returncode == 1
    assert f"Port {machine.base + 3} is taken" in refused.stderr
    assert machine.pids() == {}
    assert not machine.home.postgres.exists()


def test_an_external_nats_without_its_account_is_refused(machine: Machine):
    machine.environment = {"NODESMITH_NATS_URL": "nats://127.0.0.1:1"}
    refused = machine.run("up", "--json")
    assert refused.returncode == 1
    assert "NODESMITH_NATS_ACCOUNT_SEED_FILE" in refused.stderr


async def test_external_servers_are_used_and_none_is_started(
    machine: Machine, postgres_server: PostgresForTests, private_nats: NatsFactory, tmp_path: Path
):
    nats = await private_nats()
    seed = tmp_path / "account-seed"
    seed.write_text(nats.trust.account_seed)
    async with servers.temporal(tmp_path) as temporal:
        machine.environment = {
            "NODESMITH_DATABASE_URL": await postgres_server.create_database(),
            "NODESMITH_NATS_URL": nats.url,
            "NODESMITH_NATS_ACCOUNT_SEED_FILE": str(seed),
            "NODESMITH_TEMPORAL_ADDRESS": temporal.server.address,
        }
        ready = await asyncio.to_thread(machine.up)
        assert set(machine.pids()) == CONTROL | {"agent-1"}
        assert [agent["status"] for agent in ready["agents"]] == ["healthy"]
        await asyncio.to_thread(machine.down)


def test_status_and_down_where_nothing_runs_say_so(machine: Machine):
    assert machine.run("status").returncode == 1
    assert machine.status()["running"] is False
    assert "Nothing runs" in machine.run("down").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; everybody else is a normal user")
def test_unprivileged_user_runs_every_process_as_itself(nobodys_folder: Path):
    machine = Machine(nobodys_folder / "home", prefix=(sys.executable, "-m", "tests.stack.as_nobody"))
    ready = machine.up()
    try:
        users = {psutil.Process(pid).uids().effective for pid in (ready["pid"], *machine.pids().values())}
        assert users == {NOBODY}
        assert [agent["status"] for agent in ready["agents"]] == ["healthy"]
        connection = machine.home.connection()
        assert connection is not None
        assert (connection.temporal_certificates is not None) is namespace.is_permitted()
    finally:
        machine.down()


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # every user can enter all its parents
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def _read_until(terminal: int, wanted: str | None) -> str:
    """Read the output until it contains `wanted` or the other end is closed."""
    shown = b""
    while wanted is None or wanted.encode() not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end was closed
            break
    return shown.decode(errors="replace")
