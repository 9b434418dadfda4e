"""Calls through the gateway and a real forwarder process to a real backend."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.forwarding import forwarded, node_name, server_name, split_address
from nodesmith.gateway.upstream import UpstreamPool
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from tests.agent.forward.nodes import NODE, ForwarderProcess, Trust, forwarder
from tests.agent.waiting import until
from tests.gateway.backends import EchoLm, answering, echo_lm, scripted
from tests.gateway.site import MODEL, PATIENCE_S, gateway_site, replica

KEY = f"{MODEL}#0"


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EchoLm]:
    async with echo_lm(tmp_path_factory.mktemp("backend")) as running:
        yield running


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust.create(tmp_path_factory.mktemp("trust"))


@pytest.fixture
async def node(trust: Trust, tmp_path: Path) -> AsyncIterator[ForwarderProcess]:
    async with forwarder(trust, tmp_path / "node") as running:
        yield running


async def can_connect(node: ForwarderProcess, context: ssl.SSLContext, name: str) -> bool:
    """Whether a connection survives the handshake and what the forwarder checks then."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=context, server_hostname=name)
            writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
            answer = await reader.read(12)
            writer.close()
    except (OSError, ssl.SSLError):
        return False
    return answer.startswith(b"HTTP/1.1")


async def test_call_reaches_the_backend_through_mutual_tls(
    trust: Trust, node: ForwarderProcess, backend: EchoLm
) -> None:
    await node.client.put(KEY, backend.address)
    async with gateway_site(pool=UpstreamPool(trust.tls)) as site:
        site.route(replica(node.address, server_name=node.name(KEY)))
        answers = await asyncio.gather(*(site.chat(max_tokens=5) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert await node.client.open(KEY) > 0
    async with asyncio.timeout(PATIENCE_S):
        while await node.client.open(KEY):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_only_gateways_of_this_installation_are_let_in(
    trust: Trust, node: ForwarderProcess, backend: EchoLm, tmp_path: Path
) -> None:
    await node.client.put(KEY, backend.address)
    name = node.name(KEY)
    assert await can_connect(node, trust.tls(), name)
    other = Trust.create(tmp_path / "other")
    stranger = other.tls()
    stranger.load_verify_locations(cafile=str(trust.files.ca))
    assert not await can_connect(node, stranger, name), "a certificate of another CA"
    nameless = ssl.create_default_context(cafile=str(trust.files.ca))
    assert not await can_connect(node, nameless, name), "no certificate"
    client = Trust.create(tmp_path / "client", client_name="client.nodesmith.internal")
    copy = client.files
    for file in (trust.files.ca, trust.files.ca_key):
        (tmp_path / "client" / file.name).write_bytes(file.read_bytes())
    for file in (copy.client, copy.client_key, copy.server, copy.server_key):
        file.unlink()
    copy.ensure_mutual("127.0.0.1")
    assert not await can_connect(node, client.tls(), name), "a certificate of our CA that is no gateway's"
    for wrong in (server_name(NODE, "other#0"), f"x.{NODE}.replica.nodesmith.internal"):
        assert not await can_connect(node, trust.tls(), wrong), wrong


async def test_node_certificate_opens_nothing_on_another_node(trust: Trust, tmp_path: Path, backend: EchoLm) -> None:
    """A node cannot call the replicas of another node, nor pretend to be it."""
    async with forwarder(trust, tmp_path / "one") as one, forwarder(trust, tmp_path / "two", "node-2") as two:
        await one.client.put(KEY, backend.address)
        await two.client.put(KEY, backend.address)
        assert await can_connect(one, trust.tls(), one.name(KEY))
        assert not await can_connect(two, trust.tls(), one.name(KEY))
        thief = ssl.create_default_context(cafile=str(trust.files.ca))
        thief.load_cert_chain(tmp_path / "two" / "cert.pem", tmp_path / "two" / "key.pem")
        assert not await can_connect(one, thief, one.name(KEY))


async def test_drained_replica_refuses_new_connections_and_finishes_the_open_ones(
    trust: Trust, node: ForwarderProcess
) -> None:
    release = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await release.wait()
        await answering(b"done")(reader, writer, head)

    async with scripted(script) as slow, gateway_site(pool=UpstreamPool(trust.tls)) as site:
        await node.client.put(KEY, slow.address)
        site.route(replica(node.address, server_name=node.name(KEY)))
        call = asyncio.create_task(site.chat())
        await until(lambda: slow.heads, pause=0.01)
        assert await node.client.drain(KEY) == 1
        assert not await can_connect(node, trust.tls(), node.name(KEY))
        release.set()
        assert (await call).content == b"done"
    async with asyncio.timeout(PATIENCE_S):
        while await node.client.open(KEY):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_killed_forwarder_comes_back_with_its_routes(
    trust: Trust, node: ForwarderProcess, backend: EchoLm, tmp_path: Path
) -> None:
    await node.client.put(KEY, backend.address)
    await node.client.put("other#1", "127.0.0.1:1")
    await node.client.drain("other#1")
    node.kill()
    await node.start()
    assert await node.client.keys() == ["other#1", KEY]
    assert await can_connect(node, trust.tls(), node.name(KEY))
    await node.client.remove(KEY)
    assert await node.client.keys() == ["other#1"]
    assert not await can_connect(node, trust.tls(), node.name(KEY))


async def test_killed_forwarder_is_a_failed_replica_and_calls_go_elsewhere(
    trust: Trust, tmp_path: Path, backend: EchoLm
) -> None:
    async with (
        forwarder(trust, tmp_path / "one") as one,
        forwarder(trust, tmp_path / "two", "node-2") as two,
        gateway_site(pool=UpstreamPool(trust.tls)) as site,
    ):
        for each in (one, two):
            await each.client.put(KEY, backend.address)
        site.route(
            replica(one.address, 0, server_name=one.name(KEY)), replica(two.address, 1, server_name=two.name(KEY))
        )
        statuses: list[int] = []
        stop = asyncio.Event()

        async def call() -> None:
            while not stop.is_set():
                statuses.append((await site.chat(max_tokens=4)).status_code)

        calls = [asyncio.create_task(call()) for _ in range(8)]
        await until(lambda: len(statuses) > 40, pause=0.01)
        one.kill()
        before = len(statuses)
        await until(lambda: len(statuses) > before + 100, pause=0.01)
        stop.set()
        await asyncio.gather(*calls)
    assert set(statuses) == {200}


async def test_stopped_forwarder_finishes_open_connections(trust: Trust, node: ForwarderProcess) -> None:
    release = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await release.wait()
        await answering(b"done")(reader, writer, head)

    async with scripted(script) as slow, gateway_site(pool=UpstreamPool(trust.tls)) as site:
        await node.client.put(KEY, slow.address)
        site.route(replica(node.address, server_name=node.name(KEY)))
        call = asyncio.create_task(site.chat())
        await until(lambda: slow.heads, pause=0.01)
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        release.set()
        assert (await call).content == b"done"
        assert await asyncio.to_thread(node.process.wait, PATIENCE_S) == 0


# certificates and names


def test_certificate_is_for_the_node_that_asked_and_is_renewed_in_time(trust: Trust, tmp_path: Path) -> None:
    node = trust.certify(tmp_path)
    assert not node.needs_renewal()
    assert node.needs_renewal(datetime.now(UTC) + timedelta(days=21))
    assert NodeCertificate(tmp_path / "none").needs_renewal()
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    authority = ReplicaAuthority.load(trust.files.ca, trust.files.ca_key)
    for bad in ("", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"):
        with pytest.raises(InvalidRequest):
            authority.sign_node(bad, NODE)


def test_names_and_addresses() -> None:
    assert node_name("n") == "*.n.replica.nodesmith.internal"
    assert server_name("n", "a#0") != server_name("n", "a#1")
    assert split_address(forwarded("10.0.0.1:8905")) == ("10.0.0.1:8905", True)
    assert split_address("127.0.0.1:21000") == ("127.0.0.1:21000", False)
