"""Whether a backend is fit for work: it answers on its port, and does not say that it is not."""

import asyncio
import contextlib

_PROBE_S = 2.0
_FIRST_BYTES = 64
_HTTP = b"HTTP/1."
_NO_HEALTH_ROUTE = frozenset({404, 405, 501})
_MULTIPLE_CHOICES = 300


async def is_healthy(host: str, port: int) -> bool:
    """HTTP backends answer `GET /healthz`, or have no such route; gRPC ones answer in their own way, or hang up."""
    question = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return _says_yes(await _first_bytes(reader))
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
    if not answer.startswith(_HTTP):
        return bool(answer)
    words = answer.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return 0 < status < _MULTIPLE_CHOICES or status in _NO_HEALTH_ROUTE
