"""How a call is sent: token, proxy, retries, keys, pages; and what each fault of the API becomes."""

import io
import json
import socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nodesmith.client import ClientError, Refused, UnexpectedAnswer, Unreachable
from nodesmith.contracts.http.operations import OperationBody
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.kinds import Kind
from tests.client.driver import Driver, open_driver
from tests.client.shapes import ACCEPTED, AWAY, PROBLEM, THROTTLED, node, page
from tests.fakes.scripted_api import ScriptedApi, as_json, broken

NODES = "/api/v1/nodes"
OPERATIONS = "/api/v1/operations"
INSTALL = OperationBody(kind=Kind.INSTALL, node="agent-1", backend="echo")


async def list_nodes(driver: Driver) -> Any:
    return await driver.call(lambda client: client.nodes.list())


async def install(driver: Driver, **options: str) -> Any:
    return await driver.call(lambda client: client.operations.create(INSTALL, **options))


# answers


async def test_answer_has_its_type_and_unknown_fields_are_ignored(script: ScriptedApi, driver: Driver) -> None:
    script.on(f"{NODES}/agent-1", as_json(node("agent-1", invented_later=1)))
    found = await driver.call(lambda client: client.nodes.get("agent-1"))
    assert (type(found).__name__, found.name) == ("NodeView", "agent-1")


async def test_token_is_sent_as_bearer(script: ScriptedApi, driver: Driver) -> None:
    script.on(NODES, as_json(page()))
    await list_nodes(driver)
    assert script.asked[0][2]["Authorization"] == "Bearer secret"


async def test_problem_becomes_an_error_with_sentence_remedy_code_and_facts(
    script: ScriptedApi, driver: Driver
) -> None:
    script.on(NODES, as_json(PROBLEM, status=409))
    with pytest.raises(Refused) as refused:
        await list_nodes(driver)
    error = refused.value
    assert isinstance(error, NodesmithError)
    assert (str(error), error.message, error.remedy) == (PROBLEM["detail"], PROBLEM["detail"], PROBLEM["remedy"])
    assert (error.status, error.code, error.facts) == (409, "operation_conflict", {"op_id": "7", "attempts": 3})
    assert not error.is_retryable


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"<html>Bad Gateway</html>", 502, "The API answered 502 Bad Gateway without a reason."),
        (b'{"error": "no"}', 404, "The API answered 404 Not Found without a reason."),
        (b"", 599, "The API answered 599 without a reason."),
    ],
)
async def test_error_page_of_a_proxy_becomes_a_sentence_too(
    script: ScriptedApi, driver: Driver, body: bytes, status: int, sentence: str
) -> None:
    script.on(NODES, as_json(body, status=status))
    with pytest.raises(Refused) as refused:
        await list_nodes(driver)
    assert (refused.value.message, refused.value.code) == (sentence, "not_a_problem")
    assert refused.value.remedy == "Check the address: `--url` or NODESMITH_URL."


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"", b'{"items": [{"name": "a"}]}', b"null"])
async def test_answer_of_another_shape_names_the_expected_one(script: ScriptedApi, driver: Driver, body: bytes) -> None:
    script.on(NODES, as_json(body))
    with pytest.raises(UnexpectedAnswer) as unexpected:
        await list_nodes(driver)
    assert (unexpected.value.message, unexpected.value.code) == (
        "The API's answer is not a NodePage.",
        "unexpected_answer",
    )
    assert "of this version" in unexpected.value.remedy
    assert len(script.asked) == 1


async def test_answer_that_cannot_be_decoded_is_unexpected(script: ScriptedApi, driver: Driver) -> None:
    script.on(NODES, as_json(b"not gzip", Content_Encoding="gzip"))
    with pytest.raises(UnexpectedAnswer, match="cannot be read"):
        await list_nodes(driver)


# connections


