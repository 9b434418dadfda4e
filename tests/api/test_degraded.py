"""Degraded, not hanging: what is missing is said, and what does not need it goes on. Bounds are measured elsewhere;
here a deadline only catches hangs."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from nodesmith.api.app import create_app
from nodesmith.bus.nats_credentials import new_trust
from nodesmith.domain.operation import State
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect, prepare_namespace
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.stack.servers import embedded as stack_servers
from nodesmith.stack.servers.nats import NatsServer
from nodesmith.stack.servers.postgres import PostgresServer
from nodesmith.stack.servers.temporal import TemporalServer
from tests.api.station import ADMIN_TOKEN, Api, bearer, composed, ready, settings_for, until
from tests.deadlines import HANGS_S
from tests.runtime.test_temporal import linked
from tests.servers import NatsForTests, free_port
from tests.store.transitions import a_request, transition


@pytest.fixture(scope="module")
async def without_temporal(settings: ControlSettings, queue: str) -> AsyncIterator[Api]:
    elsewhere = settings.model_copy(update={"temporal_address": f"127.0.0.1:{free_port()}"})
    async with composed(elsewhere, queue=queue) as api:
        await until(lambda: api.http.get("/readyz"), lambda answer: set(answer.json()["missing"]) == {"temporal"})
        yield api


@pytest.fixture(scope="module")
async def without_postgresql(settings: ControlSettings, queue: str) -> AsyncIterator[Api]:
    elsewhere = settings.model_copy(update={"database_url": f"postgresql://nobody@127.0.0.1:{free_port()}/none"})
    async with composed(elsewhere, queue=queue) as api:
        yield api


async def asked(api: Api, verb: str, path: str, **parts: Any) -> Any:
    async with asyncio.timeout(HANGS_S):
        return await api.http.request(verb, path, **parts)


async def test_without_temporal_writes_are_refused_and_lists_are_served(without_temporal: Api) -> None:
    api = without_temporal
    node = await api.approved_node()
    answer = await asked(
        api, "POST", "/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "echo"}
    )
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["facts"]["server"] == "temporal"
    listed = await asked(api, "GET", "/api/v1/operations")
    assert listed.status_code == 200
    assert listed.json()["items"] == []
    assert listed.json()["stale_since"]
    assert (await asked(api, "GET", "/api/v1/nodes")).status_code == 200
    readiness = await asked(api, "GET", "/readyz")
    assert readiness.status_code == 503
    assert "no operation can be started" in readiness.json()["missing"]["temporal"]


async def test_a_write_that_was_never_sent_to_temporal_leaves_no_audit_row(without_temporal: Api) -> None:
    api, node = without_temporal, await without_temporal.approved_node()
    running, failed = a_request(node_id=node["id"]), a_request(node_id=node["id"])
    await api.deps.admission.orders.add([failed])
    await api.deps.operations.record(transition(running, State.RUNNING), transition(failed, State.FAILED))
    newest = await newest_entry(api)
    for path, body in (
        ("/api/v1/operations", {"kind": "install", "node": node["id"], "backend": "echo"}),
        (f"/api/nodes/{node['id']}/backends/install", {"backend": "echo"}),
        ("/api/v1/batches", {"backend": "echo", "nodes": [node["name"]]}),
        (f"/api/v1/operations/{running.op_id}/cancel", {}),
        (f"/api/operations/{running.op_id}/pause", {}),
        (f"/api/v1/operations/{failed.op_id}/retry", {}),
        ("/backends/apply", {"id": "echo"}),
    ):
        answer = await asked(api, "POST", path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
    assert await newest_entry(api) == newest


async def test_write_that_temporal_may_have_carried_out_is_reported_as_unknown(
    api: Api, settings: ControlSettings
) -> None:
    async with linked(settings.temporal_address) as (link, runs):
        lock = OperationLock(api.deps.operations, runs, api.deps.admission.orders)
        async with served_with(api, lock) as degraded:
            node = await api.approved_node()
            link.cut_at = node["id"].encode()
            body = {"kind": "install", "node": node["id"], "backend": "echo"}
            answer = await asked(degraded, "POST", "/api/v1/operations", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "not known whether" in answer.json()["detail"]
    assert "Try again" in answer.json()["remedy"]
    entry = (await api.http.get("/api/v1/audit")).json()["items"][0]
    assert (entry["action"], entry["outcome"]) == ("operations.create", "unknown")


async def newest_entry(api: Api) -> int:
    newest: int = (await api.http.get("/api/v1/audit")).json()["items"][0]["id"]
    return newest


async def test_without_temporal_every_write_to_a_run_is_refused(without_temporal: Api) -> None:
    """A batch, a cancel and a retry say the same as an install, and change nothing."""
    api, node = without_temporal, await without_temporal.approved_node()
    running, failed = a_request(node_id=node["id"]), a_request(node_id=node["id"])
    await api.deps.admission.orders.add([failed])
    await api.deps.operations.record(transition(running, State.RUNNING), transition(failed, State.FAILED))
    for path, body in (
        ("/api/v1/batches", {"backend": "echo", "nodes": [node["name"]]}),
        (f"/api/v1/operations/{running.op_id}/cancel", {}),
        (f"/api/v1/operations/{failed.op_id}/retry", {}),
    ):
        answer = await asked(api, "POST", path, json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), answer.text
        assert answer.json()["facts"]["server"] == "temporal"
    assert (await api.http.get("/api/v1/batches")).json()["items"] == []
    [entry] = (await api.http.get(f"/api/v1/operations?node={node['id']}&state=running")).json()["items"]
    assert entry["op_id"] == running.op_id


async def test_hanging_temporal_counts_as_unavailable(api: Api, settings: ControlSettings) -> None:
    """It takes the connection and says nothing: each call is bounded by itself."""
    async with silent_server() as address:
        client = await connect(settings.model_copy(update={"temporal_address": address}), lazy=True)
        async with on_temporal(api, client) as hanging:
            node = await api.approved_node()
            body = {"kind": "install", "node": node["id"], "backend": "echo"}
            answer = await asked(hanging, "POST", "/api/v1/operations", json=body)
            assert (answer.status_code, answer.json()["facts"]["server"]) == (503, "temporal")
            assert answer.headers["retry-after"] == "2"


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    over = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


async def test_without_our_namespace_temporal_is_not_prepared_yet(api: Api, settings: ControlSettings) -> None:
    async with with_namespace(api, settings) as (early, _):
        await refused_as_unprepared(early, "is not found")


async def test_without_our_search_attributes_temporal_is_503_until_it_has_them(
    api: Api, settings: ControlSettings
) -> None:
    async with with_namespace(api, settings) as (early, client):
        lasts = Duration(seconds=86400)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(namespace=client.namespace, workflow_execution_retention_period=lasts)
        )
        body = await refused_as_unprepared(early, "search attribute")
        await prepare_namespace(client)
        path = "/api/v1/operations"
        await until(lambda: asked(early, "POST", path, json=body), lambda answer: answer.status_code == 202)


@asynccontextmanager
async def with_namespace(api: Api, settings: ControlSettings) -> AsyncIterator[tuple[Api, Client]]:
    """The same API, as it would be on a Temporal that has just started."""
    client = await connect(settings.model_copy(update={"temporal_namespace": f"fresh-{secrets.token_hex(4)}"}))
    async with on_temporal(api, client) as early:
        yield early, client


@asynccontextmanager
async def on_temporal(api: Api, client: Client) -> AsyncIterator[Api]:
    async with served_with(
        api, OperationLock(api.deps.operations, TemporalRuns(client, queue="nobody"), api.deps.admission.orders)
    ) as other:
        yield other


@asynccontextmanager
async def served_with(api: Api, lock: OperationLock) -> AsyncIterator[Api]:
    deps = replace(api.deps, admission=replace(api.deps.admission, lock=lock))
    transport = httpx2.ASGITransport(app=create_app(deps))
    async with httpx2.AsyncClient(transport=transport, base_url=api.url, headers=bearer(ADMIN_TOKEN)) as http:
        yield Api(api.url, deps, http)


async def refused_as_unprepared(api: Api, missing: str) -> dict[str, str]:
    """Return the request that was refused."""
    node = await api.approved_node()
    body = {"kind": "install", "node": node["id"], "backend": "echo"}
    answer = await asked(api, "POST", "/api/v1/operations", json=body)
    assert (answer.status_code, answer.json()["facts"].get("server")) == (503, "temporal"), answer.text
    assert answer.headers["retry-after"] == "2"
    assert "not prepared yet" in answer.json()["detail"]
    assert missing in answer.json()["detail"]
    return body


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/operations"),
        ("GET", "/api/v1/operations/x"),
        ("GET", "/api/v1/events"),
        ("POST", "/api/v1/operations"),
        ("GET", "/api/nodes"),
        ("POST", "/api/nodes/x/backends/install"),
        ("POST", "/api/v1/operations/x/cancel"),
        ("POST", "/api/v1/sign-in-links"),
    ],
)
async def test_without_postgresql_everything_that_needs_it_is_503(
    without_postgresql: Api, verb: str, path: str
) -> None:
    body = {"kind": "install", "node": "x", "backend": "echo"}
    answer = await asked(without_postgresql, verb, path, json=body if verb == "POST" else None)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["facts"]["server"] == "postgresql"


async def test_without_postgresql_the_process_runs_and_reports_it(without_postgresql: Api) -> None:
    assert (await asked(without_postgresql, "GET", "/healthz")).status_code == 200
    readiness = await asked(without_postgresql, "GET", "/readyz")
    assert set(readiness.json()["missing"]) == {"postgresql"}
    for catalogue in ("/api/v1/backends", "/api/backends"):
        answer = await asked(without_postgresql, "GET", catalogue)
        assert (answer.status_code, answer.json()["stale"]) == (200, True)


async def test_process_that_started_before_its_servers_is_ready_once_they_are_there(tmp_path: Path) -> None:
    trust = new_trust()
    postgres = PostgresServer(tmp_path / "pg", free_port(), "secret", tmp_path / "pg.log", settings={"fsync": "off"})
    nats = NatsServer(folder=tmp_path, port=free_port(), trust=trust, log=tmp_path / "nats.log")
    temporal = TemporalServer(
        database=tmp_path / "temporal.db",
        port=free_port(),
        web_port=free_port(),
        metrics_port=free_port(),
        log=tmp_path / "temporal.log",
    )
    settings = settings_for(
        tmp_path,
        database_url=postgres.url(),
        nats_url=nats.url,
        account_seed=trust.account_seed,
        temporal=temporal.address,
    )
    async with composed(settings, queue=secrets.token_hex(4)) as api, AsyncExitStack() as running:
        first = await api.http.get("/readyz")
        assert set(first.json()["missing"]) == {"postgresql", "nats", "temporal"}
        for server in (postgres, nats, temporal):
            await running.enter_async_context(stack_servers.running(server))
        await ready(api)
        node = await api.approved_node()
        answer = await asked(
            api, "POST", "/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "echo"}
        )
        assert answer.status_code == 202


async def test_without_nats_installs_are_accepted_and_wait(
    settings: ControlSettings, queue: str, nats_server: NatsForTests
) -> None:
    nowhere = settings.model_copy(update={"nats_url": f"nats://127.0.0.1:{free_port()}"})
    async with composed(nowhere, queue=queue) as api:
        await until(lambda: api.http.get("/readyz"), lambda answer: set(answer.json()["missing"]) == {"nats"})
        node = await api.approved_node()
        answer = await asked(
            api, "POST", "/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "echo"}
        )
        assert answer.status_code == 202
        listed = await asked(api, "GET", f"/api/v1/nodes/{node['id']}/models")
        assert (listed.status_code, listed.json()["facts"]["server"]) == (503, "nats")
        unload = await asked(api, "POST", "/api/v1/models/unload", json={"model_name": "llama"})
        assert (unload.status_code, unload.json()["facts"]["server"]) == (503, "nats"), "not: it runs nowhere"
