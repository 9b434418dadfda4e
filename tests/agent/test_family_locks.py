"""The lock of a backend: shared by loads, exclusive for changes of its version."""

import asyncio

import pytest

from nodesmith.agent.operations.family_locks import FamilyLocks
from tests.agent.waiting import until


class Holder:
    """Holds a lock until it is told to leave."""

    def __init__(self, locks: FamilyLocks, *, shared: bool, family: str = "server") -> None:
        self._lock = (locks.shared if shared else locks.exclusive)(family)
        self.is_in = False
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        async with self._lock:
            self.is_in = True
            await self._leave.wait()

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_loads_share_and_a_change_waits_for_all_of_them() -> None:
    locks = FamilyLocks()
    first, second = Holder(locks, shared=True), Holder(locks, shared=True)
    change, other = Holder(locks, shared=False), Holder(locks, shared=False, family="another")
    await settle()
    assert (first.is_in, second.is_in, change.is_in, other.is_in) == (True, True, False, True)
    await first.leave()
    await settle()
    assert not change.is_in
    await second.leave()
    await until(lambda: change.is_in)
    await asyncio.gather(change.leave(), other.leave())


async def test_loads_that_come_later_wait_behind_a_change() -> None:
    """A backend with many models must not put off its upgrade for ever."""
    locks = FamilyLocks()
    first, change = Holder(locks, shared=True), Holder(locks, shared=False)
    await settle()
    late = Holder(locks, shared=True)
    await settle()
    await first.leave()
    await until(lambda: change.is_in)
    assert not late.is_in
    await change.leave()
    await until(lambda: late.is_in)
    await late.leave()


async def test_a_change_that_is_cancelled_while_it_waits_lets_the_others_in() -> None:
    locks = FamilyLocks()
    first, change = Holder(locks, shared=True), Holder(locks, shared=False)
    await settle()
    late = Holder(locks, shared=True)
    await settle()
    change.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change.task
    await until(lambda: late.is_in)
    await asyncio.gather(first.leave(), late.leave())


async def test_changes_of_one_backend_follow_each_other() -> None:
    locks = FamilyLocks()
    first, second = Holder(locks, shared=False), Holder(locks, shared=False)
    await settle()
    assert (first.is_in, second.is_in) == (True, False)
    await first.leave()
    await until(lambda: second.is_in)
    await second.leave()
