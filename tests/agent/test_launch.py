"""Identification of a backend process, independent of the clock."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from nodesmith.agent.run.backend_process import BackendProcess, ProcessRecord
from nodesmith.agent.run.confinement import Confinement, Launch
from nodesmith.agent.run.ports import Ports
from nodesmith.agent.run.supervisor import ProcessKeeper, SupervisorRules
from nodesmith.runtime.process_identity import boot_id, started_at
from tests.agent.waiting import until
from tests.clock import set_clock_an_hour_ahead

SLEEPS = "#!/bin/sh\nexec sleep 300\n"


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "backends" / "echo" / "1"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(SLEEPS)
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def started(version: Path, tmp_path: Path) -> BackendProcess:
    return BackendProcess.start(Confinement(tmp_path / "home").launch(version, "127.0.0.1:20999"), tmp_path / "log")


async def test_a_process_is_the_same_after_the_clock_was_set(
    started: BackendProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_clock_an_hour_ahead(monkeypatch, tmp_path / "proc", started.pid)
    assert started.is_alive()
    assert await started.stop(5.0)
    monkeypatch.undo()
    assert not psutil.pid_exists(started.pid)


async def test_a_process_of_an_earlier_boot_is_another_one(started: BackendProcess):
    record = ProcessRecord(key="echo#0", family="echo", folder=Path(), pid=started.pid, started=started.started)
    assert BackendProcess.find(record) is None
    known = record.model_copy(update={"boot": boot_id()})
    assert BackendProcess.find(known) is not None
    assert BackendProcess.find(known.model_copy(update={"started": started.started - 1})) is None
    await started.stop(5.0)
    assert BackendProcess.find(known) is None


def test_a_process_that_is_gone_already_is_not_alive():
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert not BackendProcess(child.pid, started_at(child.pid)).is_alive()


class FullDisk(Confinement):
    """Fails a launch with a full disk, at the moment that the test chooses."""

    begun = threading.Event()
    go_on = threading.Event()

    def launch(self, folder: Path, address: str, *_with: object) -> Launch:
        self.begun.set()
        self.go_on.wait(30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_keeper_that_is_stopped_while_its_process_cannot_be_started_ends(version: Path, tmp_path: Path):
    """Regression: the keeper retried the failed start, and the stop waited forever."""
    home = tmp_path / "home"
    rules = SupervisorRules(
        home=home, host="127.0.0.1", health_timeout=20, log_limit=1_000_000, confinement=FullDisk(home)
    )
    keeper = ProcessKeeper(
        ProcessRecord(key="echo#0", family="echo", folder=version), rules, Ports("127.0.0.1", 20980, 20989)
    )
    keeper.restart(None)
    await until(FullDisk.begun.is_set)
    stopping = asyncio.ensure_future(keeper.stop(0.0))
    await until(lambda: keeper.is_stopping)
    FullDisk.go_on.set()
    async with asyncio.timeout(30):
        assert await stopping


DEEP = """
import os, time
for _ in range(30):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
print("deep", flush=True)
time.sleep(600)
"""


def test_backend_in_a_folder_too_deep_to_name_does_not_stop_the_search(tmp_path: Path) -> None:
    """An agent looks for its processes as it starts; what a backend does must not end that."""
    command = [sys.executable, "-c", DEEP, "--addr", f"{tmp_path}/x"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as backend:
        try:
            assert backend.stdout is not None
            assert backend.stdout.readline() == b"deep\n"
            assert [found.pid for found in BackendProcess.started_below(tmp_path)] == [backend.pid]
        finally:
            backend.kill()
