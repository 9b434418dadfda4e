"""`nodesmith nodes drain|resume|rm|reset-credential` against a scripted API."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def run(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), ["nodes", *arguments, "--url", api.url, "--token", "t"])


@pytest.mark.parametrize(
    ("command", "verb", "path", "query", "body"),
    [
        ("drain", "POST", "/api/v1/nodes/a%2Fb/drain", "operations=finish", {"reason": "new disks"}),
        ("drain --cancel-running", "POST", "/api/v1/nodes/a%2Fb/drain", "operations=cancel", {"reason": "new disks"}),
        ("resume", "POST", "/api/v1/nodes/a%2Fb/resume", "", {"reason": "new disks"}),
        ("reset-credential", "POST", "/api/v1/nodes/a%2Fb/reset-credential", "", {"reason": "new disks"}),
        ("rm", "DELETE", "/api/v1/nodes/a%2Fb", "reason=new+disks", None),
    ],
)
def test_lifecycle_command_sends_the_request_and_prints_the_result(
    api: ScriptedApi, command: str, verb: str, path: str, query: str, body: object
) -> None:
    answer = {"message": "done", "status": "draining", "cancelled": ["op-1"]}
    api.on(path, as_json(answer))
    shown = run(api, *command.split(), "a/b", "--reason", "new disks")
    assert shown.exit_code == 0, shown.output
    assert "a/b" in shown.output
    assert "nodesmith ops show op-1" in shown.output
    asked_verb, asked_path, _, sent = api.asked[0]
    assert (asked_verb, asked_path) == (verb, f"{path}?{query}" if query else path)
    assert (json.loads(sent) if sent else None) == body
    reported = run(api, *command.split(), "a/b", "--json")
    assert json.loads(reported.output) == answer
