"""Cancel, retry and dismiss from the command line; history and pending work."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from nodesmith.client import Refused
from tests.client.shapes import ACCEPTED, AT, operation, page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

ITEM = {"op_id": "op", "node_name": "n1", "backend": "echo", "kind": "install", "state": "waiting"}


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


def run(script: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), ["ops", *arguments, "--url", script.url, "--token", "t"])


def sent(script: ScriptedApi) -> Any:
    return json.loads(script.asked[-1][3])


@pytest.mark.parametrize("verb", ["cancel", "dismiss"])
def test_action_by_filter_is_only_previewed_without_yes(script: ScriptedApi, verb: str) -> None:
    preview = {"preview": True, "matched": 1, "operations": [ITEM]}
    done = {"preview": False, "matched": 1, "accepted": 1, "operations": [{**ITEM, "accepted": True}]}
    script.on(f"/api/v1/operations/{verb}", as_json(preview), as_json(done))
    looked = run(script, verb, "--node", "n1", "--state", "waiting")
    assert looked.exit_code == 1
    assert sent(script) == {"node": "n1", "state": "waiting", "preview": True}
    assert f"1 to {verb}. Nothing was changed: add --yes to {verb}." in looked.stdout
    did = run(script, verb, "--node", "n1", "--yes", "--reason", "wrong rack")
    assert did.exit_code == 0, did.output
    assert sent(script) == {"node": "n1", "reason": "wrong rack"}
    assert f"{verb}: 1 of 1 accepted." in did.stdout


def test_refused_operations_are_named_and_set_the_exit_code(script: ScriptedApi) -> None:
    refused = {**ITEM, "accepted": False, "note": "it is removing echo already"}
    script.on("/api/v1/operations/cancel", as_json({"preview": False, "matched": 1, "operations": [refused]}))
    done = run(script, "cancel", "--batch", "b", "--yes")
    assert done.exit_code == 1
    assert "it is removing echo already" in done.stdout


@pytest.mark.parametrize("arguments", [["cancel"], ["dismiss"], ["cancel", "op", "--node", "n1"]])
def test_action_requires_either_an_id_or_a_filter(script: ScriptedApi, arguments: list[str]) -> None:
    done = run(script, *arguments)
    assert done.exit_code == 2
    assert script.asked == []


def test_one_operation_is_dismissed_by_its_id(script: ScriptedApi) -> None:
    dismissed = operation("failed", 1, dismissed_at=AT)
    script.on("/api/v1/operations/op/dismiss", as_json(dismissed))
    assert run(script, "dismiss", "op", "--reason", "known").stdout == "Operation dismissed.\n"
    assert script.asked[-1][:2] == ("POST", "/api/v1/operations/op/dismiss?reason=known")
    assert json.loads(run(script, "dismiss", "op", "--json").stdout)["dismissed_at"]


def test_operation_that_did_not_end_badly_is_not_dismissed(script: ScriptedApi) -> None:
    running = {"title": "Conflict", "status": 409, "detail": "Operation op is running.", "code": "not_dismissable"}
    script.on("/api/v1/operations/op/dismiss", as_json(running, 409))
    done = run(script, "dismiss", "op")
    assert isinstance(done.exception, Refused)
    assert (done.exit_code, done.exception.code, done.stdout) == (1, "not_dismissable", "")


def test_cancel_by_id_says_the_state_and_how_to_follow(script: ScriptedApi) -> None:
    script.on("/api/v1/operations/op/cancel", as_json({"op_id": "op", "state": "cancelling"}, 202))
    done = run(script, "cancel", "op", "--keep", "--force", "--reason", "wrong rack")
    assert sent(script) == {"mode": "keep", "force": True, "reason": "wrong rack"}
    assert done.stdout.splitlines() == [
        "Cancel accepted; operation op is cancelling.",
        "  follow it:  nodesmith ops watch op",
    ]
    run(script, "cancel", "op")
    assert sent(script) == {}


@pytest.mark.parametrize(("option", "scope"), [([], "live"), (["--all"], "all")])
def test_operations_are_listed_with_a_note_if_temporal_is_down(
    script: ScriptedApi, option: list[str], scope: str
) -> None:
    script.on("/api/v1/operations", as_json(page(operation("running", 0), stale_since=AT)), as_json(page()))
    shown = run(script, "ls", *option, "--node", "n1", "--limit", "7").stdout.splitlines()
    assert shown[0].startswith("Temporal does not answer: this list is from 2026-11-16")
    assert shown[2].split()[:4] == ["op", "agent-1", "echo", "running"]
    asked = parse_qs(urlsplit(script.asked[0][1]).query)
    assert asked == {"scope": [scope], "node": ["n1"], "limit": ["7"]}
    assert "There are no operations yet." in run(script, "ls", "--all").stdout


def test_retry_names_the_new_operation_and_can_be_watched(script: ScriptedApi) -> None:
    script.on("/api/v1/operations/old/retry", as_json(ACCEPTED, 202))
    script.on("/api/v1/operations/op", as_json(operation("succeeded", 1)))
    done = run(script, "retry", "old", "--reason", "disk freed")
    assert (done.exit_code, sent(script)) == (0, {"reason": "disk freed"})
    assert "nodesmith ops watch op" in done.stdout
    assert run(script, "retry", "old", "--watch").exit_code == 0


def test_history_is_read_page_by_page_until_there_is_enough(script: ScriptedApi) -> None:
    entry = {**operation("failed", 0), "ended_at": AT, "reason": "no_disk", "message": "failed: no disk"}
    script.on("/api/v1/operations", as_json(page(entry, next_cursor="c1")), as_json(page(entry, next_cursor="c2")))
    done = run(script, "history", "--node", "n1", "--since", "7d", "--limit", "2")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 3
    asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in script.asked]
    assert [query.get("cursor") for query in asked] == [None, ["c1"]]
    assert all((query["scope"], query["node"], query["limit"]) == (["ended"], ["n1"], ["2"]) for query in asked)
    since = datetime.fromisoformat(asked[0]["since"][0])
    assert timedelta(days=7) <= datetime.now(UTC) - since < timedelta(days=7, minutes=5)


def test_pending_work_says_what_it_waits_for(script: ScriptedApi) -> None:
    work = {"name": "n1", "total": 3, "states": {"waiting": 3}, "reasons": {"node_away": 3}, "oldest": AT}
    script.on("/api/v1/operations/pending", as_json({"total": 3, "nodes": [work], "backends": [work]}))
    done = run(script, "pending")
    assert done.stdout.count("3 node away") == 2
