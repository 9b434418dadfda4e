"""`nodesmith backends ls|show` against a scripted API."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.main import make_app
from tests.client.shapes import page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

BACKENDS = "/api/v1/backends"
ECHO = {"id": "builtin@echo", "name": "echo", "version": "2", "uri": "file:///echo", "gallery": "builtin", "size": 2000}
META = {**ECHO, "id": "builtin@llama", "name": "llama", "is_meta": True, "capabilities": {"nvidia": "a", "amd": "b"}}
BAD = {"gallery": "builtin", "name": "odd", "reason": "it has no digest"}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def run(api: ScriptedApi, *arguments: str) -> Result:
    return CliRunner().invoke(make_app(), ["backends", *arguments, "--url", api.url, "--token", "t"])


def test_backends_of_all_pages_are_listed_with_the_unusable_entries(api: ScriptedApi) -> None:
    first, second = page(ECHO, next_cursor="2", unusable=[BAD]), page(META, unusable=[BAD])
    api.on(BACKENDS, as_json(first), as_json(second))
    shown = run(api, "ls", "--search", "e", "--tag", "llm", "--gallery", "builtin")
    echo, llama = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert echo[:4] == ["echo", "2", "2.0", "kB"]
    assert llama[4:7] == ["for", "amd,", "nvidia"]
    assert shown.stderr == "cannot be used: builtin@odd: it has no digest\n"
    asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in api.asked]
    assert [query.get("cursor") for query in asked] == [None, ["2"]]
    assert all((query["text"], query["tag"], query["gallery"]) == (["e"], ["llm"], ["builtin"]) for query in asked)


def test_empty_list_says_whether_something_was_searched(api: ScriptedApi) -> None:
    api.on(BACKENDS, as_json(page()))
    assert run(api, "ls").stdout == "The galleries are empty.\n"
    assert run(api, "ls", "--tag", "x").stdout == "No backend matches.\n"
    assert json.loads(run(api, "ls", "--json").stdout) == []


def test_backend_is_shown_by_its_name_in_any_case(api: ScriptedApi) -> None:
    api.on(BACKENDS, as_json(page(META, next_cursor="2")), as_json(page(ECHO)))
    assert run(api, "show", "builtin@ECHO").stdout.splitlines()[0] == "backend   builtin@echo 2"
    assert parse_qs(urlsplit(api.asked[0][1]).query)["gallery"] == ["builtin"]


def test_unknown_backend_is_a_failure(api: ScriptedApi) -> None:
    api.on(BACKENDS, as_json(page(ECHO)))
    done = run(api, "show", "nope")
    assert isinstance(done.exception, CommandFailed)
    assert (str(done.exception), done.exception.code) == ("No gallery has the backend nope.", "unknown_backend")
