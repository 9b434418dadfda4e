"""Kills this process once at a chosen moment: before or after the n-th call of one method.

On the PYTHONPATH of a stack under test. The file at NODESMITH_TEST_AIM contains `module:Class.method when number`;
it is removed when the process dies, so that the restarted process survives.
"""

import importlib.abc
import importlib.machinery
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

CALLS = {
    "nodesmith.store.operations.permits": ("PermitTable", ("permit", "withdraw")),
    "nodesmith.store.operations.operations": ("OperationTable", ("record",)),
    "nodesmith.bus.commands": ("NodeClient", ("order", "cancel", "ask")),
}


def _wrap(module: str, owner: type, name: str) -> None:
    call, numbers = getattr(owner, name), itertools.count(1)

    async def aimed(self: Any, *arguments: Any, **named: Any) -> Any:
        number = next(numbers)
        _die_if_aimed(f"{module}:{owner.__name__}.{name} before {number}")
        answer = await call(self, *arguments, **named)
        _die_if_aimed(f"{module}:{owner.__name__}.{name} after {number}")
        return answer

    setattr(owner, name, aimed)


def _die_if_aimed(moment: str) -> None:
    aim = Path(os.environ["NODESMITH_TEST_AIM"])
    try:
        if aim.read_text() != moment:
            return
        aim.unlink()
    except FileNotFoundError:
        return
    os._exit(9)


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        owner, names = CALLS[module.__name__]
        for name in names:
            _wrap(module.__name__, getattr(module, owner), name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in CALLS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if "NODESMITH_TEST_AIM" in os.environ and "nodesmith.workers.main" in sys.orig_argv:
    sys.meta_path.insert(0, _Finder())
