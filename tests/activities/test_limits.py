"""Timeouts of each kind of request to a LocalAI worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodesmith.activities.localai import LocalaiWorker
from nodesmith.activities.send_command import Sender
from nodesmith.contracts.nats.messages import BackendList, Command, CommandReply
from nodesmith.contracts.temporal.dispatch import DispatchTask
from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Policy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Phase
from tests.fakes.permits import MemoryPermits


class SilentReports:
    async def next(self, within: float) -> None:
        raise AssertionError(within)


class TimedLink:
    """Answers at once, and records the timeout of each request."""

    def __init__(self) -> None:
        self.limits: dict[str, float] = {}

    @asynccontextmanager
    async def attach(self, node_id: str, op_id: str) -> AsyncIterator[Any]:
        yield SilentReports()

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        self.limits[command.kind] = within
        return CommandReply(success=True)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        self.limits["list"] = within
        return BackendList()


async def limits_of(kind: Kind) -> dict[str, float]:
    link: Any = TimedLink()
    wanted = Intent(kind=kind, backend="echo", family="echo")
    request = OperationRequest(
        op_id="op",
        node_id="n1",
        node_name="n1",
        protocol=Protocol.LOCALAI,
        wanted=wanted,
        created_at=datetime(2026, 11, 17, tzinfo=UTC),
    )
    task = DispatchTask(request=request, policy=Policy(request_timeout=timedelta(hours=3)), decision=1)
    permits = MemoryPermits()
    permits.request = request
    await LocalaiWorker(link, Sender(link, permits, task), task, _nobody).until_outcome()
    return dict(link.limits)


async def _nobody(_: Phase) -> None:
    return


async def test_localai_worker_gets_two_minutes_to_remove_a_backend() -> None:
    """S44: whatever the request timeout of an install is."""
    assert (await limits_of(Kind.REMOVE))["remove"] == 120


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
async def test_localai_worker_gets_the_request_timeout_to_install(kind: Kind) -> None:
    assert (await limits_of(kind))[kind] == pytest.approx(3 * 3600, abs=60)


async def test_localai_worker_gets_half_a_minute_to_list() -> None:
    """S44."""
    assert (await limits_of(Kind.INSTALL))["list"] == 30
