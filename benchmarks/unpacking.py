"""Measures unpacking of 20,000 paths in 40 layers against `tar x` of the same layers, in one run.

`python -m benchmarks.unpacking [PATHS]` alternates both, and reports wall-clock and processor time. Other load on the
machine affects the latter and the best round least.
"""

import functools
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path

from nodesmith.agent.disk.archive import Unpacker
from nodesmith.agent.disk.archive_policy import ArchiveLimits

PATHS = 20_000
LAYERS = 40
ROUNDS = 5
BAR = 1.2
_KINDS = ["file"] * 16 + ["folder"] * 2 + ["link", "hard link"]
_LIMITS = ArchiveLimits(members=10**6, unpacked=10**10)


def make_layers(folder: Path, paths: int) -> list[Path]:
    """Create layers of small files, as in interpreter images; one in ten replaces a file of a lower layer."""
    chance = random.Random(1)
    known: list[str] = []
    return [make_layer(folder / f"{number}.tar.gz", paths // LAYERS, chance, known) for number in range(LAYERS)]


def make_layer(layer: Path, paths: int, chance: random.Random, known: list[str]) -> Path:
    with tarfile.open(layer, "w:gz", compresslevel=6) as archive:
        inside: list[str] = []
        for number in range(paths):
            again = bool(known) and chance.random() < 0.1
            name = chance.choice(known) if again else f"usr/lib/p{number % 20}/m{number % 7}/{layer.stem}-{number}"
            kind = "file" if again or not inside else chance.choice(_KINDS)
            archive.addfile(*_member(name, kind, chance, inside))
            if kind == "file":
                inside.append(name)
        known += inside
    return layer


def _member(name: str, kind: str, chance: random.Random, inside: list[str]) -> tuple[tarfile.TarInfo, io.BytesIO]:
    member = tarfile.TarInfo(name)
    member.mtime = 1_700_000_000
    content = b""
    match kind:
        case "folder":
            member.type, member.mode = tarfile.DIRTYPE, 0o755
        case "link":
            member.type, member.linkname = tarfile.SYMTYPE, Path(chance.choice(inside)).name
        case "hard link":
            member.type, member.linkname = tarfile.LNKTYPE, chance.choice(inside)
        case _:
            content = chance.randbytes(200) * chance.randint(1, 20)
            member.size = len(content)
    return member, io.BytesIO(content)


def floor(layers: list[Path], folder: Path) -> None:
    for layer in layers:
        subprocess.run(["tar", "xzf", layer, "-C", folder], check=True)


def ours(layers: list[Path], folder: Path) -> None:
    unpacker = Unpacker(folder, _LIMITS, threading.Event(), lambda: None)
    for layer in layers:
        unpacker.unpack_layer(functools.partial(_opened, layer))
    unpacker.finish()


def _opened(layer: Path) -> BufferedIOBase:
    return layer.open("rb")


def measured(unpack: Callable[[list[Path], Path], None], layers: list[Path], folder: Path) -> tuple[float, float]:
    """Return wall-clock and processor seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()
    before, began = _processor(), time.perf_counter()
    unpack(layers, folder)
    return time.perf_counter() - began, _processor() - before


def _processor() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(paths: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-unpacking-"))
    try:
        layers = make_layers(folder, paths)
        rounds = [(measured(floor, layers, folder / "f"), measured(ours, layers, folder / "o")) for _ in range(ROUNDS)]
    finally:
        shutil.rmtree(folder)
    report(rounds)


def report(rounds: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    def ratio(which: int) -> float:
        return statistics.median(own[which] for _, own in rounds) / statistics.median(tar[which] for tar, _ in rounds)

    lines = {
        "tar_s": [round(tar[0], 2) for tar, _ in rounds],
        "ours_s": [round(own[0], 2) for _, own in rounds],
        "ratio": round(ratio(0), 2),
        "ratio_of_the_best": round(min(own[0] for _, own in rounds) / min(tar[0] for tar, _ in rounds), 2),
        "ratio_of_processor_time": round(ratio(1), 2),
        "bar": BAR,
    }
    print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PATHS)
