"""The start sequence of every embedded server: prepare, start, wait until it answers, configure."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from nodesmith.stack.errors import StackError
from nodesmith.stack.processes.child import Child, Program

LOOPBACK = "127.0.0.1"
PATIENCE = 120.0
"""seconds until a first start is abandoned"""
_FIRST_POLL, _LAST_POLL = 0.02, 0.2


class Server(Protocol):
    """One embedded server. Every step can be repeated: a restart runs the same steps as the first start."""

    @property
    def name(self) -> str: ...

    async def prepare(self) -> None:
        """Write the files that the server needs before it starts."""

    def program(self) -> Program: ...

    async def answers(self) -> bool:
        """Return whether the server is ready for clients."""

    async def configure(self) -> None:
        """Apply the configuration that requires a running server."""


async def start(
    server: Server, *, patience: float = PATIENCE, started: Callable[[Child], None] = lambda _: None
) -> Child:
    """Start a server and return once it is ready; raise `StackError` with its last log line if it fails."""
    await server.prepare()
    child = await Child.start(server.program())
    try:
        started(child)
        await wait_until_ready(server, child, patience=patience)
        await server.configure()
    except BaseException:
        child.kill()
        await child.wait()
        raise
    return child


async def wait_until_ready(server: Server, child: Child, *, patience: float) -> None:
    """Poll the server with growing pauses, because polling takes CPU time from the servers that start."""
    deadline, pause = time.monotonic() + patience, _FIRST_POLL
    while not await server.answers():
        if child.returncode is not None:
            raise StackError(
                f"{server.name} ended with exit code {child.returncode} before it was ready: {child.failure_line()}",
                remedy=f"Its log is {child.program.log}.",
            )
        if time.monotonic() > deadline:
            raise StackError(
                f"{server.name} did not answer within {patience:.0f} s; its last log line: {child.failure_line()}",
                remedy=f"Its log is {child.program.log}.",
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.2, _LAST_POLL)


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[Child]:
    """Run a server for the duration of the block."""
    child = await start(server)
    try:
        yield child
    finally:
        await child.stop()
