"""Runs a server in a private network namespace and forwards connections that present a client certificate to it.

The stack starts `python -m nodesmith.stack.servers.isolated JSON PROGRAM ARGUMENT...` instead of PROGRAM.
It opens the ports before it enters the namespace, so clients use the same addresses as without isolation.
The server and the forwarder end together.
"""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from nodesmith.stack.errors import StackError
from nodesmith.stack.processes import launch
from nodesmith.stack.processes.child import Program
from nodesmith.stack.servers import namespace
from nodesmith.stack.servers.embedded import LOOPBACK, is_listening
from nodesmith.stack.servers.isolation import ForwardedPort, IsolationOrder, context_of

_FIRST_POLL, _LAST_POLL = 0.02, 0.2
_HIGH_WATER = 1024 * 1024


class ForwardEnd(asyncio.Protocol):
    """One end of a forwarded connection: it passes the data that it receives to the other end."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: ForwardEnd | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        if self.other is not None:
            self.other.transport.close()


class ClientEnd(ForwardEnd):
    """A client with a valid certificate; its data waits until the server has accepted the connection."""

    def __init__(self, port: int, connecting: set["asyncio.Task[None]"]) -> None:
        super().__init__()
        self._port = port
        self._connecting = connecting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        task = asyncio.create_task(self._connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self) -> None:
        loop, server = asyncio.get_running_loop(), ForwardEnd()
        try:
            await loop.create_connection(lambda: server, sock=await _connected(self._port))
        except OSError:
            self.transport.abort()
            return
        self.other, server.other = server, self
        if self.transport.is_closing():
            server.transport.close()
        else:
            self.transport.resume_reading()


async def _connected(port: int) -> socket.socket:
    """Connect with TCP_NODELAY: Nagle's delay costs 40 ms a request, and asyncio does not disable it on our sockets."""
    link = socket.socket()
    link.settimeout(0)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        await asyncio.get_running_loop().sock_connect(link, (LOOPBACK, port))
    except OSError:
        link.close()
        raise
    return link


def reserve(port: int) -> socket.socket:
    """Bind the port without listening yet; accepted connections inherit TCP_NODELAY."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        reserved.bind((LOOPBACK, port))
    except OSError as error:
        raise StackError(
            f"Port {port} cannot be opened: {error.strerror}.", remedy="Give another --port-base."
        ) from error
    return reserved


async def run(order: IsolationOrder, reserved: Sequence[socket.socket], argv: Sequence[str]) -> int:
    """Start the server, open the forwarded ports once it listens, and return its exit code when it has ended."""
    context = context_of(order)
    server = await asyncio.create_subprocess_exec(*Program("server", tuple(argv), Path()).launcher())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _terminate, server)
    opening = asyncio.create_task(_open_ports(order.ports, reserved, context))
    try:
        return await server.wait()
    finally:
        opening.cancel()
        await asyncio.wait([opening])


def _terminate(server: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.terminate()


async def _open_ports(
    ports: Sequence[ForwardedPort], reserved: Sequence[socket.socket], context: ssl.SSLContext
) -> None:
    for port in ports:
        await _wait_until_listening(port.inside)
    connecting: set[asyncio.Task[None]] = set()
    for port, listener in zip(ports, reserved, strict=True):
        client = partial(ClientEnd, port.inside, connecting)
        await asyncio.get_running_loop().create_server(client, sock=listener, ssl=context)
    await asyncio.Event().wait()  # until the server has ended


async def _wait_until_listening(port: int) -> None:
    pause = _FIRST_POLL
    while not await is_listening(port):
        await asyncio.sleep(pause)
        pause = min(pause * 1.2, _LAST_POLL)


def _enter_namespace(parent: int) -> None:
    namespace.enter()
    launch.die_with(parent, signal.SIGKILL)  # a change of credentials may clear the death signal


def main() -> None:
    parent, order, argv = os.getppid(), IsolationOrder.from_json(sys.argv[1]), sys.argv[2:]
    try:
        reserved = [reserve(port.outside) for port in order.ports]
        _enter_namespace(parent)
    except (OSError, StackError) as error:
        raise SystemExit(f"nodesmith: {error}") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(run(order, reserved, argv))
    if code < 0:
        raise SystemExit(f"nodesmith: the server was killed by {signal.Signals(-code).name}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
