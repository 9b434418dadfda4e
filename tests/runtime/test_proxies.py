"""Proxies from the environment apply to other machines; this machine is reached directly."""

import pytest

from nodesmith.runtime.proxies import api_client, is_loopback
from tests.agent import web
from tests.agent.proxy import forward_proxy

DEAD = "http://127.0.0.1:9"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def no_proxy_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8900", True),
        ("http://127.8.9.10:8900", True),
        ("https://localhost:8900", True),
        ("http://[::1]:8900", True),
        ("https://10.0.0.5:8900", False),
        ("https://nodesmith.example", False),
        ("", False),
    ],
)
def test_what_is_on_this_machine(url: str, here: bool) -> None:
    assert is_loopback(url) is here


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("value", [DEAD, "socks5://127.0.0.1:9", "no address"])
async def test_the_api_on_this_machine_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with web.running() as site:
        site.serve("/here", b"yes")
        async with api_client(site.url, verify=True) as http:
            assert (await http.get("/here")).content == b"yes"


async def test_other_machines_are_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with web.running() as site:
        site.serve("/x.tar.gz", b"artifact")
        async with forward_proxy() as between:
            between.knows["artifacts.example"] = site
            monkeypatch.setenv("HTTP_PROXY", between.url())
            async with api_client(site.url, verify=True) as http:
                assert (await http.get("http://artifacts.example/x.tar.gz")).content == b"artifact"
            assert between.passed == ["GET artifacts.example"]


async def test_the_environment_may_except_other_machines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", "spared.example")
    async with api_client("http://127.0.0.1:1", verify=True) as http:
        spared = http._transport_for_url(http.build_request("GET", "http://spared.example/").url)
        proxied = http._transport_for_url(http.build_request("GET", "http://artifacts.example/").url)
        assert spared is http._transport
        assert proxied is not http._transport
