"""A copy of the sources that may be broken, and the tests that are run on it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.arming import NOTES, Break

ROOT = Path(__file__).parent.parent.parent
SETUP_S = 120
"""for fixtures, and for tests that take longer to be cleaned up than to fail"""
_ARMED = """

from tests.mutations.arming import arm as _arm
from tests.mutations.all_breaks import named as _named
_arm(globals(), _named({what!r}))
"""
_ARMED_IN_SANDBOX = """

with workflow.unsafe.imports_passed_through():
    from tests.mutations.arming import arm as _arm
    from tests.mutations.all_breaks import named as _named
_arm(globals(), _named({what!r}))
"""


class Copy:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / NOTES.name
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)

    @contextmanager
    def broken(self, each: Break) -> Iterator[None]:
        """The module of the break, armed for as long as the block lasts."""
        path = self.folder / "src" / f"{each.module.replace('.', '/')}.py"
        source = path.read_text()
        in_sandbox = "imports_passed_through" in source
        path.write_text(source + (_ARMED_IN_SANDBOX if in_sandbox else _ARMED).format(what=each.what))
        shutil.rmtree(self.notes, ignore_errors=True)
        try:
            yield
        finally:
            path.write_text(source)

    def note(self, kind: str) -> str:
        path = self.notes / kind
        return path.read_text() if path.exists() else ""

    def why_not_importable(self, module: str) -> str:
        """Empty when the module can be imported as it is now."""
        done = self._python(["-c", f"import {module}"])
        return done.stderr.strip().splitlines()[-1] if done.returncode else ""

    def failing(self, tests: Sequence[str], *, limit_s: int) -> set[str]:
        """Those of the tests that fail, without their parameters; a fixture that breaks is no failed test."""
        options = ["-q", "-rf", "--tb=no", "-p", "no:cacheprovider", f"--timeout={limit_s}"]
        # not the folder that all runs share: what another one left there may keep pytest from its summary
        own = self.folder.parent / "tmp"
        command = ["-m", "pytest", *options, f"--basetemp={own}", "-o", "timeout_func_only=true", *tests]
        try:
            done = self._python(command, within_s=limit_s * len(tests) + SETUP_S)
        except subprocess.TimeoutExpired:
            sys.stdout.write("    the tests never ended\n")
            return set()
        finally:
            subprocess.run(["rm", "-rf", str(own)], check=False)  # trees may be too deep for shutil.rmtree
        lines = done.stdout.splitlines()
        failed = [line for line in lines if line.startswith("FAILED ")]
        sys.stdout.writelines(f"    {line}\n" for line in [*failed, lines[-1] if lines else done.stderr])
        return {line.split()[1].partition("[")[0] for line in failed}

    def _python(self, arguments: Sequence[str], *, within_s: float | None = None) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join((str(self.folder / "src"), str(self.folder)))
        environment = {**os.environ, "PYTHONPATH": paths, "NODESMITH_TEST_HANGS_S": "30"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            timeout=within_s,
        )
