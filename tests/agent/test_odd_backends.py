"""Unusual backends: they end during start, leave children, write binary output, and have odd names."""

from collections.abc import AsyncIterator

import pytest

from nodesmith.bus.connection import connect_control
from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.nats.messages import Result
from nodesmith.contracts.nats.running_models import ModelQuestion
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.nodes import LONG, StartAgent
from tests.agent.test_running import FAST, pids
from tests.orders import shared_keyring
from tests.processes import working_below
from tests.servers import NatsForTests


@pytest.fixture
async def models(nats_server: NatsForTests) -> AsyncIterator[ModelsClient]:
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="models")
    yield ModelsClient(bus, shared_keyring().seal_request)
    await bus.close()


@pytest.mark.parametrize(
    "script",
    [b"#!/bin/sh\nexit 3\n", b"#!/nowhere\n", b"no shebang, no command\n", b"#!/bin/sh\nsleep 300 &\nexit 0\n"],
    ids=["exits", "no such interpreter", "no script", "leaves a child"],
)
async def test_backend_that_ends_during_start_is_reported_and_leaves_no_process(start_agent: StartAgent, script: bytes):
    node = await start_agent(**FAST)
    outcome = await node.outcome_of(node.command(built(regular("run.sh", script, mode=0o600)), start=True))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.DID_NOT_START)
    assert "ended during start" in outcome.error
    assert pids(node) == {}
    assert working_below(node.home) == []


async def test_binary_output_can_be_reported(start_agent: StartAgent):
    node = await start_agent(**FAST)
    script = b"#!/bin/sh\nprintf 'a\\000b\\377c\\033[1m\\n'; head -c 300000 /dev/zero; exit 1\n"
    outcome = await node.outcome_of(node.command(built(regular("run.sh", script)), start=True))
    assert outcome.reason is Reason.DID_NOT_START
    assert "ended during start" in outcome.error
    assert "\0" not in outcome.error
    assert len(outcome.error) < 10_000


async def test_model_name_is_not_treated_as_a_pattern(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    folder = node.home / "models"
    folder.mkdir()
    for name in ("*.yaml", "other.yaml"):
        (folder / name).write_text("x")
    assert (await models.delete(node.id, ModelQuestion(model_name="*"), within=LONG)).success
    assert {path.name for path in folder.iterdir()} == {"other.yaml"}
