"""`python -m tests.agent.dying FOLDER`: does each change of a shelf again and again, killed at every single step.

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

from agent.durable import Disk
from agent.plan import Step
from agent.shelf import Shelf
from contracts.messages import Command
from domain.operation import Kind
from tests.agent.shelves import carry_out, remove, roll_back, staged


class Mortal(Disk):
    """kill -9 before the n-th step."""

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


def asked(version: str) -> Command:
    return Command(op_id=f"op-{version}", family="echo", backend="echo", version=version, kind=Kind.INSTALL)


def stage(shelf: Shelf, version: str) -> None:
    staged(shelf, asked(version), {"run.sh": version, "lib/data": version * 1000}, version * 64)


def put(shelf: Shelf, version: str) -> None:
    stage(shelf, version)
    carry_out(shelf, asked(version))


def go_back(shelf: Shelf) -> None:
    """As after a version that did not become healthy."""
    stage(shelf, "3")
    plan = shelf.draft(asked("3"))
    for step in plan.steps[: plan.steps.index(Step.START)]:
        shelf.take(step, plan)
    shelf.go_back(plan)
    shelf.clean_up(plan, [])


CHANGES: dict[str, tuple[list[str], Callable[[Shelf], object]]] = {
    "install": ([], lambda shelf: put(shelf, "1")),
    "upgrade": (["1"], lambda shelf: put(shelf, "2")),
    "upgrade with a previous version": (["1", "2"], lambda shelf: put(shelf, "3")),
    "rollback": (["1", "2"], roll_back),
    "upgrade that is undone": (["1", "2"], go_back),
    "removal": (["1", "2"], remove),
}


def live_through(root: Path, before: list[str], change: Callable[[Shelf], object]) -> list[dict[str, Any]]:
    """What is found after each death; the last one lived."""
    found = []
    for steps in itertools.count():
        shutil.rmtree(root, ignore_errors=True)
        shelf = Shelf(root)
        shelf.tidy()
        for version in before:
            put(shelf, version)
        lived = _in_a_child(functools.partial(change, Shelf(root, Mortal(steps))))
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
    """As an agent finds it that starts now."""
    shelf = Shelf(root)
    shelf.tidy()
    installed, live = shelf.installed("echo"), shelf.live("echo")
    content = {str(path.relative_to(live)) for path in live.rglob("*")} if live else set()
    return {
        "version": installed.version if installed else None,
        "content": (live / "run.sh").read_text() if live else None,
        "files": sorted(content),
        "data": (live / "lib" / "data").read_text()[:1] if live else None,
        "leftovers": [str(path.relative_to(root)) for path in root.rglob(".*") if "draft" not in path.name],
    }


if __name__ == "__main__":
    print(json.dumps({name: live_through(Path(sys.argv[1]), *change) for name, change in CHANGES.items()}))  # noqa: T201