async def test_unreachable_api_names_the_start_command(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with open_driver(kind, url) as driver:
        with pytest.raises(Unreachable) as refused:
            await list_nodes(driver)
    assert refused.value.message == f"Nothing answers at {url}."
    assert "nodesmith up" in refused.value.remedy
    assert (refused.value.code, refused.value.is_retryable) == ("unreachable", True)


async def test_broken_connection_says_that_operations_are_not_lost(script: ScriptedApi, driver: Driver) -> None:
    script.on(NODES, broken)
    with pytest.raises(Unreachable, match=r"The connection to \S+ broke") as lost:
        await list_nodes(driver)
    assert "Accepted operations are not lost" in lost.value.remedy


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
async def test_api_on_this_machine_is_asked_without_a_proxy(
    script: ScriptedApi, kind: str, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    script.on(NODES, as_json(page()))
    async with open_driver(kind, script.url) as driver:
        assert (await list_nodes(driver)).items == []


async def test_api_elsewhere_is_asked_through_the_proxy_and_a_dead_one_is_named(
    script: ScriptedApi, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", script.url)
    script.on(f"http://nodesmith.example{NODES}", as_json(page()))
    async with open_driver(kind, "http://nodesmith.example") as driver:
        assert (await list_nodes(driver)).items == []
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with open_driver(kind, "http://nodesmith.example") as driver:
        with pytest.raises(Unreachable) as failed:
            await list_nodes(driver)
    assert "NO_PROXY=nodesmith.example" in failed.value.remedy


# retries


@pytest.mark.parametrize("fault", [as_json(b"", status=502), as_json(AWAY, status=503), broken])
async def test_lost_answer_is_retried_with_the_same_key_and_body(
    script: ScriptedApi, driver: Driver, fault: Any
) -> None:
    script.on(OPERATIONS, fault, as_json(ACCEPTED, status=202))
    assert (await install(driver)).op_id == "op"
    first, second = script.asked
    assert first[2]["Idempotency-Key"] == second[2]["Idempotency-Key"]
    assert json.loads(first[3]) == json.loads(second[3]) == {"kind": "install", "node": "agent-1", "backend": "echo"}


async def test_every_call_has_a_key_of_its_own_unless_it_is_given_one(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATIONS, as_json(ACCEPTED, status=202))
    await install(driver)
    await install(driver)
    await install(driver, key="ticket-7")
    keys = [headers["Idempotency-Key"] for _, _, headers, _ in script.asked]
    assert (len(set(keys)), keys[-1]) == (3, "ticket-7")


async def test_refused_request_is_not_retried(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATIONS, as_json(PROBLEM, status=409))
    with pytest.raises(Refused):
        await install(driver)
    assert (len(script.asked), driver.pauses) == (1, [])


async def test_read_and_put_are_retried_too(script: ScriptedApi, driver: Driver) -> None:
    script.on(NODES, as_json(AWAY, status=503), as_json(page()))
    script.on("/api/v1/hold", broken, as_json({"held": True}))
    assert (await list_nodes(driver)).items == []
    assert (await driver.call(lambda client: client.hold.set("freeze"))).held
    assert [verb for verb, *_ in script.asked] == ["GET", "GET", "PUT", "PUT"]
    assert "Idempotency-Key" not in script.asked[0][2]


@pytest.mark.parametrize("fault", [as_json(AWAY, status=503), broken])
async def test_delete_and_patch_are_not_repeated(script: ScriptedApi, driver: Driver, fault: Any) -> None:
    script.on("/api/v1/tokens/ci", fault)
    script.on(f"{NODES}/a/labels", fault)
    with pytest.raises(ClientError):
        await driver.call(lambda client: client.tokens.delete("ci"))
    with pytest.raises(ClientError):
        await driver.call(lambda client: client.nodes.update_labels("a", {"zone": "b"}))
    assert [verb for verb, *_ in script.asked] == ["DELETE", "PATCH"]


async def test_last_failure_is_raised_after_the_retries(script: ScriptedApi, kind: str) -> None:
    script.on(NODES, as_json(b"", status=502), as_json(b"", status=502), as_json(AWAY, status=503))
    async with open_driver(kind, script.url, retries=2) as driver:
        with pytest.raises(Refused, match="PostgreSQL does not answer"):
            await list_nodes(driver)
    assert (len(script.asked), driver.pauses) == (3, [0.2, 0.2])


async def test_no_retries_means_one_request(script: ScriptedApi, kind: str) -> None:
    script.on(NODES, as_json(AWAY, status=503))
    async with open_driver(kind, script.url, retries=0) as driver:
        with pytest.raises(Refused):
            await list_nodes(driver)
    assert len(script.asked) == 1


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.2), ("soon", 0.2), ("86400", 60.0)])
@pytest.mark.parametrize("problem", [THROTTLED, AWAY])
async def test_retry_after_is_respected(
    script: ScriptedApi, driver: Driver, problem: dict[str, Any], header: str, seconds: float
) -> None:
    """At most a minute, because somebody waits."""
    script.on(OPERATIONS, as_json(problem, status=problem["status"], Retry_After=header), as_json(ACCEPTED, status=202))
    assert (await install(driver)).op_id == "op"
    assert driver.pauses == [seconds]
    assert len(script.asked) == 2


# lists


async def test_all_pages_of_a_list_are_read_with_the_same_filters(script: ScriptedApi, driver: Driver) -> None:
    script.on(
        NODES,
        as_json(page(node("a"), node("b"), next_cursor="c1")),
        as_json(AWAY, status=503),
        as_json(page(node("c"), next_cursor="c2")),
        as_json(page(next_cursor="c3")),
        as_json(page(node("d"))),
    )
    found = await driver.collect(lambda client: client.nodes.each(selector="zone=a", status=["healthy", "offline"]))
    assert [each.name for each in found] == ["a", "b", "c", "d"]
    asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in script.asked]
    assert [query.get("cursor") for query in asked] == [None, ["c1"], ["c1"], ["c2"], ["c3"]]
    assert all((query["selector"], query["status"]) == (["zone=a"], ["healthy", "offline"]) for query in asked)


async def test_pages_are_read_only_as_far_as_they_are_needed(script: ScriptedApi, driver: Driver) -> None:
    script.on(NODES, as_json(page(node("a"), node("b"), next_cursor="c1")))
    assert len(await driver.collect(lambda client: client.nodes.each(), limit=2)) == 2
    assert len(script.asked) == 1


# uploads


UPLOAD = "/api/v1/uploads/mine/1"


async def upload(driver: Driver, content: bytes) -> Any:
    file = io.BytesIO(content)
    return await driver.call(lambda client: client.uploads.create("mine", "1", file, tags=("a", "b")))


async def test_upload_streams_the_file(script: ScriptedApi, driver: Driver) -> None:
    content = b"x" * 3_000_000
    script.on(UPLOAD, as_json({"name": "mine", "version": "1", "uri": "file:///mine"}, status=201))
    assert (await upload(driver, content)).name == "mine"
    _, path, _, sent = script.asked[0]
    assert (sent == content, parse_qs(urlsplit(path).query)) == (True, {"tag": ["a", "b"]})


async def test_upload_is_not_repeated(script: ScriptedApi, driver: Driver) -> None:
    """Its file has been read already."""
    script.on(UPLOAD, as_json(AWAY, status=503))
    with pytest.raises(Refused):
        await upload(driver, b"x")
    assert len(script.asked) == 1
