"""Locks of backends: loads and unloads of models share a backend, a change of its version has it alone."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _FamilyLock:
    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.sharing = 0
        self.is_exclusive = False
        self.waiting = 0
        """exclusive ones: those that come to share wait behind them, so that a change is not put off for ever"""

    @property
    def is_free(self) -> bool:
        return not self.sharing and not self.is_exclusive

    @property
    def may_share(self) -> bool:
        return not self.is_exclusive and not self.waiting


class FamilyLocks:
    """One lock per backend of this node."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, _FamilyLock] = defaultdict(_FamilyLock)

    @asynccontextmanager
    async def shared(self, family: str) -> AsyncIterator[None]:
        lock = self._locks[family]
        async with lock.changed:
            await lock.changed.wait_for(lambda: lock.may_share)
            lock.sharing += 1
        try:
            yield
        finally:
            lock.sharing -= 1
            await _wake(lock)

    @asynccontextmanager
    async def exclusive(self, family: str) -> AsyncIterator[None]:
        lock = self._locks[family]
        lock.waiting += 1
        try:
            async with lock.changed:
                await lock.changed.wait_for(lambda: lock.is_free)
                lock.is_exclusive = True
        finally:
            lock.waiting -= 1
            if not lock.is_exclusive:
                await _wake(lock)
        try:
            yield
        finally:
            lock.is_exclusive = False
            await _wake(lock)


async def _wake(lock: _FamilyLock) -> None:
    async with lock.changed:
        lock.changed.notify_all()
