"""A change on one line: from what to what, or that nobody knows."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cli.audit import change
from contracts.access import AuditEntry


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"after": {"role": "viewer"}}, 'role="viewer"'),
        ({"before": {"cap": 1}, "after": {"cap": 4}}, "cap=1 -> cap=4"),
        ({"before": {"cap": 1}}, "cap=1 -> "),
        ({"outcome": "unknown", "before": {"cap": 1}, "after": {"cap": 4}}, "not known how it went; asked for: cap=4"),
        ({"outcome": "unknown"}, "not known how it went; asked for: this"),
    ],
)
def test_a_change_is_told_on_one_line(facts: dict[str, Any], said: str) -> None:
    known = {"id": 1, "at": datetime.now(UTC), "actor": "ada", "action": "nodes.drain", "target": "n1"}
    assert change(AuditEntry.model_validate({**known, **facts})) == said
