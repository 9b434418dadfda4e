"""Every rule about operations has a test or an open admission, and the table in the documentation is current."""

from pathlib import Path

import pytest

from tests.breaks import SEEN_FAILING
from tests.rule_tables import proofs
from tests.rules_operations import NOT_SHOWN, RULES, page

PAGE = Path(__file__).parent.parent / "docs" / "rules-operations.md"
HAZARDS = (*range(20, 28), 30, 31, 33, 34, *range(40, 44))


def test_no_number_is_left_out() -> None:
    wanted = {f"S{n}" for n in range(1, 64)} | {f"H{n}" for n in HAZARDS} | {f"G{n}" for n in range(1, 13)}
    assert set(RULES) == wanted


@pytest.mark.parametrize("number", RULES)
def test_rule_is_proved_by_a_test_or_admitted_to_be_missing(number: str) -> None:
    assert (number in proofs()) != (number in NOT_SHOWN)


def test_only_rules_that_have_a_test_were_seen_failing() -> None:
    assert set(SEEN_FAILING) <= set(RULES) - set(NOT_SHOWN)


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.rules_operations > docs/rules-operations.md"
