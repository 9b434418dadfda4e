"""Every rule about operations has a test or is listed as missing, and the table in the documentation is current."""

from pathlib import Path

import pytest

from tests.mutations.all_breaks import SEEN_FAILING
from tests.rule_tables import proofs
from tests.rules_operations import NOT_SHOWN, RULES, page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "rules-operations.md"
HAZARDS = (*range(20, 28), 30, 31, 33, 34, *range(40, 44))


def test_no_number_is_left_out() -> None:
    wanted = {f"S{n}" for n in range(1, 64)} | {f"H{n}" for n in HAZARDS} | {f"G{n}" for n in range(1, 13)}
    assert set(RULES) == wanted


@pytest.mark.parametrize("number", RULES)
def test_rule_is_proved_by_a_test_or_admitted_to_be_missing(number: str) -> None:
    assert (number in proofs()) != (number in NOT_SHOWN)


def test_every_rule_that_has_a_test_was_seen_failing() -> None:
    assert set(RULES) - set(SEEN_FAILING) == set(NOT_SHOWN)


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: make reference"
