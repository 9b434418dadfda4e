"""`nodesmith models deploy|apply|diff|scale|show|explain|rm|ls|logs`: requests and output."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from nodesmith.domain.errors import InvalidRequest
from tests.client.shapes import page
from tests.scripted_api import ScriptedApi, as_json, scripted_api

BASE = "/api/v1/deployments"
WHEN = "2026-11-18T12:00:00Z"
DIGEST = "ab" * 32
REPLICA = {
    "id": "r1",
    "node_id": "n1",
    "node_name": "agent-1",
    "model": "llama",
    "index": 0,
    "revision": 1,
    "state": "loaded",
    "address": "10.0.0.1:9",
    "op_id": "o1",
    "created_at": WHEN,
    "changed_at": WHEN,
}
VIEW: dict[str, Any] = {
    "name": "llama",
    "revision": 1,
    "status": "ready",
    "backend": "echo-lm",
    "files": [],
    "arguments": ["-v"],
    "environment": ["HF_TOKEN"],
    "memory": 2**30,
    "ready_path": "/health",
    "ready_seconds": 0,
    "selector": "zone=a",
    "min_replicas": 1,
    "max_replicas": 4,
    "spread_all": False,
    "route_policy": "",
    "balance_abs_threshold": 0,
    "balance_rel_threshold": 0,
    "min_prefix_match": 0,
    "loaded": 1,
    "starting": 0,
    "ending": 0,
    "in_flight": 2,
    "created_at": WHEN,
    "updated_at": WHEN,
    "replicas": [REPLICA],
}
YAML = f"""
name: llama
backend: echo-lm
files:
  - https://models.test/x.gguf#sha256={DIGEST}&size=5
  - {{uri: "https://models.test/y.gguf", sha256: "{DIGEST}"}}
