"""The format of an audit change: values before and after, or an unknown outcome."""

from datetime import UTC, datetime
from typing import Any

import pytest

from nodesmith.cli.commands.audit import change
from nodesmith.contracts.http.access import AuditEntry


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"after": {"role": "viewer"}}, 'role="viewer"'),
        ({"before": {"cap": 1}, "after": {"cap": 4}}, "cap=1 -> cap=4"),
        ({"before": {"cap": 1}}, "cap=1 -> "),
        ({"outcome": "unknown", "before": {"cap": 1}, "after": {"cap": 4}}, "outcome unknown; requested: cap=4"),
        ({"outcome": "unknown"}, "outcome unknown; requested: this"),
    ],
)
def test_change_is_formatted_on_one_line(facts: dict[str, Any], said: str) -> None:
    known = {"id": 1, "at": datetime.now(UTC), "actor": "ada", "action": "nodes.drain", "target": "n1"}
    assert change(AuditEntry.model_validate({**known, **facts})) == said
