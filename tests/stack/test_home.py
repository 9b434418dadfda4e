"""Location, permissions and lock of the home."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.stack import secrets
from nodesmith.stack.errors import StackError
from nodesmith.stack.home import Connection, Home, find_home
from nodesmith.stack.lock import HomeLock, holder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def test_the_option_wins_over_the_variable_and_that_over_the_nearest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    below = tmp_path / "clone" / "deep" / "down"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.delenv("NODESMITH_HOME", raising=False)
    assert find_home() == tmp_path / "person" / ".nodesmith"
    (tmp_path / "clone" / ".nodesmith").mkdir()
    assert find_home() == tmp_path / "clone" / ".nodesmith"
    monkeypatch.setenv("NODESMITH_HOME", str(tmp_path / "named"))
    assert find_home() == tmp_path / "named"
    assert find_home(Path("chosen")) == below / "chosen"


def test_secrets_are_made_once_and_only_their_owner_reads_them(home: Home):
    secrets.ensure(home)
    first = {path: path.read_text() for path in home.secrets.rglob("*") if path.is_file()}
    secrets.ensure(home)
    assert {path: path.read_text() for path in home.secrets.rglob("*") if path.is_file()} == first
    assert len(set(first.values())) == len(first) == 7 + 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in first} == {0o600}
    assert stat.S_IMODE(home.secret(secrets.ORDER_KEYS).stat().st_mode) == 0o700
    assert stat.S_IMODE(home.secrets.stat().st_mode) == 0o700


def test_lost_secret_is_created_again_and_the_others_stay(home: Home):
    secrets.ensure(home)
    kept = secrets.read(home, secrets.NATS_OPERATOR_SEED)
    home.secret(secrets.NATS_ACCOUNT_SEED).unlink()
    secrets.ensure(home)
    assert secrets.trust(home).operator_seed == kept
    CredentialIssuer(secrets.trust(home).account_seed)


def test_a_client_finds_url_and_token_through_the_home(home: Home):
    secrets.ensure(home)
    assert home.connection() is None
    home.write_connection(Connection("http://127.0.0.1:1", home.secret(secrets.ADMIN_TOKEN), "http://127.0.0.1:2"))
    found = home.connection()
    assert found is not None
    assert found.url == "http://127.0.0.1:1"
    assert found.token() == secrets.read(home, secrets.ADMIN_TOKEN)
    assert found.token() not in home.connection_file.read_text()


def test_second_holder_is_refused_with_the_pid_of_the_first(home: Home):
    lock = HomeLock.acquire(home.lock_file)
    assert holder(home.lock_file) == os.getpid()
    with pytest.raises(StackError, match=rf"already runs .*pid {os.getpid()}\)"):
        HomeLock.acquire(home.lock_file)
    lock.release()
    assert holder(home.lock_file) is None
    assert not home.lock_file.exists()


def test_lock_of_a_killed_holder_is_free(home: Home):
    code = "import sys; from pathlib import Path; from nodesmith.stack.lock import HomeLock; "
    code += "HomeLock.acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.lock_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert holder(home.lock_file) == other.pid
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert home.lock_file.exists()
    assert holder(home.lock_file) is None
    HomeLock.acquire(home.lock_file).release()
