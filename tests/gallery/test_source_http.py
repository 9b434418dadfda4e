"""Sources over HTTP: real servers, and names and redirects to forbidden addresses."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodesmith.domain.errors import SourceNotAllowed
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.source_http import source_client
from nodesmith.stack.certificates import Certificates
from tests.agent import web
from tests.gallery.site import Page, Site, serving

HERE = SourcePolicy(networks=(ip_network("127.0.0.1/32"),))
"""the server of the test, and nothing else of this machine"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        site.pages["/x"] = Page(b"content")
        yield site


@contextmanager
def trap(host: str = "127.0.0.2") -> Iterator[socket.socket]:
    """A port that must not be connected to."""
    with socket.create_server((host, 0)) as listening:
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The name server of this test: each question gets the next answer; what was asked is returned."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        found = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    return asked


async def test_what_is_not_allowed_is_not_connected_to(site: Site) -> None:
    async with source_client(HERE) as http:
        assert (await http.get(f"{site.url}/x")).content == b"content"
        with trap() as listening, pytest.raises(SourceNotAllowed):
            await http.get(f"http://{address_of(listening)}/x")


async def test_a_redirect_to_what_is_not_allowed_is_not_followed(site: Site) -> None:
    with trap() as listening:
        for place in (f"http://{address_of(listening)}/x", f"http://localhost:{listening.getsockname()[1]}/x"):
            site.pages["/there"] = Page(b"", status=302, location=place)
            policy = SourcePolicy(networks=(ip_network("127.0.0.1/32"),), hosts=("127.0.0.1",))
            async with source_client(policy) as http:
                with pytest.raises(SourceNotAllowed):
                    await http.get(f"{site.url}/there", follow_redirects=True)


async def test_a_name_is_connected_to_by_the_address_that_was_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers something else the second time is not asked a second time."""
    asked = resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"], ["127.0.0.2"])
    port = httpx2.URL(site.url).port
    with trap():
        async with source_client(HERE) as http:
            assert (await http.get(f"http://files.test:{port}/x")).content == b"content"
    assert asked == ["files.test"]
    assert site.seen[-1][1]["Host"] == f"files.test:{port}"


async def test_a_name_of_an_address_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["127.0.0.2", "10.0.0.1", "169.254.169.254"])
    with trap() as listening:
        async with source_client(HERE) as http:
            with pytest.raises(SourceNotAllowed):
                await http.get(f"http://metadata.test:{listening.getsockname()[1]}/x")


async def test_the_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["127.0.0.1"])
    company = Certificates(tmp_path)
    company.ensure("files.test")
    trust = ssl.create_default_context(cafile=str(company.ca))
    with web.running(certificates=company) as server:
        server.serve("/x", b"content")
        port = httpx2.URL(server.url).port
        async with source_client(HERE, verify=trust) as http:
            assert (await http.get(f"https://files.test:{port}/x")).content == b"content"
            with pytest.raises(httpx2.ConnectError):
                await http.get(f"https://other.test:{port}/x")
