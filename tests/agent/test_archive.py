"""Unpacking: valid archives are unpacked completely, invalid ones write nothing outside their folder."""

import errno
import functools
import gzip
import io
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodesmith.agent.disk.archive import Unpacker
from nodesmith.agent.disk.archive_policy import ArchiveLimits
from nodesmith.agent.disk.durable_files import Disk, point, write_durably
from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.domain.operation import Reason
from tests.agent import archives
from tests.agent.archives import Add, attributed, built, folder, hardlink, many, regular, symlink

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

ROOMY = ArchiveLimits(members=1000, unpacked=100_000_000)


def unpack(
    tmp_path: Path,
    *contents: bytes,
    limits: ArchiveLimits = ROOMY,
    halt: threading.Event | None = None,
    disk: Disk | None = None,
) -> Path:
    """Unpack one archive, or several as the layers of an image."""
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    unpacker = Unpacker(folder, limits, halt or threading.Event(), lambda: None, disk=disk)
    for content in contents:
        place = unpacker.unpack if len(contents) == 1 else unpacker.unpack_layer
        place(functools.partial(io.BytesIO, content))
    unpacker.finish()
    return folder


def test_valid_archive_is_unpacked_completely(tmp_path):
    content = built(
        regular("run.sh", b"#!/bin/sh\n"),
        regular("lib/deep/a.so", b"A" * 100_000),
        symlink("lib/b.so", "deep/a.so"),
        symlink("lib/deep/up", "../../run.sh"),
        hardlink("copy", "run.sh"),
    )
    folder = unpack(tmp_path, content)
    assert (folder / "lib/b.so").read_bytes() == b"A" * 100_000
    assert (folder / "lib/deep/up").read_bytes() == (folder / "copy").read_bytes() == b"#!/bin/sh\n"
    assert (folder / "run.sh").stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("name", archives.ESCAPES)
def test_an_archive_that_escapes_is_refused(tmp_path, name):
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, archives.ESCAPES[name])
    assert failure.value.reason is Reason.ARCHIVE_ESCAPES
    outside = {path.name for path in tmp_path.rglob("*")} - {"artifact", "outer", "folder"}
    assert "evil" not in outside


@pytest.mark.parametrize("name", archives.DAMAGED)
def test_a_damaged_archive_is_refused(tmp_path, name):
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, archives.DAMAGED[name])
    assert failure.value.reason is Reason.BAD_ARCHIVE


@pytest.mark.parametrize(
    "limits",
    [ArchiveLimits(members=2, unpacked=10**9), ArchiveLimits(members=10, unpacked=2)],
    ids=["members", "bytes"],
)
def test_an_archive_beyond_the_limits_is_refused(tmp_path, limits):
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, built(regular("a"), regular("b"), regular("c")), limits=limits)
    assert failure.value.reason is Reason.BAD_ARCHIVE


def test_permissions_that_an_archive_should_not_give_are_dropped(tmp_path):
    folder = unpack(tmp_path, built(regular("run.sh", mode=0o6777)))
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o755


def test_unpacking_stops_in_the_middle_of_a_large_member(tmp_path):
    halt, reads = threading.Event(), 0
    file = tmp_path / "artifact"
    file.write_bytes(archives.big(20_000_000))

    def tick():
        nonlocal reads
        reads += 1
        if reads == 5:
            halt.set()

    with pytest.raises(Stopped):
        Unpacker(tmp_path / "folder", ROOMY, halt, tick).unpack(lambda: file.open("rb"))
    assert (tmp_path / "folder" / "payload").stat().st_size < 20_000_000


@pytest.mark.parametrize("packing", ["gzip", "zstd", "none"])
def test_gzip_zstd_and_plain_tar_are_detected_by_magic_bytes(tmp_path, packing):
    plain = gzip.decompress(built(regular("run.sh", b"#!/bin/sh\n"), regular("lib.so", b"A" * 100_000)))
    packed = {"gzip": gzip.compress(plain), "zstd": archives.zstandard(plain), "none": plain}[packing]
    assert (unpack(tmp_path, packed) / "lib.so").read_bytes() == b"A" * 100_000


