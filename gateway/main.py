"""The gateway's process: `python -m nodesmith.gateway.main`. Any number of them serve side by side."""

import asyncio
import sys
from contextlib import AsyncExitStack

import structlog
import uvloop

from nodesmith.domain.access import Role
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.token_hash import hash_token, same
from nodesmith.gateway.api_keys import ApiKeys, Lookup
from nodesmith.gateway.bodies import BodyLimits, BodyStore
from nodesmith.gateway.forwarder_tls import ForwarderTls
from nodesmith.gateway.route_feed import RouteFeed
from nodesmith.gateway.routes import RouteLimits, RouteTable
from nodesmith.gateway.server import Gateway
from nodesmith.gateway.upstream import UpstreamPool
from nodesmith.runtime import log_setup, process_exit
from nodesmith.runtime.client_addresses import proxies
from nodesmith.runtime.connection_limits import ConnectionLimits, OpenConnections
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.runtime.listening import bind, bind_encrypted
from nodesmith.store.access.tokens import Tokens
from nodesmith.store.database import Database
from nodesmith.store.models.routes import Routes

log = structlog.stdlib.get_logger(__name__)

_POOL_SIZE = 4
"""connections to PostgreSQL: calls need none of them"""
ADMIN = "admin"


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> int:
    """Listen at once, even if PostgreSQL is away; /readyz says when the routes are known."""
    async with AsyncExitStack() as closing:
        try:
            listening = closing.enter_context(bind(settings.gateway_host, settings.gateway_port))
            encrypted = bind_encrypted(
                settings.listen_host,
                settings.gateway_port,
                cert_file=settings.tls_cert_file,
                key_file=settings.tls_key_file,
                closing=closing,
            )
            opened = _open_connections(settings)
        except (NodesmithError, OSError) as error:
            sys.stderr.write(f"nodesmith gateway cannot start: {error}\n")
            return 1
        database = Database(
            settings.database_url, settings.secret(settings.database_password_file), pool_size=_POOL_SIZE
        )
        closing.push_async_callback(database.close)
        gateway, feed = build(settings, database, opened)
        await gateway.listen(listening)
        if encrypted is not None:
            await gateway.listen(encrypted.socket, encrypted.context)
        log.info("gateway.listening", host=settings.gateway_host, port=listening.getsockname()[1], id=feed.holder_id)
        following = asyncio.create_task(feed.run())
        await gateway.run_until(stop, grace_s=settings.gateway_grace.total_seconds())
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await feed.leave()
    return 0


def build(settings: GatewaySettings, database: Database, opened: OpenConnections) -> tuple[Gateway, RouteFeed]:
    wanted: set[str] = set()
    routes = RouteTable(
        RouteLimits(settings.gateway_replica_calls, settings.gateway_queue, settings.gateway_wait.total_seconds()),
        wanted=wanted.add,
    )
    feed = RouteFeed(Routes(database), routes, wanted=wanted)
    keys = ApiKeys(
        lookup(Tokens(database), settings.secret(settings.admin_token_file)), calls_per_key=settings.gateway_key_calls
    )
    bodies = BodyStore(
        settings.gateway_spool_folder,
        BodyLimits(
            settings.gateway_buffer, settings.gateway_memory, settings.gateway_largest_body, settings.gateway_disk
        ),
    )
    answer_s = settings.gateway_answer_timeout.total_seconds()
    return Gateway(routes, keys, UpstreamPool(_forwarder_tls(settings)), bodies, opened, answer_s=answer_s), feed


def lookup(tokens: Tokens, admin_token: str) -> Lookup:
    """Find who has a key: the tokens of the store, and the admin token of the deployment."""
    admin_hash = hash_token(admin_token) if admin_token else ""

    async def find(hashed: str) -> tuple[str, Role] | None:
        if same(hashed, admin_hash):
            return ADMIN, Role.ADMIN
        known = await tokens.with_secret(hashed)
        return (known.name, known.role) if known else None

    return find


def _open_connections(settings: GatewaySettings) -> OpenConnections:
    limits = ConnectionLimits(total=settings.max_connections, per_address=settings.max_connections_per_address)
    return OpenConnections(limits, proxies(settings.trusted_proxies))


def _forwarder_tls(settings: GatewaySettings) -> ForwarderTls | None:
    files = settings.gateway_cert_file, settings.gateway_key_file, settings.gateway_ca_file
    cert, key, ca = files
    return ForwarderTls(cert, key, ca) if cert and key and ca else None


def main() -> None:
    settings = GatewaySettings()
    log_setup.configure(settings.log_level)
    process_exit.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
