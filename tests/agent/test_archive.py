"""Unpacking: what is good comes out whole, what is bad writes nothing outside its folder."""

import stat
import threading
from pathlib import Path

import pytest

from agent import archive
from agent.archive import Limits
from agent.failures import OperationFailed, Stopped
from domain.operation import Reason
from tests.agent import archives
from tests.agent.archives import built, hardlink, regular, symlink

ROOMY = Limits(members=1000, unpacked=100_000_000)


def unpack(tmp_path: Path, content: bytes, limits: Limits = ROOMY, halt: threading.Event | None = None) -> Path:
    file, folder = tmp_path / "artifact", tmp_path / "outer" / "folder"
    file.write_bytes(content)
    folder.mkdir(parents=True)
    archive.unpack(file, folder, limits, halt or threading.Event(), lambda: None)
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
        unpack(tmp_path, built(regular("a"), regular("b"), regular("c")), limits)
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
        if reads == 20:
            halt.set()

    with pytest.raises(Stopped):
        archive.unpack(file, tmp_path / "folder", ROOMY, halt, tick)
    assert (tmp_path / "folder" / "payload").stat().st_size < 20_000_000
