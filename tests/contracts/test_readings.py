"""Invalid values from a node: the rest of the message still counts."""

import json
import math
from typing import Any

import pytest

from nodesmith.contracts.nats.messages import BackendList, CancelReply, CommandReply, OpReply, Outcome, Progress
from nodesmith.contracts.nats.presence import Heartbeat

HUGE = 2**70
ODD_NUMBERS = [HUGE, -1, -HUGE, str(HUGE), "lots", 1.5, 1e30, math.nan, math.inf, -math.inf, None, [], {}]
GAUGES = {"percentage": 0.0, "bytes_done": 0, "bytes_total": 0, "rate": 0.0, "eta_s": None, "decision": 0, "seq": 0}


UNREADABLE: list[object] = [None, [], "half"]


def sent(**fields: Any) -> bytes:
    """Python writes NaN and Infinity, as a careless sender would."""
    return json.dumps(fields).encode()


@pytest.mark.parametrize("field", ["bytes_done", "bytes_total", "decision", "seq"])
@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_count_that_cannot_be_is_read_as_zero(field: str, value: object) -> None:
    progress = Progress.decode(sent(op_id="op", percentage=40, **{field: value}))
    assert (getattr(progress, field), progress.percentage) == (0, 40)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        *(("percentage", value, 0.0) for value in (math.nan, -5, *UNREADABLE)),
        *(("percentage", value, 100.0) for value in (101, 1e300, math.inf)),
        *(("rate", value, 0.0) for value in (math.nan, math.inf, -1, 1e300, "fast", None)),
        *(("eta_s", value, None) for value in (math.nan, math.inf, -1, 1e300, "soon", None)),
        ("rate", 12.5, 12.5),
        ("eta_s", 3600, 3600.0),
        ("percentage", 41.5, 41.5),
    ],
)
def test_gauge_is_finite_and_in_range(field: str, value: object, read: float | None) -> None:
    assert getattr(Progress.decode(sent(op_id="op", **{field: value})), field) == read


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_outcome_with_odd_numbers_is_still_the_outcome(value: object) -> None:
    fields = {"bytes_fetched": value, "bytes_reused": value, "decision": value}
    outcome = Outcome.decode(sent(op_id="op", result="succeeded", **fields))
    assert (outcome.result, outcome.bytes_fetched, outcome.bytes_reused, outcome.decision) == ("succeeded", 0, 0, 0)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (30, 30.0),
        (86_400, 86_400.0),
        *((value, 86_400.0) for value in (86_401, 1e17, 1e300, math.inf, HUGE)),
        *((value, None) for value in (math.nan, -1, "later", None)),
    ],
)
def test_source_asks_for_a_day_of_patience_at_most(value: object, read: float | None) -> None:
    assert Outcome.decode(sent(op_id="op", retry_after_s=value)).retry_after_s == read


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_replies_with_odd_numbers_are_understood(value: object) -> None:
    cancelled = CancelReply.decode(sent(op_id="op", answer="stopped", stopped_after_s=value, bytes_done=value))
    assert (cancelled.answer, cancelled.bytes_done) == ("stopped", 0)
    assert math.isfinite(cancelled.stopped_after_s)
    asked = OpReply.decode(sent(op_id="op", standing="running", decision=value))
    assert (asked.standing, asked.decision) == ("running", 0)


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_resource_that_cannot_be_is_not_known_and_the_heartbeat_counts(value: object) -> None:
    resources = {"total_vram": value, "available_ram": value, "gpu_vendor": "nvidia", "available_disk": 0}
    beat = Heartbeat.decode(sent(node_id="n1", seq=value, resources=resources))
    assert beat.resources.model_dump(exclude_none=True) == {"gpu_vendor": "nvidia", "available_disk": 0}
    assert beat.seq == 0


