"""A changed sequence of commands breaks running operations: committed histories are replayed with the worker's list."""

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import OperationInput, OperationResult
from nodesmith.workers.task_queues import WORKFLOWS
from tests.replay.scenarios import BATCH_SCENARIOS, MODEL_SCHEDULER_HISTORY, SCENARIOS

FOLDER = Path(__file__).parent / "histories"
HISTORIES = sorted(FOLDER.glob("*.json"))


def history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


def test_every_path_has_a_committed_history() -> None:
    played = {play.__name__ for play in (*SCENARIOS, *BATCH_SCENARIOS)}
    assert {*played, MODEL_SCHEDULER_HISTORY} == {path.stem for path in HISTORIES}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_committed_histories_replay(path: Path) -> None:
    replayer = Replayer(workflows=WORKFLOWS, data_converter=pydantic_data_converter)
    await replayer.replay_workflow(history(path))


@workflow.defn(name=names.BACKEND_OPERATION)
class Broken:
    """A deliberate break: it does something else first."""

    @workflow.run
    async def run(self, start: OperationInput) -> OperationResult:
        await workflow.sleep(1)
        raise AssertionError("never reached")


async def test_a_deliberate_break_is_found() -> None:
    path = next(path for path in HISTORIES if path.stem == "succeeded")
    replayer = Replayer(
        workflows=[Broken], data_converter=pydantic_data_converter, workflow_runner=UnsandboxedWorkflowRunner()
    )
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(history(path))


@pytest.mark.parametrize("name", ["continued_as_new", "batch_continued_as_new", MODEL_SCHEDULER_HISTORY])
def test_a_committed_history_continues_as_new(name: str) -> None:
    last = history(FOLDER / f"{name}.json").events[-1]
    assert last.HasField("workflow_execution_continued_as_new_event_attributes")


def test_a_committed_history_of_a_batch_begins_where_another_run_ended() -> None:
    first = history(FOLDER / "batch_went_on_in_a_later_run.json").events[0]
    assert first.workflow_execution_started_event_attributes.continued_execution_run_id
