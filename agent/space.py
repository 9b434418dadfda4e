"""Room on the disk: looked at before bytes come, and while they do."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from agent.failures import OperationFailed
from domain.operation import Reason

UNPACKED_RATIO = 2
"""how much an archive is taken to unpack to, for each byte of it, before it is unpacked"""


@dataclass(frozen=True)
class Space:
    """The disk of one folder, and what has to stay free on it."""

    folder: Path
    headroom: int
    share: float
    """of the payload, when that is more than the headroom"""

    def require(self, payload: int) -> None:
        """Room for the payload and a reserve beside it."""
        reserve = max(int(payload * self.share), self.headroom)
        free = self.free()
        if payload + reserve > free:
            raise OperationFailed(
                Reason.NO_DISK, f"{payload} bytes are needed and {reserve} to keep free, but only {free} are left."
            )

    def require_for_archive(self, size: int, missing: int) -> None:
        """Room for what is still to be fetched of an archive, and for what it will probably unpack to."""
        self.require(missing + size * UNPACKED_RATIO)

    def has_headroom(self) -> bool:
        return self.free() >= self.headroom

    def free(self) -> int:
        return shutil.disk_usage(self.folder).free
