"""Selectors: matching, and error messages for invalid syntax."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.selector import EVERYTHING, Operator, Requirement, Selector, parse

LABELS = {"zone": "a", "gpu.vram": "24GB", "node.name": "rack 7, left", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            "zone",
            "zone=a",
            "zone==a",
            "zone = a",
            "zone!=b",
            "zone in (a,b)",
            "zone in(a)",
            "zone notin (b)",
        ),
        *(
            "!rack",
            "! rack",
            "rack!=1",
            "rack notin (1,2)",
            "zone=a,gpu.vram=24GB",
            "zone , !rack , gpu.vram in ( 24GB )",
        ),
        *('node.name="rack 7, left"', "empty=", "empty in (x,)", "empty=,zone=a", "zone!="),
    ],
)
def test_selectors_that_match(text: str) -> None:
    """R58, and more than equality."""
    assert parse(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        *("rack", "rack=1", "rack=", "zone=b", "zone==A", "zone!=a", "zone in (b,c)", "zone notin (a,b)", "!zone"),
        *("zone=a,rack", "zone=a,zone=b", "rack in (1)", "node.name=rack", "empty!="),
    ],
)
def test_selectors_that_do_not_match(text: str) -> None:
    assert not parse(text).matches(LABELS)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("=a", 1, "the key of a label"),
        ("zone=a,", 8, "the key of a label, found nothing more"),
        ("zone=a,,rack", 8, "the key of a label, found `,`"),
        ("zone>3", 5, "`,` or one of the operators =, ==, !=, in, notin, found `>`"),
        ("zone like a", 6, "`,` or one of the operators"),
        ("zone ~= a", 6, "found `~`"),
        ("zone=a rack=b", 8, "found `rack`"),
        ("zone in a", 9, "`(` and a list of values, found `a`"),
        ("zone in ()", 10, "a value, found `)`"),
        ("zone in (a", 11, "`,` or `)`, found nothing more"),
        ("zone in (a b)", 12, "`,` or `)`"),
        ("zone=(a)", 6, "a value, found `(`"),
        ("!", 2, "the key of a label"),
        ("!zone=a", 6, "found `=`"),
        ('zone="a', 6, "a value"),
        ("(zone)", 1, "the key of a label"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert (refused.value.facts["field"], refused.value.facts["position"]) == ("selector", position)
    assert f"position {position}: expected" in refused.value.message
    assert expected in refused.value.message


def test_a_selector_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 50 requirements"):
        parse(",".join(f"key{number}" for number in range(51)))


def test_a_key_may_be_named_like_an_operator() -> None:
    assert parse("in in (in),notin").requirements == (
        Requirement("in", Operator.IN, ("in",)),
        Requirement("notin", Operator.EXISTS),
    )


keys = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,8}", fullmatch=True)
values = st.text(st.characters(blacklist_characters='"', blacklist_categories=["Cs", "Cc"]), max_size=8)
requirements = st.one_of(
    st.builds(Requirement, keys, st.sampled_from([Operator.EXISTS, Operator.ABSENT])),
    st.builds(
        Requirement,
        keys,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.sets(values, min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
    ),
)
SELECTORS = st.lists(requirements, max_size=5).map(lambda found: Selector(tuple(found)))


@given(selector=SELECTORS)
def test_a_selector_that_is_written_down_reads_as_itself(selector: Selector) -> None:
    assert parse(str(selector)) == selector


@given(text=st.text(st.sampled_from("ab=!,() \"'<in notin"), max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    selector = EVERYTHING
    with suppress(InvalidRequest):
        selector = parse(text)
    assert parse(str(selector)) == selector


def test_no_selector_selects_everything() -> None:
    assert parse("") is EVERYTHING
    assert EVERYTHING.matches({})
