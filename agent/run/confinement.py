"""Confines backends to their own folder, scratch folders, models, system programs and GPUs.

A backend runs third-party code on the agent's machine, often as the agent's user. The launcher
(`agent/run/launcher.py`) removes all other access before the first line of `run.sh` runs.
"""

import enum
import os
import pwd
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodesmith.agent.disk.tree_removal import remove_tree
from nodesmith.agent.run import launcher
from nodesmith.agent.run.accounts import Account
from nodesmith.agent.run.health import declaration_of
from nodesmith.contracts.nats.presence import BackendConfinement

_PROGRAMS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
_CONFIGURATION = """
alternatives ca-certificates crypto-policies fonts gai.conf glvnd group host.conf hosts ld.so.cache ld.so.conf
ld.so.conf.d localtime mime.types nsswitch.conf nvidia OpenCL os-release passwd pki protocols resolv.conf services
ssl timezone vulkan"""
_NAME_SERVICE = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf")
_FACTS = ("/proc", "/sys")
_DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "dri", "kfd", "accel", "dxg")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - what it is for

_VARIABLES = frozenset({"LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHON"})
_PREFIXES = """
LC_ CUDA_ NVIDIA_ NCCL_ HIP_ ROCR_ ROCM_ HSA_ AMD_ GPU_ ONEAPI_ ZE_ SYCL_ OMP_ KMP_ GOMP_ MKL_ OPENBLAS_ GGML_"""
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY")
_LAST_PORT = 65535
_MODELS = ("models", "model-files")
"""folders of the home that every backend may read"""
_VISIBLE = ("backends", "scratch", *_MODELS)


class Mode(enum.StrEnum):
    ON = "on"
    """as far as the kernel supports it"""
    OFF = "off"
    """only a clean environment and closed descriptors; no file is hidden"""
    REQUIRE = "require"
    """start no backend unless the kernel supports all of it"""


@dataclass(frozen=True)
class LaunchRules:
    """Rules passed to the launcher on its command line, which every user of the machine can read."""

    mode: Mode
    see: list[str]
    """may be read, not executed"""
    read: list[str]
    """may be read and executed"""
    write: list[str]
    device: list[str]
    bind: list[int]
    """ports; empty: any"""
    connect: list[int]
    account: Account | None

    def encoded(self) -> str:
        """Encode one line per rule; a path with a line break is omitted and so stays forbidden."""
        user = self.account
        ids = [("uid", user.uid), ("gid", user.gid), *(("group", group) for group in user.groups)] if user else []
        lists = ("see", "read", "write", "device", "bind", "connect")
        values = [(kind, value) for kind in lists for value in getattr(self, kind)]
        lines = [f"{kind} {value}" for kind, value in [("mode", self.mode), *ids, *values]]
        return "\n".join(line for line in lines if len(line.splitlines()) == 1)


@dataclass(frozen=True)
class Scratch:
    """Writable folders of a backend: its HOME for caches, and temporary files."""

    home: Path
    tmp: Path


