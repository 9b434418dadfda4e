"""What runs, as it is written down: `running/<process key>.json`, and `.pending` until it is healthy."""

from pathlib import Path
from urllib.parse import quote

import structlog

from agent.durable import Disk, write_durably
from agent.launch import Record

log = structlog.stdlib.get_logger(__name__)

_PENDING = ".pending"


class RunningFiles:
    """A process is written down before anybody could need it. All of it blocks."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._folder = home / "running"
        self._disk = disk or Disk()

    def write(self, record: Record) -> None:
        """It is relied on from now on."""
        self._write(self._file(record.key), record)
        self._draft(record.key).unlink(missing_ok=True)

    def write_pending(self, record: Record) -> None:
        """Nobody may rely on it yet: an agent that is killed now ends it when it comes back."""
        self._write(self._draft(record.key), record)

    def forget(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    def forget_pending(self, key: str) -> None:
        self._draft(key).unlink(missing_ok=True)

    def everything(self) -> list[Record]:
        return self._read_all("*.json")

    def pending(self) -> list[Record]:
        return self._read_all(f"*{_PENDING}")

    def _read_all(self, pattern: str) -> list[Record]:
        found = (_read(path) for path in sorted(self._folder.glob(pattern)))
        return [record for record in found if record is not None]

    def _write(self, file: Path, record: Record) -> None:
        self._disk.make_folder(file.parent)
        write_durably(file, record.model_dump_json().encode(), disk=self._disk)

    def _file(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe='')}.json"

    def _draft(self, key: str) -> Path:
        return self._file(key).with_suffix(_PENDING)


def _read(path: Path) -> Record | None:
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValueError:
        log.exception("running.unreadable", file=path.name)
        path.unlink()
        return None
