"""Loads on a node with a certificate: gateways reach its replicas through the forwarder that the agent starts."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodesmith.bus.commands import NodeClient
from nodesmith.contracts.nats.messages import Result
from nodesmith.domain.forwarding import server_name, split_address
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from tests.agent.forward.nodes import Trust, free_port
from tests.agent.model_server import install, load, unload
from tests.agent.nodes import LONG, Node, StartAgent, agent_in_process
from tests.agent.test_load_orders import FAST
from tests.agent.web import Web

KEY = "llama#0"


@pytest.fixture
def trust(tmp_path: Path, control_plane: Web) -> Trust:
    """The control plane signs certificates."""
    made = Trust.create(tmp_path / "trust")
    control_plane.authority = ReplicaAuthority.load(made.files.ca, made.files.ca_key)
    return made


async def loaded(start_agent: StartAgent, folder: Path, **settings: Any) -> tuple[Node, str]:
    """A node with one replica, and the address that it reports."""
    folder.mkdir()  # noqa: ASYNC240
    ports: dict[str, Any] = {"forward_first_port": free_port(), "forward_last_port": 65535}
    node = await start_agent(**FAST, **ports, **settings)
    assert (await node.outcome_of(install(folder))).result is Result.SUCCEEDED
    outcome = await node.outcome_of(load(folder))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    return node, outcome.addresses[KEY]


async def answer_of(trust: Trust, node: Node, address: str) -> bytes:
    """What a gateway gets from the replica; empty if it is not let in."""
    port = int(address.rpartition(":")[2])
    try:
        async with asyncio.timeout(LONG):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trust.tls(), server_hostname=server_name(node.id, KEY)
            )
            writer.write(b"GET /info HTTP/1.0\r\nHost: here\r\n\r\n")
            answer = await reader.read()
            writer.close()
    except OSError:
        return b""
    return answer


async def test_replica_is_reached_through_the_forwarder_until_it_is_unloaded(
    trust: Trust, start_agent: StartAgent, tmp_path: Path
) -> None:
    node, reported = await loaded(start_agent, tmp_path / "sources")
    address, is_forwarded = split_address(reported)
    assert is_forwarded, reported
    said = json.loads((await answer_of(trust, node, address)).partition(b"\r\n\r\n")[2])
    assert said["version"] == "1"
    upgraded = await node.outcome_of(install(tmp_path / "sources", "2", op_id="two"))
    assert upgraded.result is Result.SUCCEEDED, upgraded.error
    said = json.loads((await answer_of(trust, node, address)).partition(b"\r\n\r\n")[2])
    assert said["version"] == "2", "the route follows the replica to another port"
    assert (await node.outcome_of(unload())).result is Result.SUCCEEDED
    assert await answer_of(trust, node, address) == b""


@pytest.mark.parametrize("is_signed", [True, False])
async def test_backend_is_reported_itself_without_a_certificate_or_by_setting(
    trust: Trust, start_agent: StartAgent, control_plane: Web, tmp_path: Path, *, is_signed: bool
) -> None:
    if not is_signed:
        control_plane.authority = None  # an older control plane
    node, reported = await loaded(start_agent, tmp_path / "sources", forwarder=not is_signed)
    assert split_address(reported)[1] is False
    assert not (node.home / "forward" / "process.json").exists()


async def test_forwarder_ends_with_an_agent_that_keeps_no_backends(
    trust: Trust, control_plane: Web, control: NodeClient, tmp_path: Path
) -> None:
    node = Node("agent-1", tmp_path / "agent-1", control_plane, control)

    async def start(name: str = "agent-1", **settings: Any) -> Node:
        await running.enter_async_context(agent_in_process(node, settings))
        await node.linked()
        return node

    async with AsyncExitStack() as running:
        await loaded(start, tmp_path / "sources")
        record = json.loads((node.home / "forward" / "process.json").read_text())
        assert psutil.pid_exists(record["pid"])
    assert not psutil.pid_exists(record["pid"])
