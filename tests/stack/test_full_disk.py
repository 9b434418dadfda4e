"""A full disk: processes are restarted, `status` is correct, and `up` reports why it does not start."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodesmith.stack.home import SPACE_FOR_NEW_HOME, SPACE_TO_START
from tests.stack.commands import Machine
from tests.stack.disks import MB, SmallDisk, small_disk
from tests.stack.waiting import until

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

KILLED = ("postgres", "nats", "api")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", megabytes=300) as disk:
        yield disk


@pytest.fixture
def machine(disk: SmallDisk) -> Iterator[Machine]:
    machine = Machine(disk.folder / "home")
    yield machine
    machine.down()


def seen(machine: Machine) -> dict[str, bool]:
    """Return the processes that `status` reports as running; assert that all of them are alive."""
    processes = machine.status()["processes"]
    running = [process for process in processes if process["condition"] == "running"]
    dead = [process["name"] for process in running if not psutil.pid_exists(process["pid"])]
    assert not dead, f"shown as running, and gone: {dead}"
    return {process["name"]: process in running for process in processes}


def test_processes_that_die_on_a_full_disk_come_back_when_there_is_space(machine: Machine, disk: SmallDisk) -> None:
    machine.up(agents=0)
    before = machine.pids()
    disk.fill()
    for name in KILLED:
        os.kill(before[name], signal.SIGKILL)
    until(lambda: all(not psutil.pid_exists(before[name]) for name in KILLED))
    seen(machine)
    disk.free()
    until(lambda: all(seen(machine).values()) and machine.status()["fleet"] is not None, within=120)
    after = {process["name"]: process for process in machine.status()["processes"]}
    assert all(after[name]["restarts"] >= 1 and after[name]["pid"] != before[name] for name in KILLED)


def test_up_on_a_full_disk_reports_the_reason(machine: Machine, disk: SmallDisk) -> None:
    disk.fill()
    for how in ([], ["--detach"]):
        refused = machine.run("up", "--agents", "0", "--port-base", str(machine.base), *how)
        assert refused.returncode == 1
        assert "no space left" in refused.stderr.lower(), refused.stderr
        assert "Traceback" not in refused.stderr


def test_second_up_on_a_disk_that_has_filled_reports_the_reason(machine: Machine, disk: SmallDisk) -> None:
    machine.up(agents=0)
    machine.down()
    disk.fill()
    for how in ([], ["--detach"]):
        refused = machine.run("up", "--agents", "0", "--port-base", str(machine.base), *how)
        assert refused.returncode == 1
        assert "no space left" in refused.stderr.lower(), refused.stderr
    disk.free()
    machine.up(agents=0)


def test_free_space_that_a_start_requires() -> None:
    assert (SPACE_FOR_NEW_HOME, SPACE_TO_START) == (100 * MB, 4 * MB)
