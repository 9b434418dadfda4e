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

from nodesmith.cli.client import ApiClient
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.follow import LinkLost, Update, follow
from nodesmith.cli.output.watch import BarView, LineView, headline, show, watch
from nodesmith.contracts.http.operations import OperationDetail, ProgressTick, ProgressView
from nodesmith.domain.operation import Phase, Reason, State
from tests.scripted_api import ScriptedApi, as_events, as_json, scripted_api

OPERATION = "/api/operations/op"
EVENTS = "/api/v1/events"


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


def follow_all(script: ScriptedApi) -> list[Update]:
    with ApiClient(script.url, "t") as api:
        return list(follow(api, "op", pause=lambda _: None))


def kinds(updates: list[Update]) -> list[str]:
    return [str(item.state) if isinstance(item, OperationDetail) else type(item).__name__ for item in updates]


def test_states_and_ticks_come_in_order_until_the_end(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("queued", 1)), as_json(view("succeeded", 3)))
    script.on(EVENTS, as_events(state_event(2, "running"), tick(10), tick(20), state_event(3, "succeeded")))
    assert kinds(follow_all(script)) == ["queued", "running", "ProgressTick", "ProgressTick", "succeeded"]


def test_events_are_applied_and_only_the_outcome_is_fetched(script: ScriptedApi) -> None:
    """Three requests for any number of changes: the operation, its stream, and the outcome."""
    changes = [state_event(number, ("running", "still_installing")[number % 2]) for number in range(2, 30)]
    script.on(OPERATION, as_json(view("queued", 1)), as_json(view("succeeded", 30, bytes_fetched=7)))
    script.on(EVENTS, as_events(*changes, state_event(30, "succeeded")))
    updates = follow_all(script)
    assert [path.partition("?")[0] for _, path, _, _ in script.asked] == [OPERATION, EVENTS, OPERATION]
    assert len(updates) == 30
    last = updates[-1]
    assert isinstance(last, OperationDetail)
    assert last.bytes_fetched == 7


def test_operation_is_fetched_again_after_a_database_restore(script: ScriptedApi) -> None:
    reset = 'id: 1\nevent: reset\ndata: {"last_event_id": 1}\n\n'
    script.on(OPERATION, as_json(view("running", 9)), as_json(view("queued", 1)), as_json(view("succeeded", 2)))
    script.on(EVENTS, as_events(reset, state_event(2, "succeeded")))
    assert kinds(follow_all(script)) == ["running", "queued", "succeeded"]


def test_event_contains_every_changed_field(script: ScriptedApi) -> None:
    back_off = {"reason": "back_off", "detail": "attempt 1: reset", "until": AT, "attempt": 2}
    gauge = {"phase": "downloading", "percentage": 20.0, "rate": 5.0}
    script.on(OPERATION, as_json(view("running", 1, progress=gauge)), as_json(view("failed", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "waiting", **back_off), tick(40), state_event(3, "failed")))
    _, _, waiting, _ = follow_all(script)
    assert isinstance(waiting, OperationDetail)
    assert (waiting.state, waiting.reason, waiting.detail, waiting.attempt) == (
        State.WAITING,
        Reason.BACK_OFF,
        "attempt 1: reset",
        2,
    )
    assert (waiting.until, waiting.timeline[-1].id) == (datetime.fromisoformat(AT), 2)
    assert waiting.progress == ProgressView(), "no progress of the last attempt or of a late tick"
    assert waiting.remedy


def test_next_state_keeps_the_progress_of_the_last_tick(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("running", 1)), as_json(view("succeeded", 3)))
    script.on(EVENTS, as_events(tick(30), state_event(2, "still_installing"), state_event(3, "succeeded")))
    still = follow_all(script)[2]
    assert isinstance(still, OperationDetail)
    assert still.progress.percentage == 30


def test_queued_operation_is_fetched_at_each_keep_alive(script: ScriptedApi) -> None:
    lonely = view("queued", 1, message="queued: no worker has picked it up")
    script.on(OPERATION, *(as_json(each) for each in (view("queued", 1), lonely, lonely, view("succeeded", 3))))
    changes = (state_event(2, "running"), KEEP_ALIVE, KEEP_ALIVE, state_event(3, "succeeded"))
    script.on(EVENTS, as_events(KEEP_ALIVE, KEEP_ALIVE, *changes))
    assert kinds(follow_all(script)) == ["queued", "queued", "running", "succeeded"]


def test_an_operation_that_has_ended_needs_no_stream(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("cancelled", 4)))
    assert kinds(follow_all(script)) == ["cancelled"]
    assert len(script.asked) == 1


