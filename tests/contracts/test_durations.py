from datetime import timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from nodesmith.contracts.durations import Duration

DURATION = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("90", timedelta(seconds=90)),
        ("90s", timedelta(seconds=90)),
        ("1.5 m", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("24h", timedelta(days=1)),
        ("7d", timedelta(days=7)),
        ("PT15M", timedelta(minutes=15)),
        (90, timedelta(seconds=90)),
        (timedelta(seconds=90), timedelta(seconds=90)),
    ],
)
def test_a_duration_is_read_as_people_write_it(written: object, meant: timedelta) -> None:
    assert DURATION.validate_python(written) == meant


@pytest.mark.parametrize("written", ["", "soon", "15 minutes", "5x", "m", "1h30"])
def test_what_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(ValidationError):
        DURATION.validate_python(written)
