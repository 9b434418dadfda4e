"""The VRAM budget of a node: "80%", "0.8", "12GB", "12GiB" or bytes; "" means no budget."""

import re
from dataclasses import dataclass
from fractions import Fraction

from nodesmith.domain.errors import InvalidRequest

LARGEST = 2**60
"""bytes; more than any card has, so the value must be a typing error"""

_WRITTEN = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(%|[kmgt]?i?b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Budget:
    """A share of the card's memory, or a number of bytes; no budget if both are None."""

    share: Fraction | None = None
    size: int | None = None

    def ceiling(self, total_vram: int | None) -> int | None:
        """Return the limit in bytes, at most the card's size; None if there is no limit or the size is unknown."""
        if self.share is not None:
            return int(total_vram * self.share) if total_vram else None
        if self.size is None:
            return None
        return min(self.size, total_vram) if total_vram else self.size

    def available(self, total_vram: int | None, free_vram: int | None) -> int | None:
        """Return the budget minus the memory in use; without a budget, the free memory as reported."""
        ceiling = self.ceiling(total_vram)
        if ceiling is None or free_vram is None:
            return free_vram
        in_use = max(total_vram - free_vram, 0) if total_vram else 0
        return min(max(ceiling - in_use, 0), free_vram)


NO_BUDGET = Budget()


def parse(text: str) -> Budget:
    """Parse a budget; raise `InvalidRequest` for more than 100 % or for text that is not a size."""
    written = text.strip()
    if not written:
        return NO_BUDGET
    found = _WRITTEN.fullmatch(written)
    if found is None:
        raise _refused(text, "is not a budget; write 80%, 0.8, 12GB, 12GiB, or a number of bytes")
    number, unit = Fraction(found[1]), found[2].lower()
    if unit == "%":
        return _share(text, number / 100)
    if not unit and "." in found[1]:
        return _share(text, number)
    return _size(text, int(number * _factor(unit)))


def _factor(unit: str) -> int:
    base = 1024 if "i" in unit else 1000
    power: int = base ** _POWERS[unit.rstrip("b").rstrip("i")]
    return power


def _share(text: str, share: Fraction) -> Budget:
    if share > 1:
        raise _refused(text, "is more than 100 %")
    return Budget(share=share) if share else NO_BUDGET


def _size(text: str, size: int) -> Budget:
    if size > LARGEST:
        raise _refused(text, "is more than any card has")
    return Budget(size=size) if size else NO_BUDGET


def _refused(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"The VRAM budget {text[:40]!r} {why}.", field="vram_budget")
