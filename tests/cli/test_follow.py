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

from cli.client import ApiClient
from cli.failures import CommandFailed
from cli.follow import LinkLost, News, follow
from cli.watch import Lines, show, watch
from contracts.operation_http import OperationDetail, ProgressTick
from domain.operation import Phase
from tests.cli.scripted_api import ScriptedApi, as_events, as_json, scripted_api

OPERATION = "/api/operations/op"
EVENTS = "/api/events"


def view(state: str, events: int) -> dict[str, object]:
    at = datetime(2026, 11, 16, 3, 0, tzinfo=UTC).isoformat()
    event = {"op_id": "op", "node_id": "n1", "node_name": "agent-1", "backend": "echo", "kind": "install", "at": at}
    return {
        "op_id": "op",
        "kind": "install",
        "node_id": "n1",
        "node_name": "agent-1",
        "backend": "echo",
        "family": "echo",
        "state": state,
        "created_at": at,
        "timeline": [{**event, "id": number, "state": state} for number in range(1, events + 1)],
    }


def state_event(number: int) -> str:
    return f"id: {number}\nevent: state\ndata: {{}}\n\n"


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
    running, ended = as_json(view("running", 2)), as_json(view("succeeded", 3))
    script.on(OPERATION, as_json(view("queued", 1)), running, ended)
    script.on(EVENTS, as_events(state_event(2), tick(10), tick(20), state_event(3)))
    assert kinds(followed(script)) == ["queued", "running", "ProgressTick", "ProgressTick", "succeeded"]


def test_an_operation_that_has_ended_needs_no_stream(script: ScriptedApi) -> None:
    script.on(OPERATION, as_json(view("cancelled", 4)))
    assert kinds(followed(script)) == ["cancelled"]
    assert len(script.asked) == 1


def test_the_stream_is_taken_up_after_the_last_event_that_is_known(script: ScriptedApi) -> None:
    running, ended = as_json(view("running", 5)), as_json(view("succeeded", 6))
    script.on(OPERATION, running, ended)
    script.on(EVENTS, as_events(state_event(6)))
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
