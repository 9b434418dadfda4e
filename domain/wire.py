"""Enums that cross a wire."""

import enum
from typing import Self


class WireEnum(enum.StrEnum):
    """An enum that crosses a wire: a word from a newer peer reads as `unknown`, it never fails."""

    @classmethod
    def _missing_(cls, _value: object) -> Self | None:
        return cls.__members__.get("UNKNOWN")
