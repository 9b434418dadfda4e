"""Loads and unloads of models on a node: files, arguments, environment, readiness, restarts and version changes."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from structlog.testing import capture_logs

from nodesmith.agent.operations.change_plan import Step
from nodesmith.agent.run import launcher
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    Command,
    NodeOperationStatus,
    Result,
    UpgradePolicy,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.replica import ReplicaState
from tests.agent.model_server import file_order, info, install, load, unload
from tests.agent.plan_faults import AgentRun, Boundary, Fault
from tests.agent.waiting import until
from tests.processes import working_below

LONG = 60.0


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(verify=False) as http:  # sources are files, and backends listen on loopback
        yield http


@pytest.fixture
async def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    return folder


@pytest.fixture
async def node(tmp_path: Path, http: httpx2.AsyncClient, sources: Path) -> AsyncIterator[AgentRun]:
    """An agent with the backend `server`."""
    life = await AgentRun(tmp_path / "home", http).begin()
    assert (await life.outcome_of(install(sources))).result is Result.SUCCEEDED
    yield life
    await life.assembly.stop_backends()
    await life.close()
    assert working_below(tmp_path) == []


async def loaded(node: AgentRun, command: Command) -> str:
    """Load it and return its address."""
    outcome = await node.outcome_of(command)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    return outcome.addresses[command.backend]


async def again(node: AgentRun, http: httpx2.AsyncClient) -> AgentRun:
    """The same node after a restart of its agent."""
    await node.close()
    return await AgentRun(node.home, http).begin()


def blobs(node: AgentRun) -> set[str]:
    return {path.name for path in (node.home / "model-files" / "blobs").glob("*")}


async def test_load_starts_the_backend_with_file_arguments_and_environment(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    second = file_order(sources, b"projector", "parts/mmproj.gguf")
    command = load(
        sources,
        files=[file_order(sources), second],
        arguments=["--model", "{file}", "--gate", "{file:parts/mmproj.gguf}"],
        environment={"API_TOKEN": "s3cret"},
    )
    address = await loaded(node, command)
    said = await info(http, address)
    assert (said["content"], said["environment"]["API_TOKEN"]) == ("weights", "s3cret")
    assert await asyncio.to_thread(Path(said["arguments"][-1]).read_text) == "projector"
    assert Path(said["arguments"][3]).name == "model.gguf"
    assert Path(said["arguments"][3]).parent == Path(said["arguments"][-1]).parents[1]
    number, replicas = node.assembly.replicas.next()
    (report,) = replicas
    assert (report.model, report.index, report.revision, report.address) == ("llama", 0, 1, address)
    assert (report.state, report.op_id) == (ReplicaState.LOADED, "load")
    assert number > (await node.outcome_of(command)).report > 0


async def test_secrets_appear_neither_in_command_lines_nor_in_logs(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    """The values of the environment may be secrets; other users of the machine read command lines."""
    command = load(sources, environment={"API_TOKEN": "s3cret"})
    with capture_logs() as logs:
        said = await info(http, await loaded(node, command))
    assert "s3cret" not in repr(psutil.Process(said["pid"]).cmdline())
    assert "s3cret" not in repr(logs) + repr(command) + repr(node.reporter.ticks) + repr(node.reporter.outcomes)
    for path in (node.home / "journal" / "load.json", node.home / "running" / "llama%230.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert "s3cret" not in (node.home / "journal" / "load.json").read_text()


async def test_variables_of_a_deployment_do_not_affect_the_launcher(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path, tmp_path: Path
) -> None:
    """LD_PRELOAD and the like would run code of the deployment as the agent's user, before it is confined."""
    command = load(sources, environment={"LD_AUDIT": "/nowhere.so", "PYTHONSTARTUP": "x"})
    probe = node.assembly._confinement.launch(
        node.home / "backends" / "server" / "1", "127.0.0.1:1", [], command.load.environment if command.load else {}
    )
    assert not {"LD_AUDIT", "PYTHONSTARTUP"} & probe.environment.keys()
    assert (await info(http, await loaded(node, command)))["environment"]["PYTHONSTARTUP"] == "x"


