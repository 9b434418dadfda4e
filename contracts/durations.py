"""Durations in settings: 90, 90s, 15m, 24h, 7d, or ISO 8601."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*")


def read(value: object) -> object:
    """Parse a duration like `15m`; other formats are left to pydantic."""
    if isinstance(value, str) and (written := _WRITTEN.fullmatch(value)):
        number, unit = written.groups()
        return timedelta(seconds=float(number) * _UNITS[unit])
    return value


Duration = Annotated[timedelta, BeforeValidator(read)]
