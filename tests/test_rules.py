"""Every rule about nodes has a test, and the table in the documentation is up to date."""

from pathlib import Path

import pytest

from tests import rules
from tests.breaks import SEEN_FAILING

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "rules-nodes.md"


@pytest.mark.parametrize("number", rules.RULES)
def test_rule_is_proved_by_a_test_or_not_done(number: str) -> None:
    assert (number in rules.proofs()) != (number in rules.NOT_DONE)


@pytest.mark.parametrize("number", rules.SUPERSEDED)
def test_test_of_a_superseded_rule_was_seen_failing(number: str) -> None:
    """A superseded rule counts as done only if its test was seen failing."""
    assert number in SEEN_FAILING


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text() == rules.page(), "run: make reference"
