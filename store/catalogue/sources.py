"""Access data of hosts, encrypted with a key from a file, so that a copy of the database reveals no passwords."""

import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel
from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.source_settings import SourceSettings, StoredSource
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.galleries import SourceRow

_NONCE = 12


class _Sealed(BaseModel):
    password: str = ""
    ca: str = ""
    proxy: str = ""


class SourceTable:
    """The table `sources`; `key` is a secret text of the control plane."""

    def __init__(self, database: Database, key: str, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._cipher = AESGCM(hashlib.sha256(key.encode()).digest()) if key else None
        self._clock = clock

    async def put(self, host: str, settings: SourceSettings, *, by: str) -> StoredSource:
        """Replace all access data of a host."""
        now = self._clock()
        values = {
            "username": settings.username,
            "sealed": self._seal(host, _Sealed(password=settings.password, ca=settings.ca, proxy=settings.proxy)),
            "has_password": bool(settings.password),
            "has_ca": bool(settings.ca),
            "has_proxy": bool(settings.proxy),
            "realms": list(settings.realms),
            "updated_by": by,
            "updated_at": now,
        }
        first = insert(SourceRow).values(host=host, **values)
        async with self._database.session() as session:
            await session.execute(first.on_conflict_do_update(index_elements=[SourceRow.host], set_=values))
        return _stored(SourceRow(host=host, **values))

    async def remove(self, host: str) -> bool:
        async with self._database.session() as session:
            gone = delete(SourceRow).where(SourceRow.host == host).returning(SourceRow.host)
            return await session.scalar(gone) is not None

    async def list(self) -> Sequence[StoredSource]:
        async with self._database.session() as session:
            return [_stored(row) for row in await session.scalars(select(SourceRow).order_by(SourceRow.host))]

    async def access(self, host: str) -> SourceAccess | None:
        """The access data of `name:port`, else of `name`."""
        wanted = host.casefold()
        names = dict.fromkeys((wanted, wanted.rsplit(":", 1)[0]))
        async with self._database.session() as session:
            rows = {row.host: row for row in await session.scalars(select(SourceRow).where(SourceRow.host.in_(names)))}
        row = next((rows[name] for name in names if name in rows), None)
        if row is None:
            return None
        opened = self._open(row.host, row.sealed)
        return SourceAccess(host=host, username=row.username, realms=row.realms, **opened.model_dump())

    def _seal(self, host: str, secret: _Sealed) -> bytes:
        nonce = os.urandom(_NONCE)
        # The host is authenticated too, so that a row copied to another host cannot be decrypted.
        return nonce + self._key().encrypt(nonce, secret.model_dump_json().encode(), host.encode())

    def _open(self, host: str, sealed: bytes) -> _Sealed:
        try:
            return _Sealed.model_validate_json(self._key().decrypt(sealed[:_NONCE], sealed[_NONCE:], host.encode()))
        except InvalidTag:
            raise ServiceUnavailable(
                f"The access data of {host} was encrypted with another key: set it again, or restore that key."
            ) from None

    def _key(self) -> AESGCM:
        if self._cipher is None:
            raise ServiceUnavailable("NODESMITH_SOURCES_KEY_FILE contains no key, so passwords cannot be encrypted.")
        return self._cipher


def _stored(row: SourceRow) -> StoredSource:
    return StoredSource(
        host=row.host,
        username=row.username,
        has_password=row.has_password,
        has_ca=row.has_ca,
        has_proxy=row.has_proxy,
        realms=row.realms,
        updated_by=row.updated_by,
        updated_at=row.updated_at,
    )
