"""Checks free disk space before and during downloads and unpacking."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
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
    on_short: list[Callable[[], None]] = field(default_factory=list)
    """called when a payload does not fit: deletes what is only kept for later"""

    def require(self, payload: int) -> None:
        """Raise unless the payload and the headroom fit, also after the rest was deleted."""
        reserve = max(int(payload * self.share), self.headroom)
        if payload + reserve > self.free():
            for make_room in self.on_short:
                make_room()
        free = self.free()
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

    def has_headroom(self) -> bool:
        return self.free() >= self.headroom

    def free(self) -> int:
        return shutil.disk_usage(self.folder).free
