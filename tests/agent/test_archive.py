"""Unpacking: what is good comes out whole, what is bad writes nothing outside its folder."""

import errno
import functools
import gzip
import io
import os
import stat
import subprocess
import threading
import tracemalloc
from pathlib import Path

import pytest

from agent.archive import Unpacker
from agent.durable import Disk
from agent.failures import OperationFailed, Stopped
from agent.gate import Limits
from domain.operation import Reason
from tests.agent import archives
from tests.agent.archives import built, folder, hardlink, regular, symlink

ROOMY = Limits(members=1000, unpacked=100_000_000)


def unpack(
    tmp_path: Path,
    *contents: bytes,
    limits: Limits = ROOMY,
    halt: threading.Event | None = None,
    disk: Disk | None = None,
) -> Path:
    """One archive, or several as the layers of an image."""
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    unpacker = Unpacker(folder, limits, halt or threading.Event(), lambda: None, disk=disk)
    for content in contents:
        place = unpacker.unpack if len(contents) == 1 else unpacker.unpack_layer
        place(functools.partial(io.BytesIO, content))
    unpacker.finish()
    return folder


def test_a_good_archive_comes_out_whole(tmp_path):
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
    "limits", [Limits(members=2, unpacked=10**9), Limits(members=10, unpacked=2)], ids=["members", "bytes"]
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
def test_gzip_zstd_and_plain_tar_are_told_apart_by_their_first_bytes(tmp_path, packing):
    plain = gzip.decompress(built(regular("run.sh", b"#!/bin/sh\n"), regular("lib.so", b"A" * 100_000)))
    packed = {"gzip": gzip.compress(plain), "zstd": archives.zstandard(plain), "none": plain}[packing]
    assert (unpack(tmp_path, packed) / "lib.so").read_bytes() == b"A" * 100_000


def test_a_zstd_archive_that_is_cut_off_is_refused(tmp_path):
    packed = archives.zstandard(gzip.decompress(built(regular("run.sh", os.urandom(500_000)))))
    for damaged in (packed[: len(packed) // 2], packed[:-2], packed[:100] + b"?" + packed[101:]):
        with pytest.raises(OperationFailed) as failure:
            unpack(tmp_path / str(len(damaged)) / str(damaged[100]), damaged)
        assert failure.value.reason is Reason.BAD_ARCHIVE


@pytest.mark.parametrize(
    "how", ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"]
)
def test_files_with_holes_come_out_as_they_were(tmp_path, how):
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


def test_members_are_forgotten_once_they_are_unpacked(tmp_path):
    """Half a million of them are allowed; what is remembered of each adds up."""
    many = built(*(folder(f"d{number}") for number in range(5_000)))
    tracemalloc.start()
    unpack(tmp_path, many, limits=Limits(members=5_000, unpacked=1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000


# layers of an image -------------------------------------------------------------------------------------------


def test_a_layer_goes_over_the_lower_ones(tmp_path):
    lower = built(regular("run.sh", b"old"), regular("kept", b"kept"), symlink("link", "kept"), regular("d/x"))
    upper = built(regular("run.sh", b"new"), regular("link", b"no link any more"), regular("d", b"a file now"))
    folder = unpack(tmp_path, lower, upper)
    assert (folder / "run.sh").read_bytes() == b"new"
    assert (folder / "kept").read_bytes() == b"kept"
    assert (folder / "link").read_bytes() == b"no link any more"
    assert (folder / "d").read_bytes() == b"a file now"


def test_whiteouts_take_away_what_lower_layers_brought(tmp_path):
    lower = built(regular("run.sh"), regular("gone"), regular("tree/a"), regular("tree/b/c"), symlink("link", "tree"))
    upper = built(regular(".wh.gone"), regular("tree/.wh..wh..opq"), regular("tree/new"), regular(".wh.link"))
    folder = unpack(tmp_path, lower, upper)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {"run.sh", "tree", "tree/new"}


def test_whiteouts_do_not_reach_what_their_own_layer_brings(tmp_path):
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
def test_a_whiteout_of_nothing_is_refused(tmp_path, name):
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, built(regular("a")), built(regular(name)))
    assert failure.value.reason is Reason.BAD_ARCHIVE


def test_a_folder_replaces_a_file_of_a_lower_layer(tmp_path):
    folder_now = unpack(tmp_path, built(regular("d", b"a file")), built(folder("d"), regular("d/x")))
    assert (folder_now / "d" / "x").is_file()


def test_a_layer_links_to_what_lower_layers_brought(tmp_path):
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
def test_nothing_is_done_through_a_link_of_a_lower_layer(tmp_path, upper):
    lower = built(regular("dir/victim"), symlink("link", "dir"))
    with pytest.raises(OperationFailed) as failure:
        unpack(tmp_path, lower, upper)
    assert failure.value.reason is Reason.ARCHIVE_ESCAPES


def test_a_file_that_a_layer_replaces_does_not_change_its_hard_link(tmp_path):
    lower = built(regular("a", b"old"), hardlink("b", "a"))
    folder = unpack(tmp_path, lower, built(regular("a", b"new")))
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"new", b"old")


# a disk that writes beside us ----------------------------------------------------------------------------------


class Hurried(Disk):
    def __init__(self, fault: OSError | None = None) -> None:
        self.sizes: list[int] = []
        self._fault = fault

    def hurry(self, path: Path) -> None:
        self.sizes.append(path.stat().st_size)
        super().hurry(path)
        if self._fault is not None:
            raise self._fault


@pytest.mark.parametrize("fault", [None, OSError(errno.EINVAL, "Invalid argument")], ids=["it can", "it cannot"])
def test_the_disk_begins_with_a_large_file_before_it_is_whole(tmp_path, fault):
    size = 40_000_000
    disk = Hurried(fault)
    folder = unpack(tmp_path, built(regular("small", b"s"), regular("large", os.urandom(size))), disk=disk)
    assert (folder / "large").stat().st_size == size
    assert 0 < disk.sizes[0] < size == disk.sizes[-1]


# a disk without links -----------------------------------------------------------------------------------------


class NoLinks(Disk):
    def symlink(self, link: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


def test_where_the_disk_knows_no_links_they_become_copies(tmp_path):
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
