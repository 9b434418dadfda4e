"""Checks the health of a backend through the health route that its `backend.json` declares."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

_PROBE_S = 2.0
_FIRST_BYTES = 64
_HTTP = b"HTTP/1."
_OK, _MULTIPLE_CHOICES = 200, 300
_DECLARATION = "backend.json"
_MAX_DECLARATION = 65536
_ROUTE = re.compile(r"/[!-~]{0,500}")
DEFAULT_ROUTE = "/healthz"


def declaration_of(folder: Path) -> dict[str, Any]:
    """Read a backend's `backend.json`; empty if it is missing or invalid."""
    try:
        with (folder / _DECLARATION).open("rb") as file:
            declared = json.loads(file.read(_MAX_DECLARATION))
    except (OSError, ValueError, RecursionError):
        return {}
    return declared if isinstance(declared, dict) else {}


def health_route(folder: Path) -> str | None:
    """Return `health` of `backend.json`: a path, or null for none. Default `/healthz`."""
    route = declaration_of(folder).get("health", DEFAULT_ROUTE)
    is_usable = route is None or (isinstance(route, str) and _ROUTE.fullmatch(route))
    return route if is_usable else DEFAULT_ROUTE


async def is_healthy(host: str, port: int, route: str | None = DEFAULT_ROUTE) -> bool:
    """Probe once: HTTP backends must answer 2xx, or anything if they declare no route; others answer or hang up."""
    answer = await _answer(host, port, route or "/")
    return bool(answer) if route is None else _is_success(answer)


async def is_ready(host: str, port: int, path: str) -> bool:
    """Probe a replica once: only an HTTP status 2xx means that it takes calls."""
    answer = await _answer(host, port, path)
    return answer.startswith(_HTTP) and _is_success(answer)


async def _answer(host: str, port: int, path: str) -> bytes:
    """Return the first bytes of the answer; empty without one."""
    question = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return await _first_bytes(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_FIRST_BYTES)
    except ConnectionResetError:
        return b"hung up"


def _is_success(answer: bytes) -> bool:
    """A backend that does not speak HTTP, such as gRPC, is healthy once it answers at all."""
    if not answer.startswith(_HTTP):
        return bool(answer)
    parts = answer.split(b" ", 2)
    status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
    return _OK <= status < _MULTIPLE_CHOICES
