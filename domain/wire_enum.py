"""Enums that are sent in messages."""

import enum
from typing import Self


class WireEnum(enum.StrEnum):
    """An enum of a message field: an unknown value from a newer peer reads as `unknown` instead of failing."""

    @classmethod
    def _missing_(cls, _value: object) -> Self | None:
        return cls.__members__.get("UNKNOWN")
