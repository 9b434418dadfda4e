"""Breaks in models: placement, eviction, scaling, counters of calls."""

from typing import Any

from tests.breaking.arming import Break, names_of, rules


def _lock_nothing(_: Any) -> Any:
    from sqlalchemy import text

    return text("SELECT 1")


def _many(_: Any, *_arguments: Any) -> Any:
    from sqlalchemy import literal, select

    return select(literal(1000))


async def _always_end_a_call(original: Any, self: Any, holder: str, replica_id: str) -> bool:
    names = names_of(original)
    async with self._database.session() as session:
        row = names.ReplicaRow
        call = names.update(row).where(row.id == replica_id, row.in_flight > 0)
        await session.execute(call.values(in_flight=row.in_flight - 1))
    return True


MODELS = (
    Break(
        rules("R20 H9"),
        "placements do not wait for each other",
        "nodesmith.store.models.statements:LOCK",
        _lock_nothing,
        tests=("test_200_concurrent_placements_take_exactly_what_fits",),
    ),
    Break(
        rules("R19 H18 H38"),
        "memory is not tested when a replica is placed",
        "nodesmith.store.models.placing:_fits",
        lambda original, *_: names_of(original).true(),
        tests=("test_reserved_memory_counts_until_a_reading_shows_it",),
    ),
    Break(
        rules("R51 R52 H16"),
        "an eviction does not look at the minimum",
        "nodesmith.store.models.statements:loaded_and_healthy",
        _many,
        tests=("test_8_concurrent_evictions_stop_exactly_at_the_minimum",),
    ),
    Break(
        rules("R67 H11"),
        "replicas of a lost node count",
        "nodesmith.domain.tick:counts",
        lambda _, node, now: True,
        tests=("test_replicas_on_unhealthy_nodes_do_not_count",),
    ),
    Break(
        rules("moving"),
        "a replica that has to move does not wait for its successor",
        "nodesmith.domain.scaling:_ModelPlan._needed_while_moving",
        lambda _, self: 0,
        tests=("test_drain_moves_replicas_first", "test_new_revision_is_loaded_before_the_old_one_is_unloaded"),
    ),
    Break(
        rules("R47 R89"),
        "the end of a call counts whoever reports it",
        "nodesmith.store.models.holds:Holds.release",
        _always_end_a_call,
        tests=("test_double_release_changes_nothing",),
    ),
    Break(
        rules("R38 R39 H12"),
        "calls of one model are not chosen one after another",
        "nodesmith.store.models.holds:_LOCK_MODEL",
        lambda _: names_text("SELECT :first, hashtext(:model)"),
        tests=("test_64_concurrent_acquires_spread_evenly",),
    ),
    Break(
        rules("R72 R75 R86"),
        "a model rests although something changed",
        "nodesmith.domain.scaling:_ModelPlan._rests",
        lambda _, self: self._model.unsatisfiable_until is not None,
        tests=("test_resting_model_is_placed_when_something_changed",),
    ),
    Break(
        rules("R87 H36"),
        "the scheduler does not learn that there may be room",
        "nodesmith.store.models.wakeups:CAPACITY",
        lambda _: "never",
        tests=("test_scheduler_is_woken_by_changes",),
    ),
)


def names_text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
