"""Text from a node, a gallery or a backend cannot control the user's terminal."""

import io
import sys
from collections.abc import Iterator

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.main import main
from nodesmith.cli.output.render import Column, SafeConsole, facts, show, table
from nodesmith.cli.output.terminal import safe
from tests.fakes.scripted_api import ScriptedApi, as_json, scripted_api

HOSTILE = "\x1b]0;owned\x07\x1b[2Jx\x9b31m\u202eevil\u2066\r\x00\x7f"
OBEYED = set("\x1b\x07\x9b\u202e\u2066\r\x00\x7f")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain text, ünïcödé 日本 🚀\tand\nlines", "plain text, ünïcödé 日本 🚀\tand\nlines"),
        ("\x1b[32mgreen\x1b[0m", "green"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]8;;http://evil\x1b\\link", "\\x1b]8;;http://evil\\x1b\\link"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb", "a\\rb"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half \udc80", "half \\udc80"),
        ("\x1b\x1b[0m[2J", "\\x1b[2J"),
    ],
)
def test_control_characters_are_printed_as_code_points(written: str, shown: str) -> None:
    assert safe(written) == shown


def drawn(content: object, **options: object) -> str:
    out = io.StringIO()
    console = SafeConsole(file=out, width=120, force_terminal=True, color_system=None, **options)
    show(console, content)  # type: ignore[arg-type]
    return out.getvalue()


def rows() -> Table:
    return table([HOSTILE], [Column[str]("NAME", lambda name: name)], 120)


@pytest.mark.parametrize(
    "content",
    [HOSTILE, Text(HOSTILE), rows(), facts([("name", HOSTILE), (HOSTILE, "value")])],
    ids=["string", "text", "table", "facts"],
)
def test_rendered_output_is_safe(content: object) -> None:
    said = drawn(content)
    assert "evil" in said
    assert not OBEYED & set(said)


def test_table_keeps_its_columns_beside_a_hostile_name() -> None:
    columns = [Column[tuple[str, str]]("NAME", lambda row: row[0]), Column[tuple[str, str]]("NEXT", lambda row: row[1])]
    lines = drawn(table([(HOSTILE, "one"), ("short", "two")], columns, 120)).splitlines()
    assert lines[0].index("NEXT") == lines[1].index("one") == lines[2].index("two")


def test_live_bar_is_safe() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, width=120, force_terminal=True, color_system=None)
    with Progress(TextColumn("{task.description}"), console=console) as progress:
        progress.add_task(HOSTILE)
    assert "owned" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert not {"\x07", "\u202e", "\x9b"} & set(out.getvalue())


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        monkeypatch.setenv("NODESMITH_URL", script.url)
        monkeypatch.setenv("NODESMITH_TOKEN", "secret")
        yield script


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["nodesmith", *arguments])
    with pytest.raises(SystemExit):
        main()


LOGS = {"node_name": "n", "keys": ["echo#0"], "key": "echo#0", "lines": [f"line {HOSTILE}"], "cursor": 1}


def test_logs_of_a_backend_are_safe_unless_raw_is_asked_for(
    script: ScriptedApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.on("/api/v1/nodes/n/backends/echo/logs", as_json(LOGS))
    run(monkeypatch, "backends", "logs", "echo", "--on", "n")
    assert not OBEYED & set(capsys.readouterr().out)
    run(monkeypatch, "backends", "logs", "echo", "--on", "n", "--raw")
    assert f"line {HOSTILE}" in capsys.readouterr().out.replace("\r\n", "\n")


def test_error_message_of_the_api_is_safe(
    script: ScriptedApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {"title": "x", "status": 404, "detail": f"There is no {HOSTILE}", "code": "x", "remedy": HOSTILE}
    script.on("/api/v1/nodes/n", as_json(problem, status=404))
    run(monkeypatch, "nodes", "show", "n")
    said = capsys.readouterr().err
    assert "There is no" in said
    assert not OBEYED & set(said)


def test_json_is_ascii(
    script: ScriptedApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.on("/api/v1/nodes/n/backends/echo/logs", as_json(LOGS))
    run(monkeypatch, "backends", "logs", "echo", "--on", "n", "--json")
    assert capsys.readouterr().out.isascii()
    assert CommandFailed(HOSTILE).as_json().isascii()
