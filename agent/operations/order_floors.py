"""Minimum issue time of orders per family, kept longer than the journal keeps operations."""

import json
from collections.abc import Mapping
from pathlib import Path

import structlog

from nodesmith.agent.disk.durable_files import Disk, write_durably

log = structlog.stdlib.get_logger(__name__)


class OrderFloors:
    """`orders.json` in the home: family -> issue time of its newest order."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._newest: dict[str, int] = {}

    def load(self) -> None:
        try:
            self._newest = {str(family): int(iat) for family, iat in json.loads(self._path.read_bytes()).items()}
        except FileNotFoundError:
            return
        except (ValueError, AttributeError):
            log.exception("orders.unreadable", file=self._path.name)

    def get(self, family: str) -> int:
        return self._newest.get(family, 0)

    def newest(self) -> int:
        return max(self._newest.values(), default=0)

    def raise_to(self, newest: Mapping[str, int]) -> None:
        """Write the higher floors to disk, then apply them; lower values are ignored."""
        higher = {family: iat for family, iat in newest.items() if iat > self.get(family)}
        if higher:
            raised = {**self._newest, **higher}
            write_durably(self._path, json.dumps(raised).encode(), disk=self._disk)
            self._newest = raised
