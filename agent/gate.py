"""What an archive may bring: every member passes here before it is written.

The `data` filter of tarfile strips a leading slash, follows links that the archive itself has made, and has been
outwitted before. So the rules here are simpler and come first: no absolute name, no `..`, nothing written through
a link, and a link may climb only at its beginning and never out of the folder.
"""

import sys
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent.failures import OperationFailed
from domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile


@dataclass(frozen=True)
class Limits:
    """An archive may be a bomb."""

    members: int
    unpacked: int


@dataclass
class Gate:
    """Knows the links of all layers, and what the layer on top has brought."""

    limits: Limits
    count: int = 0
    size: int = 0
    links: dict[PurePosixPath, str] = field(default_factory=dict)
    below: dict[PurePosixPath, str] = field(default_factory=dict)
    """links of lower layers: a layer may replace them"""
    brought: set[str] = field(default_factory=set)
    """names of this layer, with the folders above them: its own whiteouts do not reach them"""

    def begin_layer(self) -> None:
        self.below |= self.links
        self.links = {}
        self.brought = set()

    def bring(self, path: PurePosixPath) -> None:
        """Nothing lies below the first layer, so nobody asks what that one has brought."""
        self.brought.update(map(str, (path, *path.parents[:-1])))

    def is_brought(self, path: PurePosixPath) -> bool:
        return str(path) in self.brought

    def is_link_below(self, path: PurePosixPath) -> bool:
        return path in self.below

    def forget(self, path: PurePosixPath) -> None:
        self.below = {link: to for link, to in self.below.items() if link != path and path not in link.parents}

    def inside(self, name: str) -> PurePosixPath:
        """A name that stays in the folder and is not reached through a link."""
        path = _inside(name)
        if any(parent in self.links or parent in self.below for parent in path.parents):
            raise _escape(f"{name} would be written through a link")
        return path

    def straight(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """A hard link to a link is that link once more: it starts from another folder, and is looked at as such."""
        if not member.islnk():
            return member
        target = self.inside(member.linkname)
        text = self.links.get(target, self.below.get(target))
        if text is None:
            return member
        link = member.replace(linkname=text, deep=False)
        link.type = tarfile.SYMTYPE
        return link

    def admit(self, member: tarfile.TarInfo) -> None:
        self._count(member)
        path = self.inside(member.name)
        if path in self.links:
            raise _escape(f"{member.name} would be written through a link")
        if member.issym():
            _check_link(member, path.parent)
            self.links[path] = member.linkname
        elif not member.islnk() and not member.isfile() and not member.isdir():
            raise _escape(f"{member.name} is a device or a pipe")

    def _count(self, member: tarfile.TarInfo) -> None:
        self.count += 1
        self.size += member.size
        if self.count > self.limits.members:
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive has more than {self.limits.members} members.")
        if self.size > self.limits.unpacked:
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive unpacks to more than {self.limits.unpacked} bytes.")


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _escape(f"{name}: it would leave the folder")
    return path


def _check_link(member: tarfile.TarInfo, start: PurePosixPath) -> None:
    """Climbing first and descending then stays inside whatever the other links do."""
    target = PurePosixPath(member.linkname)
    climbs = 0
    while climbs < len(target.parts) and target.parts[climbs] == "..":
        climbs += 1
    if target.is_absolute() or climbs > len(start.parts) or ".." in target.parts[climbs:]:
        raise _escape(f"{member.name} links to {member.linkname}")


def _escape(what: str) -> OperationFailed:
    return OperationFailed(Reason.ARCHIVE_ESCAPES, f"The archive would leave its folder: {what}.")
