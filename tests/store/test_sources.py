"""Access data of hosts: stored encrypted, returned completely only by `access`."""

from dataclasses import asdict

import pytest
from sqlalchemy import text

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.source_settings import SourceSettings
from nodesmith.store.catalogue.sources import SourceTable
from nodesmith.store.database import Database

SECRET = SourceSettings(
    username="ada",
    password="s3cret-word",
    ca="-----BEGIN-----",
    proxy="http://me:hush@proxy:3128",
    realms=["auth.invalid"],
)


async def test_access_data_is_returned_completely(database: Database) -> None:
    sources = SourceTable(database, "key")
    await sources.put("registry.invalid", SECRET, by="root")
    access = await sources.access("Registry.invalid:443")
    assert access is not None
    assert access.model_dump(exclude={"host"}) == asdict(SECRET)
    assert await sources.access("other.invalid") is None


async def test_access_data_of_a_port_wins_over_the_host(database: Database) -> None:
    sources = SourceTable(database, "key")
    await sources.put("ports.invalid", SourceSettings(username="any"), by="root")
    await sources.put("ports.invalid:5000", SourceSettings(username="five"), by="root")
    reported = [await sources.access(host) for host in ("ports.invalid:5000", "ports.invalid:6000", "ports.invalid")]
    assert [access and access.username for access in reported] == ["five", "any", "any"]


async def test_list_and_table_contain_no_plain_secret(database: Database) -> None:
    await SourceTable(database, "key").put("sealed.invalid", SECRET, by="root")
    listed = str(await SourceTable(database, "").list())
    async with database.session() as session:
        row = str((await session.execute(text("SELECT * FROM sources WHERE host = 'sealed.invalid'"))).one())
    for reported in (listed, row):
        assert "ada" in reported
        assert not any(word in reported for word in ("s3cret", "hush", "BEGIN"))


async def test_row_decrypts_only_with_its_key_and_host(database: Database) -> None:
    await SourceTable(database, "key").put("mine.invalid", SECRET, by="root")
    with pytest.raises(ServiceUnavailable, match="another key"):
        await SourceTable(database, "other key").access("mine.invalid")
    async with database.session() as session:
        await session.execute(text("UPDATE sources SET host = 'evil.invalid' WHERE host = 'mine.invalid'"))
    with pytest.raises(ServiceUnavailable, match="another key"):
        await SourceTable(database, "key").access("evil.invalid")


async def test_without_a_key_nothing_is_stored(database: Database) -> None:
    with pytest.raises(ServiceUnavailable, match="SOURCES_KEY_FILE"):
        await SourceTable(database, "").put("open.invalid", SECRET, by="root")


async def test_removed_access_data_is_deleted(database: Database) -> None:
    sources = SourceTable(database, "key")
    await sources.put("gone.invalid", SECRET, by="root")
    assert await sources.remove("gone.invalid")
    assert not await sources.remove("gone.invalid")
    assert await sources.access("gone.invalid") is None
