"""`watch()` and `wait()`: no change is missed, whatever happens to the connection."""

from datetime import datetime
from typing import Any

import pytest

from nodesmith.client import AsyncClient, Client, LinkLost, Refused, UnexpectedAnswer
from nodesmith.contracts.http.operations import OperationDetail, ProgressView
from nodesmith.domain.operation import Reason, State
from tests.client.driver import Driver, open_driver
from tests.client.shapes import AT, AWAY, KEEP_ALIVE, PROBLEM, THROTTLED, operation, state_event, tick
from tests.fakes.scripted_api import ScriptedApi, as_events, as_json, broken

OPERATION = "/api/v1/operations/op"
EVENTS = "/api/v1/events"


async def watch(driver: Driver, **options: bool) -> list[Any]:
    return await driver.collect(lambda client: client.watch("op", **options))


def kinds(updates: list[Any]) -> list[str]:
    return [str(item.state) if isinstance(item, OperationDetail) else type(item).__name__ for item in updates]


async def test_states_and_ticks_come_in_order_until_the_end(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(operation("queued", 1)), as_json(operation("succeeded", 3)))
    script.on(EVENTS, as_events(state_event(2, "running"), tick(10), tick(20), state_event(3, "succeeded")))
    assert kinds(await watch(driver)) == ["queued", "running", "ProgressTick", "ProgressTick", "succeeded"]


async def test_events_are_applied_and_only_the_outcome_is_fetched(script: ScriptedApi, driver: Driver) -> None:
    """Three requests for any number of changes: the operation, its stream, and the outcome."""
    changes = [state_event(number, ("running", "still_installing")[number % 2]) for number in range(2, 30)]
    script.on(OPERATION, as_json(operation("queued", 1)), as_json(operation("succeeded", 30, bytes_fetched=7)))
    script.on(EVENTS, as_events(*changes, state_event(30, "succeeded")))
    updates = await watch(driver)
    assert [path.partition("?")[0] for _, path, _, _ in script.asked] == [OPERATION, EVENTS, OPERATION]
    assert len(updates) == 30
    assert updates[-1].bytes_fetched == 7


async def test_operation_is_fetched_again_after_a_database_restore(script: ScriptedApi, driver: Driver) -> None:
    reset = 'id: 1\nevent: reset\ndata: {"last_event_id": 1}\n\n'
    answers = (operation("running", 9), operation("queued", 1), operation("succeeded", 2))
    script.on(OPERATION, *map(as_json, answers))
    script.on(EVENTS, as_events(reset, state_event(2, "succeeded")))
    assert kinds(await watch(driver)) == ["running", "queued", "succeeded"]


async def test_event_contains_every_changed_field(script: ScriptedApi, driver: Driver) -> None:
    back_off = {"reason": "back_off", "detail": "attempt 1: reset", "until": AT, "attempt": 2}
    gauge = {"phase": "downloading", "percentage": 20.0, "rate": 5.0}
    script.on(OPERATION, as_json(operation("running", 1, progress=gauge)), as_json(operation("failed", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "waiting", **back_off), tick(40), state_event(3, "failed")))
    _, _, waiting, _ = await watch(driver)
    assert (waiting.state, waiting.reason, waiting.detail, waiting.attempt) == (
        State.WAITING,
        Reason.BACK_OFF,
        "attempt 1: reset",
        2,
    )
    assert (waiting.until, waiting.timeline[-1].id) == (datetime.fromisoformat(AT), 2)
    assert waiting.progress == ProgressView(), "no progress of the last attempt or of a late tick"
    assert waiting.remedy


async def test_next_state_keeps_the_progress_of_the_last_tick(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(operation("running", 1)), as_json(operation("succeeded", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "still_installing"), state_event(3, "succeeded")))
    assert (await watch(driver))[2].progress.percentage == 30


async def test_queued_operation_is_fetched_at_each_keep_alive(script: ScriptedApi, driver: Driver) -> None:
    lonely = operation("queued", 1, message="queued: no worker has picked it up")
    script.on(OPERATION, *map(as_json, (operation("queued", 1), lonely, lonely, operation("succeeded", 3))))
    changes = (state_event(2, "running"), KEEP_ALIVE, KEEP_ALIVE, state_event(3, "succeeded"))
    script.on(EVENTS, as_events(KEEP_ALIVE, KEEP_ALIVE, *changes))
    assert kinds(await watch(driver)) == ["queued", "queued", "running", "succeeded"]


async def test_events_that_a_fetched_answer_contains_already_are_not_applied_again(
    script: ScriptedApi, driver: Driver
) -> None:
    """The answer at a keep-alive is newer than the events that wait in the stream."""
    script.on(OPERATION, *map(as_json, (operation("queued", 1), operation("running", 3), operation("succeeded", 4))))
    late = (state_event(2, "waiting"), state_event(3, "running"))
    script.on(EVENTS, as_events(KEEP_ALIVE, *late, state_event(4, "succeeded")))
    assert kinds(await watch(driver)) == ["queued", "running", "succeeded"]


async def test_operation_that_has_ended_needs_no_stream(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(operation("cancelled", 4)))
    assert kinds(await watch(driver)) == ["cancelled"]
    assert len(script.asked) == 1


