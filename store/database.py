"""The connection to PostgreSQL: one small pool, bounded waits, and the migrations."""

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

from domain.errors import InvalidRequest, ServiceUnavailable
from domain.patience import Patience

HEAD = "2026_11_17_idempotency"
"""the newest migration; a test keeps it so"""
MIGRATION_LOCK = 7_305_001
EVENT_LOCK = 7_305_002

T = TypeVar("T")

_WAIT_S = 0.1
_CONNECT_TIMEOUT_S = 2
TRANSACTION_LIMIT_S = 4.5
"""above the server's own limit of a statement; whoever asked is told within 5 s"""
_BUSY_LIMIT_S = 20
"""how long a call may wait for its turn at a server that answers others"""
_SERVER_LIMITS = "-c statement_timeout=4s -c lock_timeout=4s -c idle_in_transaction_session_timeout=30s -c timezone=UTC"
_OUTAGES = {"08", "53", "57"}
"""classes of SQLSTATE: connection, resources, operator intervention (restart, statement timeout)"""
_OUTAGE_CODES = {"55P03", "42P01"}
"""lock timeout; and a table that is not there yet, because nobody could migrate so far"""


class Impatient(psycopg.AsyncConnection[Any]):
    """Given up when the caller is: the driver's own would wait ten seconds for a frozen server to take a cancel."""

    async def wait(self, gen: PQGen[T], interval: float = _WAIT_S, timeout: float | None = None) -> T:  # noqa: ASYNC109
        try:
            return await wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.pgconn.finish()  # the server ends the statement by its own limit
            raise


class Database:
    """A pool of connections; every transaction is bounded on the server and on our side."""

    def __init__(
        self, url: str, password: str = "", *, pool_size: int = 10, limit_s: float = TRANSACTION_LIMIT_S
    ) -> None:
        self._patience = Patience(silence_s=limit_s, longest_s=_BUSY_LIMIT_S)
        self._url = _with_password(make_url(url), password)
        self._engine = create_async_engine(
            self._url.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=0,  # what overflows is closed when it is given back, and opened again for the next burst
            pool_timeout=_BUSY_LIMIT_S,
            json_deserializer=from_json,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "tcp_user_timeout": 5000,
                "application_name": "nodesmith",
                "options": _SERVER_LIMITS,
                "async_creator_fn": Impatient.connect,
            },
        )
        event.listen(self._engine.sync_engine, "checkout", _still_there)
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._reads = async_sessionmaker(self._alone, expire_on_commit=False)
        frozen = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._snapshots = async_sessionmaker(frozen, expire_on_commit=False)

    @property
    def conninfo(self) -> str:
        """For a connection outside the pool: LISTEN holds one for as long as it lives."""
        return self._url.set(drivername="postgresql").render_as_string(hide_password=False)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """One transaction: committed at the end of the block, rolled back by an error."""
        with _in_our_words():
            async with self._patience.bounded(), self._sessions.begin() as session:
                yield session
            self._patience.answered()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """For a statement that stands alone: its own transaction, and two round trips less than `session`."""
        with _in_our_words():
            async with self._patience.bounded(), self._alone.connect() as connection:
                yield connection
            self._patience.answered()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """For one query of whole objects: as `autocommit`, with a session around it."""
        with _in_our_words():
            async with self._patience.bounded(), self._reads() as session:
                yield session
            self._patience.answered()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncSession]:
        """For an answer made of several queries: all of them see the database as the first one did."""
        with _in_our_words():
            async with self._patience.bounded(), self._snapshots.begin() as session:
                yield session
            self._patience.answered()

    async def ping(self) -> None:
        """Raise `ServiceUnavailable` unless a query is answered."""
        async with self.session() as session:
            await session.execute(text("SELECT 1"))

    async def migrate(self) -> None:
        """Bring the schema up to date; any number of processes may do so at once."""
        with _in_our_words():
            await self._migrate()

    async def close(self) -> None:
        await self._engine.dispose()

    async def _migrate(self) -> None:
        if await self._is_current():
            return
        from store.migrating import upgrade  # noqa: PLC0415 - a start with nothing to migrate does not load Alembic

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


def _still_there(connection: Any, *_: object) -> None:
    """A server that ends a connection says so on it: looking costs nothing, where asking costs a round trip."""
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
def _in_our_words() -> Iterator[None]:
    """What the driver raises, as the domain calls it."""
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
