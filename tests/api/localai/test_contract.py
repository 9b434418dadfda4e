"""LocalAI's contract: method, path, status, body keys and error shape of each of its routes that we serve.

`KEYS` are LocalAI's; `OURS` are the fields that we add to some of its bodies, which its clients ignore.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from nodesmith.api.app import LOCALAI
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.contracts.temporal.batches import BatchState, CloseBatch, member_op_id
from nodesmith.domain.operation import State
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.nodes.inventory import InventoryTable
from tests.agent import web
from tests.agent.registry import publish
from tests.agent.web import Web
from tests.api.models import ModelHandlers
from tests.api.node import on_the_bus
from tests.api.records import recorded
from tests.api.station import REGISTRATION_TOKEN, Api, bearer, until
from tests.databases import opened
from tests.gallery import wild
from tests.gallery.site import Page, Site, serving
from tests.store.clock import NOON
from tests.store.transitions import transition


def keys(text: str) -> set[str]:
    return set(text.split())


@dataclass(frozen=True)
class Body:
    """Keys of an object; further ones are an error."""

    always: set[str]
    sometimes: set[str] = field(default_factory=set)
    """LocalAI omits them when they are empty"""
    ours: set[str] = field(default_factory=set)

    def check(self, found: dict[str, Any]) -> None:
        assert self.always <= found.keys(), self.always - found.keys()
        further = found.keys() - self.always - self.sometimes - self.ours
        assert not further, further


NODE = Body(
    keys(
        "id name node_type address http_address status total_vram available_vram reserved_vram total_ram available_ram"
        " total_disk available_disk gpu_vendor gpu_compute_capability max_replicas_per_model"
        " max_replicas_per_model_manually_set vram_budget_manually_set last_heartbeat created_at updated_at model_count"
        " in_flight_count"
    ),
    keys("capability vram_budget vram_budget_bytes labels"),
    keys(
        "protocol approved_at drained_at leaving_at left_at unreachable_since rival_seen_at boot_id boot_at"
        " agent_version trust_version open_operations confinement reserved_memory"
    ),
)
RULE = Body(
    keys("id model_name min_replicas max_replicas unsatisfiable_ticks created_at updated_at"),
    keys(
        "node_selector spread_all route_policy balance_abs_threshold balance_rel_threshold min_prefix_match"
        " unsatisfiable_until"
    ),
)
MODEL = Body(
    keys("id node_id model_name replica_index address state in_flight created_at updated_at"),
    keys("last_used backend_type"),
    keys("node_name version"),
)
REGISTERED = Body(
    keys("id name node_type status created_at"),
    keys("api_token nats_jwt nats_user_seed"),
    keys("nats_url expires_at trust_version newest_orders"),
)
APPROVED = Body(
    keys("id name node_type status message"),
    keys("api_token nats_jwt nats_user_seed"),
    keys("created_at nats_url expires_at trust_version newest_orders"),
)
INSTALLED = Body(
    keys("name is_system is_meta"),
    keys("installed_at gallery_url version uri digest"),
    keys("family previous_version previous_digest"),
)
NODE_JOB = Body(keys("jobID statusUrl message"))
FLEET_JOB = Body(keys("jobID message"), keys("uuid statusUrl"))
UPGRADE_JOB = Body(keys("jobID uuid statusUrl message"))
REFERENCE = Body(keys("id status_url"), ours=keys("uuid"))
CATALOGUE = Body(
    keys(
        "backends repositories allTags processingBackends taskTypes availableBackends installedBackends currentPage"
        " totalPages prevPage nextPage systemCapability preferDevelopmentBackends"
    ),
    ours=keys("unusable stale"),
)
BACKEND = Body(
    keys(
        "id name description icon license urls tags gallery installed version processing jobID isDeletion isMeta"
        " isAlias isDevelopment capabilities metaBackendFor nodes"
    ),
    ours=keys("uri sha256 size family alias mirrors platforms notes verification upgradable_on"),
)
JOB_STATUS = Body(keys("progress message galleryElementName processed deletion queued"), keys("error completed"))
OP_STATUS = Body(
    keys(
        "deletion file_name processed message progress file_size downloaded_size gallery_element_name cancelled"
        " cancellable"
    ),
    keys("error phase current_bytes total_bytes nodes"),
)
UPGRADE = Body(
    keys("backend_name installed_version available_version"),
    keys("installed_digest available_digest node_drift"),
    keys("family nodes checked_at"),
)
ON_DISK = Body(keys("Name RunFile IsMeta IsSystem Metadata"), keys("upgrade_available available_version nodes"))
AVAILABLE = Body(
    keys("name gallery installed"),
    keys("alias description license icon urls tags uri mirrors capabilities version sha256 size"),
)
KNOWN = Body(keys("name modality auto_detect installed"), keys("description"))
GALLERY = Body(keys("name url"), keys("mirrors"))
OPERATION = Body(
    keys("id name fullName jobID progress taskType isDeletion isBackend isQueued cancellable message"),
    keys("nodeID phase currentBytes totalBytes error nodes"),
)
HISTORY = Body(
    keys("id name jobID isBackend taskType outcome startedAt finishedAt"),
    keys("nodeID error"),
)
LOG_LINE = Body(keys("timestamp stream text"))
DONE = Body(keys("success message"))


@dataclass(frozen=True)
class Route:
    """One route and its answer: an exact body, an object, a list of objects, or a map of objects."""

    verb: str
    path: str
    status: int
    exact: Any = None
    one: Body | None = None
    many: Body | None = None
    below: str = ""
    """the key of the list"""
    mapped: Body | None = None
    json: Any = None
    as_node: bool = False

    def check(self, answer: httpx2.Response) -> None:
        assert answer.status_code == self.status, answer.text
        if self.status == 204:
            assert answer.content == b""
            return
        found = answer.json()
        if self.exact is not None:
            assert found == self.exact
        if self.one:
            self.one.check(found)
        listed = found[self.below] if self.below else found
        if self.many:
            assert isinstance(listed, list)
            assert listed, "an empty list shows no keys"
        for each in listed if self.many else found.values() if self.mapped else ():
            (self.many or self.mapped or Body(set())).check(each)


def message(text: str) -> dict[str, str]:
    return {"message": text}


def done(text: str) -> dict[str, Any]:
    return {"success": True, "message": text}


ECHO, MODEL_NAME = {"backend": "echo"}, {"model_name": "llama"}
REGISTRATION = {"name": "contract-worker", "address": "10.0.0.7:50051", "token": REGISTRATION_TOKEN}

SELF_SERVICE = [
    Route("POST", "/api/node/register", 201, one=REGISTERED, json=REGISTRATION, as_node=True),
    Route("POST", "/api/node/{worker}/heartbeat", 200, exact=message("heartbeat received"), as_node=True),
    Route("POST", "/api/node/{worker}/drain", 200, exact=message("node set to draining"), as_node=True),
    Route("POST", "/api/node/{worker}/resume", 200, exact=message("node resumed"), as_node=True),
    Route("GET", "/api/node/{worker}/models", 200, exact=[], as_node=True),
    Route("POST", "/api/node/{worker}/deregister", 200, exact=message("node set to offline"), as_node=True),
    Route("DELETE", "/api/node/{worker}", 200, exact=message("node set to offline"), as_node=True),
]
NODES = [
    Route("GET", "/api/nodes", 200, many=NODE),
    Route("GET", "/api/nodes/{node}", 200, one=NODE),
    Route("POST", "/api/nodes/{pending}/approve", 200, one=APPROVED),
    Route("GET", "/api/nodes/models", 200, many=MODEL),
    Route("GET", "/api/nodes/{node}/models", 200, many=MODEL),
    Route("GET", "/api/nodes/{node}/backends", 200, many=INSTALLED),
    Route("POST", "/api/nodes/{node}/models/unload", 200, exact=message("model unloaded"), json=MODEL_NAME),
    Route("POST", "/api/nodes/{node}/models/delete", 200, exact=message("model deleted from node"), json=MODEL_NAME),
    Route("GET", "/api/nodes/{node}/backend-logs", 200, exact=["echo#0", "llama#0"]),
    Route("GET", "/api/nodes/{node}/backend-logs/echo%230", 200, many=LOG_LINE),
    Route("PUT", "/api/nodes/{node}/labels", 200, json={"zone": "a"}),
    Route("PATCH", "/api/nodes/{node}/labels", 200, json={"tier": "gold"}),
    Route("GET", "/api/nodes/{node}/labels", 200),
    Route("DELETE", "/api/nodes/{node}/labels/zone", 204),
    Route(
        "PUT",
        "/api/nodes/{node}/max-replicas-per-model",
        200,
        exact={"max_replicas_per_model": 3},
        json={"value": 3},
    ),
    Route("DELETE", "/api/nodes/{node}/max-replicas-per-model", 200, exact={"reset": True}),
    Route("PUT", "/api/nodes/{node}/vram-budget", 200, exact={"vram_budget": "80%"}, json={"value": "80%"}),
    Route("DELETE", "/api/nodes/{node}/vram-budget", 200, exact={"reset": True}),
    Route("POST", "/api/nodes/scheduling", 200, one=RULE, json={"model_name": "echo", "min_replicas": 1}),
    Route("GET", "/api/nodes/scheduling", 200, many=RULE),
    Route("GET", "/api/nodes/scheduling/echo", 200, one=RULE),
    Route("DELETE", "/api/nodes/scheduling/echo", 204),
    Route("POST", "/api/nodes/{node}/backends/install", 202, one=NODE_JOB, json=ECHO),
    Route("POST", "/api/nodes/{other}/backends/upgrade", 202, one=NODE_JOB, json=ECHO),
    Route("POST", "/api/nodes/{spare}/drain", 200, exact=message("node set to draining")),
    Route("POST", "/api/nodes/{spare}/resume", 200, exact=message("node resumed")),
    Route("DELETE", "/api/nodes/{spare}", 200, exact=message("node deregistered")),
]
BACKENDS = [
    Route("GET", "/api/backends", 200, one=CATALOGUE, many=BACKEND, below="backends"),
    Route("POST", "/api/backends/install/echo", 200, one=FLEET_JOB),
    Route("POST", "/api/backends/install-external", 200, one=FLEET_JOB, json={"uri": "{image}"}),
    Route("POST", "/api/backends/delete/echo", 200, one=FLEET_JOB),
    Route("POST", "/api/backends/upgrade/echo", 200, one=UPGRADE_JOB),
    Route("GET", "/api/backends/job/{operation}", 200, one=JOB_STATUS),
    Route("GET", "/api/backends/job/unknown", 200, one=JOB_STATUS),
    Route("GET", "/api/backends/upgrades", 200, mapped=UPGRADE),
    Route("POST", "/api/backends/upgrades/check", 200, mapped=UPGRADE),
    Route("GET", "/api/backends/usecases", 200),
    Route("POST", "/backends/apply", 200, one=REFERENCE, json={"id": "echo"}),
    Route("POST", "/backends/delete/echo", 200, one=REFERENCE),
    Route("POST", "/backends/upgrade/echo", 200, one=REFERENCE),
    Route("GET", "/backends/jobs/{operation}", 200, one=OP_STATUS),
    Route("GET", "/backends", 200, many=ON_DISK),
    Route("GET", "/backends/available", 200, many=AVAILABLE),
    Route("GET", "/backends/known", 200, many=KNOWN),
    Route("GET", "/backends/galleries", 200, many=GALLERY),
    Route("GET", "/backends/upgrades", 200, mapped=UPGRADE),
    Route("POST", "/backends/upgrades/check", 200, mapped=UPGRADE),
]
OPERATIONS = [
    Route("GET", "/api/operations", 200, one=Body({"operations"}), many=OPERATION, below="operations"),
    Route("POST", "/api/operations/{paused}/pause", 200, exact=done("Operation paused")),
    Route("POST", "/api/operations/{operation}/cancel", 200, exact=done("Operation cancelled")),
    Route("POST", "/api/operations/{failed}/dismiss", 200, exact=done("Operation dismissed")),
    Route("POST", "/api/operations/unknown/dismiss", 200, one=DONE),
    Route("GET", "/api/operations/history", 200, one=Body({"operations"}), many=HISTORY, below="operations"),
    Route("DELETE", "/api/operations/history", 200, exact={"success": True}),
]
ROUTES = [*SELF_SERVICE, *NODES, *BACKENDS, *OPERATIONS]
WAITED_FOR = {
    ("POST", "/api/nodes/{}/backends/delete"),
    ("POST", "/api/backends/system/delete/{}"),
    ("GET", "/api/models/{}/load-status"),
}
"""they answer after the removal, or during a load: tested below and in test_scheduling.py"""
NOT_LOCALAIS = {("GET", "/api/node/{}/sources")}
"""what our own agents ask on the same prefix"""


@pytest.fixture(scope="module")
def registry() -> Iterator[Web]:
    with web.running() as registry:
        yield registry


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


async def has_echo(settings: ControlSettings, *nodes: str) -> None:
    async with opened(settings.database_url) as database:
        for node in nodes:
            have = [Installed(name="echo", version="1", family="echo", digest="sha256:" + "0" * 64)]
            await InventoryTable(database).replace(node, have, asked_at=datetime.now(UTC), boot_id="b")


@pytest.fixture(scope="module")
async def known(api: Api, settings: ControlSettings, site: Site, registry: Web) -> AsyncIterator[dict[str, str]]:
    """What the paths name; one node is connected."""
    node, other, spare = [await api.approved_node() for _ in range(3)]
    worker = await api.approved_node(protocol=1, machine_id="", address="10.0.0.9:50051")
    await has_echo(settings, node["id"], other["id"])
    site.pages["/engine"] = Page(wild.backend("engine").encode(), etag='"engine"')
    added = await api.http.post("/api/v1/galleries", json={"name": "wild", "url": f"{site.url}/engine"})
    assert added.status_code == 201, added.text
    waits, image = await installing(api), publish(registry, [b"layer"], name="team/contract")
    async with on_the_bus(node, ModelHandlers()):
        api.deps.heartbeats.add(Heartbeat(node_id=node["id"]))
        await until(lambda: api.http.get("/api/nodes/models"), lambda answer: bool(answer.json()))
        yield {
            "node": node["id"],
            "other": other["id"],
            "spare": spare["id"],
            "worker": worker["id"],
            "pending": (await api.register())["id"],
            "operation": waits,
            "paused": await installing(api),
            "failed": await recorded(api, State.FAILED),
            "image": image.reference,
        }


async def installing(api: Api) -> str:
    node = await api.approved_node()
    answer = await api.http.post(f"/api/nodes/{node['id']}/backends/install", json=ECHO)
    return str(answer.json()["jobID"])


def without_names(path: str) -> str:
    parts = path.split("/")
    return "/".join("{}" if part.startswith("{") else part for part in parts)


def test_every_route_of_ours_on_localais_paths_is_in_the_contract() -> None:
    served = {
        (verb, without_names(route.path))
        for module in LOCALAI
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for verb in route.methods or ()
    }
    names = ("echo%230", "echo", "zone", "unknown")
    written = {
        (route.verb, "/".join("{}" if part in names else part for part in without_names(route.path).split("/")))
        for route in ROUTES
    }
    assert served == written | WAITED_FOR | NOT_LOCALAIS


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.verb} {route.path}")
async def test_route_answers_as_localai_does(api: Api, known: dict[str, str], route: Route) -> None:
    headers = bearer(REGISTRATION_TOKEN) if route.as_node else None
    body = {**route.json, "uri": known["image"]} if route.json and "uri" in route.json else route.json
    route.check(await api.http.request(route.verb, route.path.format(**known), json=body, headers=headers))


async def test_maps_have_no_further_keys(api: Api, known: dict[str, str]) -> None:
    path = f"/api/nodes/{known['other']}/labels"
    assert (await api.http.put(path, json={"zone": "b"})).json().items() >= {"zone": "b"}.items()
    labels = (await api.http.get(path)).json()
    assert all(isinstance(value, str) for value in labels.values())
    uses = (await api.http.get("/api/backends/usecases")).json()
    assert all(isinstance(each, list) for each in uses.values())


async def test_nodes_of_a_job_have_localais_keys(api: Api, known: dict[str, str]) -> None:
    member = Body(keys("node_id node_name status percentage"), keys("file_name current total phase error"))
    for node in (await api.http.get(f"/backends/jobs/{known['failed']}")).json()["nodes"]:
        member.check(node)
    for entry in (await api.http.get("/api/operations")).json()["operations"]:
        for node in entry["nodes"]:
            member.check(node)


async def test_jobs_are_found_at_the_address_in_the_answer(api: Api, known: dict[str, str]) -> None:
    accepted = (await api.http.post(f"/api/nodes/{known['node']}/backends/install", json=ECHO)).json()
    assert accepted["statusUrl"] == f"/api/backends/job/{accepted['jobID']}"
    assert (await api.http.get(accepted["statusUrl"])).json()["galleryElementName"] == "echo"
    applied = (await api.http.post("/backends/apply", json={"id": "echo"})).json()
    assert applied["status_url"] == f"{api.url}/backends/jobs/{applied['id']}"
    assert (await api.http.get(applied["status_url"])).json()["gallery_element_name"] == "echo"


# removals that are waited for ---------------------------------------------------------------------------------


async def test_removal_from_one_node_answers_after_its_end(api: Api, settings: ControlSettings) -> None:
    node = await api.approved_node()
    await has_echo(settings, node["id"])
    asking = asyncio.create_task(api.http.post(f"/api/nodes/{node['id']}/backends/delete", json=ECHO))
    [operation] = await until(lambda: open_on(api, node["id"]), bool)
    await succeed(api, operation)
    answer = await asking
    assert (answer.status_code, answer.json()) == (200, {"message": "backend deleted"})


async def test_removal_from_all_nodes_answers_after_its_end(api: Api, settings: ControlSettings) -> None:
    node, name = await api.approved_node(), f"gone-{secrets.token_hex(4)}"
    async with opened(settings.database_url) as database:
        have = [Installed(name=name, version="1", family=name)]
        await InventoryTable(database).replace(node["id"], have, asked_at=datetime.now(UTC), boot_id="b")
    asking = asyncio.create_task(api.http.post(f"/api/backends/system/delete/{name}"))
    [batch] = await until(lambda: batches_of(api, name), bool)
    request = await api.deps.batches.request(batch)
    assert request is not None
    for target in request.targets:
        await recorded(api, State.SUCCEEDED, op_id=member_op_id(batch, target.node_id), node_id=target.node_id)
    await api.deps.batches.close(CloseBatch(batch_id=batch, state=BatchState.COMPLETED, at=NOON))
    answer = await asking
    assert (answer.status_code, answer.json()) == (
        200,
        {"success": True, "message": "Backend deleted successfully"},
    )


async def open_on(api: Api, node: str) -> list[str]:
    found = (await api.http.get("/api/v1/operations", params={"node": node, "scope": "open"})).json()["items"]
    return [each["op_id"] for each in found]


async def batches_of(api: Api, backend: str) -> list[str]:
    found = (await api.http.get("/api/v1/batches?open=true&limit=1000")).json()["items"]
    return [each["batch_id"] for each in found if each["backend"] == backend]


async def succeed(api: Api, op_id: str) -> None:
    request = await api.deps.operations.request(op_id)
    assert request is not None
    await api.deps.operations.record(transition(request, State.SUCCEEDED, ended_at=NOON))


# errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "/api/nodes/nobody", None),
        ("POST", "/api/nodes/nobody/approve", None),
        ("POST", "/api/nodes/nobody/drain", None),
        ("POST", "/api/nodes/nobody/resume", None),
        ("DELETE", "/api/nodes/nobody", None),
        ("GET", "/api/nodes/nobody/models", None),
        ("GET", "/api/nodes/nobody/backends", None),
        ("POST", "/api/nodes/nobody/backends/install", ECHO),
        ("POST", "/api/nodes/nobody/backends/upgrade", ECHO),
        ("POST", "/api/nodes/nobody/backends/delete", ECHO),
        ("POST", "/api/nodes/nobody/models/unload", MODEL_NAME),
        ("POST", "/api/nodes/nobody/models/delete", MODEL_NAME),
        ("GET", "/api/nodes/nobody/backend-logs", None),
        ("GET", "/api/nodes/nobody/labels", None),
        ("PUT", "/api/nodes/nobody/max-replicas-per-model", {"value": 1}),
        ("PUT", "/api/nodes/nobody/vram-budget", {"value": "80%"}),
        ("POST", "/api/node/nobody/heartbeat", None),
    ],
)
async def test_unknown_node_is_a_node_error(api: Api, verb: str, path: str, body: Any) -> None:
    headers = bearer(REGISTRATION_TOKEN) if path.startswith("/api/node/") else None
    answer = await api.http.request(verb, path, json=body, headers=headers)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"] == {"code": 404, "message": answer.json()["detail"], "type": "node_error"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/nodes/{node}/backends/install", {}),
        ("/api/nodes/{node}/backends/upgrade", {}),
        ("/api/nodes/{node}/backends/delete", {}),
        ("/api/nodes/{node}/models/unload", {}),
        ("/api/nodes/{node}/backends/install", None),
    ],
)
async def test_bad_request_about_a_node_is_a_node_error(
    api: Api, known: dict[str, str], path: str, body: dict[str, Any] | None
) -> None:
    answer = await api.http.post(path.format(**known), json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"] == {"code": 400, "message": answer.json()["detail"], "type": "node_error"}


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("POST", "/api/operations/nobody/cancel", 404),
        ("POST", "/api/operations/nobody/pause", 404),
        ("POST", "/api/backends/install/no-such-backend", 404),
        ("POST", "/api/backends/install-external", 400),
        ("GET", "/api/backends?page=0", 400),
        ("PUT", "/api/operations", 405),
        ("GET", "/api/nothing", 404),
    ],
)
async def test_error_about_backends_and_operations_is_a_text(api: Api, verb: str, path: str, status: int) -> None:
    answer = await api.http.request(verb, path)
    assert (answer.status_code, answer.json()["error"]) == (status, answer.json()["detail"])


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("POST", "/backends/apply", {}, 400),
        ("POST", "/backends/apply", {"id": "no-such-backend"}, 404),
        ("POST", "/backends/upgrade/no-such-backend", None, 404),
        ("GET", "/backends/jobs/nobody", None, 500),
        ("PUT", "/backends", None, 405),
    ],
)
async def test_error_of_the_paths_without_api_has_an_empty_type(
    api: Api, verb: str, path: str, body: Any, status: int
) -> None:
    answer = await api.http.request(verb, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"] == {"code": status, "message": answer.json()["detail"], "type": ""}


@pytest.mark.usefixtures("known")
async def test_apply_of_one_build_names_its_meta(api: Api) -> None:
    answer = await api.http.post("/backends/apply", json={"id": "rocm-engine"})
    assert (answer.status_code, answer.json()["code"]) == (409, "concrete_backend_requires_target")
    assert answer.json()["error"] == answer.json()["detail"]
    assert answer.json()["meta_alternative"] == "engine"


@pytest.mark.parametrize("path", ["/api/nodes", "/api/operations", "/api/backends", "/backends"])
async def test_refused_token_is_an_authentication_error(api: Api, path: str) -> None:
    answer = await api.http.get(path, headers=bearer("wrong"))
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.json()["error"] == {
        "code": 401,
        "message": answer.json()["detail"],
        "type": "invalid_request_error",
    }


async def test_refused_token_of_a_node_is_a_text(api: Api) -> None:
    answer = await api.http.post("/api/node/x/heartbeat", headers=bearer("wrong"))
    assert (answer.status_code, answer.json()["error"]) == (401, answer.json()["detail"])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.verb} {route.path}")
async def test_a_trailing_slash_is_no_redirect(api: Api, route: Route) -> None:
    answer = await api.http.request(route.verb, f"{route.path}/", json=route.json, headers=bearer("wrong"))
    assert answer.status_code == 401, answer.text
