"""The ports of the embedded Temporal server refuse web pages and other users of the machine."""

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import psutil
import pytest
from temporalio.client import Client

from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from nodesmith.stack.certificates import Certificates
from nodesmith.stack.processes.child import Child, Program
from nodesmith.stack.servers import embedded, namespace
from nodesmith.stack.servers.isolation import ForwardedPort, IsolationOrder
from nodesmith.stack.servers.temporal import DYNAMIC_CONFIG, TemporalServer
from tests.servers import TemporalForTests, free_port

FOREIGN = {"Content-Type": "text/plain", "Host": "evil.example", "Origin": "http://evil.example"}
START = json.dumps({"workflowType": {"name": "BackendOperation"}, "taskQueue": {"name": "forged"}})


def listening(server: TemporalForTests) -> list[int]:
    connections = psutil.Process(server.child.pid).net_connections()
    return sorted({each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN})


async def test_page_of_another_site_starts_no_workflow_on_any_port(temporal_server: TemporalForTests) -> None:
    taken = []
    async with httpx2.AsyncClient(trust_env=False) as page:
        for port in listening(temporal_server):
            url = f"http://127.0.0.1:{port}/api/v1/namespaces/default/workflows/forged-{port}"
            try:
                answer = await page.post(url, content=START, headers=FOREIGN)
            except httpx2.TransportError:  # the port does not use HTTP
                continue
            if answer.is_success:
                taken.append(port)
    assert taken == []


async def test_no_host_that_can_be_sent_is_answered_by_the_http_api(temporal_server: TemporalForTests) -> None:
    (allowed,) = json.loads(DYNAMIC_CONFIG["frontend.httpAllowedHosts"])
    served = {temporal_server.server.port, temporal_server.server.web_port, temporal_server.server.metrics_port}
    statuses = set()
    for port in set(listening(temporal_server)) - served:
        for host in ("127.0.0.1", "localhost", allowed, ""):
            statuses.add(await status_of(port, host))
    assert statuses == {0, 400, 403}


async def status_of(port: int, host: str) -> int:
    """Return the status of a raw request; 0 when the port does not use HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    version = "1.1" if host else "1.0"
    head = f"GET /api/v1/namespaces/default HTTP/{version}\r\n" + (f"Host: {host}\r\n" if host else "")
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    try:
        words = (await reader.read(100)).decode(errors="replace").split()
    except OSError:
        return 0
    finally:
        writer.close()
    return int(words[1]) if words and words[0].startswith("HTTP/1") else 0


# isolated server


@pytest.fixture(scope="module")
async def isolated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalForTests]:
    folder = tmp_path_factory.mktemp("isolated")
    if not namespace.is_permitted():
        pytest.skip("network namespaces are not permitted here")
    server = isolated_server(folder)
    async with embedded.running(server) as child:
        yield TemporalForTests(server, child)


def isolated_server(folder: Path) -> TemporalServer:
    return TemporalServer(
        database=folder / "temporal.db",
        port=free_port(),
        web_port=free_port(),
        metrics_port=free_port(),
        log=folder / "temporal.log",
        certificates=Certificates(folder / "tls"),
    )


def settings_for(server: TemporalServer) -> ControlSettings:
    assert server.certificates is not None
    return ControlSettings(
        temporal_address=server.address,
        temporal_ca_file=server.certificates.ca,
        temporal_cert_file=server.certificates.client,
        temporal_key_file=server.certificates.client_key,
    )


async def test_isolated_server_serves_clients_with_a_certificate(isolated: TemporalForTests) -> None:
    client = await connect(settings_for(isolated.server))
    assert await client.count_workflows() is not None
    assert not isolated.server.has_worker("nodesmith")


async def test_isolated_server_refuses_plain_text_and_clients_without_certificate(isolated: TemporalForTests) -> None:
    with pytest.raises(RuntimeError):
        await Client.connect(isolated.server.address)
    assert isolated.server.certificates is not None
    context = ssl.create_default_context(cafile=str(isolated.server.certificates.ca))
    for port in (isolated.server.port, isolated.server.web_port):
        assert await asyncio.to_thread(answer_over, port, context) == b""
    context.load_cert_chain(isolated.server.certificates.client, isolated.server.certificates.client_key)
    assert await asyncio.to_thread(answer_over, isolated.server.web_port, context) == b"H"


async def test_isolated_server_refuses_the_certificate_of_another_home(
    isolated: TemporalForTests, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "tls")
    other.ensure_mutual("127.0.0.1")
    assert isolated.server.certificates is not None
    context = ssl.create_default_context(cafile=str(isolated.server.certificates.ca))
    context.load_cert_chain(other.client, other.client_key)
    assert await asyncio.to_thread(answer_over, isolated.server.web_port, context) == b""


def answer_over(port: int, context: ssl.SSLContext) -> bytes:
    """Return the first byte of the answer; with TLS 1.3 a refused certificate appears on the first read."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as link,
            context.wrap_socket(link, server_hostname="127.0.0.1") as tls,
        ):
            tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return tls.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


async def test_isolated_server_opens_no_other_port_on_the_machine(isolated: TemporalForTests) -> None:
    forwarder = psutil.Process(isolated.child.pid)
    (inner,) = forwarder.children(recursive=True)
    assert network_of(forwarder.pid) == network_of(inner.pid) != network_of(os.getpid())
    for port in (isolated.server.port, isolated.server.web_port):
        assert await embedded.is_listening(port)
    assert not await embedded.is_listening(isolated.server.metrics_port)


def network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


# forwarder and server end together, whichever is killed


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Child]:
    """A small server in a namespace, with its forwarder."""
    if not namespace.is_permitted():
        pytest.skip("network namespaces are not permitted here")
    certificates, port = Certificates(tmp_path / "tls"), free_port()
    certificates.ensure_mutual("127.0.0.1")
    files = (str(certificates.server), str(certificates.server_key), str(certificates.ca))
    order = IsolationOrder([ForwardedPort(port, port)], *files).to_json()
    server = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    argv = (sys.executable, "-P", "-m", "nodesmith.stack.servers.isolated", order, *server)
    child = await Child.start(Program("guarded", argv, tmp_path / "guarded.log"))
    async with asyncio.timeout(60):
        while not await embedded.is_listening(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    yield child
    await child.stop()


async def test_server_ends_with_its_forwarder(guarded: Child) -> None:
    (inner,) = psutil.Process(guarded.pid).children()
    os.kill(guarded.pid, signal.SIGKILL)
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [inner], timeout=30)
    assert gone == [inner]


async def test_forwarder_ends_with_its_server_and_reports_the_reason(guarded: Child) -> None:
    (inner,) = psutil.Process(guarded.pid).children()
    os.kill(inner.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        assert await guarded.wait() == 1
    assert guarded.failure_line() == "nodesmith: the server was killed by SIGKILL"


async def test_stopping_the_forwarder_stops_the_server(guarded: Child) -> None:
    (inner,) = psutil.Process(guarded.pid).children()
    await guarded.stop()
    assert not inner.is_running()
