"""Breaks in idempotency keys, in retries and repairs of batches, and in what is known of Temporal and the monitor."""

from typing import Any

from tests.breaking.arming import Break, names_of, rules


async def _reserve_nothing(original: Any, self: Any) -> Any:
    names = names_of(original)
    return names.Claim(self.digest, names.new_op_id(), is_new=True)


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


KEYS = (
    Break(
        rules("idempotency"),
        "the digest of a request leaves the node out",
        "domain.idempotency:request_digest",
        lambda original, route, target, body: original(route, "", body),
        tests=(
            "test_route_target_and_every_field_of_the_body_count",
            "test_same_key_and_body_to_three_nodes_in_sequence_starts_on_the_first_only",
        ),
    ),
    Break(
        rules("idempotency"),
        "the digest of a request leaves the body out",
        "domain.idempotency:request_digest",
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
        "services.idempotency:KeyedRequest.claim",
        _reserve_nothing,
        tests=(
            "test_a_crash_after_the_key_was_inserted_starts_once_under_the_reserved_id",
            "test_same_key_and_body_to_three_nodes_at_the_same_instant_starts_on_one_node",
        ),
    ),
    Break(
        rules("batches"),
        "a retry of a batch goes to members that succeeded",
        "services.batches:is_selected",
        _those_that_succeeded_too,
        tests=("test_a_retry_asks_only_the_members_that_it_names",),
    ),
    Break(
        rules("batches"),
        "a batch whose run was terminated stays open",
        "services.batch_repair:BatchRepair.once",
        _repair_nothing,
        tests=("test_members_without_a_turn_get_a_verdict_and_running_ones_keep_their_own_end",),
    ),
    Break(
        rules("batches"),
        "the monitor repairs no batches",
        "activities.fleet:FleetActivities._look",
        _leave_batches_out,
        tests=("test_the_watch_over_the_fleet_repairs_batches",),
    ),
    Break(
        rules("degraded"),
        "a slow Temporal counts as one that is down",
        "runtime.calls:Calls._start_probe",
        lambda _, self: None,
        tests=("test_slow_start_is_waited_for",),
    ),
    Break(
        rules("degraded"),
        "a fleet monitor that was ended is not started again",
        "services.monitoring:MonitorGuard._start",
        _start_nothing,
        tests=(
            "test_monitor_that_was_never_started_is_started",
            "test_closed_monitor_is_started_at_the_next_look",
            "test_open_monitor_is_replaced_after_the_silence",
        ),
    ),
)
