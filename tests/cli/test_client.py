import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodesmith.cli.client import COMMENT, ApiClient, ServerSentEvent, parse_events, segment
from nodesmith.cli.connection import connect
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.follow import follow
from nodesmith.contracts.http.operations import InstallRequest
from nodesmith.stack.home import Connection, Home
from tests.scripted_api import ScriptedApi, as_json, scripted_api

PROBLEM = {
    "title": "Conflict",
    "status": 409,
    "detail": "Operation 7 holds echo on node agent-1.",
    "code": "operation_conflict",
    "remedy": "Wait for it, or cancel it.",
}


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


@pytest.fixture
def api(script: ScriptedApi) -> Iterator[ApiClient]:
    with ApiClient(script.url, "secret") as client:
        yield client


def test_a_problem_becomes_its_sentence_and_its_remedy(script: ScriptedApi, api: ApiClient) -> None:
    script.on("/api/nodes", as_json(PROBLEM, status=409))
    with pytest.raises(CommandFailed) as refused:
        api.get("/api/nodes")
    assert refused.value.as_text() == f"error: {PROBLEM['detail']}\n  {PROBLEM['remedy']}"
    assert json.loads(refused.value.as_json())["error"]["code"] == "operation_conflict"


def test_an_error_page_of_a_proxy_becomes_a_sentence_too(script: ScriptedApi, api: ApiClient) -> None:
    script.on("/api/nodes", as_json(b"<html>Bad Gateway</html>", status=502))
    with pytest.raises(CommandFailed, match="The API answered 502 Bad Gateway without a reason"):
        api.get("/api/nodes")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_the_api_on_this_machine_is_asked_without_a_proxy(
    script: ScriptedApi, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    script.on("/api/nodes", as_json([]))
    with ApiClient(script.url, "secret") as api:
        assert api.get("/api/nodes") == []


def test_an_api_elsewhere_is_asked_through_the_proxy_and_a_dead_one_is_named(
    script: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", script.url)
    script.on("http://nodesmith.example/api/nodes", as_json([]))
    with ApiClient("http://nodesmith.example", "secret") as api:
        assert api.get("/api/nodes") == []
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ApiClient("http://nodesmith.example", "secret") as api, pytest.raises(CommandFailed) as failed:
        api.get("/api/nodes")
    assert "NO_PROXY=nodesmith.example" in failed.value.remedy


def test_unreachable_api_names_the_start_command() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with ApiClient(url, "secret") as api, pytest.raises(CommandFailed, match="Nothing answers at") as refused:
        api.get("/api/nodes")
    assert "nodesmith up" in refused.value.remedy
    assert refused.value.exit_code == 3


def test_token_is_sent_as_bearer(script: ScriptedApi, api: ApiClient) -> None:
    script.on("/api/nodes", as_json([]))
    api.get("/api/nodes")
    assert script.asked[0][2]["Authorization"] == "Bearer secret"


def test_lost_answer_is_retried_with_the_same_idempotency_key(script: ScriptedApi, api: ApiClient) -> None:
    script.on("/install", as_json(b"", status=502), as_json({"jobID": "op"}, status=202))
    assert api.post_once("/install", InstallRequest(backend="echo")) == {"jobID": "op"}
    first, second = script.asked
    assert first[2]["Idempotency-Key"] == second[2]["Idempotency-Key"]
    assert json.loads(second[3]) == {"backend": "echo"}


def test_refused_request_is_not_retried(script: ScriptedApi, api: ApiClient) -> None:
    script.on("/install", as_json(PROBLEM, status=409))
    with pytest.raises(CommandFailed):
        api.post_once("/install", InstallRequest(backend="echo"))
    assert len(script.asked) == 1


def test_a_node_name_cannot_change_the_path() -> None:
    assert segment("a/../b c?d") == "a%2F..%2Fb%20c%3Fd"


def test_events_are_parsed() -> None:
    stream = [
        "retry: 1000",
        "id: 3",
        "",
        ": hello",
        "",
        "id: 7",
        "event: state",
        'data: {"a":',
        "data: 1}",
        "",
        'data: "bare"',
        "",
        "data: 1",
    ]
    assert list(parse_events(iter(stream))) == [
        ServerSentEvent(COMMENT, "hello"),
        ServerSentEvent("state", {"a": 1}, "7"),
        ServerSentEvent("message", "bare"),
    ]


# finding the API


def home_with_connection(folder: Path) -> Path:
    home = Home(folder)
    home.create()
    home.secret("admin-token").write_text("from-the-home\n")
    home.write_connection(Connection("http://127.0.0.1:8900", home.secret("admin-token")))
    return folder


def test_url_and_token_are_found_in_the_home(tmp_path: Path) -> None:
    with connect(None, None, home_with_connection(tmp_path)) as api:
        assert api.url == "http://127.0.0.1:8900"
        assert api._http.headers["Authorization"] == "Bearer from-the-home"


def test_options_take_precedence_over_the_home(tmp_path: Path) -> None:
    with connect("http://example.invalid/", "given", home_with_connection(tmp_path)) as api:
        assert api.url == "http://example.invalid"
        assert api._http.headers["Authorization"] == "Bearer given"


def test_home_token_is_not_sent_to_another_address(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No token was given for http"):
        connect("http://example.invalid", None, home_with_connection(tmp_path))


def test_missing_home_names_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="is not the home of a Nodesmith") as refused:
        connect(None, None, tmp_path / "nothing")
    assert "nodesmith up" in refused.value.remedy
    assert "NODESMITH_URL" in refused.value.remedy


THROTTLED = {**PROBLEM, "title": "Too Many Requests", "status": 429, "code": "too_many_failures"}


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("86400", 60.0)])
def test_retry_after_is_respected(script: ScriptedApi, header: str, seconds: float) -> None:
    """At most a minute, because a user waits."""
    pauses: list[float] = []
    script.on(
        "/api/v1/batches", as_json(THROTTLED, status=429, Retry_After=header), as_json({"jobID": "1"}, status=202)
    )
    with ApiClient(script.url, "secret", pause=pauses.append) as api:
        assert api.post_once("/api/v1/batches", InstallRequest(backend="echo")) == {"jobID": "1"}
    assert pauses == [seconds]
    assert len(script.asked) == 2


def test_follow_waits_for_retry_after(script: ScriptedApi) -> None:
    pauses: list[float] = []
    script.on("/api/operations/7", as_json(THROTTLED, status=429, Retry_After="9"), as_json({}, status=404))
    with ApiClient(script.url, "secret") as api, pytest.raises(CommandFailed):
        list(follow(api, "7", retry_first_request=True, pause=pauses.append))
    assert pauses == [9.0]
