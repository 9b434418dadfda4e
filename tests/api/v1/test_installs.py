"""Installs over HTTP: 202 and durable, or a refusal with its reason."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from nodesmith.domain.operation import State
from tests.agent import web
from tests.agent.registry import publish
from tests.agent.web import Web
from tests.api.station import Api
from tests.store.clock import NOON
from tests.store.transitions import transition


async def install(api: Api, node: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return await api.http.post("/api/v1/operations", json={"kind": "install", "node": node, **body}, headers=headers)


async def test_accepted_install_is_durable_and_readable_at_once(api: Api) -> None:
    """S1: nobody works here, so an answer that waited for the node would never come."""
    node = await api.approved_node()
    answer = await install(api, node["name"], backend="echo", reason="to try it")
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/api/v1/operations/{answer.json()['op_id']}"
    detail = (await api.http.get(answer.headers["Location"])).json()
    assert (detail["state"], detail["node_id"], detail["backend"]) == ("queued", node["id"], "echo")
    assert (detail["requested_by"], detail["note"]) == ("admin", "to try it")
    assert [event["state"] for event in detail["timeline"]] == ["queued"]
    run = f"http://temporal.test/namespaces/default/workflows/backend%3A{node['id']}%3Aecho/{detail['run_id']}/history"
    assert detail["temporal_url"] == run
    assert (await api.deps.admission.lock.runs.describe(detail["workflow_id"])) is not None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_request"),
        ({"backend": "", "uri": ""}, 400, "invalid_request"),
        ({"backend": "no-such-backend"}, 404, "unknown_backend"),
        ({"backend": "echo", "version": "99"}, 404, "unknown_backend"),
        ({"uri": "ftp://host/x.tar.gz"}, 400, "invalid_request"),
        ({"uri": "http:///x.tar.gz"}, 400, "invalid_request"),
        ({"uri": "http://user:secret@host/x.tar.gz"}, 400, "invalid_request"),
        ({"uri": "oci://user:secret@host.invalid/x/y:1"}, 400, "invalid_request"),
        ({"uri": "quay.invalid/x/y:"}, 400, "invalid_request"),
        ({"uri": "http://host/x.tar.gz"}, 400, "invalid_request"),
        ({"uri": "127.0.0.1:9/x/y:1"}, 503, "registry_down"),
        ({"backend": "x" * 256}, 400, "invalid_request"),
        ({"backend": "echo", "deadline_s": -1}, 400, "invalid_request"),
        ({"backend": 7}, 400, "invalid_request"),
    ],
)
async def test_bad_request_gets_a_clear_answer(api: Api, body: dict[str, Any], status: int, code: str) -> None:
    """S2, and every other request that cannot mean anything: nothing is started."""
    node = await api.approved_node()
    answer = await install(api, node["id"], **body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["remedy"]
    assert (await api.http.get(f"/api/v1/operations?node={node['id']}")).json()["items"] == []


async def test_nodes_that_may_not_get_work(api: Api) -> None:
    pending, agent = await api.register(), await api.approved_node(node_type="agent")
    unknown = await install(api, "nobody", backend="echo")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_node")
    waits = await install(api, pending["id"], backend="echo")
    assert (waits.status_code, waits.json()["code"]) == (409, "node_pending")
    runs_none = await install(api, agent["id"], backend="echo")
    assert (runs_none.status_code, runs_none.json()["code"]) == (409, "node_not_for_backends")


async def test_twenty_identical_requests_to_two_replicas_are_one_operation(api: Api, replica: Api) -> None:
    node = await api.approved_node()
    answers = await asyncio.gather(
        *(install(each, node["id"], backend="echo") for each in (api, replica) for _ in range(10))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["op_id"] for answer in answers}) == 1
    assert sorted(answer.json()["joined"] for answer in answers) == [False] + [True] * 19
    assert len((await api.http.get(f"/api/v1/operations?node={node['id']}")).json()["items"]) == 1


async def test_request_behind_a_run_that_is_closing_is_a_503_with_a_time(api: Api) -> None:
    """The operation has ended in its row; its run, which holds the lock, is still open."""
    node = await api.approved_node()
    first = (await install(api, node["id"], backend="echo")).json()["op_id"]
    request = await api.deps.operations.request(first)
    assert request is not None
    await api.deps.operations.record(transition(request, State.CANCELLED, ended_at=NOON))
    answer = await install(api, node["id"], backend="echo")
    assert (answer.status_code, answer.json()["code"], answer.json()["facts"]["op_id"]) == (503, "unavailable", first)
    assert int(answer.headers["Retry-After"]) > 0


async def test_one_backend_on_two_nodes_through_two_replicas_is_two_operations(api: Api, replica: Api) -> None:
    """S4, H24: another node is never taken for a duplicate, and neither job hides the other."""
    nodes = [await api.approved_node() for _ in range(2)]
    answers = await asyncio.gather(
        *(install(each, node["id"], backend="echo") for each, node in zip((api, replica), nodes, strict=True))
    )
    assert [answer.json()["joined"] for answer in answers] == [False, False]
    jobs = [answer.json()["op_id"] for answer in answers]
    for job, node in zip(jobs, nodes, strict=True):
        [entry] = (await api.http.get(f"/api/v1/operations?node={node['id']}")).json()["items"]
        assert (entry["op_id"], entry["node_id"], entry["backend"]) == (job, node["id"], "echo")


async def test_idempotency_key_is_honoured_on_every_replica(api: Api, replica: Api) -> None:
    node = await api.approved_node()
    key = {"Idempotency-Key": f"key-{node['id']}"}
    first = await install(api, node["id"], key, backend="echo")
    again = await install(replica, node["id"], key, backend="echo")
    assert first.json()["op_id"] == again.json()["op_id"]
    other = await install(replica, node["id"], key, backend="echo", version="1")
    assert (other.status_code, other.json()["facts"]["op_id"]) == (409, first.json()["op_id"])
    too_long = await install(api, node["id"], {"Idempotency-Key": "x" * 256}, backend="echo")
    assert too_long.status_code == 400


async def test_text_with_a_nul_is_accepted_and_shown_without_it(api: Api) -> None:
    node = await api.approved_node()
    accepted = await install(api, node["id"], backend="echo", reason="a\0b")
    detail = (await api.http.get(accepted.headers["Location"])).json()
    assert detail["note"] == "a\ufffdb"


# from a registry ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry() -> Iterator[Web]:
    with web.running() as site:
        yield site


async def test_a_reference_is_shown_with_the_digest_that_it_stood_for(api: Api, registry: Web) -> None:
    node, image = await api.approved_node(), publish(registry, [b"layer"])
    accepted = await install(api, node["id"], uri=image.reference, name="engine")
    shown = (await api.http.get(accepted.headers["Location"])).json()
    assert (shown["backend"], shown["uri"]) == ("engine", f"{image.reference}@{image.digest}")
    assert f"sha256:{shown['sha256']}" == image.digest


async def test_localais_external_install_takes_a_bare_reference(api: Api, registry: Web) -> None:
    await api.approved_node()
    image = publish(registry, [b"layer"], name="team/external")
    answer = await api.http.post("/api/backends/install-external", json={"uri": image.reference})
    assert answer.status_code == 200, answer.text
    batch = await api.deps.batches.request(answer.json()["jobID"])
    assert batch is not None
    assert (batch.wanted.backend, batch.wanted.uri) == ("external", f"{image.reference}@{image.digest}")


async def test_a_registry_that_is_down_is_a_503_that_names_it(api: Api) -> None:
    node = await api.approved_node()
    answer = await install(api, node["id"], uri="127.0.0.1:9/team/engine:1")
    problem = answer.json()
    assert (answer.status_code, problem["facts"]["registry"]) == (503, "127.0.0.1:9")
    assert "by its digest" in problem["remedy"]
    assert int(answer.headers["Retry-After"]) > 0
