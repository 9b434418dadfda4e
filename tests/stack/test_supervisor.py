"""The supervisor with small real processes: restarts, order, and no leftover processes."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import psutil
import pytest

from nodesmith.runtime.process_identity import identity_of_process
from nodesmith.stack.errors import StackError
from nodesmith.stack.processes import record
from nodesmith.stack.processes.child import Program
from nodesmith.stack.processes.record import Condition, ProcessState
from nodesmith.stack.processes.supervisor import Supervisor, back_off
from nodesmith.stack.servers import embedded
from tests.clock import set_clock_an_hour_ahead
from tests.deadlines import HANGS_S
from tests.stack.endings import assert_ends

STAY = "import signal, sys; open(sys.argv[1], 'a').close(); signal.pause()"
"""create the ready file, then wait for a signal"""
TELL_THE_END = (
    "import signal, sys\n"
    "def end(*_):\n"
    "    open(sys.argv[2], 'a').write(sys.argv[3] + '\\n')\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\n"
    "open(sys.argv[1], 'a').close()\n"
    "while True: signal.pause()\n"
)


@dataclass
class Script:
    """A small Python script as a server; it is ready when its file exists."""

    folder: Path
    name: str
    code: str = STAY
    arguments: tuple[str, ...] = field(default=())

    @property
    def _mark(self) -> Path:
        return self.folder / f"{self.name}.ready"

    async def prepare(self) -> None:
        self._mark.unlink(missing_ok=True)

    def program(self) -> Program:
        argv = (sys.executable, "-I", "-S", "-c", self.code, str(self._mark), *self.arguments)
        return Program(self.name, argv, self.folder / f"{self.name}.log")

    async def answers(self) -> bool:
        return self._mark.exists()

    async def configure(self) -> None:
        """Do nothing."""


class Changes:
    """Records the supervisor's reports, and waits for one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Condition]] = []
        self._news = asyncio.Event()

    def __call__(self, states: list[ProcessState]) -> None:
        self.seen += [(state.name, state.condition) for state in states]
        self._news.set()

    async def wait_for(self, name: str, condition: Condition) -> None:
        async with asyncio.timeout(HANGS_S):
            while (name, condition) not in self.seen:
                self._news.clear()
                await self._news.wait()

    async def until(self, process: ProcessState, condition: Condition, restarts: int) -> None:
        async with asyncio.timeout(HANGS_S):
            while process.condition is not condition or process.restarts < restarts:
                self._news.clear()
                await self._news.wait()


def test_restart_back_off_grows_from_half_a_second_to_ten():
    assert list(islice(back_off(), 7)) == [0.5, 1, 2, 4, 8, 10, 10]


async def test_a_process_that_dies_is_restarted_and_counted(tmp_path: Path):
    changes = Changes()
    supervisor = Supervisor(changes)
    await supervisor.start([Script(tmp_path, "one"), Script(tmp_path, "other")])
    one, other = supervisor.states
    first, beside = one.pid, other.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await changes.until(one, Condition.RUNNING, restarts=1)
    assert one.pid not in (None, first)
    assert one.last_words == "killed by SIGKILL"
    assert (other.pid, other.restarts) == (beside, 0)
    await supervisor.stop()
    assert not psutil.pid_exists(beside or 0)


async def test_process_is_restarted_although_its_state_cannot_be_written(tmp_path: Path):
    """The disk is full for a while; the report is written later."""
    changes, is_full = Changes(), asyncio.Event()

    def changed(states: list[ProcessState]) -> None:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        changes(states)

    supervisor = Supervisor(changed)
    await supervisor.start([Script(tmp_path, "one")])
    (one,) = supervisor.states
    first = one.pid
    is_full.set()
    os.kill(first or 0, signal.SIGKILL)
    async with asyncio.timeout(HANGS_S):
        while one.restarts < 1 or one.condition is not Condition.RUNNING:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.05)
    changes.seen.clear()
    is_full.clear()
    await changes.wait_for("one", Condition.RUNNING)
    assert one.pid not in (None, first)
    await supervisor.stop()


async def test_restarted_process_has_no_start_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slow_when_restarted = "import os, sys, time\nif os.path.exists(sys.argv[2]): time.sleep(1)\n"
    slow_when_restarted += "open(sys.argv[2], 'a').close()\n" + STAY
    changes = Changes()
    supervisor = Supervisor(changes)
    await supervisor.start([Script(tmp_path, "slow", slow_when_restarted, (str(tmp_path / "been here"),))])
    monkeypatch.setattr(embedded, "PATIENCE", 0.1)
    (slow,) = supervisor.states
    os.kill(slow.pid or 0, signal.SIGKILL)
    await changes.until(slow, Condition.RUNNING, restarts=1)
    assert slow.restarts == 1
    await supervisor.stop()


