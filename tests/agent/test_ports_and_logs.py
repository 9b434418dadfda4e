"""The cool-down of ports, and the rotation of backend logs."""

import os
import socket
from pathlib import Path

import pytest

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.run.logs import LogRing, keys
from nodesmith.agent.run.tcp_ports import AFFINITY_S, QUARANTINE_S, Ports
from nodesmith.contracts.nats.running_models import LogsReply
from nodesmith.stack.tcp_ports import is_free


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def first() -> int:
    """The first of a few free ports, below the kernel's ephemeral range."""
    few = range(4)
    return next(port for port in range(31000, 32000, 4) if all(is_free(port + each) for each in few))


def test_port_has_a_cool_down_even_for_its_owner(first: int):
    clock = Clock()
    ports = Ports("127.0.0.1", first, first, clock=clock)
    assert ports.acquire("a") == first
    ports.release(first, "a")
    with pytest.raises(OperationFailed, match="No port"):
        ports.acquire("a")
    clock.now += QUARANTINE_S
    assert ports.acquire("a") == first


def test_port_after_cool_down_is_preferred_for_its_owner(first: int):
    clock = Clock()
    ports = Ports("127.0.0.1", first, first + 1, clock=clock)
    assert [ports.acquire("a"), ports.acquire("b")] == [first, first + 1]
    ports.release(first, "a")
    ports.release(first + 1, "b")
    clock.now += QUARANTINE_S
    assert ports.acquire("b") == first + 1
    assert ports.acquire("c") == first
    clock.now += AFFINITY_S


def test_port_of_another_program_is_skipped(first: int):
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        assert Ports("127.0.0.1", first, first + 1).acquire("a") == first + 1


# output -------------------------------------------------------------------------------------------------------


def written(ring: LogRing, text: str) -> None:
    with ring.path.open("ab") as file:
        file.write(text.encode())


def test_log_ring_keeps_its_limit_and_reader_positions(tmp_path: Path):
    ring = LogRing(tmp_path, "llama#0@1", 2000)
    cursor, read = 0, list[str]()
    for number in range(500):
        written(ring, f"line {number:04}\n")
        ring.rotate()
        if number % 50 == 0:
            piece = ring.since(cursor, 1000)
            cursor, read = piece.cursor, read + piece.lines
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
    assert read == [f"line {number:04}" for number in range(451)]
    assert ring.tail(3).lines == ["line 0497", "line 0498", "line 0499"]
    assert ring.tail(3).cursor == 500 * len("line 0000\n")


def test_reader_skips_rotated_out_lines(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 1000)
    for number in range(500):
        written(ring, f"line {number:04}\n")
        ring.rotate()
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


def test_reader_position_survives_an_agent_restart(tmp_path: Path):
    for number in range(300):
        ring = LogRing(tmp_path, "a/b#0@1", 1000)
        written(ring, f"line {number:04}\n")
        ring.rotate()
    assert LogRing(tmp_path, "a/b#0@1", 1000).tail(1).cursor == 300 * len("line 0000\n")
    assert keys(tmp_path) == ["a/b#0@1"]


def test_rotation_does_not_disturb_a_writing_process(tmp_path: Path):
    ring = LogRing(tmp_path, "a", 1000)
    output = os.open(ring.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(output, b"x" * 599 + b"\n")
    ring.rotate()
    os.write(output, b"after\n")
    os.close(output)
    assert ring.path.read_bytes() == b"after\n"
    assert ring.tail(1).lines == ["after"]
