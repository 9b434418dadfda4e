"""Which ports the stack chooses, and when it refuses."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from nodesmith.stack import tcp_ports
from nodesmith.stack.errors import StackError
from nodesmith.stack.home import Home
from nodesmith.stack.tcp_ports import HIGHEST_DEFAULT, Ports


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    return home


@contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


@pytest.fixture
def free_base() -> int:
    """Return a base of ten free ports below the ephemeral range."""
    return next(
        base
        for base in range(20000, 30000, 10)
        if all(tcp_ports.is_free(port) for port in range(base, base + tcp_ports.RANGE))
    )


def test_the_defaults_are_the_documented_ones_and_lie_below_the_ephemeral_range():
    assert astuple(Ports())[:5] == (8900, 7233, 8233, 4222, 15432)
    assert Ports().gateway == 8901
    assert max(astuple(Ports())) <= HIGHEST_DEFAULT


def test_taken_port_moves_to_the_next_free_one_and_is_stored(
    home: Home, free_base: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tcp_ports, "PATIENCE", 0.1)
    notes: list[str] = []
    first = tcp_ports.choose(home, free_base, note=notes.append)
    moved = replace(first, api=first.gateway + 2)  # the next one that no other listener of ours has
    with listening(first.api), listening(first.gateway + 1):
        assert tcp_ports.choose(home, None, note=notes.append) == moved
    assert tcp_ports.choose(home, None, note=notes.append) == moved
    assert notes == [f"port {first.api} is taken: api listens on {moved.api}"]


def test_port_base_assigns_exactly_its_ten_ports_in_order(home: Home, free_base: int):
    chosen = tcp_ports.choose(home, free_base, note=print)
    assert astuple(chosen) == tuple(range(free_base, free_base + len(astuple(chosen))))
    assert (chosen.api, chosen.temporal, chosen.temporal_ui, chosen.nats, chosen.postgres) == tuple(
        range(free_base, free_base + 5)
    )


@pytest.mark.parametrize("offset", [0, 4, 9])
def test_a_taken_port_of_a_base_is_an_error_that_names_it(home: Home, free_base: int, offset: int):
    with listening(free_base + offset), pytest.raises(StackError, match=f"Port {free_base + offset} is taken"):
        tcp_ports.choose(home, free_base, note=print)
    assert not home.ports_file.exists()


def test_a_listener_on_every_address_counts_as_taken(home: Home, free_base: int):
    with socket.create_server(("", free_base)), pytest.raises(StackError, match=f"Port {free_base}"):
        tcp_ports.choose(home, free_base, note=print)


@pytest.mark.parametrize("base", [0, 80, 65530, 70000])
def test_port_base_above_the_range_is_refused(home: Home, base: int):
    with pytest.raises(StackError, match="no room"):
        tcp_ports.choose(home, base, note=print)
