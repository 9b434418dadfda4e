"""The processes of `benchmarks.gateway`: a backend that takes 20 ms, and a gateway with fixed routes.

`python -m benchmarks.gateway_parts backend`, or `... gateway ADDRESS[=SERVER_NAME] [CERT KEY CA]`; the first line of
output is the port.
"""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import cast

import uvloop

from nodesmith.domain.access import Role
from nodesmith.domain.routing import ModelRoute, ReplicaRoute, RouteSnapshot
from nodesmith.gateway.api_keys import ApiKeys
from nodesmith.gateway.bodies import BodyStore
from nodesmith.gateway.forwarder_tls import ForwarderTls
from nodesmith.gateway.routes import RouteTable
from nodesmith.gateway.server import Gateway
from nodesmith.gateway.upstream import UpstreamPool
from nodesmith.runtime.connection_limits import ConnectionLimits, OpenConnections
from nodesmith.runtime.listening import bind

TAKES_S = 0.02
MODEL = "bench"
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "%s"}}]}' % (b"word " * 60)
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)


class Backend(asyncio.Protocol):
    """Answers each request 20 ms after it arrived; every request of the benchmark arrives in one piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _data: bytes) -> None:
        asyncio.get_running_loop().call_later(TAKES_S, self._answer)

    def _answer(self) -> None:
        self._transport.write(RESPONSE)


async def backend() -> None:
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def gateway(replica: str, certificates: list[str]) -> None:
    address, _, name = replica.partition("=")
    routes = RouteTable()
    route = ReplicaRoute(id="r", model=MODEL, node_id="n", address=address, server_name=name)
    routes.load(RouteSnapshot((ModelRoute(MODEL),), (route,)))
    tls = ForwarderTls(*(Path(file) for file in certificates)) if certificates else None
    opened = OpenConnections(ConnectionLimits())
    served = Gateway(routes, ApiKeys(_anybody), UpstreamPool(tls), BodyStore(), opened)
    listening = bind("127.0.0.1", 0)
    await served.listen(listening)
    print(listening.getsockname()[1], flush=True)
    await served.run_until(asyncio.Event())


async def _anybody(_hashed: str) -> tuple[str, Role]:
    return "bench", Role.CLIENT


def main() -> None:
    part: Coroutine[None, None, None] = backend() if sys.argv[1] == "backend" else gateway(sys.argv[2], sys.argv[3:])
    uvloop.run(part)


if __name__ == "__main__":
    main()
