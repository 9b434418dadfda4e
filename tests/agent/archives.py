"""Valid and invalid archives for tests."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd


def packed(**files: bytes) -> bytes:
    """A .tar.gz with these files; `run_sh` becomes run.sh."""
    return built(*(regular(name.replace("_", "."), content) for name, content in files.items()))


def big(size: int) -> bytes:
    """An archive of about `size` bytes, of content that does not compress."""
    return packed(run_sh=b"#!/bin/sh\n", payload=os.urandom(size))


Add = Callable[[tarfile.TarFile], None]


def built(*adds: Add) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for add in adds:
            add(archive)
    return buffer.getvalue()


def regular(name: str, content: bytes = b"x", mode: int = 0o755) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = mode
        archive.addfile(member, io.BytesIO(content))

    return add


def special(name: str, kind: bytes, target: str = "") -> Add:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.mode = 0o755
        member.linkname = target
        archive.addfile(member)

    return add


def attributed(name: str, **attributes: str) -> Add:
    """A file with pax attributes, which override its header."""

    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.pax_headers = attributes
        archive.addfile(member)

    return add


def many(number: int, add: Add) -> Add:
    def added(archive: tarfile.TarFile) -> None:
        for _ in range(number):
            add(archive)

    return added


def timed(name: str, mtime: float) -> Add:
    """A file with a modification time as a pax attribute."""
    return attributed(name, mtime=str(mtime))


def with_first_byte(content: bytes, member: int, place: int, byte: int) -> bytes:
    """The same archive, with a byte of one header changed and its checksum left as it was."""
    plain = bytearray(gzip.decompress(content))
    plain[member * 1024 + place] = byte
    return gzip.compress(bytes(plain), 1)


def folder(name: str) -> Add:
    return special(name, tarfile.DIRTYPE)


def symlink(name: str, target: str) -> Add:
    return special(name, tarfile.SYMTYPE, target)


def hardlink(name: str, target: str) -> Add:
    return special(name, tarfile.LNKTYPE, target)


def zstandard(content: bytes) -> bytes:
    compressed: bytes = zstd.compress(content)
    return compressed


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


ESCAPES: dict[str, bytes] = {
    "parent path": built(regular("../evil")),
    "parent path in the middle": built(regular("a/../../evil")),
    "absolute path": built(regular("/evil")),
    "absolute link": built(symlink("link", "/etc")),
    "link that climbs out": built(symlink("link", "../..")),
    "deep link that climbs out": built(symlink("a/b/link", "../../../x")),
    "link that climbs after descending": built(symlink("x/y/up", "../.."), symlink("out", "x/y/up/..")),
    "hard link to a link, from where it climbs out": built(
        symlink("a/b/c/link", "../../x"), hardlink("out", "a/b/c/link")
    ),
    "a name that is no text": built(regular("../evil\udcff")),
    "hard link out": built(hardlink("link", "../../etc/passwd")),
    "absolute hard link": built(hardlink("link", "/etc/passwd")),
    "file through a link": built(symlink("d", "."), regular("d/file")),
    "file in place of a link": built(symlink("f", "g"), regular("f")),
    "device": built(special("null", tarfile.CHRTYPE)),
    "pipe": built(special("pipe", tarfile.FIFOTYPE)),
}


def _headed(kind: bytes, size: int) -> bytes:
    """A header that announces an extended header of that size."""
    return gzip.compress(_header(kind, size) + bytes(size), 1)


def _header(kind: bytes, size: int) -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    return header.tobuf()


def _global(number: int) -> bytes:
    """An archive with that many global attributes."""
    buffer = io.BytesIO()
    attributes = {f"key{each}": "x" for each in range(number)}
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers=attributes) as archive:
        regular("a")(archive)
        regular("b")(archive)
    return buffer.getvalue()


_GOOD = packed(run_sh=b"#!/bin/sh\n", payload=os.urandom(200_000))

DAMAGED: dict[str, bytes] = {
    "not gzip": b"this is no archive",
    "nothing": b"",
    "cut off in the middle": _GOOD[: len(_GOOD) // 2],
    "cut off in the checksum": _GOOD[:-3],
    "a wrong byte": _GOOD[:1000] + bytes([_GOOD[1000] ^ 0xFF]) + _GOOD[1001:],
    "gzip, but no tar": gzip.compress(b"hello" * 1000),
    "empty": built(),
    "a name that is too long": built(regular("n" * 300)),
    "a path that is too long": built(regular("/".join(["n" * 100] * 60))),
    "a name with a zero in it": built(attributed("file", path="a\0b")),
    "no name": built(regular("")),
    "a file and a folder of one name": built(regular("d/x"), regular("d")),
    "a folder and a file of one name": built(regular("d"), regular("d/x")),
    "a hard link to nothing": built(hardlink("b", "missing")),
    "a hard link to itself": built(hardlink("a", "a")),
    "attributes without end": _headed(tarfile.XHDTYPE, 20_000_000),
    "a name without end": _headed(tarfile.GNUTYPE_LONGNAME, 20_000_000),
    "paths of 1,500 folders": built(regular("/".join(["d"] * 1500))),
    "a folder in 1,500 folders": built(folder("/".join(["d"] * 1500))),
    "1,000 descriptions of one member": gzip.compress(_header(tarfile.XHDTYPE, 0) * 1000 + bytes(1024), 1),
    "a time that is no number": built(regular("a"), timed("b", float("nan"))),
    "a time before all times": built(timed("b", -1e20)),
    "a time after all times": built(timed("b", 1e20)),
    "a time without end": built(timed("b", float("inf"))),
    "a size below nothing": built(attributed("b", size="-5")),
    "holes beyond the end": built(attributed("b", **{"GNU.sparse.map": "9999,1", "GNU.sparse.size": "5"})),
    "holes that are no numbers": built(attributed("b", **{"GNU.sparse.map": "a,b"})),
    "a map of holes that is half": built(attributed("b", **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})),
    "1,000 attributes for all": _global(1000),
    "a damaged header in the middle": with_first_byte(built(regular("a"), regular("b"), regular("c")), 1, 0, 7),
    "no end mark": gzip.compress(gzip.decompress(built(regular("a")))[:1024], 1),
    "a link to nothing": built(symlink("a", "")),
    "a hard link to a folder": built(folder("d"), hardlink("a", "d")),
    "a file named like ours": built(regular("metadata.json")),
    "a folder named like ours": built(folder("metadata.json")),
    "a file in a folder named like ours": built(regular("./metadata.json/x")),
    "a draft named like ours": built(symlink(".metadata.json.draft", "run.sh")),
    "xz": lzma.compress(gzip.decompress(_GOOD)),
    "bzip2": bz2.compress(gzip.decompress(_GOOD)),
    "nothing without end": gzip.compress(gzip.decompress(_GOOD) + bytes(20_000_000), 1),
}
