"""Digests that identify equal requests."""

import pytest

from nodesmith.domain.idempotency import request_digest

ASKED = ("install", "node-1", {"backend": "echo", "force": False})


@pytest.mark.parametrize(
    "other",
    [
        ("upgrade", "node-1", {"backend": "echo", "force": False}),
        ("install", "node-2", {"backend": "echo", "force": False}),
        ("install", "node-1", {"backend": "echo", "force": True}),
        ("install", "node-1", {"backend": "other", "force": False}),
    ],
)
def test_route_target_and_every_field_of_the_body_count(other: tuple[str, str, dict[str, object]]) -> None:
    assert request_digest(*ASKED) != request_digest(*other)


def test_order_of_the_fields_does_not_count() -> None:
    assert request_digest(*ASKED) == request_digest("install", "node-1", {"force": False, "backend": "echo"})
