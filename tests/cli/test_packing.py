"""Packing is reproducible, and refuses a folder that is not a backend."""

import json
import os
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nodesmith.agent.disk.archive import Unpacker
from nodesmith.agent.disk.archive_policy import ArchiveLimits
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.main import make_app
from nodesmith.gallery.index import read_index
from nodesmith.gallery.minisign import SecretKey


def packed(*arguments: str) -> str:
    result = CliRunner().invoke(make_app(), ["backend", "pack", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my-tool"
    (made / "lib").mkdir(parents=True)
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "lib" / "engine").write_bytes(b"\x7fELF")
    (made / "lib" / "engine").chmod(0o755)
    return made


def test_same_files_give_the_same_archive_in_any_folder(folder: Path, tmp_path: Path) -> None:
    made = []
    for number, mtime in enumerate((1, 2_000_000_000)):
        os.utime(folder / "run.sh", (mtime, mtime))
        made.append(json.loads(packed(str(folder), "--output", str(tmp_path / str(number)), "--json")))
    assert made[0]["sha256"] == made[1]["sha256"]
    assert (made[0]["name"], made[0]["version"], made[0]["uri"]) == ("my-tool", "1", "my-tool-1.tar.gz")


def test_the_entry_beside_it_is_an_index(folder: Path, tmp_path: Path) -> None:
    packed(str(folder), "--output", str(tmp_path), "--version", "1.0", "--description", 'says: "hi" # there')
    index = tmp_path / "my-tool-1.0.yaml"
    entry = read_index(index.read_text(), gallery="mine", base=index.as_uri()).entries[0]
    assert entry.artifact.uri == (tmp_path / "my-tool-1.0.tar.gz").as_uri()
    assert entry.artifact.description == 'says: "hi" # there'
    assert entry.artifact.size == (tmp_path / "my-tool-1.0.tar.gz").stat().st_size


def test_folder_without_run_script_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").unlink()
    with pytest.raises(CommandFailed, match=r"no run\.sh"):
        packed(str(folder), "--output", str(tmp_path))
    with pytest.raises(CommandFailed, match="not a valid name and version"):
        packed(str(folder), "--name", "a/b", "--output", str(tmp_path))
    assert not list(tmp_path.glob("*.tar.gz"))


def test_links_and_empty_folders_come_along(folder: Path, tmp_path: Path) -> None:
    (folder / "models").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib" / "start").symlink_to("../lib/../run.sh")
    (folder / "lib" / "later").symlink_to("not-yet")
    packed(str(folder), "--output", str(tmp_path))
    unpacked = tmp_path / "unpacked"
    with (tmp_path / "my-tool-1.tar.gz").open("rb") as archive:
        Unpacker(unpacked, ArchiveLimits(100, 1000), threading.Event(), lambda: None).unpack(lambda: archive)
    assert (unpacked / "models").is_dir()
    assert (unpacked / "lib64" / "engine").read_bytes() == b"\x7fELF"
    assert (unpacked / "lib" / "start").readlink() == Path("../run.sh")
    assert (unpacked / "lib" / "later").readlink() == Path("not-yet")


def test_unpackable_file_is_named(folder: Path, tmp_path: Path) -> None:
    for odd in ("/etc/hostname", "../../elsewhere"):
        (folder / "odd").symlink_to(odd)
        with pytest.raises(CommandFailed, match="odd links to"):
            packed(str(folder), "--output", str(tmp_path))
        (folder / "odd").unlink()
    (folder / "metadata.json").write_text("{}")
    with pytest.raises(CommandFailed, match="Nodesmith reserves"):
        packed(str(folder), "--output", str(tmp_path))
    (folder / "metadata.json").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(CommandFailed, match="pipe is not a file"):
        packed(str(folder), "--output", str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path != folder]


def test_archive_is_not_written_into_the_packed_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(CommandFailed, match="is inside the folder"):
        packed(".")
    packed(".", "--output", "..")
    assert (folder.parent / "my-tool-1.tar.gz").is_file()


def test_secret_key_in_the_packed_folder_is_not_published(folder: Path, tmp_path: Path) -> None:
    (folder / "lib" / "release.key").write_text(SecretKey.make().secret_text())
    (tmp_path / "link.key").symlink_to(folder / "lib" / "release.key")
    for key in (folder / "lib" / "release.key", tmp_path / "link.key"):
        with pytest.raises(CommandFailed, match="would be in the archive"):
            packed(str(folder), "--output", str(tmp_path / "out"), "--sign", str(key))
    assert not (tmp_path / "out").exists()


def test_nothing_is_packed_if_a_key_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.key").write_text("odd")
    with pytest.raises(CommandFailed, match="not a minisign secret key"):
        packed(str(folder), "--output", str(tmp_path / "out"), "--sign", str(tmp_path / "odd.key"))
    assert not (tmp_path / "out").exists()
