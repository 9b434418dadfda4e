"""Models on the real stack: loaded and unloaded by operations, with a backend that is installed on the way."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodesmith.agent.run.process_records import ProcessRecords
from nodesmith.api.assembly import compose
from nodesmith.api.dependencies import Dependencies
from nodesmith.domain.deployment import LoadSpec, ModelFile
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import State
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.runtime.settings import ControlSettings
from nodesmith.services.models.loads import ModelLoads
from tests.agent.model_server import model_server
from tests.e2e.fleet import Fleet
from tests.e2e.slow_source import Package, SlowSource
from tests.e2e.test_install import unique
from tests.e2e.test_replicas import environment_of

WEIGHTS = Package(b"weights " * 1000, "")


@pytest.fixture(scope="module")
async def control(fleet: Fleet) -> AsyncIterator[Dependencies]:
    """The control plane as an API process has it, with its keys."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of(fleet.machine.pids()["api"]).items():
            if name.startswith("NODESMITH_"):
                patch.setenv(name, value)
        settings = ControlSettings()
    async with AsyncExitStack() as closing:
        yield await compose(settings, closing)


@pytest.fixture
def loads(control: Dependencies) -> ModelLoads:
    admission = control.admission
    return ModelLoads(
        nodes=admission.nodes,
        inventory=admission.inventory,
        admission=admission,
        lock=admission.lock,
        intents=admission.intents,
        policy=admission.policy,
        clock=lambda: datetime.now(UTC),
    )


async def a_replica(control: Dependencies, node: str, model: str, index: int = 0) -> Replica:
    known = await control.nodes.find(node)
    assert known is not None
    now = datetime.now(UTC)
    return Replica(
        id=new_op_id(),
        node_id=known.id,
        model=model,
        index=index,
        revision=1,
        state=ReplicaState.PLACING,
        op_id=new_op_id(),
        created_at=now,
        changed_at=now,
    )


def spec(model: str, backend: str, source: SlowSource, **fields: Any) -> LoadSpec:
    source.files["model.gguf"] = WEIGHTS.content
    file = ModelFile(
        uri=f"{source.url}/model.gguf", sha256=WEIGHTS.sha256, name="model.gguf", size=len(WEIGHTS.content)
    )
    return LoadSpec(model=model, revision=1, backend=backend, files=(file,), **fields)


async def installed(fleet: Fleet, source: SlowSource, node: str, name: str, version: str, **body: object) -> None:
    """Install the test backend by uri."""
    package = Package(model_server(version), "")
    source.files[f"{name}-{version}.tar.gz"] = package.content
    op_id = await fleet.accepted(
        node,
        uri=f"{source.url}/{name}-{version}.tar.gz",
        name=name,
        version=version,
        sha256=package.sha256,
        **body,
    )
    ended = await fleet.ended(op_id)
    assert ended["state"] == State.SUCCEEDED, ended


def address_of(fleet: Fleet, node: str, key: str) -> str:
    """Where the process of a replica listens, as its agent recorded it."""
    records = ProcessRecords(fleet.machine.folder / "agents" / node).everything()
    return next(record.address for record in records if record.key == key)