def test_stream_resumes_after_the_last_known_event(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 5)), as_json(view("succeeded", 6))
    script.on(OPERATION, running, ended)
    script.on(EVENTS, as_events(state_event(6, "succeeded")))
    follow_all(script)
    _, path, headers, _ = next(asked for asked in script.asked if asked[1].startswith(EVENTS))
    assert headers["Last-Event-ID"] == "5"
    assert "op_id=op" in path


def test_changes_during_a_lost_connection_are_not_missed(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 2)), as_json(view("succeeded", 3))
    script.on(OPERATION, running, as_json(b"", status=503), ended)
    script.on(EVENTS, as_events(tick(50)))
    assert kinds(follow_all(script)) == ["running", "ProgressTick", "LinkLost", "LinkLost", "succeeded"]


def test_known_state_is_not_repeated(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 2)), as_json(view("succeeded", 3))
    script.on(OPERATION, running, running, ended)
    script.on(EVENTS, as_events())
    assert kinds(follow_all(script)) == ["running", "LinkLost", "LinkLost", "succeeded"]


def test_follow_of_known_operation_retries_the_first_request(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(b"", status=502), as_json(view("succeeded", 3)))
    with ApiClient(script.url, "t") as api:
        patient = list(follow(api, "op", retry_first_request=True, pause=lambda _: None))
    assert kinds(patient) == ["LinkLost", "succeeded"]


def test_follow_of_unknown_operation_fails_on_the_first_request(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(b"", status=502))
    with pytest.raises(CommandFailed, match="502"):
        follow_all(script)


def test_unknown_operation_is_a_failure_and_not_a_lost_connection(script: ScriptedApi) -> None:
    problem = {"title": "", "status": 404, "detail": "There is no operation op.", "code": "unknown_operation"}
    script.on(OPERATION, as_json(problem, status=404))
    with pytest.raises(CommandFailed, match="There is no operation op"):
        follow_all(script)


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
    command = [sys.executable, "-u", "-c", "from nodesmith.cli.main import main; main()", "ops", "watch", "op"]
    environment = {"NODESMITH_URL": script.url, "NODESMITH_TOKEN": "t"}
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        assert "running on the node" in watching.stdout.readline()
        assert "downloading" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate()
    hold.set()
    assert watching.returncode == 130
    assert "Operation op continues." in said
    assert "nodesmith ops watch op" in said
    assert not [asked for asked in script.asked if asked[0] == "POST"]


def test_a_pipe_gets_a_line_for_each_change_and_each_tenth() -> None:
    running = OperationDetail.model_validate(view("running", 1))
    ticks = [
        ProgressTick(op_id="op", node_id="n1", phase=Phase.DOWNLOADING, percentage=p) for p in (1, 9, 11, 12, 35, 99)
    ]
    ended = OperationDetail.model_validate(view("succeeded", 2))
    console = Console(file=io.StringIO(), width=200)
    show([running, *ticks, LinkLost("x"), LinkLost("x"), running, ended], LineView(console))
    assert isinstance(console.file, io.StringIO)
    lines = [line.partition("  ")[2] for line in console.file.getvalue().splitlines()]
    assert lines == [
        "running on the node",
        "downloading",
        "downloading",
        "downloading",
        "no answer from the API (x); the operation continues, retrying",
        "the API answers again",
        "succeeded",
    ]


BACK_OFF = {
    "reason": "back_off",
    "detail": "attempt 3 of 10: connection reset",
    "until": AT,
    "message": "Retrying: attempt 3 of 10 failed (connection reset). Next try at 03:00:00 UTC.",
}


def test_next_attempt_is_shown_in_local_time() -> None:
    waiting = OperationDetail.model_validate(view("waiting", 1, **BACK_OFF))
    at = datetime.fromisoformat(AT).astimezone()
    assert headline(waiting) == f"Retrying: attempt 3 of 10 failed (connection reset). Next try at {at:%H:%M:%S}."


def test_bar_shows_nothing_of_a_failed_attempt_during_a_back_off() -> None:
    gauge = {"phase": "downloading", "percentage": 20.0, "bytes_done": 20, "bytes_total": 100, "rate": 5.0}
    running = OperationDetail.model_validate(view("running", 1, progress=gauge))
    waiting = OperationDetail.model_validate(view("waiting", 2, **BACK_OFF))
    progress = Progress(console=Console(file=io.StringIO(), width=200))
    bar = BarView(progress)
    show([running], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (
        20,
        "downloading  20 B of 100 B  5 B/s",
    )
    show([waiting], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (0, "")
