"""Rules for archive members, checked before each member is written.

Every rule is checked against what this unpacking created, never against the disk: no absolute name, no `..`, no write
through a link, and a link target may use `..` only at its beginning and never leave the folder.
"""

import sys
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.domain.artifact import RESERVED
from nodesmith.domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

MAX_DEPTH = 200
"""maximum number of parent folders; deeper trees would exceed Python's recursion limit"""
_MAX_LENGTH = 4096
_MAX_MTIME = 2**33
"""seconds, in the year 2242; file systems support little more"""


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits against decompression bombs."""

    members: int
    unpacked: int


@dataclass
class ArchivePolicy:
    """Tracks the created folders and links, and the paths of the current layer.

    Each check takes time proportional to the length of the name, so that no archive causes quadratic work.
    """

    limits: ArchiveLimits
    folds_case: bool = False
    """the file system treats `a` and `A` as one name"""
    count: int = 0
    size: int = 0
    folders: set[str] = field(default_factory=lambda: {""})
    links: dict[str, str] = field(default_factory=dict)
    """path -> target text of the links of all layers"""
    layer_links: set[str] = field(default_factory=set)
    """links of the current layer; those of lower layers may be replaced"""
    layer_paths: set[str] = field(default_factory=set)
    """paths of this layer and their parents: its whiteouts do not remove them"""
    spellings: dict[str, str] = field(default_factory=dict)
    """on a case-insensitive file system: the one allowed spelling of each name"""

    def begin_layer(self) -> None:
        self.layer_links.clear()
        self.layer_paths.clear()

    def add_layer_path(self, path: str) -> None:
        while path and path not in self.layer_paths:
            self.layer_paths.add(path)
            path = parent_of(path)

    def forget(self, path: str) -> None:
        """Drop a deleted path."""
        self.folders.discard(path)
        self.links.pop(path, None)
        self.layer_links.discard(path)
        if self.folds_case:
            self.spellings.pop(_folded(path), None)

    def checked_path(self, name: str) -> str:
        """Return the normalized name; raises if it leaves the folder or passes through a link."""
        if name.startswith("/"):
            raise archive_escapes(f"{name}: it would leave the folder")
        if len(name) > _MAX_LENGTH or name.count("/") > MAX_DEPTH:
            raise bad_archive(
                f"A name in the archive is longer than {_MAX_LENGTH} bytes or deeper than {MAX_DEPTH} folders."
            )
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise archive_escapes(f"{name}: it would leave the folder")
        path = "/".join(parts)
        self._refuse_link_above(path)
        return path

    def resolve_hard_link(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Turn a hard link to a symbolic link into that symbolic link, which is then checked at its new path."""
        if not member.islnk():
            return member
        text = self.links.get(self.checked_path(member.linkname))
        if text is None:
            return member
        link = member.replace(linkname=text, deep=False)
        link.type = tarfile.SYMTYPE
        return link

    def admit(self, member: tarfile.TarInfo) -> str:
        """Return the member's path; raises if the member is not allowed."""
        self.count_member(member.size)
        path = self.checked_path(member.name)
        if not path and not member.isdir():
            raise bad_archive("A file in the archive has no name.")
        if path.partition("/")[0] in RESERVED:
            raise bad_archive(f"{path} is a name that Nodesmith reserves.")
        if path in self.layer_links:
            raise archive_escapes(f"{member.name} would be written through a link")
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            raise archive_escapes(f"{member.name} is a device or a pipe")
        if not 0 <= member.mtime <= _MAX_MTIME:  # false for NaN too
            raise bad_archive(f"{path} has a modification time that no disk can store.")
        if self.folds_case:
            self._refuse_other_spelling(path)
        return path

    def note_link(self, path: str, text: str) -> None:
        self.links[path] = text
        self.layer_links.add(path)

    def count_member(self, size: int) -> None:
        """Count one member of that size; raises beyond the limits."""
        self.count += 1
        self.size += size
        if size < 0:
            raise bad_archive("A file in the archive has a negative size.")
        if self.count > self.limits.members:
            raise bad_archive(f"The archive has more than {self.limits.members} members.")
        if self.size > self.limits.unpacked:
            raise bad_archive(f"The archive unpacks to more than {self.limits.unpacked} bytes.")

    def _refuse_link_above(self, path: str) -> None:
        """Walk up to the first created folder, above which there is no link."""
        folder = parent_of(path)
        while folder not in self.folders:
            if folder in self.links:
                raise archive_escapes(f"{path} would be written through a link")
            folder = parent_of(folder)

    def _refuse_other_spelling(self, path: str) -> None:
        while path:
            known = self.spellings.setdefault(_folded(path), path)
            if known != path:
                raise bad_archive(f"{known} and {path} are the same name on this node's disk.")
            path = parent_of(path)


def parent_of(path: str) -> str:
    """`a/b` -> `a` -> empty, which is the folder itself."""
    return path.rpartition("/")[0]


def link_target(path: str, text: str) -> str:
    """Return the target of a link at `path`, relative to the folder."""
    parts = parent_of(path).split("/")
    for part in text.split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(filter(None, parts))


def bad_archive(message: str) -> OperationFailed:
    return OperationFailed(Reason.BAD_ARCHIVE, message)


def archive_escapes(what: str) -> OperationFailed:
    return OperationFailed(Reason.ARCHIVE_ESCAPES, f"The archive would leave its folder: {what}.")


def check_link(member: tarfile.TarInfo, path: str) -> None:
    """Allow `..` only at the beginning of a link target: then it stays inside, whatever the other links do."""
    if not member.linkname:
        raise bad_archive(f"{member.name} is a link without a target.")
    parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    if member.linkname.startswith("/") or climbs > path.count("/") or ".." in parts[climbs:]:
        raise archive_escapes(f"{member.name} links to {member.linkname}")


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()
