import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console, RenderableType

from nodesmith.cli.commands import nodes, operations
from nodesmith.cli.output import render
from nodesmith.cli.output.watch import summary
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.http.operations import OperationDetail, OperationEvent, OperationView, ProgressView
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.nats.presence import BackendConfinement
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import NodeStatus, NodeType, Protocol
from nodesmith.domain.operation import Phase, Reason, State

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
OP_ID = "019a8c5e-1f2a-7b3c-8d4e-5f6071829304"


def drawn(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def node(name: str, **fields: object) -> NodeView:
    return NodeView(
        id="4f0f3f52-9a51-4a52-9d0e-0e6c2f2b6a11",
        name=name,
        node_type=NodeType.BACKEND,
        protocol=Protocol.NODESMITH,
        status=NodeStatus.HEALTHY,
        created_at=NOW,
        updated_at=NOW,
        **fields,
    )


def operation(**fields: object) -> OperationDetail:
    known = {"op_id": OP_ID, "kind": Kind.INSTALL, "node_id": "n1", "node_name": "agent-1", "backend": "echo"}
    return OperationDetail.model_validate(
        {"family": "echo", "version": "2", "state": State.RUNNING, "created_at": NOW, **known, **fields}
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_540, "1.5 kB"),
        (99_440, "99.4 kB"),
        (200_000_000, "200 MB"),
        (999_600, "1.0 MB"),
        (7_300_000_000, "7.3 GB"),
        (12_000_000_000_000, "12.0 TB"),
        (None, ""),
    ],
)
def test_sizes_have_three_digits_at_most(count: int | None, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7_800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
        (None, ""),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


def test_a_clock_that_runs_ahead_does_not_show_a_negative_age() -> None:
    assert render.ago(NOW + timedelta(seconds=3), now=NOW) == "0.0 s ago"


@pytest.mark.parametrize("width", [80, 200])
def test_tables_stay_within_the_terminal(width: int) -> None:
    fleet = [node("agent-1", available_disk=10**12, last_heartbeat=NOW), node("rack-7-with-a-rather-long-name")]
    ops = [operation(message="waiting: the node does not answer (since 3 o'clock, and " + "so on " * 30 + ")")]
    for lines in (
        drawn(render.table(fleet, nodes.COLUMNS, width), width),
        drawn(render.table(ops, operations.COLUMNS, width), width),
    ):
        assert max(map(len, lines)) <= width


def test_at_80_columns_ids_names_and_states_are_whole() -> None:
    ops: list[OperationView] = [operation(progress=ProgressView(phase=Phase.DOWNLOADING, percentage=61.2))]
    heading, line = drawn(render.table(ops, operations.COLUMNS, 80), 80)
    assert heading.split() == ["ID", "NODE", "BACKEND", "STATE", "%"]
    assert line.split() == [OP_ID, "agent-1", "echo", "2", "running", "61"]


def test_a_wide_terminal_shows_more() -> None:
    heading = drawn(render.table([node("agent-1")], nodes.COLUMNS, 200), 200)[0]
    assert heading.split() == ["NAME", "STATUS", "HEARTBEAT", "OPS", "DISK", "FREE", "RAM", "FREE", "PROTOCOL", "ID"]


def test_a_name_full_of_markup_is_shown_as_it_is() -> None:
    assert any("[red]x[/]" in line for line in drawn(render.table([node("[red]x[/]")], nodes.COLUMNS, 80), 80))
    assert any("[/nope]" in line for line in drawn(render.facts(nodes.describe(node("[/nope]"))), 80))


@pytest.mark.parametrize(
    ("missing", "shown"),
    [
        ([], "on: Landlock 6, user agent, nothing missing"),
        (["ports", "[red]x"], "on: Landlock 6, user agent, not hidden: ports, [red]x"),
    ],
)
def test_a_node_is_shown_with_the_confinement_of_its_backends(missing: list[str], shown: str) -> None:
    reported = BackendConfinement(mode="on", landlock_abi=6, user="agent", missing=missing)
    view = node("agent-1").model_copy(update={"confinement": reported})
    assert any(shown in line for line in drawn(render.facts(nodes.describe(view)), 100))
    assert not any("confinement" in line for line in drawn(render.facts(nodes.describe(node("agent-1"))), 100))


def test_operation_is_shown_with_its_timeline() -> None:
    event = OperationEvent(
        id=7, op_id=OP_ID, node_id="n1", node_name="agent-1", backend="echo", kind=Kind.INSTALL,
        state=State.WAITING, reason=Reason.NODE_AWAY, at=NOW, message="waiting: the node does not answer",
    )  # fmt: skip
    page = operation(
        state=State.WAITING,
        message="waiting: the node does not answer",
        remedy="It continues when the node is back.",
        until=NOW + timedelta(days=7),
        timeline=[event],
    )
    text = "\n".join(drawn(operations.page(page, 120), 120))
    assert "waiting: the node does not answer, until 2026-11-23" in text
    assert "It continues when the node is back." in text
    assert "2026-11-16" in text


INSTALLED = Installed(version="2", digest="sha256:a", installed_at=NOW)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"changed": True, "bytes_fetched": 2_000_000, "bytes_reused": 8_000_000, "before": Installed(version="1")},
            "2.0 MB fetched, 8.0 MB reused (was 1)",
        ),
        ({"changed": False}, "nothing changed: it was already installed"),
        ({"changed": True, "before": INSTALLED, "after": INSTALLED}, "started: it was already installed"),
    ],
)
def test_summary_describes_what_changed(fields: dict[str, object], expected: str) -> None:
    ended = operation(state=State.SUCCEEDED, ended_at=NOW + timedelta(seconds=42), **fields)
    line = drawn(summary(ended), 200)[0]
    assert line == f"succeeded: install echo 2 on agent-1 after 42 s; {expected}"


def test_summary_of_a_failure_names_the_remedy() -> None:
    ended = operation(
        state=State.FAILED, ended_at=NOW, message="failed: the archive is damaged", remedy="Build the archive again."
    )
    assert drawn(summary(ended), 200) == [
        "failed: install echo 2 on agent-1 after 0.0 s: failed: the archive is damaged",
        "  Build the archive again.",
    ]


def test_json_has_every_field_of_the_shape(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_json([node("agent-1")])
    assert set(json.loads(capsys.readouterr().out)[0]) == set(NodeView.model_fields)


def test_link_of_an_operation_stands_alone_and_whole_on_its_line() -> None:
    link = f"http://127.0.0.1:8233/namespaces/default/workflows/{'x' * 60}/history"
    console = Console(file=io.StringIO(), width=80, highlight=False)
    render.show(console, operations.page(operation(temporal_url=link), 80))
    assert isinstance(console.file, io.StringIO)
    assert link in console.file.getvalue().splitlines()