async def test_two_models_share_a_backend_and_a_file(node: AgentRun, http: httpx2.AsyncClient, sources: Path) -> None:
    """Two loads of one backend run at the same time, and fetch their common file once."""
    gate = node.home / "model-files" / "gate"
    waiting = load(sources, "one", arguments=["--model", "{file}", "--gate", str(gate)])
    assert (await node.send(waiting)).answer is Answer.ACCEPTED
    second = await loaded(node, load(sources, "two", model="mistral", files=[file_order(sources, name="other.gguf")]))
    assert (await node.ask(waiting)).standing is NodeOperationStatus.RUNNING
    assert (await info(http, second))["content"] == "weights"
    gate.touch()
    await until(lambda: len(node.reporter.outcomes) == 3, within=LONG, pause=0.01)
    assert len(blobs(node)) == 1
    assert sum(outcome.bytes_fetched for outcome in node.reporter.outcomes[1:]) == len(b"weights")
    names = {path.name: path.stat().st_ino for path in (node.home / "model-files" / "sets").glob("*/*")}
    assert set(names) == {"model.gguf", "other.gguf"}
    assert len(set(names.values())) == 1


async def test_a_replica_has_one_operation_at_a_time(node: AgentRun, sources: Path) -> None:
    first = load(sources, "one", arguments=["--gate", "/nowhere"], files=[])
    assert (await node.send(first)).answer is Answer.ACCEPTED
    reply = await node.send(unload("two"))
    assert (reply.answer, reply.busy_op_id) == (Answer.BUSY, "one")
    assert (await node.cancel(first)).answer is CancelAnswer.STOPPED


async def test_a_404_is_not_ready(node: AgentRun, sources: Path) -> None:
    outcome = await node.outcome_of(load(sources, ready_path="/missing", ready_seconds=1))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.DID_NOT_START)
    for word in ("/missing", "within 1 s", "7 bytes", "ready_seconds", "a line of output"):
        assert word in outcome.error
    assert node.assembly.replicas.next()[1] == []
    await until(lambda: working_below(node.home) == [], pause=0.01)


async def test_a_model_that_ends_while_it_loads_fails_with_its_output(node: AgentRun, sources: Path) -> None:
    outcome = await node.outcome_of(load(sources, arguments=["--fail"]))
    assert (outcome.reason, "the model cannot be loaded" in outcome.error) == (Reason.DID_NOT_START, True)


async def test_progress_tells_files_start_and_readiness(node: AgentRun, sources: Path) -> None:
    node.operations._progress_every = 0.0
    await loaded(node, load(sources, arguments=["--model", "{file}", "--ready-after", "0.5"]))
    phases = list(dict.fromkeys(tick.phase for tick in node.reporter.ticks if tick.op_id == "load"))
    assert phases[-1] is Phase.LOADING
    assert set(phases) <= {Phase.RESOLVING, Phase.DOWNLOADING, Phase.VERIFYING, Phase.STARTING, Phase.LOADING}
    assert node.reporter.ticks[-1].bytes_total == len(b"weights")


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"sha256": "0" * 64}, Reason.BAD_DIGEST, "does not match"),
        ({"sha256": "../../escape"}, Reason.REFUSED_BY_NODE, "no sha256"),
        ({"name": "../escape"}, Reason.REFUSED_BY_NODE, "is no name"),
        ({"name": "/etc/escape"}, Reason.REFUSED_BY_NODE, "is no name"),
        ({"uri": "ftp://nowhere/model"}, Reason.REFUSED_BY_NODE, "cannot fetch"),
    ],
)
async def test_bad_files_are_refused_and_nothing_is_stored(
    node: AgentRun, sources: Path, fields: dict[str, Any], reason: Reason, words: str
) -> None:
    outcome = await node.outcome_of(load(sources, files=[file_order(sources, **fields)]))
    assert (outcome.result, outcome.reason) == (Result.FAILED, reason), outcome.error
    assert words in outcome.error
    assert blobs(node) == set()
    assert list((node.home / "downloads").glob("*.part")) == []


@pytest.mark.parametrize("argument", ["{file:missing}", "{folder:x}"])
async def test_an_argument_that_names_a_missing_file_is_refused(node: AgentRun, sources: Path, argument: str) -> None:
    outcome = await node.outcome_of(load(sources, arguments=[argument]))
    assert (outcome.reason, argument in outcome.error) == (Reason.REFUSED_BY_NODE, True)


async def test_load_without_the_backend_fails(node: AgentRun, sources: Path) -> None:
    command = load(sources).model_copy(update={"family": "missing"})
    assert (await node.outcome_of(command)).reason is Reason.NOT_INSTALLED


async def test_files_that_do_not_fit_fail_before_the_first_byte(
    tmp_path: Path, http: httpx2.AsyncClient, sources: Path
) -> None:
    life = await AgentRun(tmp_path / "home", http).begin()
    await life.outcome_of(install(sources))
    needed = 2 * shutil.disk_usage(tmp_path).total
    outcome = await life.outcome_of(load(sources, files=[file_order(sources, size=needed)]))
    assert (outcome.reason, outcome.bytes_fetched) == (Reason.NO_DISK, 0)
    await life.close()


