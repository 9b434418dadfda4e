"""What the embedded servers have in common: prepare, start, wait until it answers, settle."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from stack.child import Child, Program
from stack.errors import StackError

LOOPBACK = "127.0.0.1"
PATIENCE = 120.0
"""seconds until a first start is given up"""
_FIRST_POLL, _LAST_POLL = 0.02, 0.2


class Server(Protocol):
    """One embedded server. Every step may be repeated: a restart takes the same way as the first start."""

    @property
    def name(self) -> str: ...

    async def prepare(self) -> None:
        """What must be on disk before it starts."""

    def program(self) -> Program: ...

    async def answers(self) -> bool:
        """Is it ready for its clients?"""

    async def settle(self) -> None:
        """What must be told to it once it answers."""


async def start(
    server: Server, *, patience: float = PATIENCE, started: Callable[[Child], None] = lambda _: None
) -> Child:
    """Start a server and return once it serves; `StackError` with its own last words if it does not."""
    await server.prepare()
    child = await Child.start(server.program())
    try:
        started(child)
        await until_answered(server, child, patience=patience)
        await server.settle()
    except BaseException:
        child.kill()
        await child.wait()
        raise
    return child


async def until_answered(server: Server, child: Child, *, patience: float) -> None:
    """Ask again and again, less and less often: on two cores every question is taken from those who start."""
    deadline, pause = time.monotonic() + patience, _FIRST_POLL
    while not await server.answers():
        if child.returncode is not None:
            raise StackError(
                f"{server.name} ended with exit code {child.returncode} before it was ready: {child.last_words()}",
                remedy=f"Its log is {child.program.log}.",
            )
        if time.monotonic() > deadline:
            raise StackError(
                f"{server.name} did not answer within {patience:.0f} s; it last said: {child.last_words()}",
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
    """A server for as long as the block runs."""
    child = await start(server)
    try:
        yield child
    finally:
        await child.stop()
