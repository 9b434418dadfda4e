"""Whether a backend is fit for work: it says so on its health route, or has declared that it has none."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

_PROBE_S = 2.0
_FIRST_BYTES = 64
_HTTP = b"HTTP/1."
_OK, _MULTIPLE_CHOICES = 200, 300
_DECLARATION = "backend.json"
_LONGEST_DECLARATION = 65536
_ROUTE = re.compile(r"/[!-~]{0,500}")
DEFAULT_ROUTE = "/healthz"


def health_route(folder: Path) -> str | None:
    """What `backend.json` of a backend says under `health`: a path, or null for none. `/healthz` if it says nothing."""
    try:
        with (folder / _DECLARATION).open("rb") as file:
            declared = json.loads(file.read(_LONGEST_DECLARATION))
    except (OSError, ValueError, RecursionError):
        return DEFAULT_ROUTE
    route = declared.get("health", DEFAULT_ROUTE) if isinstance(declared, dict) else DEFAULT_ROUTE
    is_usable = route is None or (isinstance(route, str) and _ROUTE.fullmatch(route))
    return route if is_usable else DEFAULT_ROUTE


async def is_healthy(host: str, port: int, route: str | None = DEFAULT_ROUTE) -> bool:
    """HTTP backends answer their health route with 2xx, or anything if they have none; others answer, or hang up."""
    question = f"GET {route or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                answer = await _first_bytes(reader)
                return bool(answer) if route is None else _says_yes(answer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_FIRST_BYTES)
    except ConnectionResetError:
        return b"hung up"


def _says_yes(answer: bytes) -> bool:
    """What does not speak HTTP, such as gRPC, is fit once it answers at all."""
    if not answer.startswith(_HTTP):
        return bool(answer)
    words = answer.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return _OK <= status < _MULTIPLE_CHOICES
