"""The description of a successful operation."""

from datetime import UTC, datetime, timedelta

import pytest

from nodesmith.contracts.nats.messages import Installed, Outcome
from nodesmith.contracts.outcome_words import what_changed
from nodesmith.domain.kinds import Kind

THEN = datetime(2026, 11, 16, tzinfo=UTC)
ONE = Installed(version="1", digest="sha256:a", installed_at=THEN)
AGAIN = ONE.model_copy(update={"installed_at": THEN + timedelta(hours=1)})
TWO = Installed(version="2", digest="sha256:b", installed_at=THEN)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (Kind.INSTALL, {"changed": True, "after": ONE}, "1"),
        (Kind.INSTALL, {"changed": False, "before": ONE, "after": ONE}, "1 was installed already; nothing changed"),
        (
            Kind.INSTALL,
            {"changed": True, "before": ONE, "after": ONE, "addresses": {"echo#0": "127.0.0.1:21000"}},
            "1 was installed already; started echo#0 on 127.0.0.1:21000",
        ),
        (Kind.INSTALL, {"changed": True, "before": ONE, "after": AGAIN}, "1 -> 1"),
        (Kind.UPGRADE, {"changed": True, "before": ONE, "after": TWO}, "1 -> 2"),
        (Kind.ROLLBACK, {"changed": True, "before": TWO, "after": ONE}, "2 -> 1"),
        (Kind.REMOVE, {"changed": True, "before": ONE}, "1 removed"),
        (Kind.REMOVE, {"changed": False}, "it was not installed; nothing changed"),
    ],
)
def test_success_describes_the_change(kind: Kind, fields: dict[str, object], words: str):
    assert what_changed(Outcome.model_validate({"op_id": "op", **fields}), kind) == words
