"""Packing: the same files are the same archive, and what is no backend is refused."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.failures import CommandFailed
from cli.main import make_app
from gallery.index import read_index


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


def test_the_same_files_are_the_same_archive_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
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


def test_what_is_no_backend_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").unlink()
    with pytest.raises(CommandFailed, match=r"no run\.sh"):
        packed(str(folder), "--output", str(tmp_path))
    with pytest.raises(CommandFailed, match="no name and version"):
        packed(str(folder), "--name", "a/b", "--output", str(tmp_path))
    assert not list(tmp_path.glob("*.tar.gz"))
