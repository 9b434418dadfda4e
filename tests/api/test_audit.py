"""The audit trail: every change has a row that says who, what, on what, from what to what, when and why."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute

from api.app import _ROUTERS
from api.auditing import action_of
from tests.api.station import Api, bearer


async def entries(api: Api, **filters: Any) -> list[dict[str, Any]]:
    answer = await api.http.get("/api/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["entries"])


async def token_of(api: Api, name: str, role: str = "operator") -> dict[str, str]:
    answer = await api.http.post("/api/tokens", json={"name": name, "role": role})
    return bearer(answer.json()["token"])


async def test_an_approval_is_written_down_with_before_and_after(api: Api) -> None:
    began = datetime.now(UTC)
    node = await api.register()
    answer = await api.http.post(f"/api/nodes/{node['id']}/approve", params={"reason": "rack 7 is ours"})
    assert answer.status_code == 200
    (entry,) = await entries(api, target=node["name"])
    assert (entry["actor"], entry["action"], entry["target_id"]) == ("admin", "nodes.approve", node["id"])
    assert entry["reason"] == "rack 7 is ours"
    assert entry["before"] == {"approved_at": None}
    assert datetime.fromisoformat(entry["after"]["approved_at"]) >= began
    assert datetime.fromisoformat(entry["at"]) >= began


async def test_an_install_and_its_cancel_name_the_token_that_asked(api: Api) -> None:
    node, headers = await api.approved_node(), await token_of(api, "night-shift")
    body = {"backend": "echo", "reason": "INC-42"}
    accepted = await api.http.post(f"/api/nodes/{node['id']}/backends/install", json=body, headers=headers)
    op_id = accepted.json()["jobID"]
    await api.http.post(f"/api/operations/{op_id}/cancel", json={"reason": "wrong rack"}, headers=headers)
    cancelled, installed = await entries(api, actor="night-shift")
    assert (installed["action"], installed["target"], installed["reason"]) == (
        "nodes.backends.install",
        node["name"],
        "INC-42",
    )
    assert installed["after"] == {"backend": "echo", "op_id": op_id}
    assert (cancelled["action"], cancelled["target"], cancelled["reason"]) == (
        "operations.cancel",
        op_id,
        "wrong rack",
    )


async def test_tokens_are_written_down_without_their_secrets(api: Api) -> None:
    made = (await api.http.post("/api/tokens", json={"name": "robot", "role": "viewer"})).json()
    await api.http.delete("/api/tokens/robot", params={"reason": "left"})
    revoked, created = await entries(api, target="robot")
    assert (created["action"], created["after"]["role"]) == ("tokens.create", "viewer")
    assert (revoked["action"], revoked["before"]["role"], revoked["reason"]) == ("tokens.remove", "viewer", "left")
    assert await entries(api, target=made["id"]) == [revoked, created]
    assert made["token"] not in (await api.http.get("/api/audit")).text


async def test_a_source_is_written_down_as_it_was_and_as_it_is(api: Api) -> None:
    host = "r.invalid:5000"
    for username in ("ada", "bob"):
        await api.http.put(f"/api/sources/{host}", json={"username": username, "password": "hush"})
    await api.http.delete(f"/api/sources/{host}")
    removed, changed, added = await entries(api, target=host)
    assert added["before"] is None
    assert [added["after"]["username"], changed["before"]["username"], changed["after"]["username"]] == [
        "ada",
        "ada",
        "bob",
    ]
    assert (removed["before"], removed["after"]) == (changed["after"], None)
    assert "hush" not in (await api.http.get("/api/audit")).text


async def test_a_hold_is_written_down_as_it_was_and_as_it_is(api: Api) -> None:
    await api.http.post("/api/hold", json={"reason": "the link is down"})
    await api.http.post("/api/release", json={"reason": "it is back"})
    released, held = await entries(api, target="hold")
    assert (held["before"]["held"], held["after"]["held"], held["reason"]) == (False, True, "the link is down")
    assert (released["before"], released["after"]["held"], released["reason"]) == (held["after"], False, "it is back")


async def test_labels_and_overrides_are_written_down_as_they_were_and_as_they_are(api: Api) -> None:
    node = await api.approved_node()
    at = f"/api/nodes/{node['id']}"
    await api.http.put(f"{at}/labels", json={"zone": "a"})
    await api.http.patch(f"{at}/labels", json={"zone": "b"})
    await api.http.put(f"{at}/max-replicas-per-model", json={"value": 4})
    overridden, merged, replaced, _approved = await entries(api, target=node["name"])
    assert "zone" not in replaced["before"]["labels"]
    assert replaced["after"]["labels"]["zone"] == merged["before"]["labels"]["zone"] == "a"
    assert merged["after"]["labels"]["zone"] == "b"
    assert overridden["before"]["max_replicas_per_model"] == 1
    assert overridden["after"]["max_replicas_per_model"] == 4


async def test_an_order_to_a_batch_is_written_down_with_the_state_it_met(api: Api) -> None:
    node = await api.approved_node()
    body = {"kind": "install", "backend": "echo", "nodes": [node["id"]]}
    batch_id = (await api.http.post("/api/batches", json=body)).json()["batch_id"]
    assert (await api.http.post(f"/api/batches/{batch_id}/pause", json={"reason": "lunch"})).status_code == 200
    (paused,) = await entries(api, target=batch_id)
    assert (paused["action"], paused["reason"], paused["after"]) == ("batches.pause", "lunch", {"order": "pause"})
    assert paused["before"] == {"state": "running"}


def test_every_change_has_an_action_of_its_own() -> None:
    """Found in the routes, so that a new one is covered by being there."""
    seen: dict[str, str] = {}
    for module in _ROUTERS:
        for route in (route for route in module.router.routes if isinstance(route, APIRoute)):
            for verb in (route.methods or set()) - {"GET", "HEAD"}:
                action = action_of(verb, route.path)
                where = f"{verb} {re.sub(r'^/api|/{[^}]*}', '', route.path)}"
                assert re.fullmatch(r"[a-z-]+(\.[a-z-]+)*", action), action
                assert seen.setdefault(action, where) == where, action


async def test_what_was_refused_leaves_no_row(api: Api) -> None:
    node, headers = await api.register(), await token_of(api, "too-low", "viewer")
    assert (await api.http.post(f"/api/nodes/{node['id']}/approve", headers=headers)).status_code == 403
    assert (await api.http.post("/api/nodes/nobody/approve")).status_code == 404
    assert await entries(api, target=node["name"]) == []
    assert await entries(api, target="nobody") == []


async def test_reads_leave_no_row(api: Api) -> None:
    before = (await entries(api))[0]["id"]
    await api.http.get("/api/nodes")
    assert (await entries(api))[0]["id"] == before


async def test_pages_follow_each_other_without_gap_or_overlap(api: Api) -> None:
    for _ in range(5):
        await api.approved_node()
    everything = [entry["id"] for entry in await entries(api, action="nodes.approve")]
    paged: list[int] = []
    before: dict[str, int] = {}
    while True:
        page = (await api.http.get("/api/audit", params={"action": "nodes.approve", "limit": 2, **before})).json()
        paged += [entry["id"] for entry in page["entries"]]
        if page["next"] is None:
            break
        before = {"before_id": page["next"]}
    assert paged == everything
    assert paged == sorted(paged, reverse=True)


async def test_the_time_filter_cuts_at_both_ends(api: Api) -> None:
    await api.approved_node()
    newest = (await entries(api, limit=1))[0]
    moment = datetime.fromisoformat(newest["at"])
    assert (await entries(api, since=moment.isoformat()))[-1]["id"] == newest["id"]
    assert newest["id"] not in [entry["id"] for entry in await entries(api, until=moment.isoformat())]
    assert await entries(api, since=(moment + timedelta(hours=1)).isoformat()) == []


@pytest.mark.parametrize(
    "bad", [{"limit": 0}, {"limit": 5000}, {"since": "yesterday"}, {"since": "2026-01-01"}, {"before_id": 0}]
)
async def test_a_bad_filter_is_named(api: Api, bad: dict[str, Any]) -> None:
    answer = await api.http.get("/api/audit", params=bad)
    assert answer.status_code == 400
    assert answer.json()["field"] == next(iter(bad))
