"""The audit trail: every change has a row with actor, action, target, before, after, time and reason."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from fastapi.routing import APIRoute

from nodesmith.api.app import ROUTERS
from nodesmith.api.auditing import action_of
from nodesmith.api.batch_start import MOST_NAMED
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.operation import State
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.nodes.overrides import Overrides
from tests.api.station import ADMIN_TOKEN, Api, bearer, served, until
from tests.api.test_main import answers, environment, process
from tests.gallery import wild
from tests.servers import free_port
from tests.store.transitions import a_request, transition


async def entries(api: Api, **filters: Any) -> list[dict[str, Any]]:
    answer = await api.http.get("/api/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


async def token_of(api: Api, name: str, role: str = "operator") -> dict[str, str]:
    answer = await api.http.post("/api/v1/tokens", json={"name": name, "role": role})
    return bearer(answer.json()["token"])


async def test_approval_is_audited_with_before_and_after(api: Api) -> None:
    began = datetime.now(UTC)
    node = await api.register()
    answer = await api.http.post(f"/api/v1/nodes/{node['id']}/approve", params={"reason": "rack 7 is ours"})
    assert answer.status_code == 200
    (entry,) = await entries(api, target=node["name"])
    assert (entry["actor"], entry["action"], entry["target_id"]) == ("admin", "nodes.approve", node["id"])
    assert entry["reason"] == "rack 7 is ours"
    assert entry["before"] == {"approved_at": None}
    assert datetime.fromisoformat(entry["after"]["approved_at"]) >= began
    assert datetime.fromisoformat(entry["at"]) >= began


async def test_body_that_arrives_in_pieces_is_audited(api: Api) -> None:
    """A body without a length (chunked) is recorded like any other."""
    node = await api.approved_node()

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"rea', b'son": "new ', b'disks"}'):
            yield piece

    headers = {"Content-Type": "application/json"}
    answer = await api.http.post(f"/api/v1/nodes/{node['id']}/drain", content=pieces(), headers=headers)
    assert answer.status_code == 200, answer.text
    drained = (await entries(api, target=node["name"]))[0]
    assert (drained["action"], drained["reason"]) == ("nodes.drain", "new disks")


async def test_install_and_cancel_are_audited_with_the_token_name(api: Api) -> None:
    node, headers = await api.approved_node(), await token_of(api, "night-shift")
    body = {"backend": "echo", "reason": "INC-42"}
    accepted = await api.http.post(
        "/api/v1/operations", json={"kind": "install", "node": node["id"], **body}, headers=headers
    )
    op_id = accepted.json()["op_id"]
    await api.http.post(f"/api/v1/operations/{op_id}/cancel", json={"reason": "wrong rack"}, headers=headers)
    cancelled, installed = await entries(api, actor="night-shift")
    assert (installed["action"], installed["target"], installed["reason"]) == (
        "operations.create",
        node["name"],
        "INC-42",
    )
    assert installed["after"] == {"kind": "install", "backend": "echo", "op_id": op_id}
    assert (cancelled["action"], cancelled["target"], cancelled["reason"]) == (
        "operations.cancel",
        op_id,
        "wrong rack",
    )


async def test_tokens_are_audited_without_their_secrets(api: Api) -> None:
    made = (await api.http.post("/api/v1/tokens", json={"name": "robot", "role": "viewer"})).json()
    await api.http.delete("/api/v1/tokens/robot", params={"reason": "left"})
    revoked, created = await entries(api, target="robot")
    assert (created["action"], created["after"]["role"]) == ("tokens.create", "viewer")
    assert (revoked["action"], revoked["before"]["role"], revoked["reason"]) == ("tokens.remove", "viewer", "left")
    assert await entries(api, target=made["id"]) == [revoked, created]
    assert made["token"] not in (await api.http.get("/api/v1/audit")).text


async def test_source_is_audited_with_before_and_after(api: Api) -> None:
    host = "r.invalid:5000"
    for username in ("ada", "bob"):
        await api.http.put(f"/api/v1/sources/{host}", json={"username": username, "password": "hush"})
    await api.http.delete(f"/api/v1/sources/{host}")
    removed, changed, added = await entries(api, target=host)
    assert added["before"] is None
    assert [added["after"]["username"], changed["before"]["username"], changed["after"]["username"]] == [
        "ada",
        "ada",
        "bob",
    ]
    assert (removed["before"], removed["after"]) == (changed["after"], None)
    assert "hush" not in (await api.http.get("/api/v1/audit")).text


async def test_hold_is_audited_with_before_and_after(api: Api) -> None:
    await api.http.put("/api/v1/hold", json={"reason": "the link is down"})
    await api.http.delete("/api/v1/hold", params={"reason": "it is back"})
    released, held = await entries(api, target="hold")
    assert (held["action"], released["action"]) == ("hold.set", "hold.remove")
    assert (held["before"]["held"], held["after"]["held"], held["reason"]) == (False, True, "the link is down")
    assert (released["before"], released["after"]["held"], released["reason"]) == (held["after"], False, "it is back")


async def test_labels_and_overrides_are_audited_with_before_and_after(api: Api) -> None:
    node = await api.approved_node()
    at = f"/api/v1/nodes/{node['id']}"
    await api.http.put(f"{at}/labels", json={"zone": "a"})
    await api.http.patch(f"{at}/labels", json={"zone": "b"})
    await api.http.put(f"{at}/max-replicas", json={"value": 4})
    overridden, merged, replaced, _approved = await entries(api, target=node["name"])
    assert "zone" not in replaced["before"]["labels"]
    assert replaced["after"]["labels"]["zone"] == merged["before"]["labels"]["zone"] == "a"
    assert merged["after"]["labels"]["zone"] == "b"
    assert overridden["before"]["max_replicas_per_model"] == 1
    assert overridden["after"]["max_replicas_per_model"] == 4


async def test_batch_order_is_audited_with_the_state_of_the_batch(api: Api) -> None:
    node = await api.approved_node()
    body = {"kind": "install", "backend": "echo", "nodes": [node["id"]]}
    batch_id = (await api.http.post("/api/v1/batches", json=body)).json()["batch_id"]
    assert (await api.http.post(f"/api/v1/batches/{batch_id}/pause", json={"reason": "lunch"})).status_code == 202
    paused, _started = await entries(api, target=batch_id)
    assert (paused["action"], paused["reason"], paused["after"]) == ("batches.pause", "lunch", {"order": "pause"})
    assert paused["before"] == {"state": "running"}


async def test_gallery_removal_is_audited_with_before(api: Api, tmp_path: Path) -> None:
    name, index = f"g-{secrets.token_hex(3)}", tmp_path / "index.yaml"
    index.write_text(wild.backend("engine"))
    added = await api.http.post("/api/v1/galleries", json={"name": name, "url": index.as_uri()})
    assert added.status_code == 201, added.text
    await api.http.post(f"/api/v1/galleries/{name}/refresh")
    await api.http.delete(f"/api/v1/galleries/{name}")
    gone, read, made = await entries(api, target=name)
    assert (read["action"], read["after"]["error"]) == ("galleries.refresh", "")
    assert read["after"]["entries"] > 0
    place = {"name": name, "url": index.as_uri(), "mirrors": []}
    assert made["after"] == {**place, "policy": "digest", "key_ids": [], "threshold": 1, "signed_index": False}
    assert (gone["before"], gone["after"]) == (made["after"], None)


async def test_invite_revocation_is_audited_with_before(api: Api) -> None:
    invite = (await api.http.post("/api/v1/invites", json={"uses": 3, "labels": {"zone": "a"}})).json()
    await api.http.delete(f"/api/v1/invites/{invite['id']}")
    revoked, made = await entries(api, target=invite["id"])
    assert revoked["before"] == {**made["after"], "used": 0}
    assert made["after"]["labels"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/api/v1/batches", {"backend": "echo", "everywhere": True, "max_parallel": 3}, {"max_parallel": 3}),
        ("/api/backends/install/echo", None, {"backend": "echo", "force": True, "everywhere": True}),
        ("/backends/apply", {"id": "echo"}, {"backend": "echo", "kind": "install"}),
    ],
)
async def test_batch_is_audited_with_its_request(
    api: Api, path: str, body: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    await api.approved_node()
    answer = (await api.http.post(path, json=body, params={"reason": "all of them"})).json()
    batch_id = answer.get("batch_id") or answer.get("jobID") or answer["id"]
    entry = (await entries(api, target=batch_id))[0]
    assert entry["after"]["batch_id"] == batch_id
    assert (entry["after"].items() >= asked.items(), entry["reason"]) == (True, "all of them")


async def test_batch_over_many_nodes_is_audited_with_their_number(api: Api) -> None:
    """The batch itself knows each of them; the trail stays readable."""
    names = [(await api.approved_node())["name"] for _ in range(MOST_NAMED + 1)]
    answer = await api.http.post("/api/v1/batches", json={"backend": "echo", "nodes": names})
    (entry,) = await entries(api, target=answer.json()["batch_id"])
    assert entry["after"]["nodes"] == f"{MOST_NAMED + 1} nodes"


async def test_retry_is_audited_with_the_new_operation(api: Api) -> None:
    node = await api.approved_node()
    failed = a_request(node_id=node["id"])
    await api.deps.admission.orders.add([failed])
    await api.deps.operations.record(transition(failed, State.FAILED))
    accepted = await api.http.post(f"/api/v1/operations/{failed.op_id}/retry")
    assert accepted.status_code == 202, accepted.text
    (entry,) = await entries(api, target=failed.op_id)
    assert entry["after"] == {"node": node["name"], "op_id": accepted.json()["op_id"]}


def test_every_change_has_its_own_action() -> None:
    """Found in the routes, so that a new one is covered by being there."""
    seen: dict[str, str] = {}
    for module in ROUTERS:
        for route in (route for route in module.router.routes if isinstance(route, APIRoute)):
            for verb in (route.methods or set()) - {"GET", "HEAD"}:
                action = action_of(verb, route.path)
                where = f"{verb} {re.sub(r'^/api(/v1)?|/{[^}]*}', '', route.path)}"
                assert re.fullmatch(r"[a-z-]+(\.[a-z-]+)*", action), action
                assert seen.setdefault(action, where) == where, action


async def test_refused_change_leaves_no_audit_row(api: Api) -> None:
    node, headers = await api.register(), await token_of(api, "too-low", "viewer")
    assert (await api.http.post(f"/api/v1/nodes/{node['id']}/approve", headers=headers)).status_code == 403
    assert (await api.http.post("/api/v1/nodes/nobody/approve")).status_code == 404
    assert await entries(api, target=node["name"]) == []
    assert await entries(api, target="nobody") == []


async def test_process_killed_between_change_and_result_leaves_an_unknown_row(
    api: Api, settings: ControlSettings
) -> None:
    """The row is there before the change can be seen; only how it went is missing."""
    node, port = await api.register(), free_port()
    async with (
        process(environment(settings, port)) as dying,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(ADMIN_TOKEN)) as http,
        completions_wait(str(settings.database_url)),
    ):
        await until(lambda: answers(http), bool)
        asking = asyncio.create_task(http.post(f"/api/v1/nodes/{node['id']}/approve", params={"reason": "rack 7"}))
        await until(lambda: api.deps.nodes.find(node["id"]), lambda seen: bool(seen and seen.approved_at))
        dying.kill()
        with pytest.raises(httpx2.TransportError):
            await asking
    (entry,) = await entries(api, target=node["name"])
    assert (entry["outcome"], entry["actor"], entry["action"]) == ("unknown", "admin", "nodes.approve")
    assert (entry["target_id"], entry["reason"]) == (node["id"], "rack 7")
    assert entry["before"]["approved_at"] is None


@asynccontextmanager
async def completions_wait(url: str) -> AsyncIterator[None]:
    """Nobody gets to say how a change went."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as holding:
        await holding.execute("SELECT pg_advisory_lock(77)")
        await holding.execute(
            "CREATE FUNCTION waiting() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$"
        )
        await holding.execute("CREATE TRIGGER waiting BEFORE UPDATE ON audit EXECUTE FUNCTION waiting()")
        try:
            yield
        finally:
            await holding.execute("SET lock_timeout = 0")
            await holding.execute("DROP FUNCTION waiting CASCADE")


