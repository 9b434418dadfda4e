"""Files of the node itself as sources: regular ones only, and none of them holds up the agent."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from agent.failures import OperationFailed
from agent.sources import FileSource
from contracts.messages import Answer, Command, Result
from domain.operation import Kind, Reason
from tests.agent.nodes import LONG, StartAgent
from tests.agent.waiting import until

PIPES = 40
"""more than the threads of any pool that others use too"""


def pipe(folder: Path, name: str) -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


async def test_pipes_as_sources_fail_and_the_agent_goes_on(start_agent: StartAgent, tmp_path: Path):
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
        assert "is not a regular file" in reply.outcome.error


@pytest.mark.parametrize("place", ["/dev/zero", "/"], ids=["device", "folder"])
async def test_only_a_regular_file_is_a_source(place: str):
    with pytest.raises(OperationFailed, match="not a regular file"):
        async with FileSource(Path(place)).open(0, ""):
            pass


async def test_a_file_that_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(OperationFailed, match="No such file"):
        async with FileSource(tmp_path / "none").open(0, ""):
            pass


async def test_a_failure_of_the_reader_is_not_told_as_one_of_the_source(tmp_path: Path):
    """Such as a disk that is full while the bytes are written."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="mine"):
        async with FileSource(tmp_path / "file").open(0, ""):
            raise OSError(28, "mine")


async def test_a_file_is_read_from_the_place_that_is_asked_for_and_closed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"0123456789")
    async with FileSource(tmp_path / "file").open(0, "") as whole:
        assert b"".join([block async for block in whole.blocks]) == b"0123456789"
    async with FileSource(tmp_path / "file").open(4, whole.validator) as rest:
        assert (rest.start, b"".join([block async for block in rest.blocks])) == (4, b"456789")
    async with FileSource(tmp_path / "file").open(4, "another") as again:
        assert again.start == 0
    await until(lambda: str(tmp_path / "file") not in {each.path for each in psutil.Process().open_files()}, pause=0.01)
