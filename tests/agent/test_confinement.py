"""Confinement: a hostile backend reaches nothing it must not, and everything that a backend needs."""

import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodesmith.agent.run.accounts import Account, account_of
from nodesmith.agent.run.confinement import Confinement, Launch, Mode
from nodesmith.agent.run.launcher import FULL_ABI, landlock_abi
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.domain.kinds import Kind
from tests.agent.archives import built, regular
from tests.agent.plan_faults import AgentRun
from tests.agent.test_kill_matrix import Bench

SERVER = Path(__file__).with_name("hostile_backend.py")
RUN = f'#!/bin/sh\nexec "{sys.executable}" -u server.py "$@"\n'
SECRET = "the secret of somebody else"


class Target:
    """A node with secrets, and a backend that tries to read them."""

    def __init__(self, folder: Path, http: httpx2.AsyncClient) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.bench = Bench(folder, http)
        self.models = folder / "models"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("\0" + f"nodesmith-{os.getpid()}")
        self.listener.listen()

    def secrets(self) -> list[Path]:
        """Create the secrets before the backend starts."""
        control = self.folder / "control" / "secrets" / "admin-token"
        ssh = self.folder / "user" / ".ssh" / "id_ed25519"
        own = [
            self.home / name for name in ("identity.json", "joined.json", "logs/other.log", "scratch/other/home/data")
        ]
        for path in (control, ssh, *own):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SECRET)
            path.chmod(0o600)
        return [*own, self.home / "journal" / "op.json", control, ssh, Path("/etc/shadow"), Path("/proc/1/environ")]

    def targets(self) -> dict[str, Any]:
        secrets = self.secrets()
        for folder in (self.models, self.home / "models"):
            folder.mkdir(exist_ok=True)
            (folder / "weights").write_text("1")
        folders = [
            self.home,
            self.home / "journal",
            self.home / "scratch" / "other" / "home",
            self.folder,
            Path("/tmp"),
        ]
        return {
            "agent": os.getpid(),
            "files": [str(path) for path in secrets],
            "folders": [str(path) for path in folders],
            "models": [str(self.models / "weights"), str(self.home / "models" / "weights")],
            "abstract": "\0" + f"nodesmith-{os.getpid()}",
        }

    async def start(self, **settings: Any) -> tuple[Outcome, dict[str, Any]]:
        """Return the backend's report of its attempts."""
        life = await AgentRun(self.home, self.bench.http, backend_read=(self.models,), **settings).begin()
        targets = json.dumps(self.targets()).encode()
        content = built(
            regular("run.sh", RUN.encode()), regular("server.py", SERVER.read_bytes()), regular("targets.json", targets)
        )
        archive = self.folder / "hostile.tar.gz"
        archive.write_bytes(content)
        command = self.bench.command("op", Kind.INSTALL, "", uri=archive.as_uri(), sha256="", start=True)
        try:
            outcome = await life.outcome_of(command)
            (log,) = (self.home / "logs").glob("echo*.log")
            printed = [line for line in log.read_text().splitlines() if line.startswith("{")]
            pids = [keeper.record.pid for keeper in life.assembly.supervisor.serving()]
            return outcome, {**(json.loads(printed[0]) if printed else {}), "pids": pids}
        finally:
            await life.assembly.stop_backends()
            await life.close()


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async with httpx2.AsyncClient(verify=False) as http:  # sources are files, so no request is sent
        target = Target(tmp_path, http)
        yield target
        target.listener.close()


