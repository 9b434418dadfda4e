"""A benchmark that cannot go on says why, ends with an error, and leaves nothing running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.stack.waiting import until

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

ADMISSION = [sys.executable, "-m", "benchmarks.operations", "admission"]
ROOT = Path(__file__).parents[2]
HANGS_S = 200


def begin(folder: Path, **environment: str) -> "subprocess.Popen[str]":
    """In a folder of our own, so that what it leaves is known by it."""
    whole = {**os.environ, **environment, "TMPDIR": str(folder)}
    return subprocess.Popen(ADMISSION, env=whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left_in(folder: Path) -> list[int]:
    return [process.pid for process in psutil.process_iter() if str(folder) in " ".join(words_of(process))]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_benchmark_whose_request_is_refused_ends_with_the_reason(tmp_path: Path) -> None:
    with begin(tmp_path, NODESMITH_URI_SCHEMES='["file"]') as benchmark:
        said, complaint = benchmark.communicate(timeout=HANGS_S)
    assert benchmark.returncode == 1, said
    assert "400" in complaint
    assert "Traceback" not in complaint
    assert left_in(tmp_path) == []


def test_benchmark_that_is_terminated_stops_its_servers(tmp_path: Path) -> None:
    with begin(tmp_path) as benchmark:
        until(lambda: any(tmp_path.glob("nodesmith-bench-*/home/connection.json")))
        benchmark.send_signal(signal.SIGTERM)
        benchmark.communicate(timeout=HANGS_S)
    assert benchmark.returncode != 0
    assert left_in(tmp_path) == []
