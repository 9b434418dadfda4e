"""Measures reading a gallery of 1,000 realistic entries, in processor time and against PyYAML alone.

`python -m benchmarks.gallery`
"""

import statistics
import time
from collections.abc import Callable

import yaml

from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from tests.gallery import wild

BACKENDS = 63
ROUNDS = 7
BAR_S = 0.300


def main() -> int:
    text = wild.index(BACKENDS)
    entries = read_index(text, gallery="wild").entries
    alone = _median(lambda: yaml.load(text, Loader=yaml.CSafeLoader))
    ours = _median(lambda: Catalogue(read_index(text, gallery="wild").entries))
    per_thousand = ours * 1000 / len(entries)
    print(f"{len(entries)} entries, {len(text) / 1000:.0f} kB")
    print(f"PyYAML alone {alone * 1000:.0f} ms; read, checked and indexed {ours * 1000:.0f} ms ({ours / alone:.2f} x)")
    print(f"1,000 entries: {per_thousand * 1000:.0f} ms (bar {BAR_S * 1000:.0f} ms)")
    return 0 if per_thousand <= BAR_S else 1


def _median(work: Callable[[], object]) -> float:
    def once() -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    return statistics.median(once() for _ in range(ROUNDS))


if __name__ == "__main__":
    raise SystemExit(main())
