"""Breaks in the registry of nodes, in the history, and in the table of states."""

from typing import Any

from tests.breaking.arming import Break, names_of, rules


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
    from store.models import OperationRow

    return OperationRow.dispatched_at.is_not(None)


STORE = (
    Break(
        rules("S62"),
        "a success can be overwritten",
        "domain.operation:TRANSITIONS",
        _a_success_moves_again,
        tests=("test_an_ended_operation_never_moves",),
    ),
    Break(
        rules("H33"),
        "nobody calls for the purge",
        "services.retention:Retention.sweep",
        _do_not_sweep,
        tests=("test_the_watch_over_the_fleet_purges_what_is_old",),
    ),
    Break(
        rules("H33"),
        "what ended is kept for ever",
        "store.history:History.purge",
        _purge_nothing,
        tests=("test_old_operations_are_purged_with_their_story_and_young_ones_stay",),
    ),
    Break(
        rules("H33"),
        "the operation of a member is purged under its batch",
        "store.history:History.purge",
        _purge_members_too,
        tests=("test_an_operation_stays_as_long_as_its_batch",),
    ),
    Break(
        rules("H34"),
        "pending work is not counted",
        "store.history:History.pending",
        _count_no_work,
        tests=("test_pending_work_is_listed_per_node_and_per_backend",),
    ),
    Break(
        rules("H34"),
        "only what is on a node counts as work",
        "store.history:IS_OPEN",
        _only_on_a_node,
        tests=("test_pending_work_is_counted_per_node_and_per_backend",),
    ),
    Break(
        rules("degraded"),
        "without PostgreSQL a request is a defect of ours",
        "store.database:_is_outage",
        lambda _, error: False,
        tests=("test_without_postgresql_everything_that_needs_it_is_503",),
    ),
)
