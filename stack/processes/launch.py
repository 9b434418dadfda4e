"""Launcher of a child process: sets its death signal, drops privileges if requested, then executes the program.

`child.py` runs it as a script instead of a `preexec_fn`: no Python code may run between fork and exec in the parent.
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
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108 - a private tmpfs is mounted over it
_OPEN_FILES = 65536
CANNOT_CONFINE = 126


def main() -> NoReturn:
    """`launch.py JSON PROGRAM ARGUMENT...`"""
    order, argv = json.loads(sys.argv[1]), sys.argv[2:]
    _raise_open_files()
    if order["user"] is not None:
        argv = _confine(order["user"], order["folders"], argv)
    # after setuid, which clears the death signal
    die_with(order["parent"], order["death_signal"])
    os.execv(argv[0], argv)  # noqa: S606


def _confine(user: dict[str, int], folders: list[str], argv: list[str]) -> list[str]:
    """Switch to `user`; a private mount namespace makes folders below an inaccessible parent readable."""
    try:
        visible = _bind_folders(folders)
    except OSError:
        visible = {folder: folder for folder in folders}
    os.chdir("/")
    os.setgroups([])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    for folder in visible.values():
        if not os.access(folder, os.R_OK | os.X_OK):
            _refuse(folder, user["uid"])
    for folder, bound in visible.items():
        argv = [argument.replace(folder, bound) for argument in argv]
    return argv


def _bind_folders(folders: list[str]) -> dict[str, str]:
    """Bind-mount the folders below a tmpfs that only this process and its children see; return the new paths."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    # opened before the tmpfs hides the folders below the mount point
    sources = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in folders}
    mount_point = next(Path(name) for name in _MOUNT_POINTS if Path(name).is_dir())
    _check(libc.mount(b"tmpfs", bytes(mount_point), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0755,size=1m"))
    for folder, source in sources.items():
        # keep the full path below the mount point: programs find their libraries by relative path
        target = Path(f"{mount_point}{folder}")
        target.mkdir(parents=True)
        _check(libc.mount(f"/proc/self/fd/{source}".encode(), bytes(target), None, _MS_BIND, None))
        os.close(source)
    return {folder: f"{mount_point}{folder}" for folder in folders}


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _refuse(folder: str, uid: int) -> NoReturn:
    sentence = (
        f"nodesmith: under root this server runs as the unprivileged user {uid}, which cannot read {folder}, "
        "and this machine permits no private mount namespace. Run nodesmith as a normal user, "
        "or move the folder to a place that every user can read."
    )
    print(sentence, file=sys.stderr)  # noqa: T201 - goes to the child's log
    raise SystemExit(CANNOT_CONFINE)


def die_with(parent: int, death_signal: int) -> None:
    """Ask the kernel to signal this process when its parent ends, however it ends."""
    if not sys.platform.startswith("linux"):
        return
    prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
    _check(prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0))
    if os.getppid() != parent:
        raise SystemExit("nodesmith: the parent ended before the child started")


def _raise_open_files() -> None:
    """Raise the limit of open files: each agent is one connection, and there may be thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
