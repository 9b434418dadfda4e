"""An API whose root key is not the one of the installation does not start; every legitimate chain does."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nodesmith.domain.errors import ForeignRoot
from nodesmith.runtime.keyring import Keyring
from nodesmith.services.access.trust_roots import RootGuard
from nodesmith.store.access.trust_lists import TrustRecord
from nodesmith.store.database import Database
from tests.databases import migrated_template, opened
from tests.orders import new_keyring
from tests.servers import PostgresForTests


@pytest.fixture
async def database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    """One database per test, because an installation has one root."""
    url = await postgres_server.create_database(template=await migrated_template(postgres_server))
    async with opened(url) as database:
        yield database


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return new_keyring(tmp_path / "keys")


def guard(keyring: Keyring, database: Database, new_root: str = "") -> RootGuard:
    return RootGuard(keyring, TrustRecord(database), new_root)


async def recorded(database: Database) -> int:
    chain = await TrustRecord(database).load()
    return len(chain.lists) if chain else 0


async def test_first_start_records_the_root_and_the_same_keys_start_again(database: Database, keyring: Keyring) -> None:
    await guard(keyring, database).check()
    await guard(keyring, database).check()
    assert await TrustRecord(database).load() == keyring.chain()


@pytest.mark.parametrize("root", [False, True])
async def test_rotation_is_followed_and_recorded(database: Database, keyring: Keyring, root: bool) -> None:
    await guard(keyring, database).check()
    keyring.rotate(root=root, revoke=root)
    await guard(keyring, database).check()
    assert await recorded(database) == 2


async def test_replica_with_older_keys_starts_with_a_warning(
    database: Database, keyring: Keyring, tmp_path: Path
) -> None:
    """Replicas get new files one after the other; nodes still accept what the old key signs."""
    shutil.copytree(tmp_path / "keys", tmp_path / "older")
    keyring.rotate(root=True)
    await guard(keyring, database).check()
    with capture_logs() as logged:
        await guard(Keyring.opened(tmp_path / "older"), database).check()
    assert [line["event"] for line in logged] == ["keys.older_list"]
    assert await recorded(database) == 2, "an older copy replaces nothing"


async def test_foreign_root_is_refused_with_a_remedy(database: Database, keyring: Keyring, tmp_path: Path) -> None:
    await guard(keyring, database).check()
    foreign = new_keyring(tmp_path / "foreign")
    for _ in range(2):
        with pytest.raises(ForeignRoot) as refused:
            await guard(foreign, database).check()
        foreign.rotate(root=True)
    said = refused.value.message
    assert keyring.fingerprint in said
    assert all(words in said for words in ("NODESMITH_ORDER_KEYS", "NODESMITH_NEW_ROOT", "join again"))
    assert await TrustRecord(database).load() == keyring.chain()


async def test_keys_that_two_replicas_replaced_separately_are_refused(
    database: Database, keyring: Keyring, tmp_path: Path
) -> None:
    """The same root, and two different lists of one version: nodes follow only one of them."""
    shutil.copytree(tmp_path / "keys", tmp_path / "copy")
    other = Keyring.opened(tmp_path / "copy")
    keyring.rotate()
    other.rotate()
    await guard(keyring, database).check()
    with pytest.raises(ForeignRoot, match="separately"):
        await guard(other, database).check()


async def test_root_named_by_an_admin_replaces_a_lost_one(database: Database, keyring: Keyring, tmp_path: Path) -> None:
    await guard(keyring, database).check()
    fresh = new_keyring(tmp_path / "fresh")
    with pytest.raises(ForeignRoot):
        await guard(fresh, database, new_root=keyring.fingerprint).check()
    await guard(fresh, database, new_root=fresh.fingerprint).check()
    await guard(fresh, database).check()
    with pytest.raises(ForeignRoot):
        await guard(keyring, database).check()


async def test_one_of_two_concurrent_first_roots_is_refused(
    database: Database, keyring: Keyring, tmp_path: Path
) -> None:
    foreign = new_keyring(tmp_path / "foreign")
    ends = await asyncio.gather(*(guard(each, database).check() for each in (keyring, foreign)), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["ForeignRoot", "NoneType"]