def test_truncated_zstd_archive_is_refused(tmp_path):
    packed = archives.zstandard(gzip.decompress(built(regular("run.sh", os.urandom(500_000)))))
    for damaged in (packed[: len(packed) // 2], packed[:-2], packed[:100] + b"?" + packed[101:]):
        with pytest.raises(OperationFailed) as failure:
            unpack(tmp_path / str(len(damaged)) / str(damaged[100]), damaged)
        assert failure.value.reason is Reason.BAD_ARCHIVE


@pytest.mark.parametrize(
    "how", ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"]
)
def test_sparse_files_are_restored(tmp_path, how):
    source = tmp_path / "source"
    source.mkdir()
    with (source / "holes").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"end")
        file.truncate(6_000_000)
    command = ["tar", "--sparse", *(["--format=posix"] if "version" in how else []), how, "-cz", "-C", source, "."]
    folder = unpack(tmp_path, subprocess.run(command, check=True, capture_output=True).stdout)
    assert [path.name for path in folder.iterdir()] == ["holes"]
    assert (folder / "holes").read_bytes() == (source / "holes").read_bytes()


def test_names_that_are_no_text_are_kept(tmp_path):
    folder = unpack(tmp_path, built(regular("./a\udcffb", b"x")))
    assert [os.fsencode(path.name) for path in folder.iterdir()] == [b"a\xffb"]


def test_unpacked_members_are_not_kept_in_memory(tmp_path):
    """Half a million members are allowed, so memory per member would add up."""
    many = built(*(folder(f"d{number}") for number in range(5_000)))
    tracemalloc.start()
    unpack(tmp_path, many, limits=ArchiveLimits(members=5_000, unpacked=1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000


# layers of an image -------------------------------------------------------------------------------------------


def test_layer_replaces_files_of_lower_layers(tmp_path):
    lower = built(regular("run.sh", b"old"), regular("kept", b"kept"), symlink("link", "kept"), regular("d/x"))
    upper = built(regular("run.sh", b"new"), regular("link", b"no link any more"), regular("d", b"a file now"))
    folder = unpack(tmp_path, lower, upper)
    assert (folder / "run.sh").read_bytes() == b"new"
    assert (folder / "kept").read_bytes() == b"kept"
    assert (folder / "link").read_bytes() == b"no link any more"
    assert (folder / "d").read_bytes() == b"a file now"


def test_whiteouts_remove_files_of_lower_layers(tmp_path):
    lower = built(regular("run.sh"), regular("gone"), regular("tree/a"), regular("tree/b/c"), symlink("link", "tree"))
    upper = built(regular(".wh.gone"), regular("tree/.wh..wh..opq"), regular("tree/new"), regular(".wh.link"))
    folder = unpack(tmp_path, lower, upper)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {"run.sh", "tree", "tree/new"}


def test_whiteouts_keep_files_of_their_own_layer(tmp_path):
    lower = built(regular("tree/old"), regular("tree/sub/old"), regular("file", b"old"), regular("gone/x"))
    upper = built(
        regular("tree/sub/new"),
        regular("tree/.wh..wh..opq"),
        regular("file", b"new"),
        regular(".wh.file"),
        regular(".wh.gone"),
    )
    folder = unpack(tmp_path, lower, upper)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {"tree", "tree/sub", "tree/sub/new", "file"}
    assert (folder / "file").read_bytes() == b"new"


@pytest.mark.parametrize("name", [".wh.", "d/.wh.", ".wh.."])
def test_whiteout_without_a_name_is_refused(tmp_path, name):
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, built(regular("a")), built(regular(name)))
    assert failure.value.reason is Reason.BAD_ARCHIVE


def test_a_folder_replaces_a_file_of_a_lower_layer(tmp_path):
    folder_now = unpack(tmp_path, built(regular("d", b"a file")), built(folder("d"), regular("d/x")))
    assert (folder_now / "d" / "x").is_file()


def test_layer_may_link_to_files_of_lower_layers(tmp_path):
    lower = built(regular("lib/real.so", b"A"), symlink("lib/link.so", "real.so"))
    unpacked = unpack(
        tmp_path, lower, built(hardlink("lib/same.so", "lib/real.so"), hardlink("lib/l2.so", "lib/link.so"))
    )
    assert (unpacked / "lib/same.so").read_bytes() == (unpacked / "lib/l2.so").read_bytes() == b"A"
    assert (unpacked / "lib/l2.so").readlink() == Path("real.so")


@pytest.mark.parametrize(
    "upper",
    [
        built(regular("link/evil")),
        built(regular("link/.wh.victim")),
        built(regular("link/.wh..wh..opq")),
        built(regular("../.wh.victim")),
        built(hardlink("copy", "link/victim")),
    ],
    ids=["file", "whiteout", "opaque", "whiteout outside", "hard link"],
)
def test_nothing_is_changed_through_a_link_of_a_lower_layer(tmp_path, upper):
    lower = built(regular("dir/victim"), symlink("link", "dir"))
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, lower, upper)
    assert failure.value.reason is Reason.ARCHIVE_ESCAPES


def test_a_file_that_a_layer_replaces_does_not_change_its_hard_link(tmp_path):
    lower = built(regular("a", b"old"), hardlink("b", "a"))
    folder = unpack(tmp_path, lower, built(regular("a", b"new")))
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"new", b"old")


