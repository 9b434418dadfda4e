"""Breaks in the presentation of operations: lists, status, LocalAI's format and the command line."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules

_BATCH_STATUS = ("test_status_of_a_batch_names_the_nodes_that_failed_and_no_others",)
_NOT_BAD = ("queued", "waiting", "running", "still_installing", "cancelling", "cancelled")


def _shown_as(name: str, word: str) -> Any:
    return lambda table: {state: word if state.name == name else reported for state, reported in table.items()}


def _completed_though_cancelled(original: Any, operation: Any) -> Any:
    status = original(operation)
    is_cancelled = operation is not None and operation.state is names_of(original).State.CANCELLED
    return status.model_copy(update={"completed": True}) if is_cancelled else status


PRESENTATION = (
    Break(
        rules("S6"),
        "the list does not name the node",
        "nodesmith.api.localai.views:list_entry",
        lambda original, operation: original(operation).model_copy(update={"nodeID": ""}),
        tests=("test_live_list_has_localais_entries",),
    ),
    Break(
        rules("S10"),
        "a cancelled operation reads as completed",
        "nodesmith.api.localai.views:job_status",
        _completed_though_cancelled,
        tests=("test_job_status_is_localais",),
    ),
    Break(
        rules("S10"),
        "the status of what was cancelled does not say so",
        "nodesmith.api.localai.views:op_status",
        lambda original, operation: original(operation).model_copy(update={"cancelled": False}),
        tests=("test_status_of_an_operation_tells_every_state",),
    ),
    Break(
        rules("S10"),
        "a cancelled batch is watched to a success",
        "nodesmith.cli.output.watch_batch:is_successful",
        lambda original, batch: all(member.state in names_of(original)._SUCCESSFUL_STATES for member in batch.members),
        tests=("test_watching_a_batch_exits_with_0_only_if_it_succeeded_everywhere",),
    ),
    Break(
        rules("S52"),
        "a node that is away counts as an error",
        "nodesmith.api.localai.views:_NODE_STATUS",
        _shown_as("WAITING", "error"),
        tests=_BATCH_STATUS,
    ),
    Break(
        rules("S53"),
        "still installing counts as a success",
        "nodesmith.api.localai.views:_NODE_STATUS",
        _shown_as("STILL_INSTALLING", "success"),
        tests=_BATCH_STATUS,
    ),
    Break(
        rules("S54"),
        "members that have not ended appear in the error of a batch",
        "nodesmith.api.localai.views:_BAD",
        lambda bad: (*bad, *_NOT_BAD),
        tests=_BATCH_STATUS,
    ),
    Break(
        rules("S58"),
        "the line of the node is wiped",
        "nodesmith.api.localai.views:op_status",
        lambda original, operation: original(operation).model_copy(update={"nodes": []}),
        tests=("test_status_of_a_running_operation_is_localais",),
    ),
    Break(
        rules("S59"),
        "the list is in no order",
        "nodesmith.api.localai.views:list_order",
        lambda _, operation: (0, "", operation.op_id),
        tests=("test_list_is_ordered_by_progress_then_name",),
    ),
    Break(
        rules("degraded"),
        "lists do not say how old they are",
        "nodesmith.api.health:Health.down_since",
        lambda _, self, name: None,
        tests=("test_without_temporal_writes_are_refused_and_lists_are_served",),
    ),
)
