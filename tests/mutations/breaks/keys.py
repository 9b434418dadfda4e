"""Breaks in idempotency keys, in retries and repairs of batches, and in the status of Temporal and the monitor."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules
from tests.mutations.breaks.dispatch import without


async def _reserve_nothing(original: Any, self: Any) -> Any:
    names = names_of(original)
    return names.KeyClaim(self.digest, names.new_op_id(), is_new=True)


def _those_that_succeeded_too(original: Any, member: Any, batch: Any, select: Any) -> bool:
    return member.state == names_of(original).State.SUCCEEDED or bool(original(member, batch, select))


async def _repair_nothing(_: Any, self: Any) -> int:
    return 0


async def _leave_batches_out(original: Any, self: Any) -> None:
    await self._repair.once()
    await self._lifecycle.sweep()
    await self._retention.sweep()
    await self._ticks.write(names_of(original).activity.info().workflow_run_id or "")


async def _start_nothing(_: Any, self: Any, why: str) -> None:
    """The fleet monitor stays as it is."""


async def _take_no_key(_: Any, request: Any, who: Any) -> None:
    """The header is ignored."""


async def _wait_for_nobody(original: Any, self: Any, *, patience_s: float) -> Any:
    return await original(self, patience_s=0)


async def _withdraw_nothing(_: Any, self: Any, claim: Any) -> None:
    """A refused request keeps its key."""


async def _tell_no_runs(_: Any, self: Any, batch_ids: Any) -> None:
    """A run without a row is left alone."""


async def _let_all_begin(_: Any, self: Any, batch: Any) -> None:
    await self._give_turns(batch)


def _stop_only_who_waits(_: Any, self: Any) -> bool:
    return bool(self._waiting or self._ready)


async def _apply_all_limits(_: Any, self: Any, op_id: str, asked: Any) -> list[str]:
    return []


KEYS = (
    Break(
        rules("idempotency"),
        "a POST that starts no job ignores its key",
        "nodesmith.api.idempotency:begin",
        _take_no_key,
        tests=(
            "test_a_key_of_another_request_is_refused_on_every_route",
            "test_a_repeated_order_is_answered_and_not_carried_out",
        ),
    ),
    Break(
        rules("idempotency"),
        "a repeated key answers with the secret's empty shell",
        "nodesmith.api.idempotency:_declares_shown_once",
        lambda original, dependant: False,
        tests=(
            "test_a_secret_is_made_and_shown_once_on_two_replicas",
            "test_a_route_whose_answer_needs_a_secret_declares_it",
        ),
    ),
    Break(
        rules("idempotency"),
        "answers are kept with the credentials in them",
        "nodesmith.api.idempotency:_without_secrets",
        lambda original, value: value,
        tests=("test_an_answer_is_kept_without_credentials",),
    ),
    Break(
        rules("idempotency"),
        "a repetition does not wait for the answer of the first request",
        "nodesmith.services.operations.idempotency:KeyedRequest.begin",
        _wait_for_nobody,
        tests=("test_two_replicas_at_the_same_instant_carry_it_out_once",),
    ),
    Break(
        rules("idempotency"),
        "a refused request uses up its key",
        "nodesmith.services.operations.idempotency:KeyedRequest.withdraw",
        _withdraw_nothing,
        tests=("test_refused_request_may_be_repeated_with_its_key",),
    ),
    Break(
        rules("idempotency"),
        "a joining request is not told which of its limits are ignored",
        "nodesmith.services.operations.admission:Admission._not_applied",
        _apply_all_limits,
        tests=("test_joining_request_learns_which_limits_are_not_applied",),
    ),
    Break(
        rules("batches"),
        "the permit does not ask the row of the batch",
        "nodesmith.store.operations.permits:_PERMIT",
        without("NOT EXISTS (SELECT FROM stopped)"),
        tests=("test_members_of_a_stopped_batch_get_no_permit",),
    ),
    Break(
        rules("batches"),
        "a batch whose nodes are all away does not say that it stopped",
        "nodesmith.workflows.batch:Batch._has_more_to_stop",
        _stop_only_who_waits,
        tests=("test_members_that_return_to_a_stopped_batch_whose_run_is_gone_do_not_begin",),
        waits=True,
    ),
    Break(
        rules("batches"),
        "members of a cancelled batch whose run is gone begin",
        "nodesmith.services.batches.repair:BatchRepair._cancel_members",
        _let_all_begin,
        tests=("test_members_of_a_cancelled_batch_whose_run_is_gone_are_cancelled",),
        waits=True,
    ),
    Break(
        rules("batches"),
        "a batch whose row is missing is left alone",
        "nodesmith.services.batches.repair:BatchRepair._signal_runs",
        _tell_no_runs,
        tests=("test_a_run_whose_row_is_missing_writes_it_again",),
        waits=True,
    ),
    Break(
        rules("idempotency"),
        "the digest of a request leaves the node out",
        "nodesmith.domain.idempotency:request_digest",
        lambda original, route, target, body: original(route, "", body),
        tests=(
            "test_route_target_and_every_field_of_the_body_count",
            "test_same_key_and_body_to_three_nodes_in_sequence_starts_on_the_first_only",
        ),
    ),
    Break(
        rules("idempotency"),
        "the digest of a request leaves the body out",
        "nodesmith.domain.idempotency:request_digest",
        lambda original, route, target, body: original(route, target, {}),
        tests=(
            "test_route_target_and_every_field_of_the_body_count",
            "test_every_part_of_the_body_counts",
            "test_a_batch_with_another_body_and_the_same_key_is_refused",
        ),
    ),
    Break(
        rules("idempotency"),
        "the id of a request is not reserved before the start",
        "nodesmith.services.operations.idempotency:KeyedRequest.claim",
        _reserve_nothing,
        tests=(
            "test_a_crash_after_the_key_was_inserted_starts_once_under_the_reserved_id",
            "test_same_key_and_body_to_three_nodes_at_the_same_instant_starts_on_one_node",
        ),
    ),
    Break(
        rules("batches"),
        "a retry of a batch goes to members that succeeded",
        "nodesmith.services.batches.batches:is_selected",
        _those_that_succeeded_too,
        tests=("test_retry_includes_only_selected_members",),
    ),
    Break(
        rules("batches"),
        "a batch whose run was terminated stays open",
        "nodesmith.services.batches.repair:BatchRepair.once",
        _repair_nothing,
        tests=("test_members_without_a_slot_get_a_verdict_and_running_ones_keep_their_own_end",),
    ),
    Break(
        rules("batches"),
        "the monitor repairs no batches",
        "nodesmith.activities.fleet_monitor:FleetActivities._tick",
        _leave_batches_out,
        tests=("test_fleet_monitor_repairs_batches",),
    ),
    Break(
        rules("degraded"),
        "a slow Temporal counts as one that is down",
        "nodesmith.runtime.temporal_calls:Calls._start_probe",
        lambda _, self: None,
        tests=("test_slow_start_is_waited_for",),
    ),
    Break(
        rules("degraded"),
        "a fleet monitor that was ended is not started again",
        "nodesmith.services.operations.monitor_guard:MonitorGuard._start",
        _start_nothing,
        tests=(
            "test_monitor_that_was_never_started_is_started",
            "test_closed_monitor_is_started_at_the_next_check",
            "test_open_monitor_is_replaced_after_the_silence",
        ),
    ),
)
