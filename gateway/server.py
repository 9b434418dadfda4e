"""The gateway's server: connections of clients, what each path does, and the end of the process."""

import asyncio
import json
import socket
import ssl
from collections.abc import Coroutine
from http import HTTPStatus

from nodesmith.domain.routing import ModelRoute
from nodesmith.gateway.answers import Refusal, rendered
from nodesmith.gateway.api_keys import ApiKeys
from nodesmith.gateway.bodies import BodyStore
from nodesmith.gateway.client_connection import ANSWER_S, ClientConnection
from nodesmith.gateway.exchange import Exchange
from nodesmith.gateway.requests import Request
from nodesmith.gateway.routes import RouteTable
from nodesmith.gateway.upstream import UpstreamPool
from nodesmith.runtime.connection_limits import OpenConnections
from nodesmith.runtime.listening import HANDSHAKE_S

_MODELS = b"/v1/models"
_PREFIX = b"/v1/"
_HEALTH = frozenset({b"/healthz", b"/readyz"})
_TICK_S = 1.0
_POLL_S = 0.05
GRACE_S = 30.0
"""time for open requests to finish when the process is stopped"""


class Gateway:
    """Serves clients on any number of sockets."""

    def __init__(
        self,
        routes: RouteTable,
        keys: ApiKeys,
        pool: UpstreamPool,
        bodies: BodyStore,
        opened: OpenConnections,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.routes = routes
        self._keys = keys
        self._pool = pool
        self._bodies = bodies
        self._opened = opened
        self._answer_s = answer_s
        self._exchange = Exchange(routes, pool)
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._is_stopping = False

    async def listen(self, listening: socket.socket, context: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        handshake = HANDSHAKE_S if context else None
        server = await loop.create_server(
            self._connection, sock=listening, ssl=context, ssl_handshake_timeout=handshake, backlog=1024
        )
        self._servers.append(server)

    async def run_until(self, stop: asyncio.Event, *, grace_s: float = GRACE_S) -> None:
        """Check time limits every second until `stop`, then finish open requests."""
        while not stop.is_set():
            self.tick()
            try:
                async with asyncio.timeout(_TICK_S):
                    await stop.wait()
            except TimeoutError:
                continue
        await self.close(grace_s)

    def tick(self) -> None:
        for connection in list(self._connections):
            connection.expire()
        self._pool.expire()
        self.routes.tick()

    async def close(self, grace_s: float) -> None:
        """Accept nothing more, let open requests finish, and cut off what is left."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.stop()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - any of them
            await asyncio.sleep(_POLL_S)
        for connection in list(self._connections):
            connection.abort()
        self._pool.close()

    def _connection(self) -> ClientConnection:
        return ClientConnection(
            self._admit, self._serve, self._bodies, self._opened, self._connections, answer_s=self._answer_s
        )

    # one request

    def _admit(self, request: Request) -> Coroutine[None, None, None] | None:
        """Check the key before the body is read; health needs none."""
        if request.path in _HEALTH:
            return None
        request.key = self._keys.cached(request.credential)
        return None if request.key is not None else self._check_key(request)

    async def _check_key(self, request: Request) -> None:
        request.key = await self._keys.check(request.credential)

    async def _serve(self, request: Request, client: ClientConnection) -> bool:
        if request.path in _HEALTH:
            return self._answer(request, client, *self._health(request.path))
        if request.key is None:  # it arrived behind another one, in one read
            request.key = await self._keys.check(request.credential)
        if request.path == _MODELS or request.path.startswith(_MODELS + b"/"):
            return self._answer(request, client, HTTPStatus.OK, self._models(request))
        if not request.path.startswith(_PREFIX):
            raise Refusal(HTTPStatus.NOT_FOUND, "unknown_path", "The gateway serves /v1, /healthz and /readyz.")
        with self._keys.counted(request.key):
            return await self._exchange.run(request, client)

    def _answer(self, request: Request, client: ClientConnection, status: HTTPStatus, content: object) -> bool:
        body = json.dumps(content).encode()
        whole = rendered(status, body, {}, keep_alive=request.keep_alive)
        client.write(whole[: -len(body)] if request.method == b"HEAD" else whole)
        return request.keep_alive

    def _health(self, path: bytes) -> tuple[HTTPStatus, object]:
        is_ready = self.routes.is_loaded and not self._is_stopping
        if path == b"/healthz" or is_ready:
            return HTTPStatus.OK, {"status": "ok"}
        return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stopping" if self._is_stopping else "starting"}

    def _models(self, request: Request) -> object:
        if request.method not in (b"GET", b"HEAD"):
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "read_only", "Models are deployed with `nodesmith models`.")
        name = request.path[len(_MODELS) + 1 :].decode("latin-1")
        if not name:
            return {"object": "list", "data": [_entry(model.route) for model in self.routes.models.values()]}
        if name not in self.routes.models:
            raise Refusal(HTTPStatus.NOT_FOUND, "model_not_found", f"There is no model {name}.")
        return _entry(self.routes.models[name].route)


def _entry(model: ModelRoute) -> dict[str, object]:
    return {"id": model.name, "object": "model", "created": int(model.created_at), "owned_by": "nodesmith"}
