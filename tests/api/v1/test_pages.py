"""Pages of `/api/v1`: each row once, whatever is added meanwhile; cursors that are not ours; entity tags; facts."""

import base64
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nodesmith.contracts.temporal.batches import BatchInput, Target
from nodesmith.domain.operation import State
from tests.api.records import recorded
from tests.api.station import Api
from tests.gallery import wild
from tests.store.clock import NOON
from tests.store.transitions import a_request

LISTS = ["nodes", "operations", "operations?scope=ended", "batches", "audit", "backends"]


async def walk(api: Api, path: str, key: str, *, between: Callable[[], Awaitable[None]], **query: Any) -> list[Any]:
    """All pages, two rows each; something happens before each further page."""
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await api.http.get(path, params={"limit": 2, "cursor": cursor, **query})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) == 2 or page["next_cursor"] is None
        seen += [each[key] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is not None:
            await between()
    return seen


@pytest.mark.parametrize("sort", ["name", "-name", "created_at", "-created_at", "last_heartbeat", "status"])
async def test_each_node_is_on_one_page(api: Api, sort: str) -> None:
    mark = secrets.token_hex(4)
    before = {(await api.register(name=f"{mark}-{number}"))["id"] for number in range(5)}

    async def join() -> None:
        await api.register(name=f"{mark}-{secrets.token_hex(4)}")

    seen = await walk(api, "/api/v1/nodes", "id", between=_few(join), text=mark, sort=sort)
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


def _few(act: Callable[[], Awaitable[None]], times: int = 3) -> Callable[[], Awaitable[None]]:
    """Act a few times only: a list that grows as fast as it is read has no end."""
    left = times

    async def act_again() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            await act()

    return act_again


@pytest.mark.parametrize(
    ("scope", "state"),
    [("live", State.FAILED), ("open", State.RUNNING), ("ended", State.SUCCEEDED), ("all", State.CANCELLED)],
)
async def test_each_operation_is_on_one_page(api: Api, scope: str, state: State) -> None:
    node = f"n-{secrets.token_hex(4)}"
    before = {await recorded(api, state, node_id=node) for _ in range(5)}

    async def add() -> None:
        await recorded(api, state, node_id=node)

    seen = await walk(api, "/api/v1/operations", "op_id", between=_few(add), node=node, scope=scope)
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


async def test_each_batch_is_on_one_page(api: Api) -> None:
    async def add() -> None:
        added.append(f"b-{secrets.token_hex(4)}")
        targets = (Target(node_id="n", node_name="n"),)
        wanted = a_request().wanted
        await api.deps.batches.open(BatchInput(batch_id=added[-1], wanted=wanted, targets=targets, created_at=NOON))

    added: list[str] = []
    for _ in range(5):
        await add()
    before = set(added)
    seen = await walk(api, "/api/v1/batches", "batch_id", between=_few(add))
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


async def test_each_audit_entry_is_on_one_page(api: Api) -> None:
    async def change() -> None:
        await api.http.put("/api/v1/sources/page.test", json={"username": secrets.token_hex(4)})

    for _ in range(5):
        await change()
    before = {each["id"] for each in (await api.http.get("/api/v1/audit?target=page.test")).json()["items"]}
    seen = await walk(api, "/api/v1/audit", "id", between=_few(change), target="page.test")
    assert (len(before), before <= set(seen), len(seen)) == (5, True, len(set(seen)))


@pytest.mark.parametrize("sort", ["name", "gallery", "license", "status"])
@pytest.mark.parametrize("descending", [False, True])
async def test_each_backend_is_on_one_page(api: Api, tmp_path: Path, sort: str, descending: bool) -> None:
    mark = f"p{secrets.token_hex(3)}"

    async def add(name: str) -> None:
        (index := tmp_path / f"{name}.yaml").write_text(wild.backend(f"{mark}-{name}"))
        body = {"name": f"{mark}-{name}", "url": index.as_uri()}
        answer = await api.http.post("/api/v1/galleries", json=body)
        assert answer.status_code == 201, answer.text

    async def add_around() -> None:
        for name in (f"a{secrets.token_hex(3)}", f"z{secrets.token_hex(3)}"):
            await add(name)

    await add("middle")
    listed = (await api.http.get("/api/v1/backends", params={"text": mark})).json()
    before = {each["id"] for each in listed["items"]}
    query = {"text": mark, "sort": sort, "descending": descending}
    seen = await walk(api, "/api/v1/backends", "id", between=_few(add_around, times=1), **query)
    assert len(before) == listed["total"] > 10
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


async def test_backend_that_is_gone_does_not_end_the_walk(api: Api, tmp_path: Path) -> None:
    mark = f"q{secrets.token_hex(3)}"
    for name in ("a", "b", "c"):
        (index := tmp_path / f"{name}.yaml").write_text(
            "".join(
                f"- {{name: {mark}-{name}{n}, uri: 'https://x.invalid/y.tar.gz', sha256: {'a' * 64}}}\n" for n in (1, 2)
            )
        )
        body = {"name": f"{mark}-{name}", "url": index.as_uri()}
        assert (await api.http.post("/api/v1/galleries", json=body)).status_code == 201

    async def remove() -> None:
        """Remove the gallery in which the first page ended."""
        await api.http.delete(f"/api/v1/galleries/{mark}-a")

    seen = await walk(api, "/api/v1/backends", "name", between=_few(remove, times=1), text=mark)
    assert seen == [f"{mark}-{name}{number}" for name in ("a", "b", "c") for number in (1, 2)]


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        "\u00e9",
        "====",
        "9999999",
        encoded(["another list", "x", "y"]),
        encoded([]),
        encoded({"a": 1, "b": 2, "c": 3}),
        encoded(7),
        "a" * 3000,
        base64.urlsafe_b64encode(b"[" * 1400).decode(),
    ],
)
async def test_a_cursor_that_is_not_ours_is_named(api: Api, path: str, cursor: str) -> None:
    bare, _, query = path.partition("?")
    scope = dict([query.split("=")]) if query else {}
    answer = await api.http.get(f"/api/v1/{bare}", params={"cursor": cursor, **scope})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert answer.json()["facts"] == {"field": "cursor"}


