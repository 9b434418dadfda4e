"""What /readyz and the lists know of the servers."""

import asyncio

from api.health import Check, Health


async def _here() -> None:
    """Answer."""


async def _broken() -> None:
    raise ZeroDivisionError


async def test_a_check_that_crashes_counts_as_missing_and_spoils_no_other() -> None:
    health = Health({"one": Check(_broken, "One is away."), "other": Check(_here, "Other is away.")})
    readiness = await health.readiness()
    assert (readiness.ready, readiness.missing) == (False, {"one": "One is away."})
    assert health.down_since("one") is not None


async def test_asking_goes_on_after_a_check_that_crashed() -> None:
    asked = asyncio.Event()

    async def broken() -> None:
        asked.set()
        raise ZeroDivisionError

    asking = asyncio.create_task(Health({"one": Check(broken, "One is away.")}).run())
    await asked.wait()
    await asyncio.wait([asking], timeout=0.1)
    assert not asking.done()
    asking.cancel()
