"""Parsing of VRAM budgets."""

import pytest

from nodesmith.domain.budget import NO_BUDGET, parse
from nodesmith.domain.errors import InvalidRequest

GIB = 2**30
CARD = 24 * GIB


@pytest.mark.parametrize(
    ("text", "ceiling"),
    [
        *(("80%", CARD * 8 // 10), ("80 %", CARD * 8 // 10), ("0.8", CARD * 8 // 10), ("100%", CARD), ("1.0", CARD)),
        *(
            ("12GB", 12 * 10**9),
            ("12gib", 12 * GIB),
            ("12 GiB", 12 * GIB),
            ("12G", 12 * 10**9),
            ("1.5GB", 1_500_000_000),
        ),
        *(("12884901888", 12 * GIB), ("512MiB", 512 * 2**20), ("1TB", CARD), ("0.5%", CARD // 200)),
        *(("", None), ("  ", None), ("0", None), ("0%", None), ("0.0", None), ("0GB", None)),
    ],
)
def test_budgets_are_read_and_clamped_to_the_card(text: str, ceiling: int | None) -> None:
    assert parse(text).ceiling(CARD) == ceiling


@pytest.mark.parametrize(
    "text",
    ["101%", "100.1%", "1.5", "-1", "-80%", "lots", "80%%", "12XB", "GB", "1e3", "nan", "inf", "9" * 19, "5000000TB"],
)
def test_budgets_over_the_card_or_without_sense_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert refused.value.facts["field"] == "vram_budget"


def test_share_of_a_card_that_is_not_there_is_no_ceiling() -> None:
    assert parse("80%").ceiling(0) is None
    assert parse("80%").ceiling(None) is None
    assert parse("12GB").ceiling(None) == 12 * 10**9
    assert NO_BUDGET.ceiling(CARD) is None
