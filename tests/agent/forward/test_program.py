"""The agent's half: starts the forwarder, finds it again, and tells it when its certificate was renewed."""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from nodesmith.agent.forward.program import ForwarderProgram, ForwarderRules, own_address
from nodesmith.domain.forwarding import server_name
from tests.agent.forward.nodes import NODE, Trust, free_port
from tests.deadlines import HANGS_S

KEY = "words#0"


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust.create(tmp_path_factory.mktemp("trust"))


@asynccontextmanager
async def program(trust: Trust, home: Path, first_port: int) -> AsyncIterator[ForwarderProgram]:
    """The program of an agent with that home; stopped at the end."""
    certificate = trust.certify(home / "forward")
    rules = ForwarderRules(home, "http://127.0.0.1:8900", "", "", first_port, first_port + 20, 1 << 20)
    started = ForwarderProgram(rules, certificate)
    await started.adopt()
    try:
        yield started
    finally:
        await started.stop()


async def test_next_agent_adopts_the_forwarder_and_starts_a_killed_one_on_the_same_port(
    trust: Trust, tmp_path: Path
) -> None:
    port = free_port()
    async with program(trust, tmp_path, port) as first:
        assert await first.ensure(NODE)
        assert not await first.ensure(NODE), "it runs already"
        pid = await first.client.pid()
        async with program(trust, tmp_path, port) as second:
            assert not await second.ensure(NODE)
            assert second.record is not None
            assert (second.record.pid, second.record.host) == (pid, "127.0.0.1")
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(second.wait_ended(), HANGS_S)
            assert await second.ensure(NODE)
            assert (await second.client.pid() != pid, second.record.port) == (True, first.record and first.record.port)
            assert await second.ensure("another-node"), "the control plane gave this machine another node id"


async def test_forwarder_takes_the_next_port_if_another_program_has_the_first(trust: Trust, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with program(trust, tmp_path, port) as started:
            assert await started.ensure(NODE)
            assert started.record is not None
            assert started.record.port > port


async def test_forwarder_without_a_record_is_killed_before_another_is_started(trust: Trust, tmp_path: Path) -> None:
    """The agent was killed after it started the forwarder and before it wrote the record."""
    port = free_port()
    async with program(trust, tmp_path, port) as first:
        await first.ensure(NODE)
        lost = psutil.Process(await first.client.pid())
        (tmp_path / "forward" / "process.json").unlink()
        async with program(trust, tmp_path, port) as second:
            assert await second.ensure(NODE)
            assert await second.client.pid() != lost.pid
            assert not lost.is_running() or lost.status() == psutil.STATUS_ZOMBIE


async def test_home_may_be_deeper_than_the_name_of_a_socket_may_be_long(trust: Trust, tmp_path: Path) -> None:
    async with program(trust, tmp_path / ("deep" * 25), free_port()) as started:
        assert await started.ensure(NODE)
        await started.client.put(KEY, "127.0.0.1:9")
        assert await started.client.keys() == [KEY]


async def test_renewed_certificate_is_shown_without_a_restart(trust: Trust, tmp_path: Path) -> None:
    async with program(trust, tmp_path, free_port()) as started:
        await started.ensure(NODE)
        assert started.record is not None
        before = await shown(trust, started.record.port)
        renewed = trust.certify(tmp_path / "forward")
        await started.client.reload()
        after = await shown(trust, started.record.port)
        assert after != before
        assert after == ssl.PEM_cert_to_DER_cert(renewed.cert_file.read_text())


async def shown(trust: Trust, port: int) -> bytes | None:
    """The certificate that the forwarder shows to a gateway."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust.tls(), server_hostname=server_name(NODE, KEY)
    )
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


def test_node_is_reached_where_it_reaches_the_control_plane_from() -> None:
    assert own_address("http://127.0.0.1:8900") == "127.0.0.1"
    assert own_address("https://localhost") in ("127.0.0.1", "::1")


def test_certificate_of_another_node_is_not_used(trust: Trust, tmp_path: Path) -> None:
    node = trust.certify(tmp_path)
    assert (node.is_for(NODE), node.is_for("another-node")) == (True, False)
    node.forget()
    assert not node.is_for(NODE)
    assert node.renewal_due() is None
