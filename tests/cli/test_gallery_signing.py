"""Keys, signatures and signed indexes from the command line, without an API."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.main import make_app
from nodesmith.gallery.artifact_keys import read_key
from nodesmith.gallery.minisign import read_signatures
from nodesmith.gallery.signed_index import check_root


def ran(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(make_app(), [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    index = tmp_path / "index.yaml"
    index.write_text("- {name: a, uri: registry.invalid/a/b:1}\n")
    return index


def test_a_key_is_secret_and_never_replaced(tmp_path: Path) -> None:
    made = ran("galleries", "keygen", str(tmp_path / "ada"))
    assert stat.S_IMODE(Path(made["secret"]).stat().st_mode) == 0o600
    assert read_key(Path(made["public"]).read_text()).id == made["id"]
    with pytest.raises(CommandFailed, match="already exists"):
        ran("galleries", "keygen", str(tmp_path / "ada"))


def test_an_index_is_signed_again_and_its_keys_are_replaced(tmp_path: Path, index: Path) -> None:
    old, new = (ran("galleries", "keygen", str(tmp_path / name))["secret"] for name in ("old", "new"))
    first = ran("galleries", "sign", str(index), "--key", old, "--days", "7")
    assert first["version"] == 1
    check_root(Path(first["root"]).read_text())
    assert ran("galleries", "sign", str(index), "--key", old)["version"] == 2
    rotated = ran("galleries", "rotate", str(index), "--key", old, "--to", new)
    assert (Path(rotated["root"]).name, rotated["version"]) == ("2.root.json", 3)
    with pytest.raises(CommandFailed, match="not enough"):
        ran("galleries", "sign", str(index), "--key", old)


@pytest.mark.parametrize("arguments", [("--key", "none.key"), ("--key", "index.yaml")])
def test_unusable_key_is_named(index: Path, arguments: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(index.parent)
    with pytest.raises(CommandFailed, match=r"cannot be read|not a minisign secret key"):
        ran("galleries", "sign", str(index), *arguments)


def test_an_archive_is_packed_and_signed_by_several_keys(tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    keys = [ran("galleries", "keygen", str(tmp_path / name)) for name in ("ada", "bob")]
    signing = [part for key in keys for part in ("--sign", key["secret"])]
    made = ran("backend", "pack", str(folder), "--output", str(tmp_path), *signing)
    assert made["signed_by"] == [key["id"] for key in keys]
    archive = Path(made["archive"])
    signatures = read_signatures(Path(f"{archive}.minisig").read_text())
    for key, signature in zip(keys, signatures, strict=True):
        public = read_key(Path(key["public"]).read_text())
        assert (signature.states(public), signature.covers(archive, public)) == (made["sha256"], True)
