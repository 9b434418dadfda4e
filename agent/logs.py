"""What a backend writes: straight into a file, so that it goes on without the agent; a ring of two halves."""

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

_MOST_BYTES = 128 * 1024
"""of one answer: what is no text takes up to six times that on the wire, which bears a megabyte"""
_OLD = re.compile(r"(?P<name>.+)\.(?P<end>\d+)\.old")


@dataclass(frozen=True)
class Piece:
    lines: list[str]
    cursor: int
    """how far the reader has come, counted from the first byte that was ever written"""


class LogRing:
    """`<key>.log` is written now; `<key>.<end>.old` came before it and ended at that byte. Blocking: use a thread."""

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._name = quote(key, safe="")
        self._folder = folder
        self._half = limit // 2
        self.path = folder / _name(key)

    def turn(self) -> None:
        """Make room: the file moves its content aside and begins anew, under the process that goes on writing."""
        if not self.path.exists() or self.path.stat().st_size < self._half:
            return
        old = self._old()
        end = self._base() + self.path.stat().st_size
        shutil.copyfile(self.path, self._folder / f"{self._name}.{end}.old")
        with self.path.open("r+b") as file:
            file.truncate(0)
        if old is not None:
            old.unlink()

    def tail(self, lines: int) -> Piece:
        """The last lines."""
        end = self._base() + self._size()
        content = self._read(max(end - _MOST_BYTES, 0), end)
        return Piece(_lines(content)[-lines:], end)

    def since(self, cursor: int, lines: int) -> Piece:
        """Whole lines from there on; what was overwritten meanwhile is skipped, what is too long comes in parts."""
        end = self._base() + self._size()
        content = self._read(cursor, min(end, cursor + _MOST_BYTES))
        start = min(end, cursor + _MOST_BYTES) - len(content)
        last = content.rfind(b"\n") + 1 or (len(content) if len(content) == _MOST_BYTES else 0)
        whole = content[:last].splitlines(keepends=True)[:lines]
        return Piece([_text(line) for line in whole], start + sum(map(len, whole)))

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
        """The newest, if a kill has left two."""
        found = [(int(match["end"]), path) for path in self._folder.iterdir() if (match := self._is_mine(path))]
        return max(found)[1] if found else None

    def _is_mine(self, path: Path) -> re.Match[str] | None:
        match = _OLD.fullmatch(path.name)
        return match if match and match["name"] == self._name else None


def keys(folder: Path) -> list[str]:
    """Whose output is here, `<process key>@<version>`, the newest first."""
    found = [(path.stat().st_mtime, unquote(path.stem)) for path in folder.glob("*.log")] if folder.is_dir() else []
    return [key for _, key in sorted(found, reverse=True)]


def forget_others(ring: LogRing, key: str) -> None:
    """Keep what one other version has written; older output goes."""
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