ORDERS = {
    "nodes": "nodes by name",
    "operations": "operations by creation",
    "batches": "batches by creation",
    "backends": "backends by name",
}


@pytest.mark.parametrize("path", ORDERS)
@pytest.mark.parametrize("value", [7, None, [], "no moment", "2026-11-18T00:00:00", "a\0b"])
async def test_a_forged_cursor_is_no_server_error(api: Api, path: str, value: Any) -> None:
    answer = await api.http.get(f"/api/v1/{path}", params={"cursor": encoded([ORDERS[path], value, "id"])})
    assert answer.status_code in (200, 400), answer.text


async def test_a_cursor_belongs_to_its_list_and_order(api: Api) -> None:
    mark = secrets.token_hex(4)
    for number in range(3):
        await api.register(name=f"{mark}-{number}")
    first = (await api.http.get("/api/v1/nodes", params={"text": mark, "limit": 1})).json()
    for path, query in (("nodes", {"sort": "-name"}), ("nodes", {"sort": "created_at"}), ("operations", {})):
        answer = await api.http.get(f"/api/v1/{path}", params={"cursor": first["next_cursor"], **query})
        assert (answer.status_code, answer.json()["facts"]) == (400, {"field": "cursor"})


@pytest.mark.parametrize("path", ["/api/v1/galleries", "/api/v1/galleries/builtin"])
async def test_unchanged_galleries_are_a_304(api: Api, path: str) -> None:
    first = await api.http.get(path)
    tag = first.headers["ETag"]
    for shown in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await api.http.get(path, headers={"If-None-Match": shown})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    other = await api.http.get(path, headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.json(), other.headers["ETag"]) == (200, first.json(), tag)


async def test_changed_galleries_have_another_tag(api: Api, tmp_path: Path) -> None:
    tag = (await api.http.get("/api/v1/galleries")).headers["ETag"]
    name = f"g-{secrets.token_hex(3)}"
    (index := tmp_path / "index.yaml").write_text(wild.backend(name))
    await api.http.post("/api/v1/galleries", json={"name": name, "url": index.as_uri()})
    changed = await api.http.get("/api/v1/galleries", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.headers["ETag"] != tag) == (200, True)


async def test_facts_keep_their_json_types(api: Api) -> None:
    problem = (await api.http.get("/api/v1/nodes", params={"selector": "zone=a,rack>3"})).json()
    assert problem["facts"] == {"field": "selector", "position": 12}
    ended = await recorded(api, State.FAILED)
    problem = (await api.http.post(f"/api/v1/operations/{ended}/cancel")).json()
    assert problem["facts"] == {"op_id": ended, "state": "failed"}
    assert problem.keys() == {"type", "title", "status", "detail", "code", "remedy", "facts"}
