"""Every rule about nodes has a test, and the table in the documentation is the one that the tests make."""

from pathlib import Path

import pytest

from tests import rules

PAGE = Path(__file__).parent.parent / "docs" / "rules-nodes.md"


@pytest.mark.parametrize("number", rules.RULES)
def test_rule_is_proved_by_a_test(number: str) -> None:
    assert rules.proofs().get(number)


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text() == rules.page(), "python -m tests.rules > docs/rules-nodes.md"
