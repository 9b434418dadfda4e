"""Replaces links by copies on a disk without link support, after everything is unpacked. Blocking."""

import shutil
from pathlib import Path

from nodesmith.agent.disk.archive_policy import MAX_DEPTH, ArchivePolicy, bad_archive

_MAX_HOPS = 40
"""link resolution limit, as in the kernel; a longer chain is dangling"""


class LinkCopies:
    """Creates an empty file for each link first, so that all names exist, and the copies at the end."""

    def __init__(self, folder: Path, policy: ArchivePolicy) -> None:
        self._folder = folder
        self._policy = policy
        self._targets: dict[str, str] = {}

    def add(self, path: str, leads_to: str) -> None:
        (self._folder / path).touch(exist_ok=False)
        self._targets[path] = leads_to

    def forget(self, path: str) -> None:
        self._targets.pop(path, None)

    def make(self) -> None:
        for path, target in self._targets.items():
            (self._folder / path).unlink()
            self._copy(target, path)

    def _copy(self, source: str, path: str) -> None:
        """Copy a target; copies count as members, because a few links can expand to any number of files."""
        found = self._resolved(source)
        if found is None or not (self._folder / found).exists():
            return  # a dangling link
        if path.count("/") > MAX_DEPTH:
            raise bad_archive(
                "The archive has circular links, which cannot be copied, and this node's disk does not support links."
            )
        if found not in self._policy.folders:
            self._policy.count_member((self._folder / found).stat().st_size)
            shutil.copy2(self._folder / found, self._folder / path)
            return
        self._policy.count_member(0)
        names = [each.name for each in (self._folder / found).iterdir()]
        (self._folder / path).mkdir()
        for name in names:
            self._copy(f"{found}/{name}" if found else name, f"{path}/{name}")

    def _resolved(self, path: str) -> str | None:
        for _ in range(_MAX_HOPS):
            link = self._link_in(path)
            if link is None:
                return path
            path = f"{self._targets[link]}{path[len(link) :]}".lstrip("/")
        return None

    def _link_in(self, path: str) -> str | None:
        """Return the shortest prefix of a path that is a link."""
        parts = path.split("/")
        heads = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
        return next((head for head in heads if head in self._targets), None)
