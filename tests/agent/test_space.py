"""The disk headroom is kept while fetching and unpacking."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodesmith.agent.disk.space import UNPACKED_RATIO, Space
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.contracts.nats.messages import Result
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.fetching import CONTENT, Fetcher, failure_of
from tests.agent.nodes import StartAgent
from tests.agent.web import Web

MB = 1_000_000


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Free bytes of the disk, set by the test."""
    usage = SimpleNamespace(total=1000 * MB, used=0, free=100 * MB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return usage


def test_unpacked_size_is_estimated_as_twice_the_archive(tmp_path: Path, free: SimpleNamespace):
    assert UNPACKED_RATIO == 2
    space = Space(tmp_path, headroom=10 * MB, share=0.05)
    space.require_for_archive(30 * MB, 30 * MB)
    with pytest.raises(OperationFailed) as failure:
        space.require_for_archive(31 * MB, 31 * MB)
    assert failure.value.reason is Reason.NO_DISK
    space.require_for_archive(45 * MB, 0)


@pytest.mark.parametrize("size", [len(CONTENT), 0], ids=["declared", "reported by the source"])
async def test_no_byte_is_fetched_without_room_for_what_it_unpacks_to(
    fetcher: Fetcher, site: Web, free: SimpleNamespace, size: int
):
    """Space for the archive alone is not enough."""
    site.serve("/a", CONTENT)
    free.free = 2 * len(CONTENT)
    failure = await failure_of(fetcher.fetch(f"{site.url}/a", size=size))
    assert (failure.reason, fetcher.kept()) == (Reason.NO_DISK, 0)


async def test_unpacking_stops_before_the_headroom_is_used(own_disk: Path, start_agent: StartAgent):
    """An archive of about 1 MB that unpacks to 300 MB of zeros."""
    node = await start_agent(disk_headroom=shutil.disk_usage(own_disk).free - 100 * MB)
    content = built(regular("run.sh", b"#!/bin/sh\n"), regular("zeros", b"\0" * 300 * MB))
    assert len(content) < 2 * MB
    outcome = await node.outcome_of(node.command(content))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NO_DISK)
    assert node.tree() == {}
