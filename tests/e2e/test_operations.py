"""Kinds of operations, end to end: their progress, their downloads, and LocalAI's removals."""

import asyncio

import httpx2

from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.e2e.test_install import MB, read_stream, unique


async def test_upgrade_streams_its_progress(fleet: Fleet, source: SlowSource) -> None:
    """S22: progress is not 0 % until the end."""
    name = unique("upgraded")
    assert (await fleet.ended(await fleet.accepted("agent-1", **offer(source, name, package(MB)))))["changed"]
    newer = offer(source, f"{name}-2", package(3 * MB))
    source.bytes_per_second = 2 * MB
    op_id = await fleet.accepted("agent-1", kind="upgrade", **{**newer, "name": name})
    changes, ticks = await read_stream(fleet, op_id, 0, "succeeded")
    assert [state for _, state in changes] == ["queued", "running", "succeeded"]
    assert ticks > 0


async def test_operation_continues_without_a_watcher(fleet: Fleet, source: SlowSource) -> None:
    """S8: after its client has disconnected, the list still shows the operation, and it completes."""
    name, built = unique("unwatched"), package(MB)
    source.bytes_per_second = 2 * MB
    body = offer(source, name, built)
    async with httpx2.AsyncClient(base_url=fleet.url, headers=fleet.http.headers, trust_env=False) as asker:
        asked = {"kind": "install", "node": "agent-2", **body}
        op_id = (await asker.post("/api/v1/operations", json=asked)).json()["op_id"]
    await source.going.wait()
    listed = (await fleet.http.get("/api/v1/operations")).json()["items"]
    assert [entry["node_id"] for entry in listed if entry["op_id"] == op_id] == [await id_of(fleet, "agent-2")]
    theirs = (await fleet.http.get("/api/operations")).json()["operations"]
    assert [entry["nodeID"] for entry in theirs if entry["jobID"] == op_id] == [await id_of(fleet, "agent-2")]
    async with asyncio.timeout(60):
        while not fleet.live("agent-2", name).exists():  # noqa: ASYNC110 - reads the disk, sends no request
            await asyncio.sleep(0.05)
    operation = await fleet.ended(op_id)
    assert (operation["state"], operation["changed"]) == ("succeeded", True)


async def id_of(fleet: Fleet, node: str) -> str:
    found: str = (await fleet.http.get(f"/api/v1/nodes/{node}")).json()["id"]
    return found


async def test_retry_streams_its_progress_and_reuses_downloaded_bytes(fleet: Fleet, source: SlowSource) -> None:
    """G9; S25, superseded: a retry is visible too. A pause keeps the downloaded bytes."""
    name, built = unique("paused"), package(6 * MB)
    source.bytes_per_second = 2 * MB
    op_id = await fleet.accepted("agent-2", **offer(source, name, built))
    await fleet.until(op_id, lambda operation: operation["progress"]["bytes_done"] > MB)
    paused = await fleet.http.post(f"/api/operations/{op_id}/pause")
    assert paused.json()["message"] == "Operation paused"
    assert (await fleet.ended(op_id))["state"] == "cancelled"
    answer = await fleet.http.post(f"/api/v1/operations/{op_id}/retry")
    assert answer.status_code == 202, answer.text
    again = str(answer.json()["op_id"])
    _, ticks = await read_stream(fleet, again, 0, "succeeded")
    operation = await fleet.operation(again)
    assert ticks > 0
    assert (operation["retry_of"], operation["bytes_reused"] > 0) == (op_id, True)
    assert operation["bytes_reused"] + operation["bytes_fetched"] == len(built.content)
    assert fleet.noise_on_disk("agent-2", name) == built.noise_sha256


async def test_a_forced_reinstall_reinstalls(fleet: Fleet, source: SlowSource) -> None:
    """H30: a repeated install changes nothing; with force it is done again."""
    name, built = unique("again"), package(MB // 8)
    body = offer(source, name, built)
    await fleet.ended(await fleet.accepted("agent-3", **body))
    (fleet.live("agent-3", name) / "noise").write_bytes(b"damaged")
    assert (await fleet.ended(await fleet.accepted("agent-3", **body)))["changed"] is False
    forced = await fleet.ended(await fleet.accepted("agent-3", **body, force=True))
    assert (forced["state"], forced["changed"]) == ("succeeded", True)
    assert fleet.noise_on_disk("agent-3", name) == built.noise_sha256


async def test_localai_removal_answers_after_the_backend_is_removed(fleet: Fleet, source: SlowSource) -> None:
    """H28: durable operations behind LocalAI's synchronous routes, with LocalAI's bodies."""
    name = unique("gone")
    body = offer(source, name, package(MB // 8))
    for node in ("agent-1", "agent-2"):
        await fleet.ended(await fleet.accepted(node, **body))
        await fleet.http.post(f"/api/v1/nodes/{node}/inventory/refresh")
    one = await fleet.http.post("/api/nodes/agent-1/backends/delete", json={"backend": name})
    assert (one.status_code, one.json()) == (200, {"message": "backend deleted"})
    assert not fleet.live("agent-1", name).exists()
    everywhere = await fleet.http.post(f"/api/backends/system/delete/{name}")
    assert (everywhere.status_code, everywhere.json()) == (
        200,
        {"success": True, "message": "Backend deleted successfully"},
    )
    assert not fleet.live("agent-2", name).exists()