@pytest.mark.parametrize("word", ["x" * 256, 5, ["nvidia"], {}])
def test_word_that_cannot_be_is_not_known_and_the_heartbeat_counts(word: object) -> None:
    resources = {"gpu_vendor": word, "gpu_compute_capability": word, "capability": word, "total_ram": 1}
    beat = Heartbeat.decode(sent(node_id="n1", resources=resources))
    assert beat.resources.model_dump(exclude_none=True) == {"total_ram": 1}


@pytest.mark.parametrize("resources", [None, [], "much", 3])
def test_heartbeat_without_readable_resources_counts(resources: object) -> None:
    beat = Heartbeat.decode(sent(node_id="n1", resources=resources))
    assert beat.resources.model_dump(exclude_none=True) == {}


def test_open_operations_that_cannot_be_are_left_out() -> None:
    odd = ["good", "\0", "x" * 256, "", 5, None, "also-good"]
    assert Heartbeat.decode(sent(node_id="n1", open_ops=odd)).open_ops == ["good", "also-good"]
    assert Heartbeat.decode(sent(node_id="n1", open_ops=None)).open_ops == []
    many = [f"op-{number}" for number in range(70_000)]
    assert Heartbeat.decode(sent(node_id="n1", open_ops=many)).open_ops == many[:1000]


@pytest.mark.parametrize("identifier", ["", "a\0b", "x" * 256])
@pytest.mark.parametrize("message", [Progress, Outcome, OpReply, CancelReply])
def test_message_about_no_operation_is_unreadable(message: type[Progress], identifier: str) -> None:
    with pytest.raises(ValueError, match="op_id"):
        message.decode(sent(op_id=identifier))


@pytest.mark.parametrize("field", ["node_id", "boot_id"])
@pytest.mark.parametrize("identifier", ["a\0b", "x" * 256])
def test_heartbeat_without_a_node_is_refused(field: str, identifier: str) -> None:
    with pytest.raises(ValueError, match=field):
        Heartbeat.decode(sent(**{"node_id": "n1", field: identifier}))


@pytest.mark.parametrize("message", [Outcome, CommandReply, CancelReply, BackendList])
def test_error_text_is_truncated(message: type[Outcome]) -> None:
    reported = message.decode(sent(op_id="op", error="no space left on device. " + "x" * 500_000)).error
    assert (len(reported), reported[:25], reported[-1]) == (4000, "no space left on device. ", "…")


@pytest.mark.parametrize("field", ["backend", "file_name", "current", "total", "family"])
def test_words_of_a_gauge_are_short(field: str) -> None:
    """Every reader of the event stream gets them."""
    reported = getattr(Progress.decode(sent(op_id="op", **{field: "x" * 500_000})), field)
    assert (len(reported), reported[-1]) == (255, "…")


@pytest.mark.parametrize("field", ["name", "family"])
def test_list_with_a_name_that_cannot_be_a_key_is_unreadable(field: str) -> None:
    """Leaving the entry out would say that this backend is not on the node."""
    with pytest.raises(ValueError, match="name of a backend"):
        BackendList.decode(sent(backends=[{"name": "echo"}, {"name": "echo", field: "x" * 256}]))


@pytest.mark.parametrize("value", [7, "on", [], {"missing": 7, "landlock_abi": "lots", "user": None}], ids=repr)
def test_heartbeat_with_an_odd_confinement_still_counts(value: object) -> None:
    beat = Heartbeat.decode(sent(node_id="n", seq=3, resources={"total_ram": 5, "confinement": value}))
    assert (beat.seq, beat.resources.total_ram) == (3, 5)


def test_what_a_node_says_is_missing_is_bounded() -> None:
    said = {"missing": ["x" * 300, 7, "", *(["signals"] * 50)], "user": "u" * 300}
    confinement = Heartbeat.decode(sent(node_id="n", resources={"confinement": said})).resources.confinement
    assert confinement is not None
    assert (set(confinement.missing), len(confinement.missing), len(confinement.user)) == ({"signals"}, 20, 255)
