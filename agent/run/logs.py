"""Logs of backends: written directly to a file, so that they continue without the agent; two rotated halves."""

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

_MAX_BYTES = 128 * 1024
"""limit of one reply: binary output grows up to six times in JSON, and NATS carries one megabyte"""
_OLD = re.compile(r"(?P<name>.+)\.(?P<end>\d+)\.old")


@dataclass(frozen=True)
class LogChunk:
    lines: list[str]
    cursor: int
    """position of the reader, counted from the first byte ever written"""


class LogRing:
    """`<key>.log` is the active file; `<key>.<end>.old` is the part before it, up to byte <end>. Blocking."""

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._name = quote(key, safe="")
        self._folder = folder
        self._half = limit // 2
        self.path = folder / _name(key)

    def rotate(self) -> None:
        """Copy the active file to `.old` and truncate it while the process keeps writing."""
        if not self.path.exists() or self.path.stat().st_size < self._half:
            return
        old = self._old()
        end = self._base() + self.path.stat().st_size
        shutil.copyfile(self.path, self._folder / f"{self._name}.{end}.old")
        with self.path.open("r+b") as file:
            file.truncate(0)
        if old is not None:
            old.unlink()

    def tail(self, lines: int) -> LogChunk:
        """Return the last lines."""
        end = self._base() + self._size()
        content = self._read(max(end - _MAX_BYTES, 0), end)
        return LogChunk(_lines(content)[-lines:], end)

    def since(self, cursor: int, lines: int) -> LogChunk:
        """Return complete lines from the cursor on; rotated-out bytes are skipped, overlong lines are split."""
        end = self._base() + self._size()
        content = self._read(cursor, min(end, cursor + _MAX_BYTES))
        start = min(end, cursor + _MAX_BYTES) - len(content)
        last = content.rfind(b"\n") + 1 or (len(content) if len(content) == _MAX_BYTES else 0)
        whole = content[:last].splitlines(keepends=True)[:lines]
        return LogChunk([_text(line) for line in whole], start + sum(map(len, whole)))

    def remove(self) -> None:
        for path in [self.path, *self._folder.glob(f"{self._name}.*.old")]:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _read(self, start: int, end: int) -> bytes:
        base = self._base()
        content = b""
        old = self._old()
        if start < base and old is not None:
            began = base - old.stat().st_size
            content = _part(old, max(start - began, 0), max(min(end, base) - began, 0))
        return content + (_part(self.path, max(start - base, 0), end - base) if end > base else b"")

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _base(self) -> int:
        old = self._old()
        match = _OLD.fullmatch(old.name) if old else None
        return int(match["end"]) if match else 0

    def _old(self) -> Path | None:
        """Return the newest `.old` file, because a kill may leave two."""
        found = [(int(match["end"]), path) for path in self._folder.iterdir() if (match := self._is_mine(path))]
        return max(found)[1] if found else None

    def _is_mine(self, path: Path) -> re.Match[str] | None:
        match = _OLD.fullmatch(path.name)
        return match if match and match["name"] == self._name else None


def keys(folder: Path) -> list[str]:
    """List the log keys, `<process key>@<version>`, newest first."""
    found = [(path.stat().st_mtime, unquote(path.stem)) for path in folder.glob("*.log")] if folder.is_dir() else []
    return [key for _, key in sorted(found, reverse=True)]


def forget_others(ring: LogRing, key: str) -> None:
    """Delete the logs of older versions, except the most recent other one."""
    folder = ring.path.parent
    others = [other for other in keys(folder) if other.rsplit("@", 1)[0] == key and folder / _name(other) != ring.path]
    for other in others[1:]:
        LogRing(folder, other, 0).remove()


def _name(key: str) -> str:
    return f"{quote(key, safe='')}.log"


def _part(path: Path, start: int, end: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(max(end - start, 0))


def _lines(content: bytes) -> list[str]:
    return [_text(line) for line in content.splitlines()]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
