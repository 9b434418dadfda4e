"""`python -m tests.agent.kill_each_step FOLDER`: repeats each change of installed backends, killed at every step.

One process that forks: it has no threads, and imports only once.
"""

import functools
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.operations.change_plan import Step
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.kinds import Kind
from tests.agent.plan_steps import carry_out, remove, roll_back, staged


class KilledDisk(Disk):
    """Kills its process before the n-th step."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def _step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def make_folder(self, folder: Path) -> None:
        self._step()
        super().make_folder(folder)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self._step()
        path.write_bytes(content[: len(content) // 2])
        self._step()
        super().write(path, content, mode)

    def sync(self, path: Path) -> None:
        self._step()
        super().sync(path)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def symlink(self, link: Path, target: str) -> None:
        self._step()
        super().symlink(link, target)

    def remove(self, folder: Path) -> None:
        self._step()
        for path in list(folder.rglob("*"))[:1]:
            path.unlink() if path.is_file() else None
        self._step()
        super().remove(folder)


def install_command(version: str) -> Command:
    return Command(op_id=f"op-{version}", family="echo", backend="echo", version=version, kind=Kind.INSTALL)


def stage(backends: InstalledBackends, version: str) -> None:
    staged(backends, install_command(version), {"run.sh": version, "lib/data": version * 1000}, version * 64)


def put(backends: InstalledBackends, version: str) -> None:
    stage(backends, version)
    carry_out(backends, install_command(version))


def revert(backends: InstalledBackends) -> None:
    """Revert as after a version that did not become healthy."""
    stage(backends, "3")
    plan = backends.draft(install_command("3"))
    for step in plan.steps[: plan.steps.index(Step.START)]:
        backends.apply_step(step, plan)
    backends.revert(plan)
    backends.clean_up(plan, [])


CHANGES: dict[str, tuple[list[str], Callable[[InstalledBackends], object]]] = {
    "install": ([], lambda backends: put(backends, "1")),
    "upgrade": (["1"], lambda backends: put(backends, "2")),
    "upgrade with a previous version": (["1", "2"], lambda backends: put(backends, "3")),
    "rollback": (["1", "2"], roll_back),
    "upgrade that is undone": (["1", "2"], revert),
    "removal": (["1", "2"], remove),
}


def kill_results(root: Path, before: list[str], change: Callable[[InstalledBackends], object]) -> list[dict[str, Any]]:
    """Return the tree after a kill at each step; the last run completes."""
    found = []
    for steps in itertools.count():
        shutil.rmtree(root, ignore_errors=True)
        backends = InstalledBackends(root)
        backends.remove_leftovers()
        for version in before:
            put(backends, version)
        lived = _in_a_child(functools.partial(change, InstalledBackends(root, KilledDisk(steps))))
        found.append({"steps": steps, "lived": lived, **_found(root)})
        if lived:
            return found
    raise AssertionError


def _in_a_child(work: Callable[[], object]) -> bool:
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _found(root: Path) -> dict[str, Any]:
    """Return what a restarted agent finds."""
    backends = InstalledBackends(root)
    backends.remove_leftovers()
    installed, live = backends.installed("echo"), backends.live("echo")
    content = {str(path.relative_to(live)) for path in live.rglob("*")} if live else set()
    return {
        "version": installed.version if installed else None,
        "content": (live / "run.sh").read_text() if live else None,
        "files": sorted(content),
        "data": (live / "lib" / "data").read_text()[:1] if live else None,
        "leftovers": [str(path.relative_to(root)) for path in root.rglob(".*") if "draft" not in path.name],
    }


if __name__ == "__main__":
    print(json.dumps({name: kill_results(Path(sys.argv[1]), *change) for name, change in CHANGES.items()}))  # noqa: T201