async def test_a_repeated_load_finds_the_replica(node: AgentRun, sources: Path) -> None:
    address = await loaded(node, load(sources))
    outcome = await node.outcome_of(load(sources, "again"))
    assert (outcome.changed, outcome.addresses) == (False, {"llama#0": address})


async def test_a_load_of_another_revision_replaces_the_process(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    before = await info(http, await loaded(node, load(sources)))
    newer = load(sources, "newer", revision=2, files=[file_order(sources, b"newer weights")])
    said = await info(http, await loaded(node, newer))
    assert (said["content"], said["pid"] != before["pid"]) == ("newer weights", True)
    assert [report.revision for report in node.assembly.replicas.next()[1]] == [2]
    assert not psutil.pid_exists(before["pid"])


async def test_unload_ends_the_process_for_good(node: AgentRun, http: httpx2.AsyncClient, sources: Path) -> None:
    said = await info(http, await loaded(node, load(sources)))
    outcome = await node.outcome_of(unload())
    assert (outcome.result, outcome.changed, outcome.stopped_process_keys) == (Result.SUCCEEDED, True, ["llama#0"])
    assert (psutil.pid_exists(said["pid"]), node.assembly.replicas.next()[1]) == (False, [])
    outcome = await node.outcome_of(unload("again"))
    assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, False)


async def test_cancel_of_a_load_leaves_nothing_running(node: AgentRun, sources: Path) -> None:
    """Promise 3: after the acknowledgement the operation never changes the node."""
    command = load(sources, arguments=["--gate", "/nowhere"])
    await node.send(command)
    await until(lambda: list((node.home / "running").glob("*.pending")), within=LONG, pause=0.01)
    assert (await node.cancel(command)).answer is CancelAnswer.STOPPED
    assert (working_below(node.home), node.assembly.journal.plans()) == ([], [])
    assert (await node.send(command)).answer is Answer.REFUSED


async def test_cancel_of_a_load_whose_model_is_ready_comes_too_late(
    tmp_path: Path, http: httpx2.AsyncClient, sources: Path
) -> None:
    """The replica may be in the next report already, so it stays."""
    disk, loop, is_ready = Boundary(tmp_path / "home"), asyncio.get_running_loop(), asyncio.Event()
    node = await AgentRun(tmp_path / "home", http, disk).begin()
    await node.outcome_of(install(sources))

    def slowly() -> None:
        loop.call_soon_threadsafe(is_ready.set)
        time.sleep(0.5)  # in the thread of the journal

    disk.on_stop = slowly
    disk.arm("load", Step.START, Fault.STOP)
    await node.send(load(sources))
    await asyncio.wait_for(is_ready.wait(), LONG)
    reply = await node.cancel(load(sources))
    assert (reply.answer, reply.outcome is not None) == (CancelAnswer.TOO_LATE, True)
    assert len(node.assembly.replicas.next()[1]) == 1
    await node.assembly.stop_backends()
    await node.close()


