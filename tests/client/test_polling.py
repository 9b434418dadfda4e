"""`watch_batch()`, `wait_batch()` and `watch_logs()`: repeated requests that survive silence and outages."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nodesmith.client import LinkLost, Refused
from nodesmith.contracts.http.batches import BatchDetail
from nodesmith.contracts.http.models import LogsPage
from tests.client.driver import Driver
from tests.client.shapes import AWAY, PROBLEM, THROTTLED, batch
from tests.fakes.scripted_api import ScriptedApi, as_json, broken

BATCH = "/api/v1/batches/b"
LOGS = "/api/v1/nodes/a%2Fb/backends/echo%230/logs"


async def watch(driver: Driver, **options: bool) -> list[Any]:
    return await driver.collect(lambda client: client.watch_batch("b", **options))


async def test_watch_of_batch_yields_each_change_once(script: ScriptedApi, driver: Driver) -> None:
    running, ended = batch("running", n1="running"), batch("completed", n1="succeeded")
    script.on(BATCH, *map(as_json, (running, running, running, ended)))
    assert [each.state for each in await watch(driver)] == ["running", "completed"]
    assert driver.pauses == [0.5, 0.5, 0.5]


async def test_watch_of_batch_continues_while_api_does_not_answer(script: ScriptedApi, driver: Driver) -> None:
    running, ended = as_json(batch("running", n1="running")), as_json(batch("completed", n1="failed"))
    script.on(BATCH, running, as_json({}, 503), broken, as_json(THROTTLED, status=429, Retry_After="9"), ended)
    updates = await watch(driver)
    assert [type(each) for each in updates] == [BatchDetail, LinkLost, LinkLost, LinkLost, BatchDetail]
    assert driver.pauses == [0.5, 0.5, 1.0, 9.0]


@pytest.mark.parametrize("state", ["completed", "stopped", "cancelled"])
async def test_ended_batch_needs_one_request(script: ScriptedApi, driver: Driver, state: str) -> None:
    script.on(BATCH, as_json(batch(state)))
    assert [each.state for each in await watch(driver)] == [state]
    assert (len(script.asked), driver.pauses) == (1, [])


async def test_first_request_is_repeated_only_for_a_known_batch(script: ScriptedApi, driver: Driver) -> None:
    script.on(BATCH, as_json(AWAY, status=503), as_json(AWAY, status=503), as_json(batch("completed")))
    with pytest.raises(Refused, match="PostgreSQL does not answer"):
        await watch(driver)
    assert [type(each) for each in await watch(driver, is_known_to_exist=True)] == [LinkLost, BatchDetail]


async def test_unknown_batch_is_a_failure(script: ScriptedApi, driver: Driver) -> None:
    script.on(BATCH, as_json({**PROBLEM, "status": 404}, status=404))
    with pytest.raises(Refused):
        await watch(driver, is_known_to_exist=True)


async def test_wait_returns_the_ended_batch_with_its_members(script: ScriptedApi, driver: Driver) -> None:
    script.on(BATCH, as_json(AWAY, status=503), as_json(batch("running")), as_json(batch("stopped", n1="failed")))
    ended = await driver.call(lambda client: client.wait_batch("b"))
    assert (ended.state, [member.state for member in ended.members]) == ("stopped", ["failed"])


def lines(*text: str, cursor: int) -> dict[str, Any]:
    return {"node_name": "a/b", "key": "echo#0", "lines": text, "cursor": cursor}


async def test_followed_log_survives_silence_and_outages(script: ScriptedApi, driver: Driver) -> None:
    away = {"title": "", "status": 503, "detail": "Nobody answers at node a/b.", "code": "node_away"}
    answers = [
        as_json(lines("one", cursor=4)),
        as_json(lines(cursor=4)),
        as_json(away, status=503),
        as_json(lines("two", cursor=8)),
        as_json({**away, "status": 404}, status=404),
    ]
    script.on(LOGS, *answers)
    updates = driver.each(lambda client: client.watch_logs("a/b", "echo#0", lines=100))
    first, lost, second = [await anext(updates) for _ in range(3)]
    with pytest.raises(Refused):
        await anext(updates)
    assert (first, second) == (LogsPage(**lines("one", cursor=4)), LogsPage(**lines("two", cursor=8)))
    assert lost == LinkLost("Nobody answers at node a/b.")
    assert driver.pauses == [0.5]
    asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in script.asked]
    assert [query.get("cursor") for query in asked] == [None, ["4"], ["4"], ["4"], ["8"]]
    assert [query["lines"] for query in asked] == [["100"], *[["2000"]] * 4]
    assert [query.get("wait_s") for query in asked] == [None, *[["25.0"]] * 4]


async def test_followed_log_that_is_empty_is_yielded_once(script: ScriptedApi, driver: Driver) -> None:
    script.on(LOGS, as_json(lines(cursor=0)), as_json(lines(cursor=0)), as_json(PROBLEM, status=409))
    with pytest.raises(Refused):
        await driver.collect(lambda client: client.watch_logs("a/b", "echo#0"))
    assert len(script.asked) == 3


async def test_log_of_an_unreachable_node_is_a_failure_at_the_start(script: ScriptedApi, driver: Driver) -> None:
    script.on(LOGS, as_json(AWAY, status=503))
    with pytest.raises(Refused):
        await driver.collect(lambda client: client.watch_logs("a/b", "echo#0"))
    assert (len(script.asked), driver.pauses) == (1, [])
