"""The connection to PostgreSQL: one small pool with timeouts, and the migrations."""

import asyncio
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import wait_async
from pydantic_core import from_json
from sqlalchemy import event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError, InvalidatePoolError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from nodesmith.domain.call_timeout import SharedTimeout
from nodesmith.domain.errors import InvalidRequest, ServiceUnavailable

HEAD = "2026_11_18_client_role"
"""the newest migration; a test checks it"""
MIGRATION_LOCK = 7_305_001
EVENT_LOCK = 7_305_002
PLACEMENT_LOCK = 7_305_003
"""taken by the first statement of every transaction that places, evicts, scales or deploys"""

T = TypeVar("T")

_WAIT_S = 0.1
_CONNECT_TIMEOUT_S = 2
POOL_SIZE = 10
TRANSACTION_LIMIT_S = 4.5
"""above the server's statement timeout; the caller gets an error within 5 s"""
_BUSY_LIMIT_S = 20
"""how long a call may wait for a connection while the server answers other calls"""
_SERVER_LIMITS = "-c statement_timeout=4s -c lock_timeout=4s -c idle_in_transaction_session_timeout=30s -c timezone=UTC"
_OUTAGES = {"08", "53", "57"}
"""classes of SQLSTATE: connection, resources, operator intervention (restart, statement timeout)"""
_OUTAGE_CODES = {"55P03", "42P01"}
"""lock timeout; and a missing table, because no process has migrated yet"""


class CancellableConnection(psycopg.AsyncConnection[Any]):
    """Closes at once when the caller is cancelled; the driver's own waits ten seconds for a frozen server."""

    async def wait(self, gen: PQGen[T], interval: float = _WAIT_S, timeout: float | None = None) -> T:  # noqa: ASYNC109
        try:
            return await wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.pgconn.finish()  # the server's statement timeout ends the statement
            raise


class Database:
    """A pool of connections; every transaction has a timeout on the server and on our side."""

    def __init__(
        self, url: str, password: str = "", *, pool_size: int = POOL_SIZE, limit_s: float = TRANSACTION_LIMIT_S
    ) -> None:
        self._timeout = SharedTimeout(silence_s=limit_s, longest_s=_BUSY_LIMIT_S)
        self._url = _with_password(make_url(url), password)
        self._engine = create_async_engine(
            self._url.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=0,  # overflow connections would be closed on return and opened again for the next burst
            pool_timeout=_BUSY_LIMIT_S,
            json_deserializer=from_json,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "tcp_user_timeout": 5000,
                "application_name": "nodesmith",
                "options": _SERVER_LIMITS,
                "async_creator_fn": CancellableConnection.connect,
            },
        )
        self._closed = False
        event.listen(self._engine.sync_engine, "checkout", _check_alive)
        event.listen(self._engine.sync_engine, "checkin", self._on_return)
        event.listen(self._engine.sync_engine, "do_connect", self._on_connect)
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._reads = async_sessionmaker(self._autocommit, expire_on_commit=False)
        frozen = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._snapshots = async_sessionmaker(frozen, expire_on_commit=False)

    @property
    def conninfo(self) -> str:
        """For a connection outside the pool: LISTEN holds one permanently."""
        return self._url.set(drivername="postgresql").render_as_string(hide_password=False)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """One transaction: committed at the end of the block, rolled back by an error."""
        with _translated_errors():
            async with self._timeout.bounded(), self._sessions.begin() as session:
                yield session
            self._timeout.answered()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """For a single statement: its own transaction, with two round trips less than `session`."""
        with _translated_errors():
            async with self._timeout.bounded(), self._autocommit.connect() as connection:
                yield connection
            self._timeout.answered()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """For a single query of mapped objects: like `autocommit`, with a session."""
        with _translated_errors():
            async with self._timeout.bounded(), self._reads() as session:
                yield session
            self._timeout.answered()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncSession]:
        """For several queries that must see the same snapshot of the database."""
        with _translated_errors():
            async with self._timeout.bounded(), self._snapshots.begin() as session:
                yield session
            self._timeout.answered()

    async def ping(self) -> None:
        """Raise `ServiceUnavailable` unless a query is answered."""
        async with self.session() as session:
            await session.execute(text("SELECT 1"))

    async def migrate(self) -> None:
        """Bring the schema up to date; safe when several processes call it at once."""
        with _translated_errors():
            await self._migrate()

    async def close(self) -> None:
        """Close the pool. A connection in use is closed when it is returned, and no other is opened."""
        self._closed = True
        await self._engine.dispose()

    def _on_return(self, _: object, entry: ConnectionPoolEntry) -> None:
        if self._closed and entry.dbapi_connection is not None:
            entry.invalidate()

    def _on_connect(self, *_: object) -> None:
        if self._closed:
            raise psycopg.OperationalError("the pool is closed")

    async def _migrate(self) -> None:
        if await self._is_current():
            return
        from nodesmith.store.migrating import upgrade  # noqa: PLC0415 - a start with nothing to migrate does not load Alembic

        async with self._engine.begin() as connection:
            await connection.execute(text("SET LOCAL statement_timeout = 0"))
            await connection.execute(text("SET LOCAL lock_timeout = 0"))
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            await connection.run_sync(upgrade)

    async def _is_current(self) -> bool:
        try:
            async with self._engine.connect() as connection:
                known: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
                return known == HEAD
        except ProgrammingError:  # no such table: an empty database
            return False


def _check_alive(connection: Any, *_: object) -> None:
    """Check a pooled connection without a round trip: a server that closes it has sent data on its socket."""
    ours = connection.driver_connection
    if ours.closed:
        raise DisconnectionError
    waiting = select.poll()
    waiting.register(ours.fileno(), select.POLLIN)
    if waiting.poll(0):
        raise InvalidatePoolError


def _with_password(url: URL, password: str) -> URL:
    return url.set(password=password) if password else url


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate errors of the driver into errors of the domain."""
    try:
        yield
    except (TimeoutError, PoolTimeout) as error:
        raise ServiceUnavailable("PostgreSQL does not answer.", server="postgresql") from error
    except DataError as error:
        raise InvalidRequest("A value in the request cannot be stored.") from error
    except DBAPIError as error:
        if not _is_outage(error):
            raise
        raise ServiceUnavailable("PostgreSQL does not answer.", server="postgresql") from error


def _is_outage(error: DBAPIError) -> bool:
    """A lost or refused connection, a server that starts or stops, a statement that took too long."""
    code = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or code is None or code[:2] in _OUTAGES or code in _OUTAGE_CODES
