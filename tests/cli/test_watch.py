"""The output of `--watch` and `ops watch`: lines, a bar, JSON, the exit code, and Ctrl-C."""

import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from subprocess import PIPE

import pytest
from rich.console import Console
from rich.progress import Progress

from nodesmith.cli.output.watch import BarView, LineView, headline, show, watch
from nodesmith.client import Client, LinkLost
from nodesmith.contracts.http.operations import OperationDetail, ProgressTick
from nodesmith.domain.operation import Phase
from tests.client.shapes import AT, operation, tick
from tests.fakes.scripted_api import ScriptedApi, as_events, as_json, scripted_api

OPERATION = "/api/v1/operations/op"
EVENTS = "/api/v1/events"


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1), ("dead_letter", 1)])
def test_the_exit_code_is_the_outcome(
    script: ScriptedApi, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    script.on(OPERATION, as_json(operation(state, 1)))
    with Client(script.url, "t") as api:
        assert watch(api, "op", as_json=True) == code
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == ["operation"]


def test_ctrl_c_leaves_the_operation_running_and_says_so(script: ScriptedApi) -> None:
    hold = threading.Event()
    script.on(OPERATION, as_json(operation("running", 1)))
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
    running = OperationDetail.model_validate(operation("running", 1))
    ticks = [
        ProgressTick(op_id="op", node_id="n1", phase=Phase.DOWNLOADING, percentage=p) for p in (1, 9, 11, 12, 35, 99)
    ]
    ended = OperationDetail.model_validate(operation("succeeded", 2))
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
    waiting = OperationDetail.model_validate(operation("waiting", 1, **BACK_OFF))
    at = datetime.fromisoformat(AT).astimezone()
    assert headline(waiting) == f"Retrying: attempt 3 of 10 failed (connection reset). Next try at {at:%H:%M:%S}."


def test_bar_shows_nothing_of_a_failed_attempt_during_a_back_off() -> None:
    gauge = {"phase": "downloading", "percentage": 20.0, "bytes_done": 20, "bytes_total": 100, "rate": 5.0}
    running = OperationDetail.model_validate(operation("running", 1, progress=gauge))
    waiting = OperationDetail.model_validate(operation("waiting", 2, **BACK_OFF))
    progress = Progress(console=Console(file=io.StringIO(), width=200))
    bar = BarView(progress)
    show([running], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (
        20,
        "downloading  20 B of 100 B  5 B/s",
    )
    show([waiting], bar)
    assert (progress.tasks[0].completed, progress.tasks[0].fields["text"]) == (0, "")
