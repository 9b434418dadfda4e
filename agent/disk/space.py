"""Checks free disk space before and during downloads and unpacking."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.domain.operation import Reason

UNPACKED_RATIO = 2
"""assumed ratio of unpacked to archive size, used before unpacking"""


@dataclass(frozen=True)
class Space:
    """The disk of one folder, and the headroom to keep free on it."""

    folder: Path
    headroom: int
    share: float
    """share of the payload to keep free, if that is more than the headroom"""

    def fits(self, payload: int) -> bool:
        return payload + self._reserve(payload) <= self.free()

    def require(self, payload: int) -> None:
        """Raise unless the payload and the headroom fit."""
        reserve, free = self._reserve(payload), self.free()
        if payload + reserve > free:
            raise OperationFailed(
                Reason.NO_DISK,
                f"Not enough disk space: {payload} bytes are needed and {reserve} must stay free, but only {free} are "
                "available.",
            )

    def require_for_archive(self, size: int, missing: int) -> None:
        """Raise unless the missing bytes of an archive and its estimated unpacked size fit."""
        self.require(missing + size * UNPACKED_RATIO)

    def require_for_file(self, _size: int, missing: int) -> None:
        """The same for a file that is kept as it is."""
        self.require(missing)

    def _reserve(self, payload: int) -> int:
        return max(int(payload * self.share), self.headroom)

    def has_headroom(self) -> bool:
        return self.free() >= self.headroom

    def free(self) -> int:
        return shutil.disk_usage(self.folder).free
