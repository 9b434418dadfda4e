"""Break the code rule by rule, on a copy, and see its tests fail: `python -m tests.breaking [RULE ...]`.

A rule is a number, or a word for promises that have none: `python -m tests.breaking S14 stream`."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.breaks import BREAKS
from tests.breaks_beyond import BEYOND
from tests.rule_tables import Break, proofs

ROOT = Path(__file__).parent.parent
SEEN = "seen failing"


def main(asked: list[str]) -> int:
    wanted = [each for each in (*BREAKS, *BEYOND) if not asked or set(asked) & set(each.rules)]
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
    verdict = _verdict(copy, broken)
    sys.stdout.write(f"{verdict}: {' '.join(broken.rules)}: {broken.what}\n")
    sys.stdout.flush()
    return verdict == SEEN


def _verdict(copy: Path, broken: Break) -> str:
    """A test that is red anyway proves nothing, so it is run without the break too."""
    with applied(copy, broken) as applies:
        if not applies:
            return "NO LONGER APPLIES"
        if not _tests_fail(copy, broken):
            return "STILL GREEN"
    return "RED WITHOUT IT" if _failing(copy, broken) else SEEN


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
    failed = _failing(copy, broken)
    return all(tests & failed for tests in _proving(broken))


def _proving(broken: Break) -> list[set[str]]:
    return [{test} for test in broken.tests] or [set(proofs()[rule]) for rule in broken.rules]


def _failing(copy: Path, broken: Break) -> set[str]:
    """Those of the tests that fail on the copy, without their parameters."""
    tests = sorted(set().union(*_proving(broken)))
    selected = ["-k", broken.only] if broken.only else []
    options = ["-q", "-rf", "--tb=no", f"--timeout={broken.limit_s}", "-o", "timeout_func_only=true"]
    command = [sys.executable, "-m", "pytest", *options, *tests, *selected]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, text=True)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    sys.stdout.writelines(f"  {line}\n" for line in [*failed, lines[-1] if lines else done.stderr])
    return {line.split()[1].partition("[")[0] for line in failed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
