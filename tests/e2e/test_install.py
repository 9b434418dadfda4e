"""An install, end to end: HTTP, Temporal, NATS, an agent's disk, and back."""

import asyncio
import hashlib
import json
import tarfile
import uuid

import pytest

from nodesmith.domain.operation import Reason, State
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package

MB = 1024 * 1024


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


async def test_built_in_backend_install_reports_what_changed(fleet: Fleet) -> None:
    first = await fleet.ended(await fleet.accepted("agent-3", backend="echo", version="1"))
    assert (first["state"], first["after"]["version"], first["before"]) == (State.SUCCEEDED, "1", None)
    second = await fleet.ended(await fleet.accepted("agent-3", backend="echo"))
    assert (second["before"]["version"], second["after"]["version"]) == ("1", "2")
    again = await fleet.ended(await fleet.accepted("agent-3", backend="echo"))
    assert (again["state"], again["changed"]) == (State.SUCCEEDED, False)
    assert (fleet.live("agent-3", "echo") / "run.sh").exists()


async def test_timeline_and_job_agree(fleet: Fleet) -> None:
    op_id = await fleet.accepted("agent-2", backend="echo", force=True)
    operation = await fleet.ended(op_id)
    assert [event["state"] for event in operation["timeline"]] == ["queued", "running", "succeeded"]
    job = (await fleet.http.get(f"/api/backends/job/{op_id}")).json()
    assert (job["completed"], job["progress"], job["message"]) == (True, 100, "completed")
    assert f"/workflows/backend%3A{operation['node_id']}%3Aecho/" in operation["temporal_url"]


async def test_twenty_equal_requests_share_one_run_and_one_download(fleet: Fleet, source: SlowSource) -> None:
    """Promise 1."""
    name, built = unique("twenty"), package(2 * MB)
    body = offer(source, name, built)
    source.bytes_per_second = 4 * MB
    answers = await asyncio.gather(*(fleet.install("agent-1", **body) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    [op_id] = {answer.json()["op_id"] for answer in answers}
    assert (await fleet.ended(op_id))["state"] == State.SUCCEEDED
    assert source.sent[f"{name}.tar.gz"] == len(built.content)


async def test_another_intent_on_a_running_install_is_a_conflict_that_names_it(
    fleet: Fleet, source: SlowSource
) -> None:
    name = unique("busy")
    body = offer(source, name, package(4 * MB))
    source.bytes_per_second = 1 * MB
    op_id = await fleet.accepted("agent-1", **body)
    await fleet.in_state(op_id, State.RUNNING)
    refused = await fleet.install("agent-1", **{**body, "force": True})
    assert refused.status_code == 409
    assert op_id in refused.json()["detail"]
    source.bytes_per_second = float("inf")
    assert (await fleet.ended(op_id))["state"] == State.SUCCEEDED


async def test_a_cancel_stops_the_node_and_the_byte_counter(fleet: Fleet, source: SlowSource) -> None:
    """Promise 3, G1."""
    name = unique("cancelled")
    body = offer(source, name, package(8 * MB))
    source.bytes_per_second = 1 * MB
    op_id = await fleet.accepted("agent-2", **body)
    await fleet.in_state(op_id, State.RUNNING)
    answer = await fleet.cancel(op_id, reason="wrong node")
    assert (answer.status_code, answer.json()["op_id"]) == (202, op_id)
    operation = await fleet.ended(op_id)
    assert operation["state"] == State.CANCELLED
    assert "node stopped after" in operation["detail"]
    sent = source.sent[f"{name}.tar.gz"]
    assert (await fleet.ended(await fleet.accepted("agent-2", backend="echo", force=True)))["state"] == State.SUCCEEDED
    assert source.sent[f"{name}.tar.gz"] <= sent + MB, "the node no longer downloads"
    assert not fleet.live("agent-2", name).exists()
    again = await fleet.cancel(op_id)
    assert again.status_code == 409


def member(name: str, **fields: object) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(entry, key, value)
    return entry


ESCAPES = {
    "parent": [member("../x")],
    "absolute": [member("/tmp/x")],
    "link": [member("x", type=tarfile.SYMTYPE, linkname="../../outside")],
}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("digest", Reason.BAD_DIGEST),
        ("truncated", Reason.BAD_ARCHIVE),
        ("parent", Reason.ARCHIVE_ESCAPES),
        ("absolute", Reason.ARCHIVE_ESCAPES),
        ("link", Reason.ARCHIVE_ESCAPES),
    ],
)
async def test_a_bad_artifact_fails_with_its_reason_and_the_previous_version_stays(
    fleet: Fleet, source: SlowSource, fault: str, reason: Reason
) -> None:
    """Promise 6."""
    name, good = unique("kept"), package(MB // 4)
    assert (await fleet.ended(await fleet.accepted("agent-1", **offer(source, name, good))))["state"] == "succeeded"
    bad = package(MB // 4, ESCAPES.get(fault, []))
    body = offer(source, name, bad)
    if fault == "digest":
        body["sha256"] = "0" * 64
    if fault == "truncated":
        half = bad.content[: len(bad.content) // 2]
        source.files[f"{name}.tar.gz"], body["sha256"] = half, hashlib.sha256(half).hexdigest()
    operation = await fleet.ended(await fleet.accepted("agent-1", **body))
    assert (operation["state"], operation["reason"]) == (State.FAILED, reason)
    assert operation["remedy"]
    assert fleet.noise_on_disk("agent-1", name) == good.noise_sha256


async def read_stream(fleet: Fleet, op_id: str, last_id: int, until: str) -> tuple[list[tuple[int, str]], int]:
    """Read the stream after `last_id` until that state; return the changes and the number of ticks."""
    changes, ticks = [], 0
    headers = {"Last-Event-ID": str(last_id)}
    async with fleet.http.stream("GET", "/api/v1/events", params={"op_id": op_id}, headers=headers) as stream:
        async for line in stream.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = json.loads(line.removeprefix("data:"))
            if "state" not in data:
                ticks += 1
                continue
            changes.append((data["id"], data["state"]))
            if data["state"] == until:
                break
    return changes, ticks


async def test_stream_sends_every_change_once_and_resumes_after_a_break(fleet: Fleet, source: SlowSource) -> None:
    body = offer(source, unique("streamed"), package(4 * MB))
    source.bytes_per_second = 2 * MB
    op_id = await fleet.accepted("agent-3", **body)
    before, _ = await read_stream(fleet, op_id, 0, "queued")
    after, ticks = await read_stream(fleet, op_id, before[-1][0], "succeeded")
    assert [state for _, state in before + after] == ["queued", "running", "succeeded"]
    assert [number for number, _ in before + after] == sorted({number for number, _ in before + after})
    assert ticks > 0


async def test_backend_is_started_on_request_and_upgraded_while_running(fleet: Fleet) -> None:
    """Nothing is started without a request; an upgrade replaces the running version."""
    first = await fleet.ended(await fleet.accepted("agent-3", backend="echo", version="1", start=True, force=True))
    assert first["state"] == State.SUCCEEDED, first["message"]
    wanted = {"backend": "echo", "version": "2", "upgrade_policy": "overlap"}
    upgraded = await fleet.ended(await fleet.accepted("agent-3", kind="upgrade", **wanted))
    assert (upgraded["state"], upgraded["after"]["version"]) == (State.SUCCEEDED, "2"), upgraded["message"]
