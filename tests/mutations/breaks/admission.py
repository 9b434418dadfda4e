"""Breaks in admission: the services in front of Temporal."""

import asyncio
from dataclasses import replace
from typing import Any

from tests.mutations.arming import Break, names_of, rules


async def _answer_after_the_end(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    accepted = await original(self, *args, **kwargs)
    ended = names_of(original).ENDED
    while (row := await self.operations.find(accepted.op_id)) is None or row.state not in ended:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return accepted


def _take_empty_requests(original: Any, self: Any, kind: Any, request: Any, *, capability: str = "") -> Any:
    if not request.backend and not request.uri:
        return self._by_name(kind, request, capability)
    return original(self, kind, request, capability=capability)


async def _everybody_for_one(original: Any, self: Any, request: Any) -> Any:
    return await self.nodes.list() if request.nodes else await original(self, request)


async def _retry_no_dead_letters(original: Any, self: Any, op_id: str, **rest: Any) -> Any:
    names = names_of(original)
    row = await self.operations.find(op_id)
    if row is not None and row.state is names.State.DEAD_LETTER:
        raise names.NotRetryable("A dead letter stays one.", op_id=op_id)
    return await original(self, op_id, **rest)


def _let_pending_through(original: Any, node: Any, asked: str, *, on_drained: bool = False) -> Any:
    if node is not None and node.approved_at is None:
        return node
    return original(node, asked, on_drained=on_drained)


def _ask_agent_nodes(original: Any, node: Any, family: str, having: Any, **rest: Any) -> Any:
    if node.node_type != "backend":
        return None
    return original(node, family, having, **rest)


async def _refuse_nodes_not_heard(original: Any, self: Any, kind: Any, node: str, *args: Any, **rest: Any) -> Any:
    found = await self.nodes.find(node)
    if found is not None and found.last_heartbeat is None:
        raise names_of(original).UnknownNode("NATS does not answer.", node=node)
    return await original(self, kind, node, *args, **rest)


async def _cancel_removals(original: Any, self: Any, op_id: str, *, actor: str, **order: Any) -> Any:
    return await _cancelled_if(original, self, op_id, order, actor, lambda row: row is not None)


async def _cancel_removals_out_of_sight(original: Any, self: Any, op_id: str, *, actor: str, **order: Any) -> Any:
    def is_out_of_sight(row: Any) -> bool:
        return row is not None and row.state.name == "STILL_INSTALLING"

    return await _cancelled_if(original, self, op_id, order, actor, is_out_of_sight)


async def _cancelled_if(original: Any, self: Any, op_id: str, order: Any, actor: str, is_meant: Any) -> Any:
    names, row = names_of(original), await self.operations.find(op_id)
    if is_meant(row) and row.kind.rules.removes:
        await self.runs.cancel(row.workflow_id, names.CancelRequest(op_id=op_id, by=actor))
        return ""
    return await original(self, op_id, actor=actor, **order)


async def _one_look_ends_with_the_first_error(_: Any, self: Any, node: Any) -> bool:
    await self.refresh(node)
    return True


async def _unload_only_what_runs(original: Any, self: Any, nodes: Any, name: str) -> Any:
    view = await original(self, nodes, name)
    if not view.nodes:
        raise names_of(original).UnknownBackend(f"{name} runs nowhere.", backend=name)
    return view


def _raise_instead(original: Any, unloaded: Any, result: Any, error: Exception) -> Any:
    if result is names_of(original).UnloadResult.FAILED:
        raise error
    return original(unloaded, result, error)


async def _end_with_the_request(original: Any, http: Any, deps: Any, *args: Any, **kwargs: Any) -> Any:
    from nodesmith.contracts.temporal.operations import CancelRequest

    accepted, admission = await original(http, deps, *args, **kwargs), deps.admission

    async def end() -> None:
        while not await http.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        row = await admission.operations.find(accepted.op_id)
        await admission.lock.runs.cancel(row.workflow_id, CancelRequest(op_id=accepted.op_id))

    http.app.__dict__.setdefault("ending", []).append(asyncio.create_task(end()))
    return accepted


async def _forget(_: Any, *args: Any, **kwargs: Any) -> None:
    """What should be done is not done."""


ADMISSION = (
    Break(
        rules("S1"),
        "the answer waits for the node",
        "nodesmith.services.operations.admission:Admission.ask",
        _answer_after_the_end,
        tests=("test_accepted_install_is_durable_and_readable_at_once",),
        limit_s=15,
        waits=True,
    ),
    Break(
        rules("S2"),
        "an empty request is let through",
        "nodesmith.services.operations.intents:Intents.wanted",
        _take_empty_requests,
        tests=("test_bad_request_gets_a_clear_answer",),
    ),
    Break(
        rules("S3"),
        "a request for one node goes to everybody",
        "nodesmith.services.batches.planning:BatchPlanner._chosen",
        _everybody_for_one,
        tests=("test_named_nodes_and_everywhere_select_exactly_their_targets",),
    ),
    Break(
        rules("S4 S5 H24"),
        "the lock names the backend, not the node",
        "nodesmith.contracts.temporal.operations:operation_workflow_id",
        lambda _, node_id, family: f"backend:{family}",
        tests=(
            "test_one_backend_on_two_nodes_through_two_replicas_is_two_operations",
            "test_the_lock_is_node_and_family",
        ),
    ),
    Break(
        rules("S8"),
        "the work ends with the request that asked for it",
        "nodesmith.api.operation_start:start_operation",
        _end_with_the_request,
        tests=("test_operation_continues_without_a_watcher",),
        limit_s=90,
    ),
    Break(
        rules("S12 H25 G6"),
        "the name of a direct uri is lost",
        "nodesmith.services.operations.intents:Intents._by_uri",
        lambda original, *args: original(*args).model_copy(update={"name": ""}),
        tests=("test_an_install_by_uri_carries_everything_to_the_run",),
    ),
    Break(
        rules("S26"),
        "a waiting operation survives the drain",
        "nodesmith.services.nodes.lifecycle:_ends_by_drain",
        lambda _, row, running: False,
        tests=("test_drain_ends_undispatched_operations_and_lets_running_ones_finish",),
    ),
    Break(
        rules("S42"),
        "one node that fails ends the whole request",
        "nodesmith.services.nodes.running_models:_not_unloaded",
        _raise_instead,
        tests=("test_a_model_is_unloaded_on_every_node_that_has_it_and_a_node_that_fails_is_named",),
    ),
    Break(
        rules("S42"),
        "a model that runs nowhere cannot be unloaded",
        "nodesmith.services.nodes.running_models:NodeModels.unload_everywhere",
        _unload_only_what_runs,
        tests=("test_a_model_that_runs_nowhere_is_unloaded_already",),
    ),
    Break(
        rules("S43"),
        "a stop is accepted and not sent",
        "nodesmith.services.nodes.backend_stop:BackendStop.stop",
        lambda original, self, node, backend, *, force: None,
        tests=("test_stop_goes_straight_to_the_node_and_is_audited",),
        waits=True,
    ),
    Break(
        rules("S46"),
        "agent nodes are asked too",
        "nodesmith.services.batches.planning:_why_not",
        _ask_agent_nodes,
        tests=("test_ineligible_nodes_are_left_out_by_name",),
    ),
    Break(
        rules("S47"),
        "a command without a subscriber does not make the node unhealthy",
        "nodesmith.store.nodes.nodes:Nodes.mark_unreachable",
        _forget,
        tests=("test_only_commands_and_lists_change_reachability",),
    ),
    Break(
        rules("S48"),
        "a dead letter cannot be driven again",
        "nodesmith.services.operations.admission:Admission.retry",
        _retry_no_dead_letters,
        tests=("test_a_retry_is_a_new_operation_that_names_the_old",),
    ),
    Break(
        rules("S49 H20"),
        "a pending node is let through",
        "nodesmith.services.operations.admission:admissible",
        _let_pending_through,
        tests=("test_nodes_that_may_not_get_work_are_refused",),
    ),
    Break(
        rules("S55"),
        "an upgrade goes where it never was",
        "nodesmith.domain.kinds:RULES",
        lambda rows: {kind: replace(row, needs_installed=kind.name == "ROLLBACK") for kind, row in rows.items()},
        tests=("test_upgrade_targets_only_nodes_that_have_the_backend",),
    ),
    Break(
        rules("S56"),
        "one node that is away spoils the whole look",
        "nodesmith.services.nodes.inventory:Inventory._try_refresh",
        _one_look_ends_with_the_first_error,
        tests=("test_one_refresh_asks_the_whole_fleet_despite_absent_nodes",),
    ),
    Break(
        rules("S60"),
        "a running removal is cancelled",
        "nodesmith.services.operations.cancellation:Cancellation.cancel",
        _cancel_removals,
        tests=(
            "test_a_removal_on_its_node_is_left_out_of_a_bulk_cancel_and_named",
            "test_removal_on_its_node_cannot_be_cancelled_unless_by_force",
        ),
    ),
    Break(
        rules("S60"),
        "a removal that is still installing is cancelled",
        "nodesmith.services.operations.cancellation:Cancellation.cancel",
        _cancel_removals_out_of_sight,
        tests=("test_removal_on_its_node_cannot_be_cancelled_unless_by_force",),
    ),
    Break(
        rules("S63 H41"),
        "the guard is left out",
        "nodesmith.services.batches.planning:BatchPlanner._refuse_concrete",
        lambda _, self, request: None,
        tests=("test_hardware_specific_build_is_refused_for_the_whole_fleet",),
    ),
    Break(
        rules("degraded"),
        "without NATS an install is refused",
        "nodesmith.services.operations.admission:Admission.ask",
        _refuse_nodes_not_heard,
        tests=("test_without_nats_installs_are_accepted_and_wait",),
    ),
)
