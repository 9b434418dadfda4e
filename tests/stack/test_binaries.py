"""Custom server programs."""

from pathlib import Path

import pytest

from nodesmith.bus.nats_credentials import new_trust
from nodesmith.stack.errors import StackError
from nodesmith.stack.servers import binaries, embedded
from nodesmith.stack.servers.nats import NatsServer
from tests.servers import free_port


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_custom_programs_replace_the_bundled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres = binaries.postgres_folder() / "bin" / "postgres"
    for name in ("temporal", "nats-server"):
        wrapper = script(tmp_path / name, f'exec "{binaries.program(name)}" "$@"')
        monkeypatch.setenv(binaries.CUSTOM_PROGRAMS[name].setting, str(wrapper))
        assert binaries.program(name) == wrapper
    monkeypatch.setenv("NODESMITH_POSTGRES_BIN", str(postgres))
    assert binaries.postgres_folder() == postgres.parent.parent
    binaries.check_custom_programs()


async def test_server_runs_with_a_custom_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    wrapper = script(tmp_path / "nats", f'touch "{used}"; exec "{binaries.program("nats-server")}" "$@"')
    monkeypatch.setenv("NODESMITH_NATS_BIN", str(wrapper))
    server = NatsServer(tmp_path / "nats.d", free_port(), new_trust(), tmp_path / "nats.log")
    async with embedded.running(server):
        assert used.exists()


@pytest.mark.parametrize("custom", binaries.CUSTOM_PROGRAMS.values(), ids=binaries.CUSTOM_PROGRAMS)
@pytest.mark.parametrize("wrong", ["/no/such/program", "temporal", "/tmp"])
def test_missing_program_is_refused_and_its_setting_named(
    monkeypatch: pytest.MonkeyPatch, custom: binaries.CustomProgram, wrong: str
) -> None:
    monkeypatch.setenv(custom.setting, wrong)
    with pytest.raises(StackError, match=f"{custom.setting} is {wrong}, which is not the absolute path of a program"):
        binaries.check_custom_programs()


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("NODESMITH_TEMPORAL_BIN", "temporal version 1.3.0 (Server 1.27.1, UI 2.36.0)"),
        ("NODESMITH_NATS_BIN", "nats-server: v2.9.25"),
        ("NODESMITH_POSTGRES_BIN", "postgres (PostgreSQL) 15.13 (Debian)"),
        ("NODESMITH_POSTGRES_BIN", "something else"),
        ("NODESMITH_NATS_BIN", ""),
    ],
)
def test_program_of_the_wrong_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, printed: str
) -> None:
    monkeypatch.setenv(setting, str(script(tmp_path / "old", f"echo '{printed}'")))
    with pytest.raises(StackError, match=r"or newer is needed"):
        binaries.check_custom_programs()
