"""How the agent tells the forwarder what to do: one JSON line each way, over a socket that only the agent may open."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodesmith.agent.forward.server import Forwarder

SOCKET = "forward.sock"
_LONGEST_LINE = 64 * 1024
_LONGEST_PATH = 100
_TIMEOUT_S = 5.0


class ForwarderAway(Exception):
    """The forwarder does not answer."""


class ControlServer:
    """Carries orders out; each may be repeated."""

    def __init__(self, forwarder: Forwarder, reload: Callable[[], None] = lambda: None) -> None:
        """`reload` reads the certificate again."""
        self._forwarder = forwarder
        self._reload = reload

    async def listen(self, path: Path) -> asyncio.Server:
        """Listen in a folder that only the agent's user may enter."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        with _short(path) as short:
            server = await asyncio.start_unix_server(self._serve, short, limit=_LONGEST_LINE)
        await asyncio.to_thread(path.chmod, 0o600)
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._carry_out(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except (ValueError, ConnectionError):
            pass  # not our agent
        finally:
            writer.close()

    async def _carry_out(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        routes, key = self._forwarder.routes, str(order.get("key", ""))
        match order.get("op"):
            case "put":
                await asyncio.to_thread(routes.put, key, str(order["address"]))
            case "drain":
                await asyncio.to_thread(routes.drain, key)
            case "remove":
                await asyncio.to_thread(routes.remove, key)
            case "reload":
                await asyncio.to_thread(self._reload)
        return {"pid": os.getpid(), "keys": routes.keys(), "open": dict(self._forwarder.open)}


class ForwarderClient:
    """The agent's side. Every call raises `ForwarderAway` if the forwarder does not run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def put(self, key: str, address: str) -> None:
        """Let gateways reach the backend of a replica."""
        await self._ask({"op": "put", "key": key, "address": address})

    async def drain(self, key: str) -> int:
        """Refuse new connections; return how many are open. 0: the replica is idle."""
        return await self.open(key, op="drain")

    async def remove(self, key: str) -> None:
        await self._ask({"op": "remove", "key": key})

    async def open(self, key: str, *, op: str = "status") -> int:
        """The number of open connections of a replica."""
        return int((await self._ask({"op": op, "key": key}))["open"].get(key, 0))

    async def keys(self) -> list[str]:
        return list((await self._ask({"op": "status"}))["keys"])

    async def reload(self) -> None:
        """Show the renewed certificate to new connections."""
        await self._ask({"op": "reload"})

    async def pid(self) -> int:
        return int((await self._ask({"op": "status"}))["pid"])

    async def _ask(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                with _short(self._path) as short:
                    reader, writer = await asyncio.open_unix_connection(short, limit=_LONGEST_LINE * 16)
                try:
                    writer.write(json.dumps(order).encode() + b"\n")
                    answer: Mapping[str, Any] = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError) as error:
            raise ForwarderAway(f"The forwarder does not answer at {self._path}: {error}") from error
        return answer


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A short name of a socket: the system accepts about a hundred bytes, and a home may be deep."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
