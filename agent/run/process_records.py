"""Stored records of running processes: `running/<process key>.json`, or `.pending` until healthy."""

from pathlib import Path
from urllib.parse import quote

import structlog

from nodesmith.agent.disk.durable_files import Disk, write_durably
from nodesmith.agent.run.backend_process import ProcessRecord

log = structlog.stdlib.get_logger(__name__)

_PENDING = ".pending"


class ProcessRecords:
    """Writes each record before any client can depend on the process. Blocking."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._folder = home / "running"
        self._disk = disk or Disk()

    def write(self, record: ProcessRecord) -> None:
        """Store a healthy process."""
        self._write(self._file(record.key), record)
        self._draft(record.key).unlink(missing_ok=True)

    def write_pending(self, record: ProcessRecord) -> None:
        """Store a process that is not healthy yet; if the agent is killed now, its next start kills the process."""
        self._write(self._draft(record.key), record)

    def forget(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    def forget_pending(self, key: str) -> None:
        self._draft(key).unlink(missing_ok=True)

    def everything(self) -> list[ProcessRecord]:
        return self._read_all("*.json")

    def pending(self) -> list[ProcessRecord]:
        return self._read_all(f"*{_PENDING}")

    def _read_all(self, pattern: str) -> list[ProcessRecord]:
        found = (_read(path) for path in sorted(self._folder.glob(pattern)))
        return [record for record in found if record is not None]

    def _write(self, file: Path, record: ProcessRecord) -> None:
        self._disk.make_folder(file.parent)
        write_durably(file, record.model_dump_json().encode(), disk=self._disk)

    def _file(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe='')}.json"

    def _draft(self, key: str) -> Path:
        return self._file(key).with_suffix(_PENDING)


def _read(path: Path) -> ProcessRecord | None:
    try:
        return ProcessRecord.model_validate_json(path.read_bytes())
    except ValueError:
        log.exception("running.unreadable", file=path.name)
        path.unlink()
        return None
