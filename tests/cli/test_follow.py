import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from subprocess import PIPE

import pytest
from rich.console import Console
from rich.progress import Progress

from cli.client import ApiClient
from cli.failures import CommandFailed
from cli.follow import LinkLost, News, follow
from cli.watch import Bar, Lines, headline, show, watch
from contracts.operation_http import OperationDetail, ProgressTick, ProgressView
from domain.operation import Phase, Reason, State
from tests.cli.scripted_api import ScriptedApi, as_events, as_json, scripted_api

OPERATION = "/api/operations/op"
EVENTS = "/api/events"


AT = datetime(2026, 11, 16, 3, 0, tzinfo=UTC).isoformat()
EVENT = {"op_id": "op", "node_id": "n1", "node_name": "agent-1", "backend": "echo", "kind": "install", "at": AT}
KEEP_ALIVE = ": still here\n\n"


def view(state: str, events: int, **facts: object) -> dict[str, object]:
    return {
        "op_id": "op",
        "kind": "install",
        "node_id": "n1",
        "node_name": "agent-1",
        "backend": "echo",
        "family": "echo",
        "state": state,
        "created_at": AT,
        "timeline": [{**EVENT, "id": number, "state": state} for number in range(1, events + 1)],
        **facts,
    }


def state_event(number: int, state: str, **facts: object) -> str:
    event = {**EVENT, "id": number, "state": state, "message": state, **facts}
    return f"id: {number}\nevent: operation\ndata: {json.dumps(event)}\n\n"


def tick(percentage: float) -> str:
    gauge = {"op_id": "op", "node_id": "n1", "phase": "downloading", "percentage": percentage}
    return f"event: progress\ndata: {json.dumps(gauge)}\n\n"


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


def followed(script: ScriptedApi) -> list[News]:
    with ApiClient(script.url, "t") as api:
        return list(follow(api, "op", pause=lambda _: None))


def kinds(news: list[News]) -> list[str]:
    return [str(item.state) if isinstance(item, OperationDetail) else type(item).__name__ for item in news]


def test_states_and_ticks_come_in_order_until_the_end(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("queued", 1)), as_json(view("succeeded", 3)))
    script.on(EVENTS, as_events(state_event(2, "running"), tick(10), tick(20), state_event(3, "succeeded")))
    assert kinds(followed(script)) == ["queued", "running", "ProgressTick", "ProgressTick", "succeeded"]


def test_events_are_taken_as_they_come_and_only_the_outcome_is_asked_for(script: ScriptedApi) -> None:
    """However often the state changes: the operation once, its stream, and how it ended."""
    changes = [state_event(number, ("running", "still_installing")[number % 2]) for number in range(2, 30)]
    script.on(OPERATION, as_json(view("queued", 1)), as_json(view("succeeded", 30, bytes_fetched=7)))
    script.on(EVENTS, as_events(*changes, state_event(30, "succeeded")))
    news = followed(script)
    assert [path.partition("?")[0] for _, path, _, _ in script.asked] == [OPERATION, EVENTS, OPERATION]
    assert len(news) == 30
    last = news[-1]
    assert isinstance(last, OperationDetail)
    assert last.bytes_fetched == 7


def test_event_says_all_that_has_changed(script: ScriptedApi) -> None:
    back_off = {"reason": "back_off", "detail": "attempt 1: reset", "until": AT, "attempt": 2}
    gauge = {"phase": "downloading", "percentage": 20.0, "rate": 5.0}
    script.on(OPERATION, as_json(view("running", 1, progress=gauge)), as_json(view("failed", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "waiting", **back_off), tick(40), state_event(3, "failed")))
    _, _, waiting, _ = followed(script)
    assert isinstance(waiting, OperationDetail)
    assert (waiting.state, waiting.reason, waiting.detail, waiting.attempt) == (
        State.WAITING,
        Reason.BACK_OFF,
        "attempt 1: reset",
        2,
    )
    assert (waiting.until, waiting.timeline[-1].id) == (datetime.fromisoformat(AT), 2)
    assert waiting.progress == ProgressView(), "nothing of the last attempt, nor of a tick that was late"
    assert waiting.remedy


def test_gauge_of_the_next_state_is_that_of_the_last_tick(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("running", 1)), as_json(view("succeeded", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "still_installing"), state_event(3, "succeeded")))
    still = followed(script)[2]
    assert isinstance(still, OperationDetail)
    assert still.progress.percentage == 30


def test_operation_that_no_worker_picks_up_is_asked_for_again_with_each_keep_alive(script: ScriptedApi) -> None:
    lonely = view("queued", 1, message="queued: no worker has picked it up")
    script.on(OPERATION, *(as_json(each) for each in (view("queued", 1), lonely, lonely, view("succeeded", 3))))
    changes = (state_event(2, "running"), KEEP_ALIVE, KEEP_ALIVE, state_event(3, "succeeded"))
    script.on(EVENTS, as_events(KEEP_ALIVE, KEEP_ALIVE, *changes))
    assert kinds(followed(script)) == ["queued", "queued", "running", "succeeded"]


def test_an_operation_that_has_ended_needs_no_stream(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("cancelled", 4)))
    assert kinds(followed(script)) == ["cancelled"]
    assert len(script.asked) == 1


