"""Measures the outage of an upgrade for a client that calls every 20 ms: `python -m benchmarks.overlap`.

The policy `overlap` has a bar of 1 s; `3-broken` is a release that must be rolled back automatically.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path

import httpx2

from nodesmith.agent.assembly import AgentAssembly
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.progress import Gauge
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.nats.messages import Command, Progress, UpgradePolicy
from nodesmith.domain.kinds import Kind
from nodesmith.gallery.archive_packing import digest, pack

BAR_S = 1.0
_ECHO = Path(__file__).parents[1] / "gallery" / "builtin_backends" / "echo"


class Caller:
    """A client that looks up the backend's address again after a failed call."""

    def __init__(self, shop: AgentAssembly) -> None:
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


async def change(shop: AgentAssembly, folder: Path, version: str, policy: UpgradePolicy, kind: Kind) -> str:
    """Run one operation and return its outcome."""
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


async def measured(shop: AgentAssembly, folder: Path, version: str, policy: UpgradePolicy) -> dict[str, object]:
    caller = Caller(shop)
    calling = asyncio.create_task(caller.run())
    await asyncio.sleep(0.5)
    outcome = await change(shop, folder, version, policy, Kind.UPGRADE)
    await asyncio.sleep(0.5)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    return {
        "to": version,
        "policy": policy,
        "end": outcome,
        "longest_outage_s": round(caller.longest_s, 3),
        "calls": caller.calls,
        "failed_calls": caller.failures,
    }


async def _ignore(_progress: Progress) -> None:
    pass


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-overlap-") as name:
        folder = Path(name)
        settings = AgentSettings(
            home=folder,
            name="bench",
            disk_headroom=0,
            keep_backends=False,
            health_timeout=5,
            source_folders=("/",),
        )
        async with httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http:
            shop = AgentAssembly(settings, http, lambda: ("", ""))
            await shop.recover()
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
