"""Which ports the stack listens on: the defaults, what the home remembers, or a range that was asked for."""

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields

from stack.errors import StackError
from stack.files import read_json, write_private
from stack.home import Home
from stack.servers import LOOPBACK

RANGE = 10
HIGHEST_DEFAULT = 32767
"""above begins the range from which the kernel takes ports for outgoing connections"""
_LOWEST, _HIGHEST = 1024, 65535
PATIENCE = 3.0
"""how long ports that were ours may be held on by the children of a killed `up`"""
_POLL = 0.05


@dataclass(frozen=True)
class Ports:
    """In the order in which `--port-base` deals them out."""

    api: int = 8900
    temporal: int = 7233
    temporal_ui: int = 8233
    nats: int = 4222
    postgres: int = 15432
    temporal_http: int = 7243
    temporal_metrics: int = 9233


def choose(home: Home, base: int | None, note: Callable[[str], None]) -> Ports:
    """Settle the ports of this start and remember them in the home; `note` hears of those that had to move."""
    remembered = _remembered(home)
    if base is not None:
        ports = _from_base(base, was_ours=remembered)
    else:
        ports = _movable(remembered or Ports(), patience=PATIENCE if remembered else 0.0)
        for (name, old), new in zip(asdict(remembered or Ports()).items(), asdict(ports).values(), strict=True):
            if old != new:
                note(f"port {old} is taken: {name.replace('_', ' ')} listens on {new}")
    write_private(home.ports_file, json.dumps(asdict(ports), indent=2) + "\n")
    return ports


def _remembered(home: Home) -> Ports | None:
    written = read_json(home.ports_file)
    if written is None:
        return None
    return Ports(**{field.name: written[field.name] for field in fields(Ports) if field.name in written})


def _from_base(base: int, *, was_ours: Ports | None) -> Ports:
    if not _LOWEST <= base <= _HIGHEST - RANGE + 1:
        raise StackError(
            f"--port-base {base} leaves no room for {RANGE} ports.",
            remedy=f"Give a number from {_LOWEST} to {_HIGHEST - RANGE + 1}.",
        )
    numbers = range(base, base + RANGE)
    ports = Ports(*numbers[: len(fields(Ports))])
    taken = _still_taken(numbers, patience=PATIENCE if ports == was_ours else 0.0)
    if taken:
        raise StackError(
            f"Port {taken[0]} is taken, and --port-base {base} asks for exactly {base} to {base + RANGE - 1}.",
            remedy="Stop what listens there, or give another --port-base.",
        )
    return ports


def _movable(wanted: Ports, *, patience: float) -> Ports:
    """Keep what is free; what is taken moves to the next free number."""
    taken = set(_still_taken(asdict(wanted).values(), patience=patience))
    given: set[int] = set(asdict(wanted).values())
    chosen = {}
    for name, port in asdict(wanted).items():
        chosen[name] = _next_free(port, given) if port in taken else port
        given.add(chosen[name])
    return Ports(**chosen)


def _next_free(port: int, given: set[int]) -> int:
    for candidate in range(port + 1, max(HIGHEST_DEFAULT, port + RANGE) + 1):
        if candidate not in given and is_free(candidate):
            return candidate
    raise StackError(f"There is no free port from {port} on.", remedy="Give a --port-base.")


def _still_taken(ports: Iterable[int], *, patience: float) -> list[int]:
    """Those that are not free, nor become so in time."""
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
