"""Cancel, retry and dismiss from the command line; history and pending work."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from tests.scripted_api import ScriptedApi, as_json, scripted_api
from tests.cli.test_follow import view

AT = datetime(2026, 11, 16, 3, 0, tzinfo=UTC).isoformat()
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
    script.on(f"/api/operations/{verb}", as_json(preview), as_json(done))
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
    script.on("/api/operations/cancel", as_json({"preview": False, "matched": 1, "operations": [refused]}))
    done = run(script, "cancel", "--batch", "b", "--yes")
    assert done.exit_code == 1
    assert "it is removing echo already" in done.stdout


@pytest.mark.parametrize("arguments", [["cancel"], ["dismiss"], ["cancel", "op", "--node", "n1"]])
def test_action_requires_either_an_id_or_a_filter(script: ScriptedApi, arguments: list[str]) -> None:
    done = run(script, *arguments)
    assert done.exit_code == 2
    assert script.asked == []


def test_one_operation_is_dismissed_by_its_id(script: ScriptedApi) -> None:
    good, bad = {"success": True, "message": "Operation dismissed"}, {"success": False, "message": "Nothing"}
    script.on("/api/operations/op/dismiss", as_json(good), as_json(bad))
    assert [run(script, "dismiss", "op").exit_code for _ in range(2)] == [0, 1]


def test_retry_names_the_new_operation_and_can_be_watched(script: ScriptedApi) -> None:
    script.on("/api/operations/old/retry", as_json({"jobID": "op", "statusUrl": "", "message": ""}, 202))
    script.on("/api/operations/op", as_json(view("succeeded", 1)))
    done = run(script, "retry", "old", "--reason", "disk freed")
    assert (done.exit_code, sent(script)) == (0, {"reason": "disk freed"})
    assert "nodesmith ops watch op" in done.stdout
    assert run(script, "retry", "old", "--watch").exit_code == 0


def test_history_is_read_page_by_page_until_there_is_enough(script: ScriptedApi) -> None:
    entry = {**view("failed", 0), "ended_at": AT, "reason": "no_disk", "message": "failed: no disk"}
    pages = [{"operations": [entry], "next": "c1"}, {"operations": [entry], "next": None}]
    script.on("/api/operations/history", *(as_json(page) for page in pages))
    done = run(script, "history", "--node", "n1", "--since", "7d")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 3
    assert ("cursor=c1" in script.asked[1][1], "node=n1" in script.asked[1][1]) == (True, True)


def test_pending_work_says_what_it_waits_for(script: ScriptedApi) -> None:
    work = {"name": "n1", "total": 3, "states": {"waiting": 3}, "reasons": {"node_away": 3}, "oldest": AT}
    script.on("/api/operations/pending", as_json({"total": 3, "nodes": [work], "backends": [work]}))
    done = run(script, "pending")
    assert done.stdout.count("3 node away") == 2