async def test_stream_resumes_after_the_last_known_event(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(operation("running", 5)), as_json(operation("succeeded", 6)))
    script.on(EVENTS, as_events(state_event(6, "succeeded")))
    await watch(driver)
    _, path, headers, _ = next(asked for asked in script.asked if asked[1].startswith(EVENTS))
    assert headers["Last-Event-ID"] == "5"
    assert "op_id=op" in path


async def test_changes_during_a_lost_connection_are_not_missed(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(operation("running", 2)), as_json(b"", status=503), as_json(operation("succeeded", 3)))
    script.on(EVENTS, as_events(tick(50)))
    assert kinds(await watch(driver)) == ["running", "ProgressTick", "LinkLost", "LinkLost", "succeeded"]


async def test_stream_continues_after_each_way_in_which_it_can_break(script: ScriptedApi, driver: Driver) -> None:
    answers = (operation("running", 2), operation("running", 3), operation("running", 3), operation("succeeded", 6))
    script.on(OPERATION, *map(as_json, answers))
    closed = as_events(state_event(3, "running"), is_whole=True)
    script.on(EVENTS, closed, broken, as_json(AWAY, status=503))
    updates = await watch(driver)
    assert kinds(updates)[-1] == "succeeded"
    assert [each.why.split(" (")[0] for each in updates if isinstance(each, LinkLost)] == [
        f"The API at {script.url} closed the event stream.",
        f"The connection to {script.url} broke",
        "PostgreSQL does not answer.",
    ]
    resumed = [headers["Last-Event-ID"] for _, path, headers, _ in script.asked if path.startswith(EVENTS)]
    assert resumed == ["2", "3", "3"]


async def test_known_state_is_not_repeated(script: ScriptedApi, driver: Driver) -> None:
    running, ended = as_json(operation("running", 2)), as_json(operation("succeeded", 3))
    script.on(OPERATION, running, running, ended)
    script.on(EVENTS, as_events())
    assert kinds(await watch(driver)) == ["running", "LinkLost", "LinkLost", "succeeded"]


async def test_pauses_grow_until_something_changes(script: ScriptedApi, driver: Driver) -> None:
    running, changed = as_json(operation("running", 2)), as_json(operation("running", 3, attempt=2))
    script.on(OPERATION, *(running,) * 4, changed, as_json(operation("succeeded", 4)))
    script.on(EVENTS, as_events())
    await watch(driver)
    assert driver.pauses == [0.5, 1.0, 2.0, 2.0, 0.5]


async def test_watch_waits_for_retry_after(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(THROTTLED, status=429, Retry_After="9"), as_json({}, status=404))
    with pytest.raises(Refused):
        await watch(driver, is_known_to_exist=True)
    assert driver.pauses == [9.0]


async def test_watch_of_known_operation_retries_the_first_request(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(b"", status=502), as_json(operation("succeeded", 3)))
    assert kinds(await watch(driver, is_known_to_exist=True)) == ["LinkLost", "succeeded"]


async def test_watch_of_unknown_operation_fails_on_the_first_request(script: ScriptedApi, driver: Driver) -> None:
    script.on(OPERATION, as_json(b"", status=502))
    with pytest.raises(Refused, match="502"):
        await watch(driver)
    assert len(script.asked) == 1


@pytest.mark.parametrize("is_known_to_exist", [False, True])
async def test_unknown_operation_is_a_failure_and_not_a_lost_connection(
    script: ScriptedApi, driver: Driver, is_known_to_exist: bool
) -> None:
    problem = {**PROBLEM, "status": 404, "detail": "There is no operation op.", "code": "unknown_operation"}
    script.on(OPERATION, as_json(problem, status=404))
    with pytest.raises(Refused, match="There is no operation op"):
        await watch(driver, is_known_to_exist=is_known_to_exist)


@pytest.mark.parametrize("event", ["event: operation\ndata: {}\n\n", "event: progress\ndata: [1]\n\n", "data: <\n\n"])
async def test_event_of_another_shape_ends_the_watch_with_an_error(
    script: ScriptedApi, driver: Driver, event: str
) -> None:
    script.on(OPERATION, as_json(operation("running", 1)))
    script.on(EVENTS, as_events(event))
    with pytest.raises(UnexpectedAnswer, match="An event of the API is not"):
        await watch(driver)


async def test_abandoned_watch_closes_its_stream(script: ScriptedApi, kind: str) -> None:
    script.on(OPERATION, as_json(operation("running", 1)))
    script.on(EVENTS, as_events(tick(10), tick(20), tick(30)))
    async with open_driver(kind, script.url) as driver:
        updates = await driver.collect(lambda client: client.watch("op"), limit=2)
    assert kinds(updates) == ["running", "ProgressTick"]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "dead_letter"])
async def test_wait_returns_the_ended_operation_however_it_ended(
    script: ScriptedApi, driver: Driver, state: str
) -> None:
    answers = (as_json(AWAY, status=503), as_json(operation("running", 1)), as_json(operation(state, 3)))
    script.on(OPERATION, *answers)
    script.on(EVENTS, as_events(tick(10), state_event(2, "still_installing"), state_event(3, state)))
    ended = await driver.call(lambda client: client.wait("op"))
    assert (ended.state, len(ended.timeline)) == (state, 3)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_address_has_no_slash_at_its_end(client: type[Client] | type[AsyncClient]) -> None:
    assert client("http://host:8900/", "t").url == "http://host:8900"
