"""Resolving tags at a registry over HTTP, with an admin's settings for its host."""

from collections.abc import Iterator

import pytest

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.gallery.tags import RegistryTags
from tests.agent.registry import publish
from tests.agent.web import Web, running
from tests.sources import LOCAL


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as web:
        yield web


async def nothing(_host: str) -> SourceAccess | None:
    return None


async def test_the_digest_of_a_tag_is_that_of_its_index(web: Web) -> None:
    published = publish(web, [b"layer"])
    assert await RegistryTags(nothing, LOCAL).digest(published.reference) == published.digest


async def test_a_registry_that_fails_tells_nothing_and_breaks_nothing(web: Web) -> None:
    published = publish(web, [b"layer"], status=500)
    for reference in (published.reference, f"{published.host}/team/gone:1", "127.0.0.1:9/team/echo:1"):
        assert await RegistryTags(nothing, LOCAL).digest(reference) is None


async def test_a_private_registry_is_asked_with_its_credential(web: Web) -> None:
    published = publish(web, [b"layer"], token=web.token)
    web.token_credential = "Basic YWRhOnMzY3JldA=="

    async def ada(host: str) -> SourceAccess:
        return SourceAccess(host=host, username="ada", password="s3cret")

    assert await RegistryTags(nothing, LOCAL).digest(published.reference) is None
    assert await RegistryTags(ada, LOCAL).digest(published.reference) == published.digest
