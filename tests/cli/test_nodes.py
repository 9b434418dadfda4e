"""`nodesmith nodes ls|show|approve` against a scripted API."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from tests.client.shapes import AT, node, page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

NODES = "/api/v1/nodes"
ECHO = {"name": "echo", "version": "2", "previous_version": "1", "digest": "sha256:ab"}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def run(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), ["nodes", *arguments, "--url", api.url, "--token", "t"])


def test_nodes_of_all_pages_are_listed_and_pending_ones_are_named(api: ScriptedApi) -> None:
    api.on(NODES, as_json(page(node("a"), next_cursor="c")), as_json(page(node("b", status="pending"))))
    lines = run(api, "ls").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["a", "healthy"], ["b", "pending"]]
    assert lines[-1] == "b waits for approval: nodesmith nodes approve b"
    api.on(NODES, as_json(page(node("a"), next_cursor="c")), as_json(page(node("b"))))
    assert [each["name"] for each in json.loads(run(api, "ls", "--json").stdout)] == ["a", "b"]


def test_empty_list_says_how_nodes_register(api: ScriptedApi) -> None:
    api.on(NODES, as_json(page()))
    assert run(api, "ls").stdout.startswith("No node has registered yet.")
    assert run(api, "ls", "--text", "x").stdout == "No node matches.\n"


def test_healthy_node_is_shown_with_the_backends_that_it_reports_now(api: ScriptedApi) -> None:
    report = {"node_id": "id-of-a", "node_name": "a", "seen_at": AT, "backends": [ECHO]}
    api.on(f"{NODES}/a", as_json(node("a")))
    api.on(f"{NODES}/id-of-a/backends", as_json(report))
    api.on(f"{NODES}/id-of-a/inventory", as_json({**report, "backends": []}))
    assert "echo 2 (before: 1)" in run(api, "show", "a").stdout.splitlines()[-1]


SILENT = {"title": "", "status": 504, "detail": "Node a does not answer.", "code": "no_answer"}


@pytest.mark.parametrize("shown_node", [{"status": "offline"}, {"status": "healthy"}])
def test_other_node_is_shown_with_the_backends_of_its_last_report(api: ScriptedApi, shown_node: dict[str, str]) -> None:
    report = {"node_id": "id-of-a", "node_name": "a", "seen_at": AT, "backends": [ECHO]}
    api.on(f"{NODES}/a", as_json({**node("a"), **shown_node}))
    api.on(f"{NODES}/id-of-a/backends", as_json(SILENT, status=504))
    api.on(f"{NODES}/id-of-a/inventory", as_json(report))
    shown = run(api, "show", "a").stdout.splitlines()
    assert shown[-1].startswith("backends")
    assert "echo 2 (before: 1) (reported " in shown[-1]
    answer = json.loads(run(api, "show", "a", "--json").stdout)
    assert (answer["name"], [each["name"] for each in answer["backends"]]) == ("a", ["echo"])


def test_backends_of_a_node_that_never_reported_are_unknown(api: ScriptedApi) -> None:
    api.on(f"{NODES}/a", as_json({**node("a"), "status": "offline"}))
    api.on(f"{NODES}/id-of-a/inventory", as_json({"node_id": "id-of-a", "node_name": "a"}))
    assert run(api, "show", "a").stdout.splitlines()[-1].endswith("unknown: the node has not reported yet")
    assert json.loads(run(api, "show", "a", "--json").stdout)["backends"] is None


def test_approval_sends_the_reason_and_prints_the_status(api: ScriptedApi) -> None:
    api.on(f"{NODES}/a/approve", as_json(node("a", status="offline")))
    assert run(api, "approve", "a", "--reason", "rack 7").stdout == "a is approved; its status is offline.\n"
    assert (api.asked[0][0], json.loads(api.asked[0][3]), len(api.asked)) == ("POST", {"reason": "rack 7"}, 1)
