"""Which hosts get a registry's password, and how much of a response is read."""

import asyncio
from collections.abc import Iterator

import httpx2
import pytest

from nodesmith.gallery.oci import read_reference
from nodesmith.gallery.registry import Registry, RegistryFailed
from tests.agent.registry import Published, publish
from tests.agent.web import Web, running

EMPTY_FRAME = bytes.fromhex("28b52ffd2000010000")
"""of zstd"""
PASSWORD = "Basic YWRhOnMzY3JldA=="


@pytest.fixture
def web() -> Iterator[Web]:
    with running() as web:
        yield web


@pytest.fixture
def evil() -> Iterator[Web]:
    with running() as web:
        web.token = "a token for nothing"
        yield web


async def ask(published: Published, *realms: str) -> str:
    async with httpx2.AsyncClient() as http:
        registry = Registry(http, username="ada", password="s3cret", realms=realms)
        return await registry.digest(read_reference(published.reference))


def passwords(web: Web) -> list[str]:
    return [seen.path for seen in web.seen if seen.headers.get("Authorization") == PASSWORD]


async def test_a_host_that_the_registry_redirects_to_gets_no_password(web: Web, evil: Web) -> None:
    published = publish(web, [b"layer"], index=False)
    trap = evil.serve("/trap", b"{}", token=evil.token)
    away = {"Location": f"{evil.url}/trap"}
    published.manifest().status, published.manifest().headers = 302, away
    with pytest.raises(RegistryFailed, match="401"):
        await ask(published)
    trap.token, trap.basic = "", PASSWORD
    with pytest.raises(RegistryFailed, match="401"):
        await ask(published)
    assert evil.requests("/trap")
    assert passwords(evil) == []


async def test_a_token_service_elsewhere_gets_the_password_only_if_it_is_allowed(web: Web, evil: Web) -> None:
    published = publish(web, [b"layer"], index=False, token=evil.token)
    web.url, place = evil.url, web.url  # the challenge names the token service of the other host
    with pytest.raises(RegistryFailed, match="nodesmith sources add") as failed:
        await ask(published_at(published, place))
    assert failed.value.status == 401
    assert passwords(evil) == []
    evil.token_credential = PASSWORD
    assert await ask(published_at(published, place), evil.url.removeprefix("http://")) == published.digest
    assert passwords(evil) == ["/token"]


async def test_a_token_service_that_redirects_is_not_followed(web: Web, evil: Web) -> None:
    published = publish(web, [b"layer"], index=False, basic="Bearer never")
    published.manifest().headers["WWW-Authenticate"] = ""
    web.files["/redirecting"] = web.serve("/redirecting", b"", status=307, headers={"Location": f"{evil.url}/token"})
    challenge = f'Bearer realm="{web.url}/redirecting"'
    async with httpx2.AsyncClient(follow_redirects=True) as http:
        registry = Registry(http, username="ada", password="s3cret")
        with pytest.raises(RegistryFailed, match="answered 307"):
            await registry.authorize(read_reference(published.reference), challenge)
    assert evil.seen == []


@pytest.mark.parametrize("realm", ["", "ftp://x/", "http://[", "/token", "http://user@127.0.0.1/", "https:///x"])
async def test_a_realm_that_names_no_place_is_refused(web: Web, realm: str) -> None:
    async with httpx2.AsyncClient() as http:
        registry = Registry(http, username="ada", password="s3cret")
        with pytest.raises(RegistryFailed):
            await registry.authorize(read_reference(publish(web, [b"x"]).reference), f'Bearer realm="{realm}"')


async def test_a_token_without_end_is_not_read(web: Web) -> None:
    """The server waits in the middle of its answer: it ends because of the size, not because the answer did."""
    published = publish(web, [b"layer"], index=False)
    endless = web.serve("/endless", b'{"token": "' + b"x" * 2_000_000 + b'"}', stops_at=1_000_000)
    async with httpx2.AsyncClient() as http, asyncio.timeout(20):
        registry = Registry(http, username="ada", password="s3cret")
        with pytest.raises(RegistryFailed, match="larger than"):
            await registry.authorize(read_reference(published.reference), f'Bearer realm="{web.url}/endless"')
    assert not endless.released.is_set()


async def test_encoding_that_was_not_asked_for_is_not_decoded(web: Web) -> None:
    """Empty zstd frames cost seconds for each megabyte and never reach a limit of decoded bytes."""
    published = publish(web, [b"layer"], index=False)
    web.serve("/bomb", EMPTY_FRAME * 200_000, headers={"Content-Encoding": "zstd"})
    async with httpx2.AsyncClient() as http, asyncio.timeout(20):
        registry = Registry(http, username="ada", password="s3cret")
        with pytest.raises(RegistryFailed, match="encoded as 'zstd'"):
            await registry.authorize(read_reference(published.reference), f'Bearer realm="{web.url}/bomb"')


async def test_open_and_closed_ports_give_the_same_error(web: Web) -> None:
    published = publish(web, [b"layer"])
    published.manifest().breaks_at = published.manifest().always_breaks_at = 0
    published.manifest().headers.pop("Docker-Content-Digest")
    sentences = []
    for reference in (published.reference, "127.0.0.1:9/team/echo:1"):
        async with httpx2.AsyncClient() as http:
            with pytest.raises(RegistryFailed) as failed:
                await Registry(http).digest(read_reference(reference))
        sentences.append(str(failed.value).replace(reference, "REFERENCE"))
    assert sentences == ["REFERENCE: the registry cannot be reached"] * 2


def published_at(published: Published, url: str) -> Published:
    return _At(published.site, published.name, published.tag, published.digest, published.layers, url)


class _At(Published):
    """The same image, by the address that its server really has."""

    def __init__(self, site: Web, name: str, tag: str, digest: str, layers: list[str], url: str) -> None:
        super().__init__(site, name, tag, digest, layers)
        self._url = url

    @property
    def host(self) -> str:
        return self._url.removeprefix("http://")
