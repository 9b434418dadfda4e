"""A failing benchmark reports the reason, exits with an error, and leaves no process running."""

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
    """Start the benchmark in a separate temporary folder, by which leftover processes are identified."""
    whole = {**os.environ, **environment, "TMPDIR": str(folder)}
    return subprocess.Popen(ADMISSION, env=whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes_in(folder: Path) -> list[int]:
    return [process.pid for process in psutil.process_iter() if str(folder) in " ".join(command_line(process))]


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_benchmark_with_a_refused_request_reports_the_reason(tmp_path: Path) -> None:
    with begin(tmp_path, NODESMITH_URI_SCHEMES='["file"]') as benchmark:
        output, errors = benchmark.communicate(timeout=HANGS_S)
    assert benchmark.returncode == 1, output
    assert "400" in errors
    assert "Traceback" not in errors
    assert processes_in(tmp_path) == []


def test_benchmark_that_is_terminated_stops_its_servers(tmp_path: Path) -> None:
    with begin(tmp_path) as benchmark:
        until(lambda: any(tmp_path.glob("nodesmith-bench-*/home/connection.json")))
        benchmark.send_signal(signal.SIGTERM)
        benchmark.communicate(timeout=HANGS_S)
    assert benchmark.returncode != 0
    assert processes_in(tmp_path) == []
