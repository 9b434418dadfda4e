"""Breaks in the record of an operation: its row, the lock, the event numbers, and the repair."""

import random
from typing import Any

from tests.mutations.arming import Break, Unresolvable, names_of, rules


async def _forget(_: Any, *args: Any, **kwargs: Any) -> None:
    """What should be done is not done."""


async def _end_every_row(_: Any, self: Any) -> int:
    rows = await self.operations.open_operations()
    for row in rows:
        await self._end(row)
    return len(rows)


async def _start_beside_the_lock(original: Any, self: Any, request: Any, *, intent: str) -> Any:
    asked = request.request
    wanted = asked.wanted.model_copy(update={"family": asked.op_id})
    beside = request.model_copy(update={"request": asked.model_copy(update={"wanted": wanted})})
    return await original(self, beside, intent=intent)


async def _number_without_the_lock(original: Any, self: Any, *args: Any, **values: Any) -> Any:
    """Everybody has a lock of its own."""
    inner = original.__globals__
    inner["EVENT_LOCK"] += random.randrange(1, 10**6)
    return await original(self, *args, **values)


async def _overwrite_with_the_first_row(original: Any, self: Any, first: Any) -> Any:
    names = names_of(original)
    columns = ", ".join(f"{column} = excluded.{column}" for column in names._ROW_COLUMNS if column != "op_id")
    row = names._row(first)
    return await self._write(names._written(f"(op_id) DO UPDATE SET {columns}"), [row], [row])


async def _keep_the_first_list(original: Any, self: Any, wanted: Any = None, **asked: Any) -> Any:
    copies, key = self.__dict__.setdefault("copies", {}), repr((wanted, asked))
    if key not in copies:
        copies[key] = await original(self, wanted, **asked)
    return copies[key]


async def _call_the_bus_away(original: Any, self: Any, op_ids: Any) -> Any:
    reasons, standing = names_of(original).Reason, await original(self, op_ids)
    away = {reasons.NATS_DOWN: reasons.NODE_AWAY}
    return {op_id: (state, away.get(reason, reason)) for op_id, (state, reason) in standing.items()}


def _gauges_of_ended_rows(statement: Any) -> Any:
    """In SQL there is no function to replace: the condition is taken out of the text."""
    from sqlalchemy import text

    from nodesmith.domain.operation import OPEN
    from nodesmith.store.tables.core import one_of

    condition = f" AND {one_of('state', OPEN)}"
    if condition not in statement.text:
        raise Unresolvable("write_gauges no longer asks whether the row is open in this way.")
    return text(statement.text.replace(condition, ""))


def _listed_too(state: str) -> Any:
    def widened(condition: Any) -> Any:
        from nodesmith.store.tables.core import OperationRow

        return condition | (OperationRow.state == state)

    return widened


def _not_listed(state: str) -> Any:
    def narrowed(condition: Any) -> Any:
        from nodesmith.store.tables.core import OperationRow

        return condition & (OperationRow.state != state)

    return narrowed


def _nothing(condition: Any) -> Any:
    from sqlalchemy import false

    return false()


_LIVE_LIST = ("test_live_list_has_open_and_unsuccessful_ones_until_dismissed",)

ROWS = (
    Break(
        rules("S13"),
        "orphans are left as they are",
        "nodesmith.services.operations.repair:Repair._end",
        _forget,
        tests=("test_row_of_a_terminated_run_ends_and_the_node_is_stopped",),
    ),
    Break(
        rules("S29"),
        "the sweep ends what runs",
        "nodesmith.services.operations.repair:Repair.once",
        _end_every_row,
        tests=("test_two_repairs_at_once_are_harmless_and_open_runs_are_left_alone",),
        waits=True,
    ),
    Break(
        rules("S14 H31"),
        "every request is a run of its own",
        "nodesmith.runtime.temporal:TemporalRuns.start",
        _start_beside_the_lock,
        tests=("test_the_same_request_joins_what_runs",),
    ),
    Break(
        rules("G10"),
        "a request with another intent reads as joined",
        "nodesmith.services.operations.operation_lock:intent_of",
        lambda _, wanted: "the same",
        tests=("test_another_intent_is_refused_and_the_holder_named",),
    ),
    Break(
        rules("S15"),
        "a success stays listed",
        "nodesmith.store.operations.operations:IS_UNSUCCESSFUL",
        _listed_too("succeeded"),
        tests=_LIVE_LIST,
    ),
    Break(
        rules("S17"),
        "a cancelled one stays listed",
        "nodesmith.store.operations.operations:IS_UNSUCCESSFUL",
        _listed_too("cancelled"),
        tests=_LIVE_LIST,
    ),
    Break(
        rules("S18"),
        "a failure is evicted",
        "nodesmith.store.operations.operations:IS_UNSUCCESSFUL",
        _nothing,
        tests=_LIVE_LIST,
    ),
    Break(
        rules("S19"),
        "still installing is evicted",
        "nodesmith.store.operations.operations:IS_OPEN",
        _not_listed("still_installing"),
        tests=_LIVE_LIST,
    ),
    Break(
        rules("S20"),
        "queued operations are not listed",
        "nodesmith.store.operations.operations:IS_OPEN",
        _not_listed("queued"),
        tests=_LIVE_LIST,
    ),
    Break(
        rules("S16 H43"),
        "each replica keeps the list it made when it first looked",
        "nodesmith.store.operations.operations:OperationTable.listing",
        _keep_the_first_list,
        tests=("test_what_ends_leaves_the_list_of_every_replica_and_is_in_the_history_of_each",),
    ),
    Break(
        rules("S21 stream"),
        "events are numbered without the lock",
        "nodesmith.store.operations.operations:OperationTable._write",
        _number_without_the_lock,
        tests=("test_reader_that_follows_by_number_misses_nothing_of_fifty_writers",),
        waits=True,
    ),
    Break(
        rules("degraded"),
        "without NATS a batch goes on to the next nodes",
        "nodesmith.store.operations.operations:OperationTable.states",
        _call_the_bus_away,
        tests=("test_node_unreachable_because_of_nats_keeps_its_batch_slot",),
    ),
    Break(
        rules("chaos"),
        "a late gauge is written on a row that has ended",
        "nodesmith.store.operations.operations:_GAUGES",
        _gauges_of_ended_rows,
        tests=("test_gauges_never_touch_an_operation_that_ended",),
    ),
    Break(
        rules("chaos"),
        "the API's own row overwrites what is there",
        "nodesmith.store.operations.operations:OperationTable.insert_queued",
        _overwrite_with_the_first_row,
        tests=("test_api_insert_never_overwrites_the_workflow",),
    ),
)