async def test_change_without_an_audit_row_is_not_made(api: Api) -> None:
    class Away(AuditTrail):
        async def begin(self, change: AuditChange) -> int:
            raise ServiceUnavailable("PostgreSQL does not answer.", server="postgresql")

    node = await api.register()
    async with served(replace(api.deps, audit=Away(api.deps.audit._database))) as without:
        answer = await without.http.post(f"/api/v1/nodes/{node['id']}/approve")
    assert (answer.status_code, answer.json()["facts"]["server"]) == (503, "postgresql")
    seen = await api.deps.nodes.find(node["id"])
    assert seen is not None
    assert seen.approved_at is None


async def test_change_that_failed_halfway_stays_unknown(api: Api) -> None:
    class Broken(Overrides):
        async def max_replicas(self, node_id: str, value: int | None) -> None:
            await super().max_replicas(node_id, value)
            raise RuntimeError("after the effect")

    node = await api.approved_node()
    async with served(replace(api.deps, overrides=Broken(api.deps.overrides._database))) as breaking:
        body = {"value": 7, "reason": "more room"}
        answer = await breaking.http.put(f"/api/v1/nodes/{node['id']}/max-replicas", json=body)
    assert answer.status_code == 500
    (entry, _approved) = await entries(api, target=node["name"])
    assert (entry["outcome"], entry["after"], entry["reason"]) == ("unknown", {"value": 7}, "more room")
    assert entry["before"]["max_replicas_per_model"] == 1


