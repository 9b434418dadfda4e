"""Every rule about operations has a test or an open admission, and the table in the documentation is current."""

from pathlib import Path

import pytest

from tests.breaks import BREAKS, SEEN_FAILING
from tests.breaks_beyond import BEYOND
from tests.rule_tables import Break, proofs
from tests.rules_operations import NOT_SHOWN, RULES, page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "rules-operations.md"
HAZARDS = (*range(20, 28), 30, 31, 33, 34, *range(40, 44))


def test_no_number_is_left_out() -> None:
    wanted = {f"S{n}" for n in range(1, 64)} | {f"H{n}" for n in HAZARDS} | {f"G{n}" for n in range(1, 13)}
    assert set(RULES) == wanted


@pytest.mark.parametrize("number", RULES)
def test_rule_is_proved_by_a_test_or_admitted_to_be_missing(number: str) -> None:
    assert (number in proofs()) != (number in NOT_SHOWN)


def test_every_rule_that_has_a_test_was_seen_failing() -> None:
    assert set(SEEN_FAILING) == set(RULES) - set(NOT_SHOWN)


@pytest.mark.parametrize("each", [*BREAKS, *BEYOND], ids=lambda each: each.what)
def test_what_was_broken_can_be_broken_again(each: Break) -> None:
    """Who changes that place gives its break in tests/breaks*.py a new one, and sees the test fail again."""
    assert (ROOT / each.path).read_text().count(each.old) == 1
    for test in each.tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.rules_operations > docs/rules-operations.md"
