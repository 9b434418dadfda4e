"""Breaks in dispatch and recovery: the permit, the decision number, the row that is final, and restored stores."""

from typing import Any

from tests.breaking.arming import Break, Unresolvable, names_of, rules

_PERMIT_AND_END = "test_permit_and_end_at_the_same_instant_agree"
_DECISIONS = ("test_only_a_failure_that_counts_raises_the_decision_number",)
_ENDED_ROW = "test_holder_whose_row_has_ended_is_neither_joined_nor_a_conflict"


def _without(condition: str, instead: str = "true") -> Any:
    """In SQL there is no function to replace: the condition is taken out of the text."""

    def changed(statement: Any) -> Any:
        from sqlalchemy import text

        if statement.text.count(condition) != 1:
            raise Unresolvable(f"The statement does not say {condition!r} exactly once.")
        return text(statement.text.replace(condition, instead))

    return changed


def _is_open(column: str) -> str:
    """The condition as the statements have it."""
    from domain.operation import OPEN
    from store.models import one_of

    return one_of(column, OPEN)


def _for_ended_rows_too(statement: Any) -> Any:
    return _without(_is_open("operations.state"))(statement)


async def _forget(_: Any, *args: Any, **kwargs: Any) -> None:
    """What should be done is not done."""


async def _drop_only_unsent(_: Any, self: Any, transitions: Any) -> Any:
    return await self._operations.record(*transitions.rows)


async def _keep_the_decision(original: Any, self: Any, outcome: Any, reason: Any, pause: Any, detail: str) -> None:
    self._now.accepted = False
    await self._pause(reason, max(pause, names_of(original).options.SHORTEST_PAUSE), detail)


async def _count_from_its_own_number(original: Any, self: Any, outcome: Any, *rest: Any) -> None:
    await original(self, outcome.model_copy(update={"decision": 0}), *rest)


def _decide_with_every_follow(original: Any, self: Any) -> None:
    self._now.decision += 1
    original(self)


async def _ask_only_the_node(original: Any, self: Any, row: Any) -> Any:
    outcome = await self._stop_on_node(row)
    return (*names_of(original)._honest_end(outcome), outcome)


def _forget_when_it_continues(*fields: str) -> Any:
    def continued(original: Any, self: Any) -> None:
        if names_of(original).workflow.info().is_continue_as_new_suggested():
            for field in fields:
                setattr(self._now, field, type(self._now).model_fields[field].default)
        original(self)

    return continued


async def _cancel_without_end(original: Any, self: Any, request: Any) -> None:
    self._now.cancel_until = None
    await original(self, request)


_ROW = (
    Break(
        rules("dispatch"),
        "the permit is granted although the row has ended",
        "store.permits:_PERMIT",
        _for_ended_rows_too,
        tests=("test_permit_for_an_ended_operation_brings_its_end", _PERMIT_AND_END),
    ),
    Break(
        rules("dispatch"),
        "a mark is taken back by whoever asks",
        "store.permits:_WITHDRAW",
        _without("sent_by = :token", "CAST(:token AS text) IS NOT NULL"),
        tests=("test_mark_that_two_have_used_is_taken_back_by_neither",),
    ),
    Break(
        rules("S62 dispatch"),
        "a row that has ended moves again",
        "store.operations:_FORWARDS",
        _for_ended_rows_too,
        tests=("test_ended_row_never_moves_and_says_how_it_ended",),
    ),
    Break(
        rules("dispatch"),
        "an end without the node's word does not ask whether a command was sent",
        "store.operations:_FORWARDS",
        _without("NOT :only_unsent OR", "true OR NOT :only_unsent OR"),
        tests=("test_end_without_the_nodes_word_needs_a_row_that_was_never_sent", _PERMIT_AND_END),
    ),
    Break(
        rules("dispatch"),
        "the activity does not pass on that only an unsent operation may end",
        "activities.records:RecordActivities.record",
        _drop_only_unsent,
        tests=("test_activity_refuses_an_end_without_the_nodes_word_after_a_command",),
    ),
)

_RUN = (
    Break(
        rules("dispatch"),
        "the decision number never rises",
        "workflows.backend_operation:BackendOperation._decide_again",
        _keep_the_decision,
        tests=_DECISIONS,
    ),
    Break(
        rules("dispatch"),
        "the decision number rises with every follower",
        "workflows.node_session:NodeSession.follow",
        _decide_with_every_follow,
        tests=_DECISIONS,
    ),
    Break(
        rules("dispatch"),
        "the next decision may be one that the node knows already",
        "workflows.backend_operation:BackendOperation._decide_again",
        _count_from_its_own_number,
        tests=("test_next_decision_is_above_the_one_that_the_node_knows",),
    ),
    Break(
        rules("dispatch"),
        "a failure of an earlier decision counts",
        "activities.dispatch:is_of_decision",
        lambda _, outcome, decision: True,
        tests=("test_failure_of_an_earlier_decision_is_not_the_outcome_of_this_one",),
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a run does not adopt the end of its row",
        "workflows.ledger:Ledger.adopt",
        lambda _, self, end: None,
        tests=("test_run_closes_as_its_row_when_a_write_is_refused",),
    ),
    Break(
        rules("dispatch"),
        "a cancel that reaches nobody is tried for ever",
        "workflows.cancelling:Cancelling.carry_out",
        _cancel_without_end,
        tests=("test_cancel_that_never_reaches_the_node_ends_as_lost",),
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a lock holder whose row has ended is joined",
        "services.gate:Gate._is_closing",
        lambda _, self, holder: False,
        tests=(_ENDED_ROW, "test_request_behind_a_run_that_is_closing_is_a_503_with_a_time"),
        waits=True,
    ),
)

_LONG_LIFE = (
    Break(
        rules("dispatch"),
        "a long wait begins anew with every run",
        "workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        _forget_when_it_continues("away_since"),
        tests=(
            "test_seven_days_of_waiting_are_seven_days",
            "test_node_that_is_lost_with_work_on_it_ends_after_a_day",
        ),
        limit_s=90,
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a cancel is forgotten when the run continues as new",
        "workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        _forget_when_it_continues("cancel", "cancel_until"),
        tests=("test_cancel_that_reaches_nobody_is_carried_over_and_ends_after_a_day",),
        limit_s=90,
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "an operation never continues as new",
        "workflows.backend_operation:BackendOperation._continue_as_new_if_long",
        lambda _, self: None,
        tests=("test_seven_days_of_waiting_are_seven_days",),
        waits=True,
    ),
)

_RESTORED = (
    Break(
        rules("restored"),
        "no run is told that its row has ended",
        "services.repair:Repair._tell_runs",
        _forget,
        tests=("test_open_run_whose_row_has_ended_or_is_missing_is_told",),
        waits=True,
    ),
    Break(
        rules("restored"),
        "the result of a closed run is not asked for",
        "services.repair:Repair._how_it_ended",
        _ask_only_the_node,
        tests=("test_row_of_a_closed_run_ends_as_the_run_did",),
    ),
    Break(
        rules("restored"),
        "work on a node without row and run is left alone",
        "services.liveness:Liveness._without_run",
        lambda _, self, op_ids: set(),
        tests=("test_work_on_a_node_that_has_neither_row_nor_run_is_stopped_there",),
    ),
)

DISPATCH = (*_ROW, *_RUN, *_LONG_LIFE, *_RESTORED)