async def info(address: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer: dict[str, Any] = (await http.get(f"http://{address}/info")).json()
        return answer


async def test_a_load_installs_its_backend_first(
    fleet: Fleet, control: Dependencies, loads: ModelLoads, source: SlowSource
) -> None:
    model, node = unique("model"), "agent-3"
    await fleet.ended(await fleet.accepted(node, kind="remove", backend="echo"))
    known = await control.nodes.find(node)
    assert known is not None
    await control.inventory.refresh(known)
    replica = await a_replica(control, node, model)
    await loads.start_load(replica, spec(model, "echo", source, ready_path="/healthz"))
    ended = await fleet.ended(replica.op_id)
    assert (ended["state"], ended["kind"], ended["backend"]) == (State.SUCCEEDED, "load", f"{model}#0"), ended
    assert "loaded" in ended["detail"]
    waited = [event for event in ended["timeline"] if event["reason"] == "backend"]
    install = await fleet.operation(waited[0]["detail"].removeprefix("operation "))
    assert (install["kind"], install["backend"], install["state"]) == ("install", "echo", State.SUCCEEDED)
    gone = await a_replica(control, node, model)
    await loads.start_unload(gone)
    ended = await fleet.ended(gone.op_id)
    assert (ended["state"], ended["detail"]) == (State.SUCCEEDED, f"stopped {model}#0")


async def test_models_survive_kills_and_follow_their_backend(
    fleet: Fleet, control: Dependencies, loads: ModelLoads, source: SlowSource
) -> None:
    """Two replicas share a backend; worker, agent and process are killed; an upgrade with overlap moves both."""
    model, backend, node = unique("model"), unique("server"), "agent-2"
    await installed(fleet, source, node, backend, "1")
    wanted = spec(
        model,
        backend,
        source,
        arguments=("--model", "{file}", "--ready-after", "2"),
        environment=(("API_TOKEN", "s3cret"),),
    )
    replicas = [await a_replica(control, node, model, index) for index in range(2)]
    for replica in replicas:
        await loads.start_load(replica, wanted)
    await fleet.in_state(replicas[0].op_id, State.RUNNING)
    fleet.kill("worker")
    for replica in replicas:
        ended = await fleet.ended(replica.op_id)
        assert ended["state"] == State.SUCCEEDED, ended
        assert "s3cret" not in str(ended)
    said = await info(address_of(fleet, node, f"{model}#0"))
    assert (said["content"], said["environment"]["API_TOKEN"]) == (WEIGHTS.content.decode(), "s3cret")
    assert source.sent["model.gguf"] == len(WEIGHTS.content)
    fleet.kill(node)
    os.killpg(said["pid"], signal.SIGKILL)
    await until_version(fleet, node, f"{model}#0", "1", other_than=said["pid"])
    await until_version(fleet, node, f"{model}#1", "1")
    await installed(fleet, source, node, backend, "2", kind="upgrade", upgrade_policy="overlap")
    for index in range(2):
        await until_version(fleet, node, f"{model}#{index}", "2")
    for replica in replicas:
        gone = await a_replica(control, node, model, replica.index)
        await loads.start_unload(gone)
        assert (await fleet.ended(gone.op_id))["state"] == State.SUCCEEDED


async def until_version(fleet: Fleet, node: str, key: str, version: str, *, other_than: int = 0) -> None:
    async with asyncio.timeout(90):
        while True:
            try:
                said = await info(address_of(fleet, node, key))
            except (httpx2.TransportError, StopIteration):
                said = {}
            if said.get("version") == version and said.get("pid") != other_than:
                return
            await asyncio.sleep(0.2)


async def test_a_load_can_be_cancelled_on_the_node(
    fleet: Fleet, control: Dependencies, loads: ModelLoads, source: SlowSource
) -> None:
    model, backend, node = unique("model"), unique("server"), "agent-1"
    await installed(fleet, source, node, backend, "1")
    replica = await a_replica(control, node, model)
    await loads.start_load(replica, spec(model, backend, source, arguments=("--gate", "/nowhere")))
    await fleet.until(replica.op_id, lambda row: (row["progress"] or {}).get("phase") == "loading")
    assert (await fleet.cancel(replica.op_id)).status_code == 202
    ended = await fleet.ended(replica.op_id)
    assert (ended["state"], ended["reason"]) == (State.CANCELLED, "requested")
    with pytest.raises(StopIteration):
        address_of(fleet, node, f"{model}#0")


async def test_a_deployment_is_loaded_follows_its_backend_and_is_unloaded(fleet: Fleet, source: SlowSource) -> None:
    """The whole way: deployment, scheduler, operation, node, report; an upgrade moves the replica to another port."""
    model, backend, node = unique("model"), unique("server"), "agent-1"
    await installed(fleet, source, node, backend, "1")
    body = {
        "backend": backend,
        "files": [{"uri": f"{source.url}/model.gguf", "sha256": WEIGHTS.sha256, "name": "model.gguf"}],
        "arguments": ["--model", "{file}"],
        "environment": {"API_TOKEN": "s3cret"},
        "selector": f"node.name={node}",
        "min_replicas": 1,
        "max_replicas": 1,
    }
    source.files["model.gguf"] = WEIGHTS.content
    await fleet.http.post(f"/api/v1/nodes/{node}/inventory/refresh")
    answer = await fleet.http.put(f"/api/v1/deployments/{model}", json=body)
    assert answer.status_code == 200, answer.text
    replica = await until_loaded(fleet, model)
    backend_at = address_of(fleet, node, f"{model}#0")
    assert (await info(backend_at))["content"] == WEIGHTS.content.decode()
    assert "s3cret" not in answer.text
    await installed(fleet, source, node, backend, "2", kind="upgrade", upgrade_policy="overlap")
    await until_version(fleet, node, f"{model}#0", "2")
    assert address_of(fleet, node, f"{model}#0") != backend_at
    assert (await until_loaded(fleet, model))["address"] == replica["address"], "gateways keep the address"
    assert (await fleet.http.delete(f"/api/v1/deployments/{model}")).status_code == 200
    async with asyncio.timeout(90):
        while f"{model}%230.json" in {path.name for path in running_on(fleet, node)}:  # noqa: ASYNC110 - on its disk
            await asyncio.sleep(0.2)


def running_on(fleet: Fleet, node: str) -> list[Path]:
    return list((fleet.machine.folder / "agents" / node / "running").glob("*.json"))


async def until_loaded(fleet: Fleet, model: str) -> dict[str, Any]:
    """The loaded replica of the model."""
    async with asyncio.timeout(90):
        while True:
            detail = (await fleet.http.get(f"/api/v1/deployments/{model}")).json()
            for replica in detail.get("replicas", []):
                if replica["state"] == "loaded":
                    return dict(replica)
            await asyncio.sleep(0.2)
