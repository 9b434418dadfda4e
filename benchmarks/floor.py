"""The floor: the barest workflow that does one thing at a node over NATS. Ours is measured against it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from nats.aio.msg import Msg

    from bus.connection import Bus

QUEUE = "bench-floor"
SUBJECT = "nodes.bench-floor.backend.op"
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
        self._told = False

    @workflow.signal
    def cancel(self) -> None:
        self._told = True

    @workflow.run
    async def run(self, payload: str) -> str:
        await workflow.wait_condition(lambda: self._told)
        answer: str = await workflow.execute_activity("bare_request", payload, start_to_close_timeout=STEP)
        return answer


class Bare:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @activity.defn(name="bare_request")
    async def bare_request(self, payload: str) -> str:
        return (await self._bus.request(SUBJECT, payload.encode(), within=10)).decode()


@asynccontextmanager
async def floor(client: Client, asking: Bus, answering: Bus) -> AsyncIterator[None]:
    """A worker of the bare workflows, and somebody who answers at once."""

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
