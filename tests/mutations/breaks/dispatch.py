"""Breaks in dispatch and recovery: the permit, the decision number, the final row, and restored stores."""

from typing import Any

from tests.mutations.arming import Break, Unresolvable, names_of, rules

_PERMIT_AND_END = "test_permit_and_end_at_the_same_instant_agree"
_DECISIONS = ("test_only_a_failure_that_counts_raises_the_decision_number",)
_ENDED_ROW = "test_holder_whose_row_has_ended_is_neither_joined_nor_a_conflict"


def without(condition: str, instead: str = "true") -> Any:
    """In SQL there is no function to replace: the condition is taken out of the text."""

    def changed(statement: Any) -> Any:
        from sqlalchemy import text

        if statement.text.count(condition) != 1:
            raise Unresolvable(f"The statement does not say {condition!r} exactly once.")
        return text(statement.text.replace(condition, instead))

    return changed


def _is_open(column: str) -> str:
    """The condition as the statements have it."""
    from nodesmith.domain.operation import OPEN
    from nodesmith.store.tables.core import one_of

    return one_of(column, OPEN)


def _for_ended_rows_too(statement: Any) -> Any:
    return without(_is_open("operations.state"))(statement)


async def _forget(_: Any, *args: Any, **kwargs: Any) -> None:
    """What should be done is not done."""


async def _drop_only_unsent(_: Any, self: Any, transitions: Any) -> Any:
    return await self._records.record(*transitions.rows)


async def _keep_the_decision(original: Any, self: Any, outcome: Any, reason: Any, pause: Any, detail: str) -> None:
    self._run.accepted = False
    await self._waits.pause(reason, max(pause, names_of(original).options.SHORTEST_PAUSE), detail)


async def _count_from_its_own_number(original: Any, self: Any, outcome: Any, *rest: Any) -> None:
    await original(self, outcome.model_copy(update={"decision": 0}), *rest)


def _decide_with_every_follow(original: Any, self: Any) -> None:
    self._run.decision += 1
    original(self)


async def _ask_only_the_node(_: Any, self: Any, row: Any) -> None:
    """The closed run is not asked."""


def _forget_when_it_continues(*fields: str) -> Any:
    def continued(original: Any, self: Any) -> None:
        if names_of(original).workflow.info().is_continue_as_new_suggested():
            for field in fields:
                setattr(self._run, field, type(self._run).model_fields[field].default)
        original(self)

    return continued


async def _cancel_without_end(original: Any, self: Any, request: Any) -> None:
    self._run.cancel_until = None
    await original(self, request)


_ROW = (
    Break(
        rules("dispatch"),
        "the permit is granted although the row has ended",
        "nodesmith.store.operations.permits:_PERMIT",
        _for_ended_rows_too,
        tests=("test_permit_for_an_ended_operation_returns_its_end", _PERMIT_AND_END),
    ),
    Break(
        rules("dispatch"),
        "every token withdraws the sent mark",
        "nodesmith.store.operations.permits:_WITHDRAW",
        without("sent_by = :token", "CAST(:token AS text) IS NOT NULL"),
        tests=("test_shared_mark_is_withdrawn_by_neither_user",),
    ),
    Break(
        rules("S62 dispatch"),
        "a row that has ended moves again",
        "nodesmith.store.operations.operations:_FORWARDS",
        _for_ended_rows_too,
        tests=("test_ended_row_is_final_and_returns_its_end",),
    ),
    Break(
        rules("dispatch"),
        "an end that the node did not report ignores whether a command was sent",
        "nodesmith.store.operations.operations:_FORWARDS",
        without("NOT :only_unsent OR", "true OR NOT :only_unsent OR"),
        tests=("test_end_without_an_outcome_needs_a_row_that_was_never_sent", _PERMIT_AND_END),
    ),
    Break(
        rules("dispatch"),
        "the activity does not pass on that only an unsent operation may end",
        "nodesmith.activities.records:RecordActivities.record",
        _drop_only_unsent,
        tests=("test_activity_refuses_an_end_without_an_outcome_after_dispatch",),
    ),
)

_RUN = (
    Break(
        rules("dispatch"),
        "the decision number never rises",
        "nodesmith.workflows.backend_operation:BackendOperation._decide_again",
        _keep_the_decision,
        tests=_DECISIONS,
    ),
    Break(
        rules("dispatch"),
        "the decision number rises with every follower",
        "nodesmith.workflows.node_session:NodeSession.follow",
        _decide_with_every_follow,
        tests=_DECISIONS,
    ),
    Break(
        rules("dispatch"),
        "the next decision may be one that the node knows already",
        "nodesmith.workflows.backend_operation:BackendOperation._decide_again",
        _count_from_its_own_number,
        tests=("test_next_decision_is_above_the_one_that_the_node_knows",),
    ),
    Break(
        rules("dispatch"),
        "a failure of an earlier decision counts",
        "nodesmith.activities.dispatch:is_of_decision",
        lambda _, outcome, decision: True,
        tests=("test_failure_of_an_earlier_decision_is_not_the_outcome_of_this_one",),
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a run does not adopt the end of its row",
        "nodesmith.workflows.operation_record:OperationRecord.adopt",
        lambda _, self, end: None,
        tests=("test_run_closes_as_its_row_when_a_write_is_refused",),
    ),
    Break(
        rules("dispatch"),
        "a cancel that reaches no node is repeated for ever",
        "nodesmith.workflows.cancellation:OperationCancel.carry_out",
        _cancel_without_end,
        tests=("test_cancel_that_never_reaches_the_node_ends_as_lost",),
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a lock holder whose row has ended is joined",
        "nodesmith.services.operations.operation_lock:OperationLock._is_closing",
        lambda _, self, holder: False,
        tests=(_ENDED_ROW, "test_request_behind_a_run_that_is_closing_is_a_503_with_a_time"),
        waits=True,
    ),
)

_LONG_LIFE = (
    Break(
        rules("dispatch"),
        "a long wait begins anew with every run",
        "nodesmith.workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        _forget_when_it_continues("away_since"),
        tests=(
            "test_limit_of_seven_days_survives_continue_as_new",
            "test_node_that_is_lost_with_work_on_it_ends_after_a_day",
        ),
        limit_s=90,
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a cancel is forgotten when the run continues as new",
        "nodesmith.workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        _forget_when_it_continues("cancel", "cancel_until"),
        tests=("test_undeliverable_cancel_survives_continue_as_new_and_ends_after_a_day",),
        limit_s=90,
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "an operation never continues as new",
        "nodesmith.workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        lambda _, self: None,
        tests=("test_limit_of_seven_days_survives_continue_as_new",),
        waits=True,
    ),
)

_RESTORED = (
    Break(
        rules("restored"),
        "no run gets the signal that its row has ended",
        "nodesmith.services.operations.repair:Repair._signal_runs",
        _forget,
        tests=("test_open_run_with_ended_or_missing_row_is_signalled",),
        waits=True,
    ),
    Break(
        rules("restored"),
        "the result of a closed run is not asked for",
        "nodesmith.services.operations.repair:Repair._end_of_run",
        _ask_only_the_node,
        tests=("test_row_of_a_closed_run_ends_as_the_run_did",),
    ),
    Break(
        rules("restored"),
        "work on a node without row and run is left alone",
        "nodesmith.services.nodes.liveness:Liveness._without_run",
        lambda _, self, op_ids: set(),
        tests=("test_operation_without_row_and_run_is_stopped_on_its_node",),
    ),
)

DISPATCH = (*_ROW, *_RUN, *_LONG_LIFE, *_RESTORED)
