"""Each failure becomes one sentence, a remedy, and an exit code."""

import json

import pytest

from nodesmith.cli.errors import failure_of
from nodesmith.client import ClientError, Refused, UnexpectedAnswer, Unreachable
from nodesmith.contracts.http.shared import Problem
from nodesmith.domain.errors import InvalidRequest, NodesmithError
from nodesmith.stack.errors import StackError
from tests.client.shapes import PROBLEM


def test_a_problem_becomes_its_sentence_and_its_remedy() -> None:
    failure = failure_of(Refused(Problem.model_validate(PROBLEM)))
    assert failure.as_text() == f"error: {PROBLEM['detail']}\n  {PROBLEM['remedy']}"
    assert json.loads(failure.as_json()) == {
        "error": {"code": "operation_conflict", "message": PROBLEM["detail"], "remedy": PROBLEM["remedy"]}
    }


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (Refused(Problem.model_validate(PROBLEM)), "operation_conflict", 1),
        (Refused(Problem(title="", status=503, detail="Away.", code="service_unavailable")), "service_unavailable", 1),
        (Unreachable("Nothing answers.", "Start it."), "unreachable", 3),
        (UnexpectedAnswer("Not a NodePage."), "unexpected_answer", 1),
        (ClientError("Something else.", code="new"), "new", 1),
        (StackError("No space.", remedy="Free some."), "stack", 1),
        (InvalidRequest("No."), "invalid_request", 1),
    ],
)
def test_only_an_unreachable_api_has_an_exit_code_of_its_own(error: NodesmithError, code: str, exit_code: int) -> None:
    failure = failure_of(error)
    assert (failure.sentence, failure.code, failure.exit_code) == (error.message, code, exit_code)
    assert failure.remedy == getattr(error, "remedy", "")
