"""Break the code on a copy, function by function, and see its tests fail: `python -m tests.mutations [RULE ...]`.

A rule is a number, a word for promises that have none, or a part of what is broken: `python -m tests.mutations S14`.
`--sample N` takes N of the cheap ones, drawn by `--seed` (the commit, unless given); `make test` does that.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutations.all_breaks import BREAKS
from tests.mutations.arming import Break, Unresolvable, check
from tests.mutations.copies import ROOT, Copy
from tests.rule_tables import in_order, located

SEEN = "turned red"


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    chosen = _sample(options.sample, options.seed) if options.sample else _asked(options.rules)
    if options.list:
        sys.stdout.writelines(f"{' '.join(each.rules)}: {each.what} ({each.target})\n" for each in chosen)
        return 0
    if not chosen:
        sys.stdout.write("There is no such break.\n")
        return 2
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        verdicts = _judge(Copy(Path(folder) / "copy"), chosen, is_controlled=not options.without_control)
    sys.stdout.writelines(f"{verdict}: {each.what} ({each.target})\n" for each, verdict in verdicts.items())
    not_seen = sum(verdict != SEEN for verdict in verdicts.values())
    sys.stdout.write(f"{len(verdicts) - not_seen} of {len(verdicts)} breaks turned their tests red.\n")
    return 1 if not_seen else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("rules", nargs="*", help="only the breaks of these rules")
    parser.add_argument("--sample", type=int, default=0, help="only so many of the cheap ones")
    parser.add_argument("--seed", default="", help="which ones; default: the commit")
    parser.add_argument("--list", action="store_true", help="name them and break nothing")
    parser.add_argument("--without-control", action="store_true", help="do not see that the tests pass unbroken")
    return parser.parse_args(arguments)


def _asked(wanted: Sequence[str]) -> list[Break]:
    return [each for each in BREAKS if not wanted or any(_is_meant(each, word) for word in wanted)]


def _is_meant(each: Break, word: str) -> bool:
    return word in each.rules or (len(word) > len("S100") and (word in each.what or word in each.target))


def _sample(size: int, seed: str) -> list[Break]:
    drawn_by = seed or _commit()
    sys.stdout.write(f"A sample of {size} breaks, drawn by --seed {drawn_by}\n")
    cheap = [each for each in BREAKS if is_cheap(each)]
    return random.Random(drawn_by).sample(cheap, min(size, len(cheap)))


def is_cheap(each: Break) -> bool:
    """Its tests start no whole system, and do not hang."""
    return not each.waits and not any(test.startswith(("tests/e2e/", "tests/stack/")) for test in _tests(each))


def _commit() -> str:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False, text=True)
    return head.stdout.strip() or time.strftime("%Y-%m-%d")


def _judge(copy: Copy, chosen: Sequence[Break], *, is_controlled: bool) -> dict[Break, str]:
    verdicts = {each: _verdict(copy, each) for each in chosen}
    seen = [each for each, verdict in verdicts.items() if verdict == SEEN]
    if not is_controlled or not seen:
        return verdicts
    sys.stdout.write("the same tests, unbroken\n")
    return verdicts | dict.fromkeys(_red_anyway(copy, seen), "RED WITHOUT IT")


def _red_anyway(copy: Copy, seen: Sequence[Break]) -> Iterator[Break]:
    """Within the same limits: a test that is merely slow was not broken."""
    for limit_s in sorted({each.limit_s for each in seen}):
        alike = [each for each in seen if each.limit_s == limit_s]
        red = copy.failing(in_order({test for each in alike for test in _tests(each)}), limit_s=limit_s)
        yield from (each for each in alike if _tests(each) & red)


def _verdict(copy: Copy, each: Break) -> str:
    sys.stdout.write(f"{' '.join(each.rules)}: {each.what} ({each.target})\n")
    sys.stdout.flush()
    try:
        check(each)
    except Unresolvable as error:
        return f"NO LONGER APPLIES: {error}"
    with copy.broken(each):
        if why := copy.why_not_importable(each.module):
            return f"CANNOT BE ARMED: {why}"
        red = copy.failing(in_order(_tests(each)), limit_s=each.limit_s)
    if defect := copy.note("defective"):
        return f"DEFECTIVE: {defect}"
    if not _tests(each) <= red:
        return "STILL GREEN"
    return SEEN if copy.note("reached") else "RED, BUT THE BREAK WAS NEVER REACHED"


def _tests(each: Break) -> set[str]:
    return {located(test) for test in each.tests}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
