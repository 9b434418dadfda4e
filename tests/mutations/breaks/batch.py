"""Breaks in batches: the window, the turns, and the recovery after a crash."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules


def _one_after_another(original: Any, self: Any) -> Any:
    return max(0, 1 - len(self._open)) if self._batch.max_parallel == 0 else original(self)


def _count_who_is_away(original: Any, self: Any) -> Any:
    most = self._batch.max_parallel
    return max(0, most - len(self._open)) if most else original(self)


def _go_on_though_paused(original: Any, self: Any) -> Any:
    orders = self._paused, self._cancelled_by
    self._paused, self._cancelled_by = False, None
    try:
        return original(self)
    finally:
        self._paused, self._cancelled_by = orders


async def _keep_the_turn(_: Any, self: Any) -> None:
    self._run.has_slot = False


def _draw_an_id_for_each_attempt(original: Any, batch_id: str, node_id: str) -> str:
    from temporalio import activity

    attempt = activity.info().attempt
    return str(original(batch_id if attempt == 1 else f"{batch_id}-{attempt}", node_id))


async def _draw_an_id_for_each_request(original: Any, self: Any) -> Any:
    from dataclasses import replace

    return replace(await original(self), op_id=names_of(original).new_op_id(), is_new=True)


BATCH = (
    Break(
        rules("S9 S51 H23 G11"),
        "one node after another",
        "nodesmith.workflows.batch:Batch._free_slots",
        _one_after_another,
        tests=("test_zero_means_all_at_once",),
        waits=True,
    ),
    Break(
        rules("H27"),
        "an absent member keeps its slot",
        "nodesmith.workflows.batch:Batch._free_slots",
        _count_who_is_away,
        tests=("test_absent_nodes_never_block_the_window",),
        waits=True,
    ),
    Break(
        rules("H27"),
        "a member that disconnects again keeps its slot",
        "nodesmith.workflows.batch_slot:BatchSlot.release",
        _keep_the_turn,
        tests=("test_node_that_disconnects_again_releases_its_slot",),
        waits=True,
    ),
    Break(
        rules("G12"),
        "max_parallel is ignored",
        "nodesmith.workflows.batch:Batch._free_slots",
        lambda original, self: names_of(original).options.ADMIT_AT_ONCE,
        tests=("test_no_more_than_max_parallel_run_at_once_and_all_get_a_slot",),
    ),
    Break(
        rules("G12"),
        "a returning member begins without a slot",
        "nodesmith.workflows.batch_slot:BatchSlot.is_needed",
        lambda _, self: False,
        tests=("test_nodes_that_return_together_respect_max_parallel",),
        waits=True,
    ),
    Break(
        rules("G12"),
        "a pause and a stop do not hold for returning members",
        "nodesmith.workflows.batch:Batch._next_returned",
        _go_on_though_paused,
        tests=("test_node_that_returns_to_a_paused_batch_waits_for_it",),
    ),
    Break(
        rules("chaos"),
        "a repeated request is another batch",
        "nodesmith.services.operations.idempotency:KeyedRequest.claim",
        _draw_an_id_for_each_request,
        tests=("test_api_crash_at_any_step_of_a_batch_start_starts_it_once",),
    ),
    Break(
        rules("chaos"),
        "a repeated admission draws new ids",
        "nodesmith.activities.batches:member_op_id",
        _draw_an_id_for_each_attempt,
        tests=("test_worker_crash_at_any_step_of_a_batch_admits_each_target_once",),
        limit_s=90,
        waits=True,
    ),
)