async def test_a_dead_replica_is_restarted_with_its_arguments(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    address = await loaded(node, load(sources, environment={"API_TOKEN": "s3cret"}))
    before = await info(http, address)
    os.killpg(before["pid"], signal.SIGKILL)
    await until(lambda: node.assembly.replicas.next()[1][0].state is ReplicaState.LOADING, within=LONG, pause=0.01)
    await until(lambda: node.assembly.replicas.next()[1][0].state is ReplicaState.LOADED, within=LONG, pause=0.05)
    said = await info(http, node.assembly.replicas.next()[1][0].address)
    assert (said["content"], said["environment"]["API_TOKEN"]) == ("weights", "s3cret")
    assert said["pid"] != before["pid"]


@pytest.mark.parametrize("is_rebooted", [False, True])
async def test_replicas_survive_the_agent_and_come_back_after_a_reboot(
    tmp_path: Path, http: httpx2.AsyncClient, sources: Path, *, is_rebooted: bool
) -> None:
    node = await AgentRun(tmp_path / "home", http).begin()
    await node.outcome_of(install(sources))
    before = await info(http, await loaded(node, load(sources, environment={"API_TOKEN": "s3cret"})))
    if is_rebooted:
        os.killpg(before["pid"], signal.SIGKILL)
        path = node.home / "running" / "llama%230.json"
        record = ProcessRecord.model_validate_json(path.read_bytes())
        await node.close()
        path.write_text(record.model_copy(update={"boot": "an earlier boot"}).model_dump_json())
        node = await AgentRun(node.home, http).begin()
    else:
        node = await again(node, http)
    await until(
        lambda: [report.state for report in node.assembly.replicas.next()[1]] == [ReplicaState.LOADED],
        within=LONG,
        pause=0.05,
    )
    said = await info(http, node.assembly.replicas.next()[1][0].address)
    assert (said["content"], said["environment"]["API_TOKEN"]) == ("weights", "s3cret")
    assert (said["pid"] == before["pid"]) is not is_rebooted
    await node.assembly.stop_backends()
    await node.close()


# version changes ------------------------------------------------------------------------------------------------


def upgrade(sources: Path, policy: UpgradePolicy, *, starts: bool = True) -> Command:
    return install(sources, "2", op_id="upgrade", kind=Kind.UPGRADE, policy=policy, starts=starts)


async def versions(node: AgentRun, http: httpx2.AsyncClient) -> dict[str, str]:
    reports = node.assembly.replicas.next()[1]
    return {f"{each.model}#{each.index}": (await info(http, each.address))["version"] for each in reports}


@pytest.mark.parametrize("policy", [UpgradePolicy.RESTART, UpgradePolicy.OVERLAP])
async def test_an_upgrade_brings_loaded_models_back_on_the_new_version(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path, policy: UpgradePolicy
) -> None:
    await loaded(node, load(sources, "one"))
    await loaded(node, load(sources, "two", index=1))
    outcome = await node.outcome_of(upgrade(sources, policy))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert await versions(node, http) == {"llama#0": "2", "llama#1": "2"}
    assert set(outcome.addresses) == {"llama#0", "llama#1"}
    assert len(working_below(node.home)) == 2
    back = await node.outcome_of(Command(op_id="back", kind=Kind.ROLLBACK, family="server", decision=1, policy=policy))
    assert back.result is Result.SUCCEEDED, back.error
    assert await versions(node, http) == {"llama#0": "1", "llama#1": "1"}


async def test_overlap_moves_models_over_one_by_one(node: AgentRun, http: httpx2.AsyncClient, sources: Path) -> None:
    """The new process is ready before the old one stops, and no more than one model runs twice."""
    for index in range(3):
        await loaded(node, load(sources, f"load-{index}", index=index))
    most = ready = 0
    changing = asyncio.ensure_future(node.outcome_of(upgrade(sources, UpgradePolicy.OVERLAP)))
    lowest = 3
    while not changing.done():
        ready = sum(report.state is ReplicaState.LOADED for report in node.assembly.replicas.next()[1])
        most, lowest = max(most, len(working_below(node.home))), min(lowest, ready)
        await asyncio.sleep(0.005)
    assert (await changing).result is Result.SUCCEEDED
    assert (most, lowest) == (4, 3)


async def test_a_version_that_does_not_load_the_models_is_rolled_back(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    await loaded(node, load(sources))
    outcome = await node.outcome_of(upgrade(sources, UpgradePolicy.OVERLAP, starts=False))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.ROLLED_BACK)
    assert await versions(node, http) == {"llama#0": "1"}


async def test_an_upgrade_waits_for_a_load_and_brings_it_along(
    node: AgentRun, http: httpx2.AsyncClient, sources: Path
) -> None:
    gate = node.home / "model-files" / "gate"
    await node.send(load(sources, arguments=["--model", "{file}", "--gate", str(gate)]))
    await until(lambda: list((node.home / "running").glob("*.pending")), within=LONG, pause=0.01)
    await node.send(upgrade(sources, UpgradePolicy.RESTART))
    await until(lambda: node.assembly._loader._locks._locks["server"].waiting, within=LONG, pause=0.01)
    late = load(sources, "late", index=1)
    await node.send(late)
    await asyncio.sleep(0.3)
    assert len(node.reporter.outcomes) == 1
    gate.touch()
    await until(lambda: len(node.reporter.outcomes) == 4, within=LONG, pause=0.01)
    assert {outcome.op_id: outcome.result for outcome in node.reporter.outcomes[1:]} == dict.fromkeys(
        ("load", "upgrade", "late"), Result.SUCCEEDED
    )
    assert await versions(node, http) == {"llama#0": "2", "llama#1": "2"}


async def test_a_waiting_upgrade_can_be_cancelled(node: AgentRun, sources: Path) -> None:
    slow, waiting = load(sources, arguments=["--gate", "/nowhere"]), upgrade(sources, UpgradePolicy.RESTART)
    await node.send(slow)
    await until(lambda: list((node.home / "running").glob("*.pending")), within=LONG, pause=0.01)
    await node.send(waiting)
    assert (await node.cancel(waiting)).answer is CancelAnswer.STOPPED
    assert (await node.cancel(slow)).answer is CancelAnswer.STOPPED


async def test_removal_of_a_backend_stops_its_models_and_says_so(node: AgentRun, sources: Path) -> None:
    await loaded(node, load(sources))
    outcome = await node.outcome_of(Command(op_id="rm", kind=Kind.REMOVE, family="server", decision=1))
    assert (outcome.result, outcome.stopped_process_keys) == (Result.SUCCEEDED, ["llama#0"])
    assert (node.assembly.replicas.next()[1], working_below(node.home)) == ([], [])


# files that nothing uses ----------------------------------------------------------------------------------------


async def test_files_without_a_replica_are_deleted_when_their_time_is_over(
    tmp_path: Path, http: httpx2.AsyncClient, sources: Path
) -> None:
    node = await AgentRun(tmp_path / "home", http, model_files_kept=0).begin()
    await node.outcome_of(install(sources))
    shared, own = file_order(sources), file_order(sources, b"own", "own.gguf")
    await loaded(node, load(sources, "one", files=[shared, own]))
    await loaded(node, load(sources, "two", index=1, files=[shared]))
    await node.outcome_of(unload())
    prune = node.assembly._files.prune
    prune(node.assembly._loader.loads())
    assert blobs(node) == {shared.sha256}
    assert [path.name for path in (node.home / "model-files" / "sets").glob("*/*")] == ["model.gguf"]
    await node.outcome_of(unload("unload-2", index=1))
    await node.close()
    node = await AgentRun(node.home, http, model_files_kept=0).begin()
    assert blobs(node) == set()
    await node.close()


async def test_files_without_a_replica_give_way_when_the_disk_is_short(node: AgentRun, sources: Path) -> None:
    """An installation, or the files of another model, must not fail because of files that are only kept."""
    await loaded(node, load(sources))
    await loaded(node, load(sources, "two", index=1, files=[file_order(sources, b"kept", "kept.gguf")]))
    await node.outcome_of(unload())
    needed = 2 * shutil.disk_usage(node.home).total
    outcome = await node.outcome_of(load(sources, "big", index=2, files=[file_order(sources, b"big", size=needed)]))
    assert outcome.reason is Reason.NO_DISK
    assert blobs(node) == {file_order(sources, b"kept").sha256}


async def test_files_of_a_load_that_waits_are_kept(node: AgentRun, http: httpx2.AsyncClient, sources: Path) -> None:
    """It has fetched its files, and has neither a plan nor a process yet."""
    async with node.assembly._loader._locks.exclusive("server"):
        await node.send(load(sources))
        await until(lambda: list((node.home / "model-files" / "sets").glob("*/*")), within=LONG, pause=0.01)
        node.assembly._files.prune(node.assembly._loader.loads(), at_once=True)
    await until(lambda: len(node.reporter.outcomes) == 2, within=LONG, pause=0.01)
    assert (await info(http, node.reporter.outcomes[-1].addresses["llama#0"]))["content"] == "weights"


async def test_the_time_of_files_begins_with_the_unload(node: AgentRun, sources: Path) -> None:
    await loaded(node, load(sources))
    for path in (node.home / "model-files").rglob("*"):
        os.utime(path, (0, 0))
    await node.outcome_of(unload())
    node.assembly._files.prune(node.assembly._loader.loads())
    assert len(blobs(node)) == 1


async def test_files_are_kept_for_the_next_load(node: AgentRun, sources: Path) -> None:
    await loaded(node, load(sources))
    await node.outcome_of(unload())
    node.assembly._files.prune(node.assembly._loader.loads())
    outcome = await node.outcome_of(load(sources, "again"))
    assert (outcome.result, outcome.bytes_fetched) == (Result.SUCCEEDED, 0)


def test_the_environment_of_the_launcher_reaches_only_the_backend() -> None:
    program = "import os, launcher; print(launcher._environment())"
    environment = {"PATH": os.environ["PATH"], f"{launcher.GIVEN}LD_PRELOAD": "/evil.so"}
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=Path(launcher.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr == ""
    assert "'LD_PRELOAD': '/evil.so'" in said.stdout
    assert launcher.GIVEN not in said.stdout
