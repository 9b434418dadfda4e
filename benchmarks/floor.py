"""The baseline: a minimal workflow with one NATS request to a node. Operations are measured against it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from nats.aio.msg import Msg

    from nodesmith.bus.connection import Bus
from nodesmith.contracts.nats import subjects

QUEUE = "bench-floor"
NODE = "bench-floor"
SUBJECT = subjects.operation(NODE)
STEP = timedelta(seconds=30)


@workflow.defn(name="BareOperation")
class BareOperation:
    """One workflow, one activity, one NATS request."""

    @workflow.run
    async def run(self, payload: str) -> str:
        answer: str = await workflow.execute_activity("bare_request", payload, start_to_close_timeout=STEP)
        return answer


@workflow.defn(name="BareCancel")
class BareCancel:
    """Waits for a signal, then one activity, one NATS request."""

    def __init__(self) -> None:
        self._is_cancelled = False

    @workflow.signal
    def cancel(self) -> None:
        self._is_cancelled = True

    @workflow.run
    async def run(self, payload: str) -> str:
        await workflow.wait_condition(lambda: self._is_cancelled)
        answer: str = await workflow.execute_activity("bare_request", payload, start_to_close_timeout=STEP)
        return answer


class Bare:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @activity.defn(name="bare_request")
    async def bare_request(self, payload: str) -> str:
        return (await self._bus.request(SUBJECT, payload.encode(), within=10)).data.decode()


@asynccontextmanager
async def floor(client: Client, asking: Bus, answering: Bus) -> AsyncIterator[None]:
    """Run a worker of the bare workflows, and a responder that answers at once."""

    async def answer(message: Msg) -> None:
        await message.respond(b"done")

    await answering.subscribe(SUBJECT, answer)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[BareOperation, BareCancel],
        activities=[Bare(asking).bare_request],
        max_concurrent_activities=200,
    ):
        yield