def test_the_stream_is_taken_up_after_the_last_event_that_is_known(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 5)), as_json(view("succeeded", 6))
    script.on(OPERATION, running, ended)
    script.on(EVENTS, as_events(state_event(6, "succeeded")))
    followed(script)
    _, path, headers, _ = next(asked for asked in script.asked if asked[1].startswith(EVENTS))
    assert headers["Last-Event-ID"] == "5"
    assert "op_id=op" in path


def test_what_happened_while_the_link_was_down_is_not_missed(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 2)), as_json(view("succeeded", 3))
    script.on(OPERATION, running, as_json(b"", status=503), ended)
    script.on(EVENTS, as_events(tick(50)))
    assert kinds(followed(script)) == ["running", "ProgressTick", "LinkLost", "LinkLost", "succeeded"]


def test_what_is_known_already_is_not_told_again(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 2)), as_json(view("succeeded", 3))
    script.on(OPERATION, running, running, ended)
    script.on(EVENTS, as_events())
    assert kinds(followed(script)) == ["running", "LinkLost", "LinkLost", "succeeded"]


def test_who_was_told_of_the_operation_waits_for_an_api_that_is_away(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(b"", status=502), as_json(view("succeeded", 3)))
    with ApiClient(script.url, "t") as api:
        patient = list(follow(api, "op", patient=True, pause=lambda _: None))
    assert kinds(patient) == ["LinkLost", "succeeded"]


def test_who_only_asks_for_it_is_told_at_once(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(b"", status=502))
    with pytest.raises(CommandFailed, match="502"):
        followed(script)


def test_an_operation_nobody_knows_is_a_failure_and_not_a_lost_link(script: ScriptedApi) -> None:
    problem = {"title": "", "status": 404, "detail": "There is no operation op.", "code": "unknown_operation"}
    script.on(OPERATION, as_json(problem, status=404))
    with pytest.raises(CommandFailed, match="There is no operation op"):
        followed(script)


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1), ("dead_letter", 1)])
def test_the_exit_code_is_the_outcome(
    script: ScriptedApi, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    script.on(OPERATION, as_json(view(state, 1)))
    with ApiClient(script.url, "t") as api:
        assert watch(api, "op", as_json=True) == code
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == ["operation"]


def test_ctrl_c_leaves_the_operation_running_and_says_so(script: ScriptedApi) -> None:
    hold = threading.Event()
    script.on(OPERATION, as_json(view("running", 1)))
    script.on(EVENTS, as_events(tick(50), hold=hold))
    command = [sys.executable, "-u", "-c", "from cli.main import main; main()", "ops", "watch", "op"]
    environment = {"NODESMITH_URL": script.url, "NODESMITH_TOKEN": "t"}
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        assert "running on the node" in watching.stdout.readline()
        assert "downloading" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate()
    hold.set()
    assert watching.returncode == 130
    assert "Operation op goes on." in said
    assert "nodesmith ops watch op" in said
    assert not [asked for asked in script.asked if asked[0] == "POST"]


def test_a_pipe_gets_a_line_for_each_change_and_each_tenth() -> None:
    running = OperationDetail.model_validate(view("running", 1))
    ticks = [
        ProgressTick(op_id="op", node_id="n1", phase=Phase.DOWNLOADING, percentage=p) for p in (1, 9, 11, 12, 35, 99)
    ]
    ended = OperationDetail.model_validate(view("succeeded", 2))
    console = Console(file=io.StringIO(), width=200)
    show([running, *ticks, LinkLost("x"), LinkLost("x"), running, ended], Lines(console))
    assert isinstance(console.file, io.StringIO)
    lines = [line.partition("  ")[2] for line in console.file.getvalue().splitlines()]
    assert lines == [
        "running on the node",
        "downloading",
        "downloading",
        "downloading",
        "no answer from the API (x); the operation goes on, asking again",
        "the API answers again",
        "succeeded",
    ]


BACK_OFF = {
    "reason": "back_off",
    "detail": "attempt 3 of 10: connection reset",
    "until": AT,
    "message": "Retrying: attempt 3 of 10 failed (connection reset). Next try at 03:00:00 UTC.",
}


def test_next_try_is_told_by_the_readers_clock() -> None:
    waiting = OperationDetail.model_validate(view("waiting", 1, **BACK_OFF))
    at = datetime.fromisoformat(AT).astimezone()
    assert headline(waiting) == f"Retrying: attempt 3 of 10 failed (connection reset). Next try at {at:%H:%M:%S}."


def test_bar_shows_nothing_of_a_failed_attempt_during_a_back_off() -> None:
    gauge = {"phase": "downloading", "percentage": 20.0, "bytes_done": 20, "bytes_total": 100, "rate": 5.0}
    running = OperationDetail.model_validate(view("running", 1, progress=gauge))
    waiting = OperationDetail.model_validate(view("waiting", 2, **BACK_OFF))
    progress = Progress(console=Console(file=io.StringIO(), width=200))
    bar = Bar(progress)
    show([running], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (
        20,
        "downloading  20 B of 100 B  5 B/s",
    )
    show([waiting], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (0, "")
