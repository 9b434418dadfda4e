"""A backend that tries forbidden and allowed actions, prints the results as JSON, then serves a health route.

It is packed into an archive and runs by itself: it imports nothing of Nodesmith. `targets.json` says what to try.
"""

import ctypes
import functools
import json
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

_PTRACE_SEIZE, _PIDFD_GETFD, _PROCESS_VM_READV = 0x4206, 438, 310


def answer_of(attempt: Callable[[], object]) -> str:
    """Return the result of an attempt, or its error."""
    try:
        return f"got {attempt()!r}"[:200]
    except (OSError, subprocess.SubprocessError) as error:
        return f"refused: {type(error).__name__}"


def called(name: str, *arguments: object) -> int:
    """A function of the C library that returns -1 on failure."""
    library = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(library, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def attempts(targets: dict[str, Any]) -> dict[str, str]:
    agent = targets["agent"]
    tries: dict[str, Callable[[], object]] = {
        **{f"read {path}": Path(path).read_bytes for path in targets["files"]},
        **{f"list {path}": functools.partial(os.scandir, path) for path in targets["folders"]},
        **{f"write {path}": functools.partial(Path(path, "x").write_bytes, b"") for path in targets["folders"]},
        **{f"/proc {name}": Path(f"/proc/{agent}/{name}").read_bytes for name in ("environ", "maps", "auxv")},
        **{f"/proc {name}": Path(f"/proc/{agent}/{name}").readlink for name in ("root", "cwd", "exe")},
        "/proc fd": Path(f"/proc/{agent}/fd/0").readlink,
        "/proc fd opened": lambda: os.open(f"/proc/{agent}/fd/1", os.O_RDONLY),
        "/proc mem": lambda: os.open(f"/proc/{agent}/mem", os.O_RDWR),
        "/proc task": lambda: Path(f"/proc/{agent}/task/{agent}/environ").read_bytes(),
        "write /proc": lambda: Path("/proc/self/oom_score_adj").write_text("0"),
        "signal": lambda: os.kill(agent, 0),
        "ptrace": lambda: traced(agent),
        "descriptor": lambda: called("syscall", _PIDFD_GETFD, os.pidfd_open(agent), 0, 0),
        "memory": lambda: read_memory(agent),
        "abstract socket": lambda: socket.socket(socket.AF_UNIX).connect(targets["abstract"]),
        "link": lambda: linked(targets["files"][0]),
        "hard link": lambda: os.link(targets["files"][0], Path.home() / "hard"),
        "own folder": lambda: Path("run.sh").write_text(""),
        "replace own home": lambda: Path.home().rename(Path.home().with_name("moved")),
        "device": lambda: os.mknod(Path.home() / "disk", 0o60600, os.makedev(254, 0)),
        "mount": lambda: called("mount", b"none", str(Path.home()).encode(), b"tmpfs", 0, None),
    }
    return {name: answer_of(attempt) for name, attempt in tries.items()}


def traced(pid: int) -> None:
    """Trace with PTRACE_SEIZE, because an attach would stop the agent; done in a child, whose exit ends the trace."""
    child = os.fork()
    if child == 0:
        try:
            called("ptrace", _PTRACE_SEIZE, pid, None, None)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise PermissionError


def read_memory(pid: int) -> int:
    target, source = ctypes.create_string_buffer(8), (ctypes.c_size_t * 2)(0x400000, 8)
    place = (ctypes.c_size_t * 2)(ctypes.addressof(target), 8)
    return called("syscall", _PROCESS_VM_READV, pid, place, 1, source, 1, 0)


def linked(path: str) -> bytes:
    link = Path.home() / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link.read_bytes()


def needs(targets: dict[str, Any]) -> dict[str, str]:
    """Return the results of what every backend must be able to do."""
    tries: dict[str, Callable[[], object]] = {
        **{f"model {path}": Path(path).read_bytes for path in targets["models"]},
        "cache": lambda: Path.home().joinpath(".cache").mkdir(exist_ok=True),
        "temporary file": lambda: tempfile.TemporaryFile().close(),
        "rename": lambda: moved(Path.home(), Path(os.environ["TMPDIR"])),
        "shared memory": lambda: SharedMemory(create=True, size=mmap.PAGESIZE).unlink(),
        "null": lambda: Path(os.devnull).write_bytes(b"x"),
        "random": lambda: Path("/dev/urandom").open("rb").close(),
        "its log": lambda: Path("/dev/stdout").open("ab").close(),
        "shell": lambda: subprocess.check_output(["/bin/sh", "-c", "echo hello | cat"]),
        "python": lambda: subprocess.check_output([sys.executable, "-c", "import json, ssl"]),
        "signal to its child": signalled,
        "facts": lambda: Path("/proc/meminfo").read_text()[:8],
        "names": lambda: socket.getaddrinfo("localhost", 80),
    }
    return {name: answer_of(attempt) for name, attempt in tries.items()}


def moved(home: Path, tmp: Path) -> None:
    (tmp / "piece").write_bytes(b"")
    (tmp / "piece").rename(home / "piece")


def signalled() -> int:
    child = subprocess.Popen(["/bin/sleep", "60"])
    child.kill()
    return child.wait()


def own_state() -> dict[str, Any]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "pid": os.getpid(),
        "environment": dict(os.environ),
        "descriptors": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())[:-1],
        "capabilities": [status[name] for name in ("CapPrm", "CapEff")],
        "no_new_privileges": status["NoNewPrivs"],
        "core": resource.getrlimit(resource.RLIMIT_CORE),
    }


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def main() -> None:
    targets = json.loads(Path("targets.json").read_text())
    host, _, port = sys.argv[sys.argv.index("--addr") + 1].rpartition(":")
    found = {"state": own_state(), "attempts": attempts(targets), "needs": needs(targets)}
    print(json.dumps(found), flush=True)  # noqa: T201
    HTTPServer((host, int(port)), Healthy).serve_forever()


if __name__ == "__main__":
    main()
