"""Local files as sources: only regular files, and none of them blocks the agent."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from nodesmith.agent.fetch.sources import FileSource
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.contracts.nats.messages import Answer, Command, Result
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.nodes import LONG, StartAgent
from tests.agent.waiting import until
from tests.sources import LOCAL

PIPES = 40
"""more than the threads of any shared pool"""


def pipe(folder: Path, name: str) -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


async def test_pipes_as_sources_fail_and_the_agent_continues(start_agent: StartAgent, tmp_path: Path):
    node = await start_agent(parallel_operations=PIPES)
    for number in range(PIPES):
        uri = pipe(tmp_path, f"pipe-{number}").as_uri()
        name = f"pipe-{number}"
        command = Command(op_id=name, kind=Kind.INSTALL, family=name, backend=name, uri=uri, decision=1)
        assert (await node.send(command)).answer is Answer.ACCEPTED
    assert (await node.control.list_backends(node.id, within=LONG)).backends == []
    for number in range(PIPES):
        reply = await node.control.ask(node.id, f"pipe-{number}", within=LONG)
        while reply.outcome is None:
            await asyncio.sleep(0.05)
            reply = await node.control.ask(node.id, f"pipe-{number}", within=LONG)
        assert (reply.outcome.result, reply.outcome.reason) == (Result.FAILED, Reason.DOWNLOAD_FAILED)
        assert "as a regular file" in reply.outcome.error


@pytest.mark.parametrize("place", ["/dev/zero", "/", "/no/such/file"], ids=["device", "folder", "nothing"])
async def test_non_regular_file_is_refused_and_only_the_log_has_the_cause(place: str):
    with capture_logs() as logs, pytest.raises(OperationFailed) as failed:
        async with FileSource(Path(place), LOCAL).open(0, ""):
            pass
    assert str(failed.value) == f"This node cannot read {place} as a regular file. The agent's log has the cause."
    assert logs[0]["why"]


async def test_failure_of_the_consumer_is_not_reported_as_source_failure(tmp_path: Path):
    """For example a full disk while the bytes are written."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="mine"):
        async with FileSource(tmp_path / "file", LOCAL).open(0, ""):
            raise OSError(28, "mine")


async def test_file_is_read_from_the_requested_offset_and_closed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"0123456789")
    async with FileSource(tmp_path / "file", LOCAL).open(0, "") as whole:
        assert b"".join([block async for block in whole.blocks]) == b"0123456789"
    async with FileSource(tmp_path / "file", LOCAL).open(4, whole.validator) as rest:
        assert (rest.start, b"".join([block async for block in rest.blocks])) == (4, b"456789")
    async with FileSource(tmp_path / "file", LOCAL).open(4, "another") as again:
        assert again.start == 0
    await until(lambda: str(tmp_path / "file") not in {each.path for each in psutil.Process().open_files()}, pause=0.01)