@pytest.fixture
def inherited(tmp_path: Path) -> Iterator[int]:
    """A descriptor that a library of the agent left inheritable by mistake."""
    (tmp_path / "open").write_text(SECRET)
    descriptor = os.open(tmp_path / "open", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    yield descriptor
    os.close(descriptor)


def test_the_kernel_of_these_tests_can_hide_everything():
    assert landlock_abi() >= FULL_ABI


@pytest.mark.usefixtures("inherited")
async def test_a_hostile_backend_is_refused_everything_and_has_what_it_needs(
    target: Target, monkeypatch: pytest.MonkeyPatch
):
    for name in ("NODESMITH_ADMIN_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "CUDA_API_KEY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    outcome, report = await target.start(backend_environment=("HTTPS_PROXY",))
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert {name: answer for name, answer in report["attempts"].items() if not answer.startswith("refused")} == {}
    assert {name: answer for name, answer in report["needs"].items() if not answer.startswith("got")} == {}
    state = report["state"]
    assert [state["pid"]] == report["pids"]
    assert state["descriptors"] == [0, 1, 2]
    assert (set(state["capabilities"]), state["no_new_privileges"]) == ({"0" * 16}, "1")
    assert state["core"] == [0, 0]
    assert SECRET not in state["environment"].values()
    assert state["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert state["environment"]["HTTPS_PROXY"] == "http://proxy"
    assert Path(state["environment"]["HOME"]).is_relative_to(target.home / "scratch")


async def test_without_confinement_the_same_backend_gets_the_identity_of_the_node(target: Target):
    """Shows that the test above passes because of the confinement."""
    outcome, report = await target.start(backend_confinement=Mode.OFF)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    assert SECRET in report["attempts"][f"read {target.home / 'identity.json'}"]


def confined(folder: Path, script: str, **rules: Any) -> tuple[Confinement, Launch]:
    """A backend whose `run.sh` is that script."""
    version = folder / "home" / "backends" / "echo" / "1"
    version.mkdir(parents=True)
    (version / "run.sh").write_text(script)
    (version / "run.sh").chmod(0o755)
    confinement = Confinement(folder / "home", **rules)
    confinement.prepare()
    return confinement, confinement.launch(version, "127.0.0.1:20999")


def output_of(launch: Launch) -> str:
    done = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def test_hidden_path_below_a_readable_one_stays_hidden(tmp_path: Path):
    for name in ("secrets", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"of {name}")
    script = f"#!/bin/sh\ncat {tmp_path}/shared/file {tmp_path}/secrets/file {tmp_path}/home/identity.json\n"
    _, launch = confined(tmp_path, script, read=[tmp_path], hidden=[tmp_path / "secrets"])
    (tmp_path / "home" / "identity.json").write_text(SECRET)
    output = output_of(launch)
    assert "of shared" in output
    assert "of secrets" not in output
    assert SECRET not in output


def test_a_script_without_a_first_line_is_run_by_the_shell(tmp_path: Path):
    assert output_of(confined(tmp_path, 'echo "hello $1 $2"\n')[1]) == "hello --addr 127.0.0.1:20999\n"


def test_ports_are_limited_for_a_backend_that_asks(tmp_path: Path):
    script = f"""#!/bin/sh
exec "{sys.executable}" -c '
import socket
for port in (20999, 20998):
    try: socket.create_server(("127.0.0.1", port)).close(); print(port, "bound")
    except PermissionError: print(port, "refused")
try: socket.create_connection(("127.0.0.1", 20997))
except OSError as error: print(type(error).__name__)
'
"""
    _, launch = confined(tmp_path, script)
    (tmp_path / "home/backends/echo/1/backend.json").write_text('{"connects_to": [443, "x"]}')
    launch = Confinement(tmp_path / "home").launch(tmp_path / "home/backends/echo/1", "127.0.0.1:20999")
    assert output_of(launch).split("\n")[:3] == ["20999 bound", "20998 refused", "PermissionError"]


def test_backends_of_root_run_as_another_user(tmp_path: Path):
    if os.geteuid() != 0:
        with pytest.raises(ValueError, match="requires an agent that runs as root"):
            account_of("64999")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        script = (
            "#!/bin/sh\nid -u; id -g; cat ../../../identity.json; touch $HOME/a $TMPDIR/b && echo wrote; touch here\n"
        )
        (folder / "home").mkdir()
        (folder / "home" / "identity.json").write_text(SECRET)
        (folder / "home" / "identity.json").chmod(0o600)
        confinement, launch = confined(folder, script, account=account_of("64999:64998"), mode=Mode.OFF)
        output = output_of(launch)
        assert output.startswith("64999\n64998\n")
        assert "wrote" in output
        assert SECRET not in output
        assert not (folder / "home/backends/echo/1/here").exists()
        assert "signals and abstract sockets" in confinement.weaknesses()


def test_a_kernel_without_landlock_leaves_no_capabilities_either(tmp_path: Path):
    _, launch = confined(tmp_path, "#!/bin/sh\ngrep -E '^(Cap(Prm|Eff)|NoNewPrivs)' /proc/self/status\n")
    *_, file, folder, rules, option, address = launch.argv
    old = (
        "import runpy, sys; launcher = runpy.run_path(sys.argv[1]); main = launcher['main'];"
        " main.__globals__['landlock_abi'] = lambda: 0; main(sys.argv[2:])"
    )
    argv = [sys.executable, "-I", "-S", "-c", old, file, folder, rules, option, address]
    words = output_of(replace(launch, argv=argv)).split()
    assert words == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


def test_a_folder_that_the_user_of_backends_cannot_enter_is_named(tmp_path: Path):
    if os.geteuid() != 0:
        return
    (tmp_path / "closed").mkdir(mode=0o700)
    _, launch = confined(tmp_path / "closed", "#!/bin/sh\necho hello\n", account=Account(64999, 64999))
    assert "user 64999 may not enter" in output_of(launch)


def test_unknown_backend_user_is_refused():
    with pytest.raises(ValueError, match="no such user"):
        account_of("nobody-of-that-name")
    assert account_of("none") is None


def test_scratch_of_a_removed_backend_is_deleted(tmp_path: Path):
    confinement, _ = confined(tmp_path, "")
    assert (tmp_path / "home/scratch/echo/home").is_dir()
    confinement.prune_scratch({"echo"})
    assert (tmp_path / "home/scratch/echo/home").is_dir()
    confinement.prune_scratch(set())
    assert not (tmp_path / "home/scratch/echo").exists()


def test_the_settings_of_confinement(monkeypatch: pytest.MonkeyPatch):
    settings = AgentSettings()
    assert (settings.backend_confinement, settings.backend_user) == (Mode.ON, "")
    assert (settings.backend_read, settings.backend_write, settings.backend_hidden, settings.backend_environment) == (
        (),
    ) * 4
    monkeypatch.setenv("NODESMITH_AGENT_BACKEND_READ", "/models:/data")
    monkeypatch.setenv("NODESMITH_AGENT_BACKEND_ENVIRONMENT", "A,B")
    settings = AgentSettings()
    assert settings.backend_read == (Path("/models"), Path("/data"))
    assert settings.backend_environment == ("A", "B")


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF])
def test_summary_says_what_the_kernel_can_and_which_user_backends_have(tmp_path: Path, mode: Mode) -> None:
    summary = Confinement(tmp_path, mode=mode, account=Account(uid=54321, gid=1)).summary()
    assert (summary.mode, summary.landlock_abi, summary.user) == (mode, landlock_abi(), "54321")
    assert ("files" in summary.missing) is (mode is Mode.OFF or landlock_abi() < 1)


def test_summary_names_the_agents_own_user_where_backends_have_no_other(tmp_path: Path) -> None:
    summary = Confinement(tmp_path).summary()
    assert summary.user == pwd.getpwuid(os.geteuid()).pw_name
    assert ("unix sockets that trust root" in summary.missing) is (os.geteuid() == 0)
