"""Connections of a control-plane process: PostgreSQL and NATS. Both connect in the background."""

from contextlib import AsyncExitStack

from nodesmith.bus.connection import Bus, connect_control
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.tls_trust import trusting
from nodesmith.store.database import POOL_SIZE, Database
from nodesmith.store.nodes.nodes import Nodes


def open_database(settings: ControlSettings, closing: AsyncExitStack, *, pool_size: int = POOL_SIZE) -> Database:
    database = Database(settings.database_url, settings.secret(settings.database_password_file), pool_size=pool_size)
    closing.push_async_callback(database.close)
    return database


async def open_bus(
    settings: ControlSettings, database: Database, issuer: CredentialIssuer, closing: AsyncExitStack, *, name: str
) -> Bus:
    """Open the link; reports of nodes are verified with the keys in the registry."""
    tls = trusting(settings.ca_file)
    bus = await connect_control(settings.nats_url, issuer, name=name, keys=Nodes(database), connect_within=0, tls=tls)
    closing.push_async_callback(bus.close)
    return bus
