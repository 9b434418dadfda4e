"""A private network namespace: no other process of the machine reaches what listens on its loopback.

Run as a script, it only tries to enter one, as a check for `up`; standard library only, so that this takes 30 ms.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_REQUEST = "16sh14x"
"""struct ifreq: the name of an interface, and its flags"""


def enter() -> None:
    """Leave the machine's network for an empty one; raise `OSError` where that is not permitted.

    Sockets that are already open keep their network. The process must be single-threaded.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:  # permitted to root
        _enter_as_user(libc)
    _raise_loopback()


def is_permitted() -> bool:
    """Try to enter a namespace in a child process, because a process cannot leave it again."""
    if not sys.platform.startswith("linux"):
        return False
    trial = subprocess.run([sys.executable, "-I", "-S", __file__], capture_output=True, check=False)
    return trial.returncode == 0


def _enter_as_user(libc: ctypes.CDLL) -> None:
    """Enter a user namespace too, which maps our uid to itself, so that we keep access to our files."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    ourselves = Path("/proc/self")
    (ourselves / "setgroups").write_text("deny")
    (ourselves / "uid_map").write_text(f"{uid} {uid} 1")
    (ourselves / "gid_map").write_text(f"{gid} {gid} 1")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack(_REQUEST, b"lo", 0))
        (_, flags) = struct.unpack(_REQUEST, answer)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_REQUEST, b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    enter()
