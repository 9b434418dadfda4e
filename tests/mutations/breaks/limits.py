"""Breaks in limits, defaults and health: each was once wrong without a failing test."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.mutations.arming import Break, names_of, rules

_POLICY = ("test_every_default_of_the_policy_is_pinned", "test_settings_fill_the_policy_with_these_defaults")


async def _do_not_repair(original: Any, self: Any) -> None:
    await self._batches.once()
    await self._lifecycle.sweep()
    await self._retention.sweep()
    await self._ticks.write(names_of(original).activity.info().workflow_run_id or "")


def _on_the_queue_of_installs(original: Any) -> Any:
    names = names_of(original)
    queue = names.names.node_queue(names.workflow.info().task_queue)
    return {**original(), "task_queue": queue}


def _conditions_without_statuses(original: Any, query: Any) -> Any:
    return original(replace(query, statuses=()))


def _all_but_pending_are_healthy(original: Any, now: Any) -> Any:
    from sqlalchemy import case, literal

    from nodesmith.store.tables.core import NodeRow

    return case((NodeRow.approved_at.is_(None), literal("pending")), else_=literal("healthy"))


async def _ask_everybody(original: Any, self: Any, nodes: Any) -> Any:
    healthy = names_of(original).NodeStatus.HEALTHY
    return await original(self, [replace(node, status=healthy) for node in nodes])


def _why_not_unless_drained(original: Any, node: Any, *args: Any, **rest: Any) -> Any:
    return original(node, *args, **{**rest, "on_drained": True})


LIMITS = (
    Break(
        rules("limits"),
        "a batch takes drained nodes",
        "nodesmith.services.batches.planning:_why_not",
        _why_not_unless_drained,
        tests=("test_a_batch_takes_drained_nodes_only_on_purpose",),
    ),
    Break(
        rules("limits"),
        "a batch goes on after any number of failures",
        "nodesmith.services.batches.batches:DEFAULT_MAX_FAILURES",
        lambda limit: None,
        tests=("test_upgrades_removals_and_rollbacks_stop_after_three_failures_and_installs_never",),
    ),
    Break(
        rules("limits"),
        "a batch begins everywhere at once",
        "nodesmith.contracts.http.batches:BatchRequest.max_parallel",
        lambda limit: 0,
        tests=(
            "test_defaults_of_a_batch_request",
            "test_upgrades_removals_and_rollbacks_stop_after_three_failures_and_installs_never",
        ),
    ),
    Break(
        rules("S44"),
        "a removal on a LocalAI worker gets an hour",
        "nodesmith.activities.localai:REMOVAL_ANSWER_S",
        lambda limit: 3600.0,
        tests=("test_localai_worker_gets_two_minutes_to_remove_a_backend",),
    ),
    Break(
        rules("S44"),
        "an unload gets an hour",
        "nodesmith.services.nodes.running_models:LONG_TIMEOUT_S",
        lambda limit: 3600.0,
        tests=("test_node_gets_half_a_minute_to_unload_stop_and_delete_a_model",),
    ),
    Break(
        rules("limits"),
        "a removal that somebody waits for is waited for an hour",
        "nodesmith.api.dependencies:Dependencies.__init__",
        lambda original, self, *args, **rest: original(self, *args, **{"patience_s": 3600.0, **rest}),
        tests=("test_removal_is_waited_for_two_minutes",),
    ),
    Break(
        rules("limits"),
        "an operation is tried a million times",
        "nodesmith.contracts.temporal.operations:Policy.max_attempts",
        lambda attempts: 1_000_000,
        tests=_POLICY,
    ),
    Break(
        rules("limits"),
        "the request timeout is 10 s",
        "nodesmith.contracts.temporal.operations:Policy.request_timeout",
        lambda limit: timedelta(seconds=10),
        tests=(*_POLICY, "test_install_has_the_default_limits_on_its_node"),
    ),
    Break(
        rules("limits"),
        "a node is waited for 15 minutes",
        "nodesmith.contracts.temporal.operations:Policy.wait_for_node",
        lambda limit: timedelta(minutes=15),
        tests=_POLICY,
    ),
    Break(
        rules("limits"),
        "a node is lost after a second",
        "nodesmith.contracts.temporal.operations:Policy.lost_after",
        lambda limit: timedelta(seconds=1),
        tests=_POLICY,
    ),
    Break(
        rules("limits"),
        "a cancel is queued behind installs",
        "nodesmith.workflows.policy:cancel_on_node",
        _on_the_queue_of_installs,
        tests=("test_cancel_has_the_control_queue_and_the_highest_priority",),
    ),
    Break(
        rules("S13"),
        "the monitor never repairs",
        "nodesmith.activities.fleet_monitor:FleetActivities._tick",
        _do_not_repair,
        tests=(
            "test_each_tick_repairs_and_is_written_when_it_is_complete",
            "test_monitor_repairs_at_its_ticks",
        ),
        waits=True,
    ),
    Break(
        rules("limits"),
        "drained, offline and unhealthy nodes count as healthy",
        "nodesmith.store.nodes.nodes:status_expression",
        _all_but_pending_are_healthy,
        tests=(
            "test_list_by_status_has_the_nodes_of_that_status_and_no_others",
            "test_status_in_sql_is_the_status_of_the_domain",
        ),
    ),
    Break(
        rules("limits"),
        "a list by status lists every node",
        "nodesmith.store.nodes.node_list:_conditions",
        _conditions_without_statuses,
        tests=("test_list_by_status_has_the_nodes_of_that_status_and_no_others",),
    ),
    Break(
        rules("limits"),
        "every node is asked what runs, healthy or not",
        "nodesmith.services.nodes.running_models:NodeModels.everywhere",
        _ask_everybody,
        tests=("test_only_healthy_nodes_are_asked_what_runs_everywhere",),
    ),
)
