"""Ports that rest after a stop, and output in a ring."""

import os
import socket
from pathlib import Path

import pytest

from agent.failures import OperationFailed
from agent.logs import LogRing, keys
from agent.ports import AFFINITY_S, QUARANTINE_S, Ports
from contracts.messages import LogsReply
from stack.ports import is_free


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def first() -> int:
    """The first of a few ports on which nobody listens, below those that the kernel hands out by itself."""
    few = range(4)
    return next(port for port in range(31000, 32000, 4) if all(is_free(port + each) for each in few))


def test_a_port_rests_after_a_stop_even_for_its_owner(first: int):
    clock = Clock()
    ports = Ports("127.0.0.1", first, first, clock=clock)
    assert ports.take("a") == first
    ports.release(first, "a")
    with pytest.raises(OperationFailed, match="No port"):
        ports.take("a")
    clock.now += QUARANTINE_S
    assert ports.take("a") == first


def test_a_rested_port_goes_to_its_owner_first_and_to_others_when_there_is_no_other(first: int):
    clock = Clock()
    ports = Ports("127.0.0.1", first, first + 1, clock=clock)
    assert [ports.take("a"), ports.take("b")] == [first, first + 1]
    ports.release(first, "a")
    ports.release(first + 1, "b")
    clock.now += QUARANTINE_S
    assert ports.take("b") == first + 1
    assert ports.take("c") == first
    clock.now += AFFINITY_S


def test_a_port_on_which_somebody_else_listens_is_left_alone(first: int):
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        assert Ports("127.0.0.1", first, first + 1).take("a") == first + 1


# output -------------------------------------------------------------------------------------------------------


def written(ring: LogRing, text: str) -> None:
    with ring.path.open("ab") as file:
        file.write(text.encode())


def test_the_ring_keeps_its_limit_and_readers_their_place(tmp_path: Path):
    ring = LogRing(tmp_path, "llama#0@1", 2000)
    cursor, read = 0, list[str]()
    for number in range(500):
        written(ring, f"line {number:04}\n")
        ring.turn()
        if number % 50 == 0:
            piece = ring.since(cursor, 1000)
            cursor, read = piece.cursor, read + piece.lines
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
    assert read == [f"line {number:04}" for number in range(451)]
    assert ring.tail(3).lines == ["line 0497", "line 0498", "line 0499"]
    assert ring.tail(3).cursor == 500 * len("line 0000\n")


def test_a_reader_who_was_away_too_long_goes_on_with_what_is_left(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 1000)
    for number in range(500):
        written(ring, f"line {number:04}\n")
        ring.turn()
    piece = ring.since(0, 1000)
    assert piece.lines[-1] == "line 0499"
    assert 0 < len(piece.lines) <= 100


def test_half_a_line_waits_for_its_end(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 1000)
    written(ring, "whole\nhal")
    piece = ring.since(0, 10)
    assert piece.lines == ["whole"]
    written(ring, "f\n")
    assert ring.since(piece.cursor, 10).lines == ["half"]


def test_a_line_that_is_too_long_comes_in_parts(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 10_000_000)
    written(ring, "x" * 1_000_000 + "\nnext\n")
    cursor, parts = 0, list[str]()
    while piece := ring.since(cursor, 10):
        if piece.cursor == cursor:
            break
        cursor, parts = piece.cursor, parts + piece.lines
    assert "".join(parts[:-1]) == "x" * 1_000_000
    assert (parts[-1], cursor) == ("next", 1_000_006)


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"\n", b"\x1b"])
def test_whatever_is_written_fits_into_one_message(tmp_path: Path, byte: bytes):
    ring = LogRing(tmp_path, "a", 10_000_000)
    ring.path.write_bytes(byte * 1_000_000)
    for piece in (ring.tail(1_000_000), ring.since(0, 1_000_000)):
        assert piece.lines
        assert len(LogsReply(lines=piece.lines, cursor=piece.cursor).encode()) < 1_000_000


def test_the_place_of_a_reader_survives_the_agent(tmp_path: Path):
    for number in range(300):
        ring = LogRing(tmp_path, "a/b#0@1", 1000)
        written(ring, f"line {number:04}\n")
        ring.turn()
    assert LogRing(tmp_path, "a/b#0@1", 1000).tail(1).cursor == 300 * len("line 0000\n")
    assert keys(tmp_path) == ["a/b#0@1"]


def test_a_process_that_writes_on_is_not_disturbed_when_the_ring_turns(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 1000)
    output = os.open(ring.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(output, b"x" * 599 + b"\n")
    ring.turn()
    os.write(output, b"after\n")
    os.close(output)
    assert ring.path.read_bytes() == b"after\n"
    assert ring.tail(1).lines == ["after"]
