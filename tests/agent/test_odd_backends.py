"""Backends as strangers make them: they end at once, leave children, write no text, and have odd names."""

from collections.abc import AsyncIterator

import psutil
import pytest

from bus.connection import connect_control
from bus.models import ModelsClient
from contracts.messages import ModelQuestion, Result
from domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.nodes import LONG, StartAgent
from tests.agent.test_running import FAST, pids
from tests.servers import NatsForTests


@pytest.fixture
async def models(nats_server: NatsForTests) -> AsyncIterator[ModelsClient]:
    bus = await connect_control(nats_server.url, nats_server.issuer, name="models")
    yield ModelsClient(bus)
    await bus.close()


@pytest.mark.parametrize(
    "script",
    [b"#!/bin/sh\nexit 3\n", b"#!/nowhere\n", b"no shebang, no command\n", b"#!/bin/sh\nsleep 300 &\nexit 0\n"],
    ids=["exits", "no such interpreter", "no script", "leaves a child"],
)
async def test_a_backend_that_ends_at_once_says_so_and_leaves_no_process(start_agent: StartAgent, script: bytes):
    node = await start_agent(**FAST)
    outcome = await node.outcome_of(node.command(built(regular("run.sh", script, mode=0o600)), start=True))
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.DID_NOT_START)
    assert "ended at once" in outcome.error
    assert pids(node) == {}
    assert not [each for each in psutil.process_iter(["cwd"]) if (each.info["cwd"] or "").startswith(str(node.home))]


async def test_output_that_is_no_text_can_be_told(start_agent: StartAgent):
    node = await start_agent(**FAST)
    script = b"#!/bin/sh\nprintf 'a\\000b\\377c\\033[1m\\n'; head -c 300000 /dev/zero; exit 1\n"
    outcome = await node.outcome_of(node.command(built(regular("run.sh", script)), start=True))
    assert outcome.reason is Reason.DID_NOT_START
    assert "ended at once" in outcome.error
    assert "\0" not in outcome.error
    assert len(outcome.error) < 10_000


async def test_a_model_named_like_a_pattern_is_only_itself(start_agent: StartAgent, models: ModelsClient):
    node = await start_agent(**FAST)
    folder = node.home / "models"
    folder.mkdir()
    for name in ("*.yaml", "other.yaml"):
        (folder / name).write_text("x")
    assert (await models.delete(node.id, ModelQuestion(model_name="*"), within=LONG)).success
    assert {path.name for path in folder.iterdir()} == {"other.yaml"}
