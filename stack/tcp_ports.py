"""Chooses the stack's ports: the defaults, those stored in the home, or the requested range."""

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields

from nodesmith.stack.errors import StackError
from nodesmith.stack.files import read_json, write_private
from nodesmith.stack.home import Home
from nodesmith.stack.servers.embedded import LOOPBACK

RANGE = 10
HIGHEST_DEFAULT = 32767
"""above it begins the kernel's range for outgoing connections"""
_LOWEST, _HIGHEST = 1024, 65535
_FIRST_RANDOM = 16384
PATIENCE = 3.0
"""how long the children of a killed `up` may still hold this home's ports"""
_POLL = 0.05


@dataclass(frozen=True)
class Ports:
    """One port per listener, in the order in which `--port-base` assigns them."""

    api: int = 8900
    temporal: int = 7233
    temporal_ui: int = 8233
    nats: int = 4222
    postgres: int = 15432
    temporal_web: int = 8234
    """the Web UI's server, which only the API connects to"""
    temporal_metrics: int = 9233
    gateway: int = 8901
    """calls of models"""


def choose(home: Home, base: int | None, note: Callable[[str], None]) -> Ports:
    """Choose the ports of this start, store them in the home, and pass a line to `note` for each port that moved."""
    stored = _stored_ports(home)
    if base is not None:
        ports = _from_base(base, previous=stored)
    else:
        wanted = stored or _default_ports()
        ports = _replace_taken(wanted, patience=PATIENCE if stored else 0.0)
        for (name, old), new in zip(asdict(wanted).items(), asdict(ports).values(), strict=True):
            if old != new:
                note(f"port {old} is taken: {name.replace('_', ' ')} listens on {new}")
    write_private(home.ports_file, json.dumps(asdict(ports), indent=2) + "\n")
    return ports


def _default_ports() -> Ports:
    """Return the defaults, with a random port for the Web UI's server: it has no access control of its own."""
    return Ports(temporal_web=_FIRST_RANDOM + secrets.randbelow(HIGHEST_DEFAULT - _FIRST_RANDOM))


def _stored_ports(home: Home) -> Ports | None:
    written = read_json(home.ports_file)
    if written is None:
        return None
    return Ports(**{field.name: written[field.name] for field in fields(Ports) if field.name in written})


def _from_base(base: int, *, previous: Ports | None) -> Ports:
    if not _LOWEST <= base <= _HIGHEST - RANGE + 1:
        raise StackError(
            f"--port-base {base} leaves no room for {RANGE} ports.",
            remedy=f"Give a number from {_LOWEST} to {_HIGHEST - RANGE + 1}.",
        )
    numbers = range(base, base + RANGE)
    ports = Ports(*numbers[: len(fields(Ports))])
    taken = _still_taken(numbers, patience=PATIENCE if ports == previous else 0.0)
    if taken:
        raise StackError(
            f"Port {taken[0]} is taken, and --port-base {base} asks for exactly {base} to {base + RANGE - 1}.",
            remedy="Stop what listens there, or give another --port-base.",
        )
    return ports


def _replace_taken(wanted: Ports, *, patience: float) -> Ports:
    """Keep the free ports; replace each taken one with the next free number."""
    taken = set(_still_taken(asdict(wanted).values(), patience=patience))
    reserved: set[int] = set(asdict(wanted).values())
    chosen = {}
    for name, port in asdict(wanted).items():
        chosen[name] = _next_free(port, reserved) if port in taken else port
        reserved.add(chosen[name])
    return Ports(**chosen)


def _next_free(port: int, reserved: set[int]) -> int:
    for candidate in range(port + 1, max(HIGHEST_DEFAULT, port + RANGE) + 1):
        if candidate not in reserved and is_free(candidate):
            return candidate
    raise StackError(f"There is no free port from {port} on.", remedy="Give a --port-base.")


def _still_taken(ports: Iterable[int], *, patience: float) -> list[int]:
    """Return the ports that are still taken after `patience` seconds."""
    deadline = time.monotonic() + patience
    taken = [port for port in ports if not is_free(port)]
    while taken and time.monotonic() < deadline:
        time.sleep(_POLL)
        taken = [port for port in taken if not is_free(port)]
    return taken


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