args: ["-m", "{{file}}"]
env: {{HF_TOKEN: secret}}
memory: 12GiB
replicas: 1..4
where: zone=a
---
name: org/other
backend: echo-lm
spread_all: true
"""


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        api.on(f"{BASE}/llama", as_json(VIEW))
        api.on(f"{BASE}/org%2Fother", as_json({**VIEW, "name": "org/other"}))
        yield api


def nodesmith(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), [*arguments, "--url", api.url, "--token", "t"])


def sent(api: ScriptedApi, number: int = 0) -> tuple[str, str, Any]:
    verb, path, _, body = api.asked[number]
    return verb, path, json.loads(body) if body else None


def given_fields(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value not in (None, "", 0, False, [], {}, "/health")}


def test_deploy_sends_the_whole_deployment(api: ScriptedApi) -> None:
    options = ["--backend", "echo-lm", "--file", f"https://models.test/x.gguf#sha256={DIGEST}", "--memory", "12GiB"]
    options += [
        "--replicas",
        "1..4",
        "--where",
        "zone=a",
        "--arg=-m",
        "--arg={file}",
        "--env",
        "A=b=c",
        "--reason",
        "try",
    ]
    done = nodesmith(api, "models", "deploy", "llama", *options)
    assert done.output == "llama: revision 1, 1/1..4 replicas loaded.\n"
    verb, path, body = sent(api)
    assert (verb, path) == ("PUT", f"{BASE}/llama")
    assert given_fields(body) == {
        "backend": "echo-lm",
        "files": [{"uri": "https://models.test/x.gguf", "sha256": DIGEST}],
        "arguments": ["-m", "{file}"],
        "environment": {"A": "b=c"},
        "memory": 12 * 2**30,
        "min_replicas": 1,
        "max_replicas": 4,
        "selector": "zone=a",
        "reason": "try",
    }


def test_spread_has_no_number_of_replicas(api: ScriptedApi) -> None:
    nodesmith(api, "models", "deploy", "llama", "--backend", "b", "--spread")
    _, _, body = sent(api)
    assert body["spread_all"]
    assert not body.keys() & {"min_replicas", "max_replicas"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--replicas", "4..1"], "the minimum 4 is above the maximum 1"),
        (["--replicas", "many"], "is not a number of replicas"),
        (["--memory", "much"], "is not a size"),
        (["--env", "A"], "--env A: write NAME=VALUE."),
        (["--file", "https://m.test/x#md5=1"], "write URI#sha256=HEX"),
    ],
)
def test_bad_option_is_refused_before_anything_is_sent(api: ScriptedApi, options: list[str], complaint: str) -> None:
    done = nodesmith(api, "models", "deploy", "llama", "--backend", "b", *options)
    assert isinstance(done.exception, InvalidRequest)
    assert complaint in str(done.exception)
    assert api.asked == []


def test_apply_sends_every_document(api: ScriptedApi, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(YAML)
    done = nodesmith(api, "models", "apply", "-f", str(file))
    assert done.exit_code == 0, done.output
    first, second = sent(api, 0), sent(api, 1)
    assert (first[1], second[1]) == (f"{BASE}/llama", f"{BASE}/org%2Fother")
    assert [each.get("size") for each in first[2]["files"]] == [5, None]
    assert (first[2]["memory"], first[2]["min_replicas"], first[2]["max_replicas"]) == (12 * 2**30, 1, 4)
    assert (first[2]["selector"], first[2]["environment"]) == ("zone=a", {"HF_TOKEN": "secret"})
    assert second[2]["spread_all"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no deployment"),
        ("- a", "a deployment is a mapping with a name"),
        ("name: x\nbackend: b\nreplica: 2", "unknown fields replica"),
        ("name: x\nbackend: [", "cannot be read"),
        ("name: x", "backend"),
        ("name: x\nbackend: b\nmemory: much", "is not a size"),
    ],
)
def test_bad_file_is_refused_before_anything_is_sent(
    api: ScriptedApi, tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    done = nodesmith(api, "models", "apply", "--file", str(file))
    assert isinstance(done.exception, InvalidRequest)
    assert complaint in str(done.exception)
    assert api.asked == []


def test_diff_exits_with_1_if_anything_changes(api: ScriptedApi, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("name: llama\nbackend: b")
    change = {"field": "arguments", "before": ["-x"], "after": ["-y"]}
    api.on(f"{BASE}/llama/diff", as_json({"name": "llama", "is_new": False, "revision": 2, "changes": [change]}))
    done = nodesmith(api, "models", "diff", "-f", str(file))
    assert done.exit_code == 1
    assert done.output == "llama: becomes revision 2.\n  arguments: ['-x'] -> ['-y']\n"
    api.on(f"{BASE}/llama/diff", as_json({"name": "llama", "is_new": False, "revision": 1, "changes": []}))
    done = nodesmith(api, "models", "diff", "-f", str(file))
    assert (done.exit_code, done.output) == (0, "llama: nothing changes.\n")


def test_scale(api: ScriptedApi) -> None:
    api.on(f"{BASE}/llama/scale", as_json(VIEW))
    nodesmith(api, "models", "scale", "llama", "2..")
    assert sent(api) == ("POST", f"{BASE}/llama/scale", {"min_replicas": 2, "max_replicas": 0, "reason": ""})


def test_list_and_show(api: ScriptedApi) -> None:
    api.on(BASE, as_json(page({key: value for key, value in VIEW.items() if key != "replicas"})))
    listed = nodesmith(api, "models", "ls").output.splitlines()
    assert listed[1].split()[:5] == ["llama", "ready", "1/1..4", "2", "echo-lm"]
    shown = nodesmith(api, "models", "show", "llama").output
    assert "HF_TOKEN" in shown
    assert "agent-1" in shown
    assert json.loads(nodesmith(api, "models", "show", "llama", "--json").output)["name"] == "llama"


def test_explain_says_why(api: ScriptedApi) -> None:
    nodes = [
        {"node_id": "n1", "node_name": "agent-1", "verdict": "memory", "detail": "it has too little free memory"},
    ]
    found = {"name": "llama", "chosen": None, "nodes": nodes, "actions": ["0 of 1 replicas: ..."]}
    api.on(f"{BASE}/llama/explain", as_json(found))
    lines = nodesmith(api, "models", "explain", "llama").output.splitlines()
    assert lines[1].split(maxsplit=2) == ["agent-1", "memory", "it has too little free memory"]
    assert lines[2] == "0 of 1 replicas: ..."


def test_remove_without_a_node_removes_the_deployment(api: ScriptedApi) -> None:
    api.on(f"{BASE}/llama", as_json({"message": "removed"}))
    done = nodesmith(api, "models", "rm", "llama")
    assert done.output == "llama is removed; its replicas are unloaded.\n"
    assert sent(api)[0] == "DELETE"


def test_logs_are_those_of_the_first_replica(api: ScriptedApi) -> None:
    logs = {"node_name": "agent-1", "key": "llama#0", "lines": ["ready"], "cursor": 1}
    api.on("/api/v1/nodes/n1/backends/llama%230/logs", as_json(logs))
    assert nodesmith(api, "models", "logs", "llama").output == "ready\n"
