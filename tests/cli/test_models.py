"""`nodesmith models`, `backends logs|stop`, `nodes max-replicas|vram-budget`: requests and output."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from nodesmith.client import Refused
from tests.client.shapes import node, page
from tests.scripted_api import ScriptedApi, as_json, scripted_api

NODE = "/api/v1/nodes/a%2Fb"
LOGS = f"{NODE}/backends/echo%230/logs"
MODEL = {
    "id": "n/echo#0",
    "node_id": "n",
    "node_name": "agent-1",
    "model_name": "echo",
    "address": "127.0.0.1:51007",
    "backend_type": "echo",
    "version": "2",
    "created_at": "2026-11-16T03:00:00Z",
    "updated_at": "2026-11-16T03:00:00Z",
}
VIEW = node("a/b", max_replicas_per_model=4, max_replicas_per_model_manually_set=True, vram_budget="80%")


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def nodesmith(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), [*arguments, "--url", api.url, "--token", "t"])


def sent(api: ScriptedApi, number: int = 0) -> tuple[str, str, object]:
    verb, path, _, body = api.asked[number]
    return verb, path, json.loads(body) if body else None


def test_running_models_are_listed_on_all_nodes_or_on_one(api: ScriptedApi) -> None:
    api.on("/api/v1/models", as_json(page(MODEL)))
    api.on(f"{NODE}/models", as_json(page()))
    listed = nodesmith(api, "models", "ls", "--running").output.splitlines()
    assert listed[1].split() == ["agent-1", "echo", "0", "echo", "2", "127.0.0.1:51007"]
    assert nodesmith(api, "models", "ls", "--on", "a/b").output.startswith("No model is running.")
    assert json.loads(nodesmith(api, "models", "ls", "--running", "--json").output)[0]["model_name"] == "echo"


@pytest.mark.parametrize(
    ("command", "path", "body", "sentence"),
    [
        ("models unload llama", "models/unload", {"model_name": "llama"}, "llama is unloaded on a/b."),
        ("models rm llama", "models/delete", {"model_name": "llama"}, "llama is deleted from a/b."),
        (
            "models stop llama --replica 1 --force",
            "models/stop",
            {"model_name": "llama", "replica_index": 1, "force": True},
            "done.",
        ),
        ("models stop llama", "models/stop", {"model_name": "llama", "replica_index": 0}, "done."),
        ("backends stop echo", "backends/stop", {"backend": "echo"}, "done."),
    ],
)
def test_model_actions_require_a_node_and_send_the_reason(
    api: ScriptedApi, command: str, path: str, body: dict[str, object], sentence: str
) -> None:
    answer = {"message": "done", "process_key": "llama#1", "was_running": True}
    api.on(f"{NODE}/{path}", as_json(answer))
    shown = nodesmith(api, *command.split(), "--on", "a/b", "--reason", "memory")
    assert (shown.exit_code, shown.output.strip()) == (0, sentence)
    assert sent(api) == ("POST", f"{NODE}/{path}", {**body, "reason": "memory"})
    answer = json.loads(nodesmith(api, *command.split(), "--on", "a/b", "--json").output)
    assert answer["message"] == "done"
    if not command.startswith("models rm"):  # without a node it removes the deployment
        assert nodesmith(api, *command.split()).exit_code == 2, "a node has to be named"


@pytest.mark.parametrize(("result", "code"), [("unloaded", 0), ("away", 0), ("failed", 1), ("unknown", 1)])
def test_unload_everywhere_names_nodes_that_failed(api: ScriptedApi, result: str, code: int) -> None:
    node = {"node_id": "n", "node_name": "agent-1", "result": result, "warning": "It does not end."}
    api.on("/api/v1/models/unload", as_json({"message": "Said.", "model_name": "llama", "nodes": [node]}))
    shown = nodesmith(api, "models", "unload", "llama", "--all", "--reason", "memory")
    assert (shown.exit_code, shown.stdout) == (code, "Said.\n")
    assert shown.stderr == ("agent-1: It does not end.\n" if code else "")
    assert sent(api) == ("POST", "/api/v1/models/unload", {"model_name": "llama", "reason": "memory"})
    answer = nodesmith(api, "models", "unload", "llama", "--all", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["nodes"][0]["result"]) == (code, result)
    both = nodesmith(api, "models", "unload", "llama", "--all", "--on", "a/b")
    assert (both.exit_code, len(api.asked)) == (2, 2)


def lines(*text: str, cursor: int) -> dict[str, object]:
    return {"node_name": "a/b", "key": "echo#0", "lines": text, "cursor": cursor}


def test_the_end_of_a_log_is_printed(api: ScriptedApi) -> None:
    api.on(LOGS, as_json(lines("one", "[two]", cursor=10)))
    assert nodesmith(api, "backends", "logs", "echo#0", "--on", "a/b", "-n", "2").output == "one\n[two]\n"
    assert parse_qs(urlsplit(api.asked[0][1]).query) == {"lines": ["2"]}


def test_followed_log_prints_new_lines_and_outages_until_a_failure(api: ScriptedApi) -> None:
    away = {"title": "", "status": 503, "detail": "Nobody answers at node a/b.", "code": "node_away"}
    api.on(
        LOGS,
        as_json(lines("one", cursor=4)),
        as_json(away, status=503),
        as_json(lines("two", cursor=8)),
        as_json({**away, "status": 404}, status=404),
    )
    shown = nodesmith(api, "backends", "logs", "echo#0", "--on", "a/b", "--follow")
    assert (shown.stdout, shown.stderr) == ("one\ntwo\n", "Nobody answers at node a/b. Retrying.\n")
    assert isinstance(shown.exception, Refused)


@pytest.mark.parametrize(
    ("command", "value", "path", "body", "sentence"),
    [
        ("max-replicas", "4", "max-replicas", {"value": 4}, "a/b: 4 per model, set by an admin."),
        ("vram-budget", "80%", "vram-budget", {"value": "80%"}, "a/b: 80%, as the node reports."),
        ("vram-budget", "", "vram-budget", {"value": ""}, "a/b: 80%, as the node reports."),
    ],
)
def test_override_is_set_removed_and_shown(
    api: ScriptedApi, command: str, value: str, path: str, body: object, sentence: str
) -> None:
    api.on(f"{NODE}/{path}", as_json(VIEW))
    api.on(NODE, as_json(VIEW))
    shown = nodesmith(api, "nodes", command, "a/b", value, "--reason", "shared card")
    assert (shown.exit_code, shown.output.strip()) == (0, sentence)
    assert sent(api) == ("PUT", f"{NODE}/{path}?reason=shared+card", body)
    api.asked.clear()
    assert nodesmith(api, "nodes", command, "a/b", "--hand-back").exit_code == 0
    assert sent(api) == ("DELETE", f"{NODE}/{path}", None)
    api.asked.clear()
    answer = json.loads(nodesmith(api, "nodes", command, "a/b", "--json").output)
    assert [name for name in answer if name.startswith(path.replace("-", "_")) and name.endswith("_manually_set")]
    assert [verb for verb, *_ in api.asked] == ["GET"]
    assert nodesmith(api, "nodes", command, "a/b", value, "--hand-back").exit_code == 2
