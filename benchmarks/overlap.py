"""Upgrades under load: a client calls every 20 ms; how long was it without an answer? `python -m benchmarks.overlap`.

The policy `overlap` has the bar of 1 s; `3-broken` is the release that has to be rolled back by itself.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path

import httpx2

from agent.failures import OperationFailed
from agent.job import Job
from agent.progress import Gauge
from agent.settings import AgentSettings
from agent.workshop import Workshop
from contracts.messages import Command, Progress, UpgradePolicy
from domain.operation import Kind
from gallery.archive import digest, pack

BAR_S = 1.0
_ECHO = Path(__file__).parents[1] / "gallery" / "builtin_backends" / "echo"


class Caller:
    """Looks the address up again when a call fails, as any client of a moving backend has to."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._address = ""
        self.longest_s = 0.0
        self.calls = self.failures = 0

    async def run(self) -> None:
        last = time.perf_counter()
        async with httpx2.AsyncClient(timeout=5.0) as http:
            while True:
                self.calls += 1
                if await self._call(http):
                    last = time.perf_counter()
                else:
                    self.failures += 1
                self.longest_s = max(self.longest_s, time.perf_counter() - last)
                await asyncio.sleep(0.02)

    async def _call(self, http: httpx2.AsyncClient) -> bool:
        if not self._address:
            running = (await self._shop.models.running()).models
            self._address = running[0].address if running else ""
        try:
            return bool(self._address) and (await http.post(f"http://{self._address}/echo", content=b"x")).is_success
        except httpx2.HTTPError:
            self._address = ""
            return False


async def change(shop: Workshop, folder: Path, version: str, policy: UpgradePolicy, kind: Kind) -> str:
    """One operation; how it ended."""
    archive = folder / f"echo-{version}.tar.gz"
    pack([_ECHO / "shared", _ECHO / version], archive)
    command = Command(
        op_id=f"{version}-{policy}-{time.time_ns()}",
        kind=kind,
        family="echo",
        backend="echo",
        version=version,
        uri=archive.as_uri(),
        sha256=digest(archive),
        start=kind is Kind.INSTALL,
        policy=policy,
    )
    job = Job(command, Gauge(command, _ignore, every=1.0))
    try:
        await shop.installer.perform(job)
    except OperationFailed as why:
        return str(why.reason)
    finally:
        await job.gauge.close()
    return "succeeded"


async def measured(shop: Workshop, folder: Path, version: str, policy: UpgradePolicy) -> dict[str, object]:
    caller = Caller(shop)
    calling = asyncio.create_task(caller.run())
    await asyncio.sleep(0.5)
    end = await change(shop, folder, version, policy, Kind.UPGRADE)
    await asyncio.sleep(0.5)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    return {
        "to": version,
        "policy": policy,
        "end": end,
        "longest_outage_s": round(caller.longest_s, 3),
        "calls": caller.calls,
        "failed_calls": caller.failures,
    }


async def _ignore(_progress: Progress) -> None:
    pass


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-overlap-") as name:
        folder = Path(name)
        settings = AgentSettings(home=folder, name="bench", disk_headroom=0, keep_backends=False, health_timeout=5)
        async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
            shop = Workshop(settings, http, lambda: ("", ""))
            await shop.take_stock()
            await change(shop, folder, "1", UpgradePolicy.RESTART, Kind.INSTALL)
            for version, policy in (
                ("3-broken", UpgradePolicy.OVERLAP),
                ("2", UpgradePolicy.OVERLAP),
                ("3-broken", UpgradePolicy.RESTART),
                ("1", UpgradePolicy.RESTART),
            ):
                print(json.dumps(await measured(shop, folder, version, policy)))
            await shop.close()


if __name__ == "__main__":
    asyncio.run(main())
