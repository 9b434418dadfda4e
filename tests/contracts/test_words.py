import inspect
from datetime import UTC, datetime, timedelta, timezone

import pytest

from nodesmith.contracts import words
from nodesmith.domain import errors, model_errors
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.operation import ENDED, Phase, Reason, State

AT = datetime(2026, 11, 17, 17, 38, 20, tzinfo=UTC)
BERLIN = timezone(timedelta(hours=1))
CLASSES = [*inspect.getmembers(errors, inspect.isclass), *inspect.getmembers(model_errors, inspect.isclass)]
CODES = sorted({cls.code for _, cls in CLASSES if issubclass(cls, NodesmithError)})
NEEDS_NO_REMEDY = {
    Reason.REQUESTED,
    Reason.SUPERSEDED,
    Reason.NODE_REMOVED,
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence_and_a_remedy(reason: Reason) -> None:
    said = words.REASONS[reason]
    assert said.sentence.strip()
    assert bool(said.remedy.strip()) == (reason not in NEEDS_NO_REMEDY)


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_sentence(state: State) -> None:
    assert words.STATES[state].sentence.strip()


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_has_a_sentence(code: str) -> None:
    assert words.ERRORS[code].sentence.endswith(".")


def test_no_words_are_left_over_for_codes_that_nothing_raises() -> None:
    assert sorted(words.ERRORS) == CODES


@pytest.mark.parametrize("state", sorted(ENDED))
def test_every_end_has_an_outcome_for_localai_clients(state: State) -> None:
    assert words.LOCALAI_OUTCOMES[state] in {"completed", "failed", "cancelled"}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (words.tell(State.RUNNING, None, phase=Phase.DOWNLOADING), "downloading on the node"),
        (words.tell(State.RUNNING, None), "running on the node"),
        (words.tell(State.WAITING, Reason.NODE_AWAY), "waiting: the node does not answer"),
        (words.tell(State.WAITING, Reason.NODE_AWAY, phase=Phase.DOWNLOADING), "waiting: the node does not answer"),
        (
            words.tell(State.FAILED, Reason.NO_DISK, "3 GB short"),
            "failed: not enough disk space on the node (3 GB short)",
        ),
        (words.tell(State.SUCCEEDED, None), "succeeded"),
        (words.tell(State.QUEUED, None), "queued"),
        (
            words.tell(State.WAITING, Reason.BACK_OFF, "attempt 3 of 10: connection reset", until=AT),
            "Retrying: attempt 3 of 10 failed (connection reset). Next try at 17:38:20 UTC.",
        ),
        (
            words.tell(State.WAITING, Reason.BACK_OFF, "attempt 3: no route: gone", until=AT, zone=BERLIN),
            "Retrying: attempt 3 failed (no route: gone). Next try at 18:38:20.",
        ),
        (words.tell(State.WAITING, Reason.BACK_OFF), "Retrying: the last attempt failed."),
        (words.tell(State.WAITING, Reason.BACK_OFF, "exit code 1"), "Retrying: the last attempt failed (exit code 1)."),
        (
            words.tell(State.CANCELLING, Reason.BACK_OFF, "attempt 3: x", until=AT),
            "cancelling: the node has not confirmed it yet: the last attempt failed (attempt 3: x)",
        ),
    ],
)
def test_operation_is_described_in_one_line(said: str, sentence: str) -> None:
    assert said == sentence