async def test_last_group_is_stopped_first(tmp_path: Path):
    ends = tmp_path / "ends"
    supervisor = Supervisor(lambda _: None)
    for name in ("server", "api", "agent"):
        await supervisor.start([Script(tmp_path, name, TELL_THE_END, (str(ends), name))])
    await supervisor.stop()
    assert ends.read_text().split() == ["agent", "api", "server"]


async def test_failed_first_start_reports_the_reason_and_leaves_no_process(tmp_path: Path):
    supervisor = Supervisor(lambda _: None)
    broken = Script(tmp_path, "broken", "import sys; sys.exit('error: no luck today')")
    with pytest.raises(StackError, match=r"broken ended with exit code 1 .*no luck today"):
        await supervisor.start([Script(tmp_path, "fine"), broken])
    await supervisor.stop()
    assert not [child for child in psutil.Process().children(recursive=True) if str(tmp_path) in command_line(child)]


async def test_process_that_ignores_the_stop_signal_is_killed_with_its_children(tmp_path: Path):
    stubborn = "import signal, sys, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stubborn += "child = subprocess.Popen(['sleep', '600'])\nopen(sys.argv[1], 'w').write(str(child.pid))\n"
    stubborn += "while True: signal.pause()\n"
    supervisor = Supervisor(lambda _: None, stop_patience=0.2)
    await supervisor.start([Script(tmp_path, "stubborn", stubborn)])
    await supervisor.stop()
    grandchild = int((tmp_path / "stubborn.ready").read_text())
    assert_ends(grandchild)


def test_children_end_with_a_killed_parent(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.stack.parent", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 3
        assert all(psutil.pid_exists(pid) for pid in children)
        parent.kill()
        parent.wait()
    assert_ends(*children)


def test_next_up_ends_leftover_children_of_a_killed_up(tmp_path: Path):
    with subprocess.Popen(["sleep", "600"]) as left, subprocess.Popen(["sleep", "600"]) as foreign:
        born = identity_of_process(left.pid)
        states = [
            ProcessState("left", Condition.RUNNING, pid=left.pid, born=born),
            ProcessState("number given to somebody else", Condition.RUNNING, pid=foreign.pid, born="another boot/1.00"),
        ]
        record.write(tmp_path / "processes.json", states)
        record.end_leftovers(tmp_path / "processes.json", patience=0.1)
        assert left.wait(10) == -signal.SIGKILL
        assert foreign.poll() is None
        foreign.kill()


def test_children_are_found_again_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "processes.json"
    left = subprocess.Popen(["sleep", "60"])
    states = [ProcessState("left", Condition.RUNNING, pid=left.pid, born=identity_of_process(left.pid))]
    record.write(path, states)
    set_clock_an_hour_ahead(monkeypatch, tmp_path / "proc", left.pid)
    try:
        assert record.read_current(path) == states
        record.end_leftovers(path, patience=0.1)
        assert left.wait(10) == -signal.SIGKILL
    finally:
        left.kill()
        left.wait()


def test_ended_process_is_not_reported_as_running(tmp_path: Path):
    """The record may be stale: the disk was full when the process died."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    ours = os.getpid()
    states = [
        ProcessState("gone", Condition.RUNNING, pid=gone.pid, born="another boot/1.00"),
        ProcessState("here", Condition.RUNNING, pid=ours, born=identity_of_process(ours)),
        ProcessState("between", Condition.RESTARTING, restarts=3, last_words="exit code 1"),
    ]
    record.write(tmp_path / "processes.json", states)
    states = record.read_current(tmp_path / "processes.json")
    conditions = [process.condition for process in states]
    assert conditions == [Condition.RESTARTING, Condition.RUNNING, Condition.RESTARTING]
    assert (states[0].pid, states[2].last_words) == (None, "exit code 1")


def test_states_are_overwritten_in_place_on_a_full_disk(tmp_path: Path):
    path = tmp_path / "processes.json"
    record.write(path, [ProcessState("one")])
    (tmp_path / "processes.json.new").mkdir()  # so that no new file can be created
    record.write(path, [ProcessState("one", Condition.RUNNING, restarts=1)])
    assert record.read(path) == [ProcessState("one", Condition.RUNNING, restarts=1)]


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line; empty for a process that has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