def test_a_file_that_comes_twice_does_not_change_its_hard_link(tmp_path):
    content = built(regular("a", b"old"), hardlink("b", "a"), regular("a", b"new"))
    folder = unpack(tmp_path, content)
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"new", b"old")


def test_whiteouts_of_the_first_layer_remove_nothing(tmp_path):
    lower = built(regular("tree/a"), regular("tree/.wh..wh..opq"), regular("tree/.wh.a"))
    assert (unpack(tmp_path, lower, built(regular("x"))) / "tree/a").is_file()


def test_agent_never_writes_through_a_link_from_an_archive(tmp_path):
    """Archives with that name are refused, but the write must be safe without that check."""
    victim = tmp_path / "run.sh"
    victim.write_bytes(b"victim")
    for draft, write in ((".file.draft", write_durably), (".pointer.draft", None)):
        (tmp_path / draft).symlink_to("run.sh")
        if write:
            write(tmp_path / "file", b"ours")
        else:
            point(tmp_path / "pointer", "target", NoLinks())
    assert victim.read_bytes() == b"victim"
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert not (tmp_path / "file").is_symlink()


# linear time for hostile archives -------------------------------------------------------------------------------


def _steps(tmp_path: Path, *contents: bytes) -> int:
    """Count the calls of unpacking, so that the result does not depend on the machine's speed."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        unpack(tmp_path, *contents, limits=ArchiveLimits(members=100_000, unpacked=10**9))
    finally:
        sys.setprofile(None)
    return calls


def _layered(number: int, first: Callable[[int], Add], second: Callable[[int], Add]) -> list[bytes]:
    return [built(*map(first, range(number))), built(*map(second, range(number)))]


HOSTILE: dict[str, Callable[[int], list[bytes]]] = {
    "files over links": lambda n: _layered(n, lambda i: symlink(f"l{i}", "x"), lambda i: regular(f"f{i}")),
    "links over links": lambda n: _layered(n, lambda i: symlink(f"l{i}", "x"), lambda i: symlink(f"l{i}", "y")),
    "whiteouts beside links": lambda n: _layered(n, lambda i: symlink(f"l{i}", "x"), lambda i: regular(f".wh.l{i}")),
    "opaque again and again": lambda n: [
        built(regular("d/a")),
        built(*(regular(f"d/f{i}") for i in range(n)), many(n, regular("d/.wh..wh..opq"))),
    ],
    "opaque at every depth": lambda n: [
        built(regular("d/a")),
        built(
            *(regular("d/" * 100 + f"f{i}") for i in range(n)),
            *(regular("d/" * (1 + i % 100) + ".wh..wh..opq") for i in range(n)),
        ),
    ],
    "whiteouts of one's own folder": lambda n: [
        built(regular("d/a")),
        built(*(regular(f"d/f{i}") for i in range(n)), many(n, regular(".wh.d"))),
    ],
    "hard links": lambda n: [built(regular("a"), *(hardlink(f"h{i}", "a") for i in range(n)))],
    "one file again and again": lambda n: [built(many(n, regular("a")))],
    "trees that replace each other": lambda n: [
        built(*(regular(f"d{i}/x/y") for i in range(n))),
        built(*(regular(f"d{i}") for i in range(n))),
    ],
    "deep paths": lambda n: [built(*(regular("d/" * 150 + f"f{i}") for i in range(n)))],
    "attributes": lambda n: [built(*(attributed(f"f{i}", comment="x" * 200) for i in range(n)))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_unpacking_is_linear(tmp_path, name):
    few = _steps(tmp_path / "few", *HOSTILE[name](50))
    many_more = _steps(tmp_path / "many", *HOSTILE[name](200))
    assert many_more < 5 * few


def test_links_over_many_layers_are_linear(tmp_path):
    def layers(number: int) -> list[bytes]:
        return [built(symlink(f"l{i}", "x"), regular("f")) for i in range(number)]

    assert _steps(tmp_path / "many", *layers(120)) < 5 * _steps(tmp_path / "few", *layers(30))


# early write-back ----------------------------------------------------------------------------------------------


class Hurried(Disk):
    def __init__(self, fault: OSError | None = None) -> None:
        self.sizes: list[int] = []
        self._fault = fault

    def start_writeback(self, path: Path) -> None:
        self.sizes.append(path.stat().st_size)
        super().start_writeback(path)
        if self._fault is not None:
            raise self._fault


@pytest.mark.parametrize("fault", [None, OSError(errno.EINVAL, "Invalid argument")], ids=["it can", "it cannot"])
def test_write_back_of_a_large_file_starts_before_its_end(tmp_path, fault):
    size = 40_000_000
    disk = Hurried(fault)
    folder = unpack(tmp_path, built(regular("small", b"s"), regular("large", os.urandom(size))), disk=disk)
    assert (folder / "large").stat().st_size == size
    assert 0 < disk.sizes[0] < size == disk.sizes[-1]


# a disk without links -----------------------------------------------------------------------------------------


class NoLinks(Disk):
    def symlink(self, link: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def hardlink(self, link: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


class FoldsCase(Disk):
    def folds_case(self, folder: Path) -> bool:
        return True


@pytest.mark.parametrize("pair", [("README", "readme"), ("a/Link", "A/x"), ("caf\u00e9", "cafe\u0301")])
def test_names_that_collide_on_a_case_insensitive_disk_are_refused(tmp_path, pair):
    content = built(*map(regular, pair))
    assert len(list(unpack(tmp_path / "other", content).iterdir())) == 2
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, content, disk=FoldsCase())
    assert failure.value.reason is Reason.BAD_ARCHIVE


def test_case_folding_of_a_disk_is_detected(tmp_path):
    assert Disk().folds_case(tmp_path) is (tmp_path / tmp_path.name.upper()).exists()
    assert list(tmp_path.iterdir()) == []


def test_link_copies_skip_files_removed_by_later_layers(tmp_path):
    lower = built(regular("a", b"A"), symlink("gone/l", "../a"), hardlink("h", "a"), symlink("l", "a"))
    folder = unpack(tmp_path, lower, built(regular(".wh.gone"), regular("l", b"a file now")), disk=NoLinks())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"A", "h": b"A", "l": b"a file now"}


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_megabyte_of_empty_compressed_parts_is_refused(tmp_path, packing):
    compress = gzip.compress if packing == "gzip" else zstd.compress
    content, nothing = compress(gzip.decompress(built(regular("a")))), compress(b"")
    with pytest.raises(OperationFailed, match="empty compressed parts") as failure:
        unpack(tmp_path, content + nothing * (1024 * 1024 // len(nothing)))
    assert failure.value.reason is Reason.BAD_ARCHIVE


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_an_archive_may_be_compressed_file_by_file(tmp_path, packing):
    """eStargz and pzstd do so, and some tools end a file with an empty part."""
    compress = gzip.compress if packing == "gzip" else zstd.compress
    plain = gzip.decompress(built(*(regular(f"{number}") for number in range(5000))))
    parts = b"".join(compress(plain[start : start + 512]) for start in range(0, len(plain), 512))
    folder = unpack(tmp_path, parts + compress(b""), limits=ArchiveLimits(members=10_000, unpacked=10**8))
    assert len(list(folder.iterdir())) == 5000


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = unpack(
            tmp_path, built(*(regular(f"{number}", mode=[0o755, 0o644][number % 2]) for number in range(4)))
        )
    finally:
        os.umask(before)
    assert [stat.S_IMODE((folder / f"{number}").stat().st_mode) for number in range(4)] == [0o755, 0o644] * 2


@pytest.mark.parametrize(
    "links",
    [
        [symlink("a/x", "."), symlink("a/y", ".")],
        [symlink(f"d{i}/{j}", f"../d{i + 1}") for i in range(30) for j in "xy"],
    ],
)
def test_link_copies_count_against_the_archive_limits(tmp_path, links):
    content = built(regular("a/file"), regular("d30/file"), *links)
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, content, disk=NoLinks())
    assert failure.value.reason is Reason.BAD_ARCHIVE


def test_links_become_copies_on_a_disk_without_links(tmp_path):
    content = built(
        regular("lib/real.so", b"A" * 1000),
        symlink("lib/two.so", "one.so"),
        symlink("lib/one.so", "real.so"),
        symlink("all", "lib"),
        symlink("nowhere", "missing"),
    )
    folder = unpack(tmp_path, content, disk=NoLinks())
    for name in ("lib/one.so", "lib/two.so", "all/real.so"):
        assert (folder / name).read_bytes() == b"A" * 1000
        assert not (folder / name).is_symlink()
    assert not (folder / "nowhere").exists()
