"""Play every scenario on a Temporal server of its own and write its history: `make histories`."""

import asyncio
import json
import tempfile
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowContinuedAsNewError, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from nodesmith.contracts.temporal import models
from nodesmith.contracts.temporal.batches import batch_workflow_id
from nodesmith.contracts.temporal.operations import FleetWatch, Policy
from nodesmith.domain.identity import new_op_id
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from nodesmith.workflows.model_scheduler import ModelScheduler
from tests import servers
from tests.replay.scenarios import (
    AT_ONCE,
    BATCH_SCENARIOS,
    BEFORE_ANY_WORKER,
    LONG_BATCHES,
    LONG_LIVES,
    MEMBERS,
    MODEL_SCHEDULER_HISTORY,
    OF_A_MODEL,
    SCENARIOS,
    BatchPlay,
    Play,
    batch_went_on_in_a_later_run,
)
from tests.workflows.simulated_fleet import Fleet
from tests.workflows.simulated_fleet import start as start_batch
from tests.workflows.simulated_fleet import worker_of as batch_worker_of
from tests.workflows.station import ECHO, Station, deaf_run, start, worker_of

HISTORIES = Path(__file__).parent / "histories"


async def record(client: Client, play: Play, policy: Policy) -> str:
    """The whole history of one played scenario, as JSON."""
    station, queue = Station(), f"record-{uuid.uuid4()}"
    if play in AT_ONCE:
        station.answer_dispatch(AT_ONCE[play])
    batch_id = new_op_id() if play in MEMBERS else None
    if batch_id:
        await deaf_run(client, batch_workflow_id(batch_id))
    wanted, after = OF_A_MODEL.get(play, (ECHO, ""))
    operation = await start(client, station, queue, policy, batch_id=batch_id, wanted=wanted, after=after)
    if play in BEFORE_ANY_WORKER:
        await play(operation)
    async with worker_of(client, station, queue):
        if play not in BEFORE_ANY_WORKER:
            await play(operation)
        with suppress(WorkflowFailureError):  # red is the right end of some scenarios
            await operation.result()
    return await written(operation.handle)


async def record_batch(client: Client, play: BatchPlay, changes: dict[str, int]) -> str:
    """The history of the first run, or of the last where the play is about that."""
    fleet = Fleet()
    fleet.absent_run = f"absent-{uuid.uuid4()}"
    await deaf_run(client, fleet.absent_run)
    async with batch_worker_of(client, fleet) as queue:
        handle = await start_batch(client, queue, 3, **changes)
        first = (await handle.describe()).run_id
        await play(fleet, handle)
        with suppress(WorkflowFailureError):
            await handle.result()
    run_id = None if play is batch_went_on_in_a_later_run else first
    return await written(client.get_workflow_handle(handle.id, run_id=run_id))


async def record_scheduler(client: Client) -> str:
    """The history of a run of the model scheduler, from its start until it continues as new."""

    @activity.defn(name=models.WATCH_MODELS)
    async def watch_models(watch: FleetWatch) -> None:
        activity.heartbeat(watch.tick.total_seconds())

    queue = f"record-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[ModelScheduler], activities=[watch_models]):
        handle = await client.start_workflow(ModelScheduler.run, FleetWatch(), id=queue, task_queue=queue)
        first = client.get_workflow_handle(queue, run_id=handle.result_run_id)
        with suppress(WorkflowContinuedAsNewError):
            await first.result(follow_runs=False)
        await handle.terminate("recorded")
    return await written(first)


async def written(handle: WorkflowHandle[Any, Any]) -> str:
    history = (await handle.fetch_history()).to_json()
    return json.dumps(_without_this_machine(json.loads(history)), indent=1) + "\n"


def _without_this_machine(part: Any) -> Any:
    """Names of hosts and paths of files say nothing to a replay."""
    if isinstance(part, list):
        return [_without_this_machine(each) for each in part]
    if isinstance(part, dict):
        kept = {key: value for key, value in part.items() if key not in {"stackTrace", "identity"}}
        return {key: _without_this_machine(value) for key, value in kept.items()}
    return part


LONG = {"limit.historyCount.suggestContinueAsNew": "20"}
"""settings of a server that suggests to continue as new early"""


async def main() -> None:
    """Only what is missing is recorded: a committed history stays as the old code made it."""
    quick = (SCENARIOS.keys() - LONG_LIVES, BATCH_SCENARIOS.keys() - LONG_BATCHES)
    for settings, plays, batches in (({}, *quick), (LONG, LONG_LIVES, LONG_BATCHES)):
        with tempfile.TemporaryDirectory() as folder:
            async with servers.temporal(Path(folder), **settings) as running:
                client = await connect(ControlSettings(temporal_address=running.server.address))
                await record_missing(client, plays)
                await record_missing_batches(client, batches)
                await record_missing_scheduler(client)


async def record_missing_scheduler(client: Client) -> None:
    path = HISTORIES / f"{MODEL_SCHEDULER_HISTORY}.json"
    if not path.exists():
        path.write_text(await record_scheduler(client))


async def record_missing(client: Client, plays: Collection[Play]) -> None:
    for play, policy in SCENARIOS.items():
        path = HISTORIES / f"{play.__name__}.json"
        if play in plays and not path.exists():
            path.write_text(await record(client, play, policy))


async def record_missing_batches(client: Client, plays: Collection[BatchPlay]) -> None:
    for batch_play, changes in BATCH_SCENARIOS.items():
        path = HISTORIES / f"{batch_play.__name__}.json"
        if batch_play in plays and not path.exists():
            path.write_text(await record_batch(client, batch_play, changes))


if __name__ == "__main__":
    asyncio.run(main())
