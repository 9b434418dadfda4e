"""Every response is read in one snapshot: all GET routes, including future ones, with a few exceptions."""

import asyncio
import gzip
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from nodesmith.api.app import create_app
from nodesmith.contracts.temporal.batches import BatchInput, Target
from nodesmith.domain.deployment import LoadSpec, Rule
from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from tests.api.station import Api
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

NAMED = "who is meant, by a name or an id that stays; then what is known of it"
EITHER = "an operation, or else a batch: an id is one of them for ever"
GALLERIES = "galleries are held in memory and follow the database; inventories are copies that follow the nodes"

SEVERAL = {
    "/api/v1/nodes/{node}/inventory": NAMED,
    "/api/v1/nodes/{node}/labels": NAMED,
    "/api/nodes/{node}/labels": NAMED,
    "/api/v1/nodes/{node}/drain-preview": NAMED,
    "/backends/jobs/{job_id}": EITHER,
    "/api/backends/job/{job_id}": EITHER,
    "/api/backends": GALLERIES,
    "/api/backends/upgrades": GALLERIES,
    "/api/v1/backends": GALLERIES,
    "/api/v1/backends/upgrades": GALLERIES,
    "/api/v1/backends/suitability": GALLERIES,
    "/api/v1/galleries": GALLERIES,
    "/api/v1/galleries/{name}": GALLERIES,
    "/backends": GALLERIES,
    "/backends/available": GALLERIES,
    "/backends/known": GALLERIES,
    "/backends/galleries": GALLERIES,
    "/backends/upgrades": GALLERIES,
    "/api/backends/usecases": GALLERIES,
}
"""reads that need not be of one moment, and why"""

ELSEWHERE = {
    "/api/v1/events": "a stream; tests/api/test_snapshots.py looks at how it begins",
    "/api/node/{node}/models": "of a node that speaks for itself",
    "/api/node/{node}/sources": "of a node that speaks for itself",
    "/api/v1/models": "asked of the nodes",
    "/api/v1/deployments/{name}/load-status": "of a load that runs",
    "/api/models/{model}/load-status": "of a load that runs",
    "/api/v1/nodes/{node}/models": "asked of the node",
    "/api/v1/nodes/{node}/backends/{backend}/logs": "asked of the node",
    "/api/nodes/models": "asked of the nodes",
    "/api/nodes/{node}/models": "asked of the node",
    "/api/nodes/{node}/backends": "asked of the node",
    "/api/v1/nodes/{node}/backends": "asked of the node",
    "/api/nodes/{node}/backend-logs": "asked of the node",
    "/api/nodes/{node}/backend-logs/{backend}": "asked of the node",
}

NO_ROWS = ("/sign-in", "/artifacts", "/api/v1/ca.pem", "/api/v1/trust", "/healthz", "/readyz")
"""files, and whether the servers answer"""


@contextmanager
def moments_of(database: Database) -> Iterator[set[object]]:
    """The snapshots that requests read from: a statement has its own, unless its transaction keeps one."""
    engine, others = database._engine.sync_engine, asyncio.all_tasks()
    seen: set[object] = set()

    def executed(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if asyncio.current_task() in others or not statement.lstrip().startswith(("SELECT", "WITH")):
            return
        keeps_one = connection.get_execution_options().get("isolation_level") == "REPEATABLE READ"
        seen.add(connection.get_transaction() if keeps_one else object())

    event.listen(engine, "after_cursor_execute", executed)
    try:
        yield seen
    finally:
        event.remove(engine, "after_cursor_execute", executed)


@pytest.fixture
async def known(api: Api) -> dict[str, str]:
    """One of everything that a path can name; a job is a batch, because that is looked for last."""
    node, batch_id = await api.register(), f"b-{secrets.token_hex(4)}"
    request = a_request(node_id=node["id"], batch_id=batch_id)
    await api.deps.operations.record(transition(request, State.RUNNING))
    targets = (Target(node_id=node["id"], node_name=node["name"]),)
    await api.deps.batches.open(BatchInput(batch_id=batch_id, wanted=request.wanted, targets=targets, created_at=NOON))
    token = await api.http.post("/api/v1/tokens", json={"name": f"t-{secrets.token_hex(4)}", "role": "viewer"})
    invite = await api.http.post("/api/v1/invites", json={})
    uploaded = await api.http.put("/api/v1/uploads/builtin/1.0", content=gzip.compress(b"an archive"))
    assert uploaded.status_code == 201, uploaded.text
    await api.deps.deployments.table.deploy(LoadSpec(model="builtin", revision=0, backend="echo"), Rule())
    return {
        "node": node["id"],
        "op_id": request.op_id,
        "batch_id": batch_id,
        "job_id": batch_id,
        "name": "builtin",
        "model": "builtin",
        "version": "1.0",
        "token": token.json()["id"],
        "invite": invite.json()["id"],
    }


def reads(api: Api) -> list[str]:
    paths = create_app(api.deps).openapi()["paths"]
    return [path for path, verbs in paths.items() if "get" in verbs and not path.startswith(NO_ROWS)]


TRIES = 3
"""a task beside the request may read meanwhile; a route that reads twice does so each time"""


async def moments(api: Api, path: str, known: dict[str, str]) -> int:
    """The fewest of several tries."""
    return min([await _moments_once(api, path, known) for _ in range(TRIES)])


async def _moments_once(api: Api, path: str, known: dict[str, str]) -> int:
    query = {"backend": "echo"} if path.endswith("suitability") else {}
    with moments_of(api.deps.operations._database) as seen:
        answer = await api.http.get(path.format(**known), params=query)
    assert answer.status_code == 200, (path, answer.text)
    return len(seen)


async def test_every_answer_is_read_at_one_moment(api: Api, known: dict[str, str]) -> None:
    looked = {path: await moments(api, path, known) for path in reads(api) if path not in ELSEWHERE}
    assert {path for path, number in looked.items() if number > 1} <= SEVERAL.keys()
    assert min(looked.values()) == 1, "every route was seen reading"


def test_exceptions_are_routes_that_exist(api: Api) -> None:
    assert SEVERAL.keys() | ELSEWHERE.keys() <= set(reads(api))
