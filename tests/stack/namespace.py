"""Simulates another machine: a network namespace connected to ours by one virtual cable."""

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class OtherMachine:
    """A machine that can reach `our_address` and nothing else."""

    name: str
    our_address: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *arguments]


@contextlib.contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """Create the namespace; skip the test where that is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` command to make a network namespace with")
    mark, net = secrets.token_hex(3), f"10.213.{secrets.randbelow(250) + 1}"
    name, ours, theirs = f"nodesmith-{mark}", f"ns{mark}a", f"ns{mark}b"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _ip("address", "add", f"{net}.1/30", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", name, "address", "add", f"{net}.2/30", "dev", theirs)
        _ip("-n", name, "link", "set", theirs, "up")
        _ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove(name)
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    try:
        yield OtherMachine(name, f"{net}.1")
    finally:
        _remove(name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _remove(name: str) -> None:
    """Remove the namespace together with its virtual cable."""
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