@dataclass(frozen=True)
class Launch:
    """Command line and environment of a backend process."""

    argv: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Confinement:
    """Confinement of all backends of one agent. Its methods block."""

    home: Path
    mode: Mode = Mode.ON
    account: Account | None = None
    read: Collection[Path] = ()
    """additional paths, such as model folders"""
    write: Collection[Path] = ()
    hidden: Collection[Path] = ()
    """never readable, even below a readable path; the agent's home is always hidden"""
    variables: Collection[str] = ()
    """additional environment variables of the agent that backends receive"""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def launch(
        self, folder: Path, address: str, arguments: Iterable[str] = (), environment: Mapping[str, str] | None = None
    ) -> Launch:
        """Return how to launch the version in that folder, with further arguments and variables.

        The launcher sets the variables once it is confined: one like LD_PRELOAD would run code before that.
        """
        scratch = self._scratch(folder.parent.name)
        rules = self._rules(folder, scratch, int(address.rsplit(":", 1)[1]))
        script = [sys.executable, "-I", "-S", launcher.__file__]
        argv = [*script, str(folder), rules.encoded(), "--addr", address, *arguments]
        given = {f"{launcher.GIVEN}{name}": value for name, value in (environment or {}).items()}
        return Launch(argv, self._environment_of(scratch) | given)

    def prepare(self) -> None:
        """Set the permissions of the home, so that the backends' user reaches only its own folders."""
        if self.account is None:
            return
        self.home.chmod(0o711)
        for child in self.home.iterdir():
            if child.is_dir() and not child.is_symlink():
                child.chmod(0o755 if child.name in _VISIBLE else 0o700)

    def prune_scratch(self, families: Collection[str]) -> None:
        """Delete the scratch folders of backends that are no longer installed."""
        for folder in (self.home / "scratch").glob("*"):
            if folder.name not in families:
                remove_tree(folder)

    def weaknesses(self) -> list[str]:
        """List what backends can reach although they should not, for the log."""
        abi = launcher.landlock_abi()
        gaps = {1: "files", 3: "truncating files", 4: "ports", 5: "device commands", 6: "signals and abstract sockets"}
        found = [what for since, what in gaps.items() if abi < since or self.mode is Mode.OFF]
        return found + (["unix sockets that trust root"] if self._uid() == 0 else [])

    def summary(self) -> BackendConfinement:
        """Return mode, kernel support, user and weaknesses, for the control plane."""
        return BackendConfinement(
            mode=self.mode, landlock_abi=launcher.landlock_abi(), user=_name_of(self._uid()), missing=self.weaknesses()
        )

    # files ------------------------------------------------------------------------------------------------------

    def _rules(self, folder: Path, scratch: Scratch, port: int) -> LaunchRules:
        configuration = [f"/etc/{name}" for name in _CONFIGURATION.split()]
        connects_to = _allowed_ports(folder)
        models = [str(self.home.absolute() / name) for name in _MODELS]
        return LaunchRules(
            mode=self.mode,
            see=[*self._visible([*configuration, *_NAME_SERVICE, *_FACTS]), *models],
            read=[*self._visible(self._programs()), str(folder)],
            write=[*self._visible(map(str, self.write)), _SHARED_MEMORY, str(scratch.home), str(scratch.tmp)],
            device=[str(path) for name in _DEVICES for path in Path("/dev").glob(name)],
            bind=[port] if connects_to is not None else [],
            connect=connects_to or [],
            account=self.account,
        )

    def _programs(self) -> list[str]:
        """Return the system's program paths, the agent's interpreter, and the configured paths."""
        return [*_PROGRAMS, sys.prefix, sys.base_prefix, *map(str, self.read)]

    def _visible(self, paths: Iterable[str]) -> list[str]:
        hidden = [path.resolve() for path in (self.home, *self.hidden)]
        return [str(part) for path in paths for part in _paths_outside_hidden(Path(path), hidden)]

    def _scratch(self, family: str) -> Scratch:
        """Create the scratch folders before the backend can plant a link; emptied when the user changed."""
        folder = self.home.absolute() / "scratch" / family
        scratch = Scratch(folder / "home", folder / "tmp")
        if scratch.home.exists() and scratch.home.stat().st_uid != self._uid():
            remove_tree(folder)
        for each in (scratch.home, scratch.tmp):
            if not each.exists():
                self._make(each)
        return scratch

    def _make(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        if self.account is not None:
            folder.parent.chmod(0o711)
            os.chown(folder, self.account.uid, self.account.gid, follow_symlinks=False)

    def _uid(self) -> int:
        return self.account.uid if self.account is not None else os.geteuid()

    # the environment --------------------------------------------------------------------------------------------

    def _environment_of(self, scratch: Scratch) -> dict[str, str]:
        kept = {name: value for name, value in self.environment.items() if self._is_passed_on(name)}
        own = {"HOME": str(scratch.home), "TMPDIR": str(scratch.tmp), "USER": "backend", "LOGNAME": "backend"}
        return {"LANG": "C.UTF-8", **kept, **own, "PATH": self._search_path()}

    def _is_passed_on(self, name: str) -> bool:
        if name in self.variables:
            return True
        if name.startswith("NODESMITH_") or any(word in name.upper() for word in _SECRETS):
            return False
        return name in _VARIABLES or name.startswith(tuple(_PREFIXES.split()))

    def _search_path(self) -> str:
        """Return the agent's PATH without unreadable folders, then the agent's interpreter."""
        readable = self._programs()
        wanted = self.environment.get("PATH", os.defpath).split(os.pathsep)
        kept = [path for path in wanted if any(Path(path).is_relative_to(root) for root in readable)]
        return os.pathsep.join([*kept, str(Path(sys.base_prefix) / "bin")])


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _paths_outside_hidden(path: Path, hidden: Collection[Path]) -> Iterator[Path]:
    """Yield the path, or its content without hidden paths, because Landlock can only allow."""
    real = path.resolve()
    if any(real.is_relative_to(each) for each in hidden):
        return
    if not any(each.is_relative_to(real) for each in hidden):
        yield path
        return
    for child in real.iterdir():
        yield from _paths_outside_hidden(child, hidden)


def _allowed_ports(folder: Path) -> list[int] | None:
    """Read `"connects_to": [443]` from `backend.json`: the only ports it may connect to. None: any."""
    allowed = declaration_of(folder).get("connects_to")
    if not isinstance(allowed, list):
        return None
    return [each for each in allowed if type(each) is int and 0 < each <= _LAST_PORT]
