"""Break the code rule by rule, on a copy, and see its tests fail: `python -m tests.breaking [RULE ...]`."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.breaks import BREAKS
from tests.rule_tables import Break, proofs

ROOT = Path(__file__).parent.parent
LIMIT_S = 40
"""a test that hangs has failed too"""


def main(asked: list[str]) -> int:
    wanted = [each for each in BREAKS if not asked or set(asked) & set(each.rules)]
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder) / "copy")
        verdicts = [_judged(copy, each) for each in wanted]
    return 0 if all(verdicts) else 1


def copied(to: Path) -> Path:
    """Only what is under version control: the copy is broken, and thrown away."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def _judged(copy: Path, broken: Break) -> bool:
    with applied(copy, broken) as applies:
        failed = applies and _tests_fail(copy, broken)
    verdict = "seen failing" if failed else "STILL GREEN" if applies else "NO LONGER APPLIES"
    sys.stdout.write(f"{verdict}: {' '.join(broken.rules)}: {broken.what}\n")
    sys.stdout.flush()
    return failed


@contextmanager
def applied(copy: Path, broken: Break) -> Iterator[bool]:
    """The source with the break in it; False when its place is not found any more."""
    path = copy / broken.path
    source = path.read_text()
    path.write_text(source.replace(broken.old, broken.new))
    try:
        yield source.count(broken.old) == 1
    finally:
        path.write_text(source)


def _tests_fail(copy: Path, broken: Break) -> bool:
    """True when every rule of the break has a test that fails."""
    proving = {rule: set(proofs()[rule]) for rule in broken.rules}
    failed = _failing(copy, sorted(set().union(*proving.values())), broken.only)
    return all(tests & failed for tests in proving.values())


def _failing(copy: Path, tests: list[str], only: str) -> set[str]:
    """Those of the tests that fail on the copy, without their parameters."""
    selected = ["-k", only] if only else []
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", f"--timeout={LIMIT_S}", *tests, *selected]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, text=True)
    lines = done.stdout.splitlines()
    sys.stdout.write(f"  {lines[-1] if lines else done.stderr}\n")
    return {line.split()[1].partition("[")[0] for line in lines if line.startswith("FAILED ")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
