"""A VRAM budget limits what is in use on the card, not what the card has free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesmith.domain.budget import parse

GIB = 2**30
CARD = 24 * GIB


@pytest.mark.parametrize(
    ("budget", "total", "free", "available"),
    [
        ("12GiB", CARD, CARD, 12 * GIB),
        ("12GiB", CARD, 20 * GIB, 8 * GIB),
        ("12GiB", CARD, 12 * GIB, 0),
        ("12GiB", CARD, 4 * GIB, 0),
        ("50%", CARD, 20 * GIB, 8 * GIB),
        ("100%", CARD, 20 * GIB, 20 * GIB),
        ("1TB", CARD, 20 * GIB, 20 * GIB),
        ("", CARD, 20 * GIB, 20 * GIB),
        ("12GiB", CARD, None, None),
        ("12GiB", None, 20 * GIB, 12 * GIB),
        ("12GiB", None, 4 * GIB, 4 * GIB),
        ("12GiB", CARD, CARD + GIB, 12 * GIB),
    ],
)
def test_budget_leaves_what_is_not_in_use(budget: str, total: int | None, free: int | None, available: int) -> None:
    """H18: 12 GB in use of a budget of 12 GB leave nothing, however much the card has free."""
    assert parse(budget).available(total, free) == available


@given(st.sampled_from(["80%", "12GiB", "0.01", "1TB", ""]), st.integers(0, 2**40), st.integers(0, 2**40))
def test_budget_never_offers_more_than_is_free(budget: str, total: int, free: int) -> None:
    offered = parse(budget).available(total, free)
    assert offered is not None
    assert 0 <= offered <= free
