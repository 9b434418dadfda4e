"""Signed requests that this node has carried out; stored, so that none counts again after a restart."""

import asyncio
import json
from pathlib import Path

import structlog

from nodesmith.agent.disk.durable_files import write_durably

log = structlog.stdlib.get_logger(__name__)


class UsedRequests:
    """Nonces of unexpired requests, in `requests.json` of the home; a simulated node has no file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self._used: dict[str, int] = {}
        """nonce -> expiry of its request"""
        if path is not None:
            self._load(path)

    async def use(self, nonce: str, exp: int, *, now: int) -> bool:
        """Mark a request as used, on disk too; False if it was used before."""
        if nonce in self._used:
            return False
        self._used = {**{each: until for each, until in self._used.items() if until >= now}, nonce: exp}
        if self._path is not None:
            await self._write(self._path)
        return True

    async def _write(self, path: Path) -> None:
        """A full disk must not keep anybody from stopping a backend; the request then counts once in this process."""
        async with self._writing:
            try:
                await asyncio.to_thread(write_durably, path, json.dumps(self._used).encode())
            except OSError:
                log.exception("requests.not_written", file=path.name)

    def _load(self, path: Path) -> None:
        try:
            self._used = {str(nonce): int(exp) for nonce, exp in json.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, AttributeError, TypeError):
            log.exception("requests.unreadable", file=path.name)
