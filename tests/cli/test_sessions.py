"""`nodesmith sessions` against a scripted API."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.main import make_app
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

LINK = {"url": "https://nodes.example/sign-in/code", "expires_at": "2026-11-18T05:00:00Z"}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        api.on("/api/v1/sign-in-links", as_json(LINK, 201))
        yield api


def run(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), ["sessions", *arguments, "--url", api.url, "--token", "t"])


def test_link_is_alone_on_the_output_so_that_a_script_can_open_it(api: ScriptedApi) -> None:
    shown = run(api, "link", "--reason", "new laptop")
    assert (shown.exit_code, shown.stdout) == (0, f"{LINK['url']}\n")
    assert "once, before" in shown.stderr
    verb, path, headers, _ = api.asked[0]
    assert (verb, path) == ("POST", "/api/v1/sign-in-links?reason=new+laptop")
    assert headers["Authorization"] == "Bearer t"


def test_link_as_json(api: ScriptedApi) -> None:
    assert json.loads(run(api, "link", "--json").stdout) == LINK
