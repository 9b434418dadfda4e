"""`nodesmith nodes ls --where ...`, `nodes label`, `nodes inventory`: requests and output."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.main import make_app
from tests.client.shapes import page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

LABELS = "/api/v1/nodes/agent-1/labels"


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def nodesmith(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), [*arguments, "--url", api.url, "--token", "t"])


def test_list_sends_its_filters(api: ScriptedApi) -> None:
    api.on("/api/v1/nodes", as_json(page()))
    shown = nodesmith(
        api,
        "nodes",
        "ls",
        "--where",
        "zone in (a,b),!x",
        "--status",
        "healthy",
        "--status",
        "offline",
        "--backend",
        "echo",
    )
    assert shown.output.strip() == "No node matches."
    asked = parse_qs(urlsplit(api.asked[0][1]).query)
    given = {"selector": ["zone in (a,b),!x"], "status": ["healthy", "offline"], "backend": ["echo"]}
    assert asked == {**given, "limit": ["1000"]}


def test_labels_are_set_and_removed_as_kubectl_does(api: ScriptedApi) -> None:
    api.on(LABELS, as_json({"zone": "a", "tier": ""}))
    api.on(f"{LABELS}/example.com%2Fold", as_json({"zone": "a"}))
    shown = nodesmith(api, "nodes", "label", "agent-1", "zone=a=b", "example.com/old-", "tier=", "--reason", "moved")
    assert shown.exit_code == 0, shown.output
    patch, delete, _ = api.asked
    assert (patch[0], patch[1], json.loads(patch[3])) == (
        "PATCH",
        f"{LABELS}?reason=moved",
        {"zone": "a=b", "tier": ""},
    )
    assert (delete[0], delete[1]) == ("DELETE", f"{LABELS}/example.com%2Fold?reason=moved")
    assert [line.split() for line in shown.output.splitlines()] == [["zone", "a"], ["tier", "-"]]


def test_invalid_label_change_is_refused_before_any_request(api: ScriptedApi) -> None:
    shown = nodesmith(api, "nodes", "label", "agent-1", "zone=a", "tier")
    assert isinstance(shown.exception, CommandFailed)
    assert "tier is neither" in str(shown.exception)
    assert not api.asked


def test_inventory_shows_when_the_node_reported(api: ScriptedApi) -> None:
    path = "/api/v1/nodes/agent-1/inventory"
    seen = {"node_id": "n1", "node_name": "agent-1", "seen_at": "2026-11-16T03:00:00Z", "backends": []}
    echo = {"name": "echo", "version": "2", "previous_version": "1", "digest": "sha256:ab"}
    api.on(path, as_json({**seen, "seen_at": None}))
    api.on(f"{path}/refresh", as_json({**seen, "backends": [echo]}))
    assert "has not reported yet" in nodesmith(api, "nodes", "inventory", "agent-1").output
    refreshed = nodesmith(api, "nodes", "inventory", "agent-1", "--refresh").output.splitlines()
    assert refreshed[1].split()[:3] == ["echo", "2", "1"]
    assert refreshed[-1].startswith("agent-1 reported ")
