"""The terminal output of `up` and `status` at 80 columns."""

import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nodesmith.cli.commands.up import render_status
from nodesmith.cli.commands.up_session import TerminalView
from nodesmith.cli.output import board
from nodesmith.stack.api import LocalApi
from nodesmith.stack.home import Connection, Home
from tests.client.shapes import page
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

HEALTHY = {"status": "healthy", "open_operations": 2}
AWAY = {"status": "offline", "open_operations": 3}
SINCE = "2026-11-17T17:38:20Z"
LINK = f"http://127.0.0.1:8080/sign-in/{'x' * 43}"
HOME = f"/srv/{'long-' * 20}home"


def printed(tell: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    tell(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


READY = {
    "seconds": 4.2,
    "home": HOME,
    "sign_in_url": LINK,
    "docs_url": "http://127.0.0.1:8080/docs",
    "temporal_ui_url": "http://127.0.0.1:8233",
    "gateway_url": "http://127.0.0.1:8901",
    "public_url": "",
    "agents": [{"name": "agent-1", "status": "healthy"}],
    "logs": f"{HOME}/logs",
}


def test_sign_in_link_stands_alone_and_whole_on_its_line() -> None:
    lines = printed(lambda console: TerminalView(console).ready(READY, detached=False))
    assert LINK in [line.strip() for line in lines]


def test_paths_and_commands_are_not_broken_at_the_edge() -> None:
    lines = printed(lambda console: TerminalView(console).ready(READY, detached=True))
    assert f"{HOME}/logs" in {line.rpartition(" ")[2] for line in lines}
    assert any(line.startswith("Try ") and line.endswith(f"--watch --home {HOME}") for line in lines)


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


@pytest.fixture
def api(script: ScriptedApi, tmp_path: Path) -> LocalApi:
    (tmp_path / "token").write_text("t")
    return LocalApi(Connection(url=script.url, token_file=tmp_path / "token"))


def test_status_names_a_hold_who_made_it_why_and_since_when(script: ScriptedApi, api: LocalApi) -> None:
    script.on("/api/v1/nodes", as_json(page(AWAY, next_cursor="c 1")), as_json(page(HEALTHY)))
    script.on("/api/v1/hold", as_json({"held": True, "reason": "switch repair", "by": "alice", "since": SINCE}))
    found = {"pid": 7, "url": script.url, "logs": "logs", "processes": [], **board.fetch_summary(api)}
    assert [path for _, path, _, _ in script.asked][:2] == ["/api/v1/nodes", "/api/v1/nodes?cursor=c+1"]
    output = "\n".join(printed(lambda console: render_status(console, Home(Path("home")), found)))
    since = f"{datetime(2026, 11, 17, 17, 38, 20, tzinfo=UTC).astimezone():%Y-%m-%d %H:%M:%S}"
    assert "1 of 2 nodes healthy, 5 open operations" in output
    assert re.search(rf"Held since {since} \S+ by alice: switch repair", output)
    assert "nodesmith release" in output


def test_status_without_a_hold_does_not_mention_it(script: ScriptedApi, api: LocalApi) -> None:
    script.on("/api/v1/nodes", as_json(page()))
    script.on("/api/v1/hold", as_json({"held": False}))
    found = {"pid": 7, "url": script.url, "logs": "logs", "processes": [], **board.fetch_summary(api)}
    assert (found["hold"], found["fleet"]) == (None, {"healthy": 0, "nodes": 0, "open_operations": 0})
    assert "Held" not in "".join(printed(lambda console: render_status(console, Home(Path("home")), found)))


def test_status_reports_an_unreachable_api(script: ScriptedApi, api: LocalApi) -> None:
    script.on("/api/v1/nodes", as_json({}, status=503))
    script.on("/api/v1/hold", as_json({}, status=503))
    found = {"pid": 7, "url": script.url, "logs": "logs", "processes": [], **board.fetch_summary(api)}
    assert (found["hold"], found["fleet"]) == (None, None)
    assert "The API does not answer." in printed(lambda console: render_status(console, Home(Path("home")), found))
