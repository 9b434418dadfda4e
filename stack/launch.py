"""The last step before a child's own program: tie it to its parent, confine it if asked, then become the program.

Run as a script by `stack.child`, never imported by it: between fork and exec nothing else may run in the parent.
Standard library only, so that it starts in 20 ms.
"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x1000, 0x4000, 0x40000, 2, 4
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108 - hidden under a tmpfs of our own
_OPEN_FILES = 65536
CANNOT_CONFINE = 126


def main() -> NoReturn:
    """`launch.py JSON PROGRAM ARGUMENT...`"""
    order, argv = json.loads(sys.argv[1]), sys.argv[2:]
    _raise_open_files()
    if order["user"] is not None:
        argv = _confine(order["user"], order["folders"], argv)
    # after setuid, which clears it
    _die_with(order["parent"], order["death_signal"])
    os.execv(argv[0], argv)  # noqa: S606


def _confine(user: dict[str, int], folders: list[str], argv: list[str]) -> list[str]:
    """Become `user`; folders below a private parent are shown in a mount namespace of our own."""
    try:
        seen = _show(folders)
    except OSError:
        seen = {folder: folder for folder in folders}
    os.chdir("/")
    os.setgroups([])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    for folder in seen.values():
        if not os.access(folder, os.R_OK | os.X_OK):
            _refuse(folder, user["uid"])
    for folder, shown in seen.items():
        argv = [argument.replace(folder, shown) for argument in argv]
    return argv


def _show(folders: list[str]) -> dict[str, str]:
    """Bind the folders below a tmpfs that only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    # opened before the tmpfs hides whatever lies below the stage
    sources = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in folders}
    stage = next(Path(name) for name in _STAGES if Path(name).is_dir())
    _check(libc.mount(b"tmpfs", bytes(stage), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0755,size=1m"))
    for folder, source in sources.items():
        # the whole path below the stage: libraries are found relative to the program
        target = Path(f"{stage}{folder}")
        target.mkdir(parents=True)
        _check(libc.mount(f"/proc/self/fd/{source}".encode(), bytes(target), None, _MS_BIND, None))
        os.close(source)
    return {folder: f"{stage}{folder}" for folder in folders}


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _refuse(folder: str, uid: int) -> NoReturn:
    sentence = (
        f"nodesmith: under root this server runs as the unprivileged user {uid}, who cannot reach {folder}, "
        "and this machine permits no private mount namespace. Run nodesmith as a normal user, "
        "or move the folder to a place that everybody may enter."
    )
    print(sentence, file=sys.stderr)  # noqa: T201 - into the log of the child
    raise SystemExit(CANNOT_CONFINE)


def _die_with(parent: int, death_signal: int) -> None:
    """Ask the kernel to end us when the parent ends, however it ends."""
    if not sys.platform.startswith("linux"):
        return
    prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
    _check(prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0))
    if os.getppid() != parent:
        raise SystemExit("nodesmith: the parent was gone before the child had begun")


def _raise_open_files() -> None:
    """Thousands of agents are thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
