"""Access to source hosts: company CAs and proxies, as an admin configured them per host."""

from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.errors import RegistryDenied, RegistryDown
from nodesmith.domain.operation import Reason
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.registry import basic
from nodesmith.gallery.tags import RegistryTags
from nodesmith.stack.certificates import Certificates
from tests.agent import web
from tests.agent.archives import digest
from tests.agent.fetching import CONTENT, Fetcher, failure_of
from tests.agent.proxy import Proxy, forward_proxy
from tests.agent.registry import publish
from tests.agent.web import Web
from tests.sources import LOCAL

REGISTRY = "registry.invalid"
"""a name that only the proxy can resolve; not loopback, so TLS is used"""
LOGIN, PASSWORD = "robot", "s3cret-of-the-registry"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("company"))
    made.ensure(REGISTRY)
    return made


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[Web]:
    """A server whose certificate is signed by the company's CA only."""
    with web.running(certificates=certificates) as site:
        yield site


@pytest.fixture
async def proxy(secure: Web) -> AsyncIterator[Proxy]:
    async with forward_proxy() as proxy:
        proxy.credential = basic("me", "hush")
        proxy.knows = {f"{REGISTRY}:443": secure}
        yield proxy


def host_of(site: Web) -> str:
    return site.url.partition("://")[2]


def set_for(fetcher: Fetcher, host: str, **how: str) -> SourceAccess:
    fetcher.access[host] = SourceAccess(host=host, **how)
    return fetcher.access[host]


async def test_a_company_certificate_is_trusted_for_its_host_only(
    fetcher: Fetcher, secure: Web, certificates: Certificates
) -> None:
    secure.serve("/a", CONTENT)
    ca = certificates.ca.read_text()
    for other in ("", "other.invalid"):
        set_for(fetcher, other, ca=ca)
        failure = await failure_of(fetcher.fetch(f"{secure.url}/a", sha256=digest(CONTENT)))
        assert (failure.reason, "certificate" in str(failure)) == (Reason.SOURCE_DOWN, True)
    set_for(fetcher, host_of(secure), ca=ca)
    job = await fetcher.fetch(f"{secure.url}/a", sha256=digest(CONTENT))
    assert job.bytes_fetched == len(CONTENT)


async def test_a_certificate_that_cannot_be_read_is_named(fetcher: Fetcher, secure: Web) -> None:
    secure.serve("/a", CONTENT)
    set_for(fetcher, host_of(secure), ca="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    failure = await failure_of(fetcher.fetch(f"{secure.url}/a", sha256=digest(CONTENT)))
    assert (failure.reason, host_of(secure) in str(failure)) == (Reason.DOWNLOAD_FAILED, True)


async def test_a_download_goes_through_the_proxy_of_its_host(fetcher: Fetcher, site: Web, proxy: Proxy) -> None:
    host = "files.invalid"
    site.serve("/a", CONTENT)
    site.files["/a"].breaks_at = 1_000_000
    proxy.knows[host] = site
    set_for(fetcher, host, proxy=proxy.url("me:wrong@"))
    failure = await failure_of(fetcher.fetch(f"http://{host}/a", sha256=digest(CONTENT)))
    assert (failure.reason, proxy.passed) == (Reason.SOURCE_DENIED, [])
    set_for(fetcher, host, proxy=proxy.url("me:hush@"))
    await fetcher.fetch(f"http://{host}/a", sha256=digest(CONTENT))
    assert proxy.passed == [f"GET {host}"] * 2, "cut once, and gone on with"


async def test_a_proxy_that_is_not_there_is_a_source_that_is_down(fetcher: Fetcher, site: Web) -> None:
    site.serve("/a", CONTENT)
    set_for(fetcher, host_of(site), proxy="http://me:hush@127.0.0.1:9")
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", sha256=digest(CONTENT)))
    assert failure.reason is Reason.SOURCE_DOWN
    assert "hush" not in str(failure)


async def test_an_image_comes_through_certificate_proxy_and_password_together(
    fetcher: Fetcher, secure: Web, proxy: Proxy, certificates: Certificates
) -> None:
    """The node, and the control plane that resolves the tag, use the same access settings of a host."""
    image = publish(secure, [CONTENT], basic=basic(LOGIN, PASSWORD))
    reference = f"{REGISTRY}/{image.name}:{image.tag}"
    way = {"ca": certificates.ca.read_text(), "proxy": proxy.url("me:hush@")}
    configured = set_for(fetcher, REGISTRY, username=LOGIN, password=PASSWORD, **way)

    async def access(_host: str) -> SourceAccess:
        return configured

    assert await RegistryTags(access, LOCAL).pin([reference]) == image.digest
    job = await fetcher.run(Command(op_id="op", uri=f"{reference}@{image.digest}"), lambda artifact: None)
    assert job.bytes_fetched == len(CONTENT)
    assert set(proxy.passed) == {f"CONNECT {REGISTRY}:443"}

    configured = SourceAccess(host=REGISTRY, **way)
    with pytest.raises(RegistryDenied, match=REGISTRY):
        await RegistryTags(access, LOCAL).pin([reference])
    configured = SourceAccess(host=REGISTRY, proxy=way["proxy"])
    with pytest.raises(RegistryDown, match="cannot be reached"):
        await RegistryTags(access, LOCAL).pin([reference])


# allowed sources ----------------------------------------------------------------------------------------------


async def test_sources_outside_of_the_allowed_networks_and_folders_are_refused(
    fetcher: Fetcher, site: Web, tmp_path: Path
) -> None:
    """The refusal is final and has the same message, before any request, connection or open."""
    site.serve("/a", CONTENT)
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    fetcher.build(policy=SourcePolicy())
    image = publish(site, [CONTENT])
    for uri in (f"{site.url}/a", secret.as_uri(), (tmp_path / "missing").as_uri(), image.reference):
        failure = await failure_of(fetcher.run(Command(op_id="op", uri=uri), lambda artifact: None))
        assert failure.reason is Reason.REFUSED_BY_NODE, uri
    assert (site.seen, fetcher.asked) == ([], [])


async def test_a_file_source_does_not_leave_its_folder_by_a_link(fetcher: Fetcher, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "secret").write_bytes(CONTENT)
    (allowed / "link").symlink_to("../secret")
    (allowed / "file").write_bytes(CONTENT)
    fetcher.build(policy=SourcePolicy(folders=(str(allowed.resolve()),)))
    await fetcher.fetch((allowed / "file").as_uri())
    failure = await failure_of(fetcher.fetch((allowed / "link").as_uri()))
    assert failure.reason is Reason.REFUSED_BY_NODE


async def test_a_redirect_of_a_source_leads_to_allowed_networks_only(fetcher: Fetcher, site: Web) -> None:
    fetcher.build(policy=SourcePolicy(networks=(ip_network("127.0.0.1/32"),)))
    elsewhere = site.url.replace("127.0.0.1", "127.0.0.2")
    site.serve("/a", b"", status=302, headers={"Location": f"{elsewhere}/b"})
    failure = await failure_of(fetcher.fetch(f"{site.url}/a"))
    assert failure.reason is Reason.REFUSED_BY_NODE
    assert [seen.path for seen in site.seen] == ["/a"]