async def test_preview_leaves_no_audit_row(api: Api) -> None:
    node = await api.approved_node()
    newest = (await entries(api))[0]["id"]
    plan = {"kind": "install", "backend": "echo", "nodes": [node["id"]]}
    assert (await api.http.post("/api/v1/batches/plan", json=plan)).status_code == 200
    for order in ("cancel", "dismiss"):
        answer = await api.http.post(f"/api/v1/operations/{order}", json={"node": node["id"], "preview": True})
        assert answer.status_code == 200
    assert (await entries(api))[0]["id"] == newest


async def test_reads_leave_no_row(api: Api) -> None:
    before = (await entries(api))[0]["id"]
    await api.http.get("/api/v1/nodes")
    assert (await entries(api))[0]["id"] == before


async def test_pages_follow_each_other_without_gap_or_overlap(api: Api) -> None:
    for _ in range(5):
        await api.approved_node()
    everything = [entry["id"] for entry in await entries(api, action="nodes.approve")]
    paged: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        query: dict[str, str | int | None] = {"action": "nodes.approve", "limit": 2, "cursor": cursor}
        page = (await api.http.get("/api/v1/audit", params=query)).json()
        paged += [entry["id"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert paged == everything
    assert paged == sorted(paged, reverse=True)


async def test_audit_time_filter_has_both_bounds(api: Api) -> None:
    await api.approved_node()
    newest = (await entries(api, limit=1))[0]
    moment = datetime.fromisoformat(newest["at"])
    assert (await entries(api, since=moment.isoformat()))[-1]["id"] == newest["id"]
    assert newest["id"] not in [entry["id"] for entry in await entries(api, until=moment.isoformat())]
    assert await entries(api, since=(moment + timedelta(hours=1)).isoformat()) == []


@pytest.mark.parametrize(
    "bad", [{"limit": 0}, {"limit": 5000}, {"since": "yesterday"}, {"since": "2026-01-01"}, {"cursor": "nonsense"}]
)
async def test_a_bad_filter_is_named(api: Api, bad: dict[str, Any]) -> None:
    answer = await api.http.get("/api/v1/audit", params=bad)
    assert answer.status_code == 400
