"""Commands for many nodes: the route that they call, their output, and their exit code."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from tests.client.shapes import ACCEPTED as STARTED
from tests.client.shapes import AT, batch, page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

OPERATIONS = "/api/v1/operations"
ACCEPTED = {
    "batch_id": "b",
    "jobID": "b",
    "statusUrl": "/api/backends/job/b",
    "message": "started",
    "operations": {"n1": "op1", "n2": "op2"},
    "skipped": {"n3": "it is drained"},
}
PLAN = {
    "backend": "echo",
    "version": "2",
    "targets": 1,
    "skipped": 1,
    "members": [
        {
            "node_id": "1",
            "node_name": "n1",
            "action": "upgrade",
            "current_version": "1",
            "bytes": 2000,
            "free_disk": 9000,
        },
        {"node_id": "2", "node_name": "n2", "action": "skip", "reason": "it waits for approval"},
    ],
}


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


def run(script: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), [*arguments, "--url", script.url, "--token", "t"])


def last_request(script: ScriptedApi) -> tuple[str, str, Any]:
    method, path, _, body = script.asked[-1]
    return method, path, json.loads(body) if body else None


@pytest.mark.parametrize(
    ("command", "kind"), [("install", "install"), ("upgrade", "upgrade"), ("rollback", "rollback"), ("rm", "remove")]
)
def test_single_node_starts_one_operation(script: ScriptedApi, command: str, kind: str) -> None:
    script.on(OPERATIONS, as_json(STARTED, 202))
    done = run(script, "backends", command, "echo", "--on", "n1", "--reason", "ticket 7")
    assert done.exit_code == 0, done.output
    assert last_request(script) == (
        "POST",
        OPERATIONS,
        {"kind": kind, "node": "n1", "backend": "echo", "reason": "ticket 7"},
    )
    assert "nodesmith ops watch op" in done.stdout


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["--on", "n1", "--on", "n2"], {"nodes": ["n1", "n2"]}),
        (["--where", "gpu.vendor=nvidia"], {"selector": "gpu.vendor=nvidia"}),
        (["--all", "--max-parallel", "0", "--max-failures", "1"], {"everywhere": True, "max_failures": 1}),
    ],
)
def test_several_nodes_start_one_batch(script: ScriptedApi, places: list[str], said: dict[str, Any]) -> None:
    script.on("/api/v1/batches", as_json(ACCEPTED, 202))
    done = run(script, "backends", "rm", "echo", *places)
    assert done.exit_code == 0, done.output
    method, path, body = last_request(script)
    assert (method, path) == ("POST", "/api/v1/batches")
    assert {"kind": "remove", "backend": "echo", **said}.items() <= body.items()
    assert body.get("max_parallel", 20) == (0 if "--max-parallel" in places else 20)
    assert "skipped n3: it is drained" in done.stdout
    assert "nodesmith batches watch b" in done.stdout


@pytest.mark.parametrize("places", [[], ["--all", "--on", "n1"], ["--where", "a=b", "--all"]])
def test_command_requires_exactly_one_kind_of_target(script: ScriptedApi, places: list[str]) -> None:
    done = run(script, "backends", "rm", "echo", *places)
    assert done.exit_code == 2
    assert "Give exactly one" in done.output
    assert script.asked == []


@pytest.mark.parametrize("places", [["--all"], ["--on", "n1"]])
def test_a_dry_run_shows_the_plan_of_each_node(script: ScriptedApi, places: list[str]) -> None:
    script.on("/api/v1/batches/plan", as_json(PLAN))
    done = run(script, "backends", "upgrade", "echo", *places, "--dry-run")
    assert done.exit_code == 0, done.output
    assert [(verb, path) for verb, path, _, _ in script.asked] == [("POST", "/api/v1/batches/plan")]
    first, header, upgraded, skipped = done.stdout.splitlines()
    assert first == "echo 2: 1 nodes, 1 skipped. Nothing was started."
    assert header.split() == ["NODE", "ACTION", "NOW", "FETCH", "FREE", "DISK", "FITS", "WHY", "OUTAGE"]
    assert upgraded.split() == ["n1", "upgrade", "1", "2.0", "kB", "9.0", "kB", "yes"]
    assert "it waits for approval" in skipped
    as_data = run(script, "backends", "upgrade", "echo", *places, "--dry-run", "--json")
    assert json.loads(as_data.stdout)["members"][0]["action"] == "upgrade"


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (batch("completed", n1="succeeded", n2="nothing_to_do", n3="skipped"), 0),
        (batch("completed", n1="succeeded", n2="failed"), 1),
        (batch("completed", n1="succeeded", n2="conflict"), 1),
        (batch("stopped", n1="failed", n2="not_started"), 1),
        (batch("cancelled", n1="succeeded"), 1),
    ],
)
def test_watching_a_batch_exits_with_0_only_if_it_succeeded_everywhere(
    script: ScriptedApi, ended: dict[str, Any], code: int
) -> None:
    """S10: a cancelled or failed operation is not shown as a success."""
    script.on("/api/v1/batches", as_json(ACCEPTED, 202))
    script.on("/api/v1/batches/b", as_json(batch("running", n1="running", n2="queued")), as_json(ended))
    done = run(script, "backends", "upgrade", "echo", "--all", "--watch")
    assert done.exit_code == code, done.output
    assert ("nodesmith batches retry b" in done.stdout) == (code == 1)


def test_json_watch_of_batch_ends_with_its_final_state(script: ScriptedApi) -> None:
    script.on("/api/v1/batches/b", as_json(batch("running", n1="running")), as_json(batch("completed", n1="succeeded")))
    done = run(script, "batches", "watch", "b", "--json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["running", "completed"]


def test_piped_watch_prints_each_node_once(script: ScriptedApi) -> None:
    first, then = batch("running", n1="succeeded", n2="running"), batch("completed", n1="succeeded", n2="failed")
    script.on("/api/v1/batches/b", as_json(first), as_json(then))
    said = [line[10:] for line in run(script, "batches", "watch", "b").stdout.splitlines()]
    assert said[:4] == ["n1: succeeded", "running: 2 nodes", "n2: failed", "completed: 2 nodes"]


@pytest.mark.parametrize("order", ["pause", "resume", "cancel"])
def test_batch_actions_send_their_reason(script: ScriptedApi, order: str) -> None:
    script.on(f"/api/v1/batches/b/{order}", as_json(batch("running"), 202))
    done = run(script, "batches", order, "b", "--reason", "too hot")
    assert done.exit_code == 0, done.output
    assert last_request(script) == ("POST", f"/api/v1/batches/b/{order}", {"reason": "too hot"})
    assert json.loads(run(script, "batches", order, "b", "--json").stdout)["batch_id"] == "b"


def test_retry_of_a_batch_can_be_watched(script: ScriptedApi) -> None:
    script.on("/api/v1/batches/old/retry", as_json(ACCEPTED, 202))
    script.on("/api/v1/batches/b", as_json(batch("completed", n1="succeeded")))
    done = run(script, "batches", "retry", "old", "--watch")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Accepted: batch b on 2 nodes\n")


@pytest.mark.parametrize(
    ("option", "body"),
    [
        ([], None),
        (["--failed"], {"select": "failed"}),
        (["--cancelled"], {"select": "cancelled"}),
        (["--all-unfinished"], {"select": "all_unfinished"}),
    ],
)
def test_batch_retry_sends_the_selected_members(script: ScriptedApi, option: list[str], body: object) -> None:
    script.on("/api/v1/batches/old/retry", as_json({**ACCEPTED, "repeated": bool(option)}, 202))
    done = run(script, "batches", "retry", "old", *option)
    assert done.exit_code == 0, done.output
    assert last_request(script) == ("POST", "/api/v1/batches/old/retry", body or {})
    assert script.asked[-1][2]["Idempotency-Key"]
    assert done.stdout.startswith("This request was accepted before" if option else "Accepted")


def test_batch_retry_accepts_only_one_selection(script: ScriptedApi) -> None:
    done = run(script, "batches", "retry", "old", "--failed", "--cancelled")
    assert (done.exit_code, script.asked) == (2, [])


def test_attempt_limits_are_sent_for_one_node_and_for_many(script: ScriptedApi) -> None:
    script.on("/api/v1/batches", as_json(ACCEPTED, 202))
    script.on(OPERATIONS, as_json(STARTED, 202))
    limits = ["--max-attempts", "3", "--count-attempts", "--max-failures", "5"]
    assert run(script, "backends", "install", "echo", "--all", *limits).exit_code == 0
    body = last_request(script)[2]
    assert (body["max_attempts"], body["count_attempts"], body["max_failures"]) == (3, True, 5)
    assert run(script, "backends", "install", "echo", "--on", "n1", "--max-attempts", "3").exit_code == 0
    assert last_request(script)[2] == {"kind": "install", "node": "n1", "backend": "echo", "max_attempts": 3}


def test_a_batch_shows_how_often_its_members_failed_and_why(script: ScriptedApi) -> None:
    troubled = {
        **batch("running", n1="waiting", n2="waiting"),
        "failed_attempts": 9,
        "failed_nodes": 2,
        "troubles": [{"cause": "refused [busy]", "attempts": 7, "nodes": 2}],
        "max_failures": 20,
        "count_attempts": True,
        "max_attempts": 4,
    }
    script.on("/api/v1/batches/b", as_json(troubled))
    shown = run(script, "batches", "show", "b").stdout
    for said in ("9 attempts on 2 nodes", "7 x refused [busy] (nodes: 2)", "20 failed attempts", "at most 4 a node"):
        assert said in shown


def test_batches_are_listed_and_shown(script: ScriptedApi) -> None:
    listed = {**batch("running"), "counts": {"running": 2, "waiting_for_turn": 5}}
    script.on("/api/v1/batches", as_json(page(listed)))
    script.on("/api/v1/batches/b", as_json(batch("stopped", n1="failed", n2="not_started")))
    line = run(script, "batches", "ls").stdout.splitlines()[1]
    assert line.startswith("b   upgrade echo 2  running  2 running, 5 waiting for turn")
    shown = run(script, "batches", "show", "b").stdout
    assert all(text in shown for text in ("upgrade echo 2", "stopped", "not_started"))


def test_hold_shows_actor_reason_and_release_command(script: ScriptedApi) -> None:
    held = {"held": True, "reason": "freeze", "by": "alice", "since": AT}
    script.on("/api/v1/hold", as_json(held), as_json(held), as_json({"held": False}))
    asked = run(script, "hold")
    assert last_request(script)[0] == "GET"
    assert "by alice: freeze" in asked.stdout
    run(script, "hold", "--reason", "freeze")
    assert last_request(script) == ("PUT", "/api/v1/hold", {"reason": "freeze"})
    assert run(script, "release", "--reason", "thawed").stdout == "No hold is set.\n"
    assert last_request(script) == ("DELETE", "/api/v1/hold?reason=thawed", None)


def test_empty_reason_of_a_hold_is_left_to_the_api(script: ScriptedApi) -> None:
    script.on("/api/v1/hold", as_json({"held": False}))
    run(script, "hold", "--reason", "")
    assert last_request(script) == ("PUT", "/api/v1/hold", {"reason": ""})
