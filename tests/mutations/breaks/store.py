"""Breaks in the registry of nodes, in the history, and in the table of states."""

from typing import Any

from tests.mutations.arming import Break, Unresolvable, names_of, rules


def _a_success_moves_again(table: Any) -> Any:
    running = next(moves for state, moves in table.items() if state.name == "RUNNING")
    success = next(state for state in type(next(iter(table))) if state.name == "SUCCEEDED")
    return {**table, success: running}


async def _purge_members_too(original: Any, self: Any, ended_before: Any) -> int:
    names = names_of(original)
    async with self._database.session() as session:
        await session.execute(names.delete(names.OperationRow).where(names.OperationRow.ended_at < ended_before))
    return int(await original(self, ended_before))


async def _purge_nothing(_: Any, self: Any, ended_before: Any) -> int:
    return 0


async def _do_not_sweep(_: Any, self: Any) -> None:
    """Nothing is purged."""


async def _count_no_work(_: Any, self: Any) -> Any:
    return [], []


def _only_on_a_node(_: Any) -> Any:
    from nodesmith.store.tables.core import OperationRow

    return OperationRow.dispatched_at.is_not(None)


async def _retire_and_keep(original: Any, self: Any, node_id: str, *, now: Any) -> None:
    names = names_of(original)
    async with self._database.session() as session:
        await names._retire(session, node_id, names.StopWhy.REMOVED, now)


async def _approve_by_resume(original: Any, self: Any, node_id: str, *, now: Any) -> None:
    names = names_of(original)
    await original(self, node_id, now=now)
    async with self._database.session() as session:
        row = names.NodeRow
        await session.execute(names.update(row).where(row.id == node_id).values(approved_at=now))


def _believe_pending_nodes(statement: Any) -> Any:
    """In SQL there is no function to replace: the condition is taken out of the text."""
    from sqlalchemy import text

    condition = "heard.is_it AND nodes.approved_at IS NOT NULL AND nodes.left_at IS NULL"
    if condition not in statement.text:
        raise Unresolvable("A heartbeat no longer asks for the approval in this way.")
    return text(statement.text.replace(condition, "heard.is_it"))


def _cap_the_free_reading(_: Any, self: Any, total_vram: Any, free_vram: Any) -> Any:
    ceiling = self.ceiling(total_vram)
    return free_vram if ceiling is None or free_vram is None else min(ceiling, free_vram)


STORE = (
    Break(
        rules("R9 R22 H10"),
        "a removed node stays in the registry",
        "nodesmith.store.nodes.lifecycle:NodeLifecycle.remove",
        _retire_and_keep,
        tests=("test_removal_takes_all_of_it_along_and_keeps_history",),
    ),
    Break(
        rules("R17 R28"),
        "a resume approves",
        "nodesmith.store.nodes.lifecycle:NodeLifecycle.resume",
        _approve_by_resume,
        tests=("test_neither_resume_approves",),
    ),
    Break(
        rules("R23"),
        "a heartbeat of a pending node changes its facts",
        "nodesmith.store.nodes.nodes:_HEARTBEATS",
        _believe_pending_nodes,
        tests=(
            "test_heartbeat_of_a_pending_node_moves_its_time_and_no_fact",
            "test_heartbeat_of_a_node_that_left_moves_its_time_and_no_fact",
        ),
    ),
    Break(
        rules("H18"),
        "a budget caps what is free, whatever is in use",
        "nodesmith.domain.budget:Budget.available",
        _cap_the_free_reading,
        tests=("test_budget_leaves_what_is_not_in_use",),
    ),
    Break(
        rules("S62"),
        "a success can be overwritten",
        "nodesmith.domain.operation:TRANSITIONS",
        _a_success_moves_again,
        tests=("test_an_ended_operation_never_moves",),
    ),
    Break(
        rules("H33"),
        "the purge is never called",
        "nodesmith.services.operations.retention:Retention.sweep",
        _do_not_sweep,
        tests=("test_fleet_monitor_purges_old_operations",),
    ),
    Break(
        rules("H33"),
        "ended operations are never purged",
        "nodesmith.store.operations.history:History.purge",
        _purge_nothing,
        tests=("test_old_operations_are_purged_with_their_story_and_young_ones_stay",),
    ),
    Break(
        rules("H33"),
        "the operation of a member is purged under its batch",
        "nodesmith.store.operations.history:History.purge",
        _purge_members_too,
        tests=("test_an_operation_stays_as_long_as_its_batch",),
    ),
    Break(
        rules("H34"),
        "pending work is not counted",
        "nodesmith.store.operations.history:History.pending",
        _count_no_work,
        tests=("test_pending_work_is_listed_per_node_and_per_backend",),
    ),
    Break(
        rules("H34"),
        "only what is on a node counts as work",
        "nodesmith.store.operations.history:IS_OPEN",
        _only_on_a_node,
        tests=("test_pending_work_is_counted_per_node_and_per_backend",),
    ),
    Break(
        rules("degraded"),
        "without PostgreSQL a request is a defect of ours",
        "nodesmith.store.database:_is_outage",
        lambda _, error: False,
        tests=("test_without_postgresql_everything_that_needs_it_is_503",),
    ),
)
