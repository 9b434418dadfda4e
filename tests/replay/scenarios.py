"""The paths whose histories are committed: each is played once, recorded, and replayed for ever."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal import batches
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.batches import BatchOrder, BatchState
from nodesmith.contracts.temporal.dispatch import (
    Accepted,
    Busy,
    CancelResult,
    DispatchResult,
    Ended,
    HeldBack,
    NatsUnreachable,
    NodeUnreachable,
    NotAdmitted,
    Silent,
    StoreUnreachable,
)
from nodesmith.contracts.temporal.operations import (
    CancelRequest,
    Intent,
    Limits,
    NodeBack,
    OutcomeReport,
    Policy,
    RowEnd,
    RowEndNotice,
    SlotGranted,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from nodesmith.services.operations.admission import operation_policy
from tests.workflows.simulated_fleet import Fleet, Handle
from tests.workflows.station import LOAD, QUICK, UNLOAD, Operation

Play = Callable[[Operation], Awaitable[None]]


async def over_at_once(_: Operation) -> None:
    """Nothing has to be said any more."""


async def begun_at_once(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


async def cancelled_before_anybody_asked(operation: Operation) -> None:
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    operation.station.answer_cancel(CancelResult(stopped=True))


async def succeeded(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


async def succeeded_slowly(operation: Operation) -> None:
    await operation.begin_on_node()
    operation.station.send_result(operation.succeeded())


async def waited_for_the_node(operation: Operation) -> None:
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.send_result(operation.succeeded())


async def expired(operation: Operation) -> None:
    operation.station.is_absent = True


async def refused_permanently(operation: Operation) -> None:
    operation.station.send_result(operation.failed(Reason.BAD_DIGEST))


async def gave_up(operation: Operation) -> None:
    for _ in range(3):
        operation.station.send_result(operation.failed(Reason.NODE_ERROR))


async def source_was_down(operation: Operation) -> None:
    operation.station.send_result(operation.failed(Reason.SOURCE_DOWN, retry_after_s=0.05))
    operation.station.send_result(operation.succeeded())


async def still_installing(operation: Operation) -> None:
    operation.station.send_result(Silent(accepted=True))
    operation.station.send_result(operation.succeeded())


async def worker_died(operation: Operation) -> None:
    await operation.begin_on_node()
    operation.station.send_result(RuntimeError("the worker is gone"))
    operation.station.send_result(operation.succeeded())


async def outcome_came_as_a_signal(operation: Operation) -> None:
    operation.station.send_result(NodeUnreachable(accepted=True))
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_OUTCOME, OutcomeReport(op_id=operation.op_id))
    operation.station.send_result(operation.succeeded())


async def cancelled_while_waiting(operation: Operation) -> None:
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))


async def cancelled_on_the_node(operation: Operation) -> None:
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    operation.station.answer_cancel(CancelResult(stopped=True))


async def cancelled_in_the_web_ui(operation: Operation) -> None:
    await operation.begin_on_node()
    await operation.handle.cancel()
    operation.station.answer_cancel(CancelResult(stopped=True))


async def cancelled_too_late(operation: Operation) -> None:
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    outcome = Outcome(op_id=operation.op_id, result=Result.SUCCEEDED, changed=True)
    operation.station.answer_cancel(CancelResult(outcome=outcome))


async def cancelled_after_the_node_came_back(operation: Operation) -> None:
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    operation.station.answer_cancel(CancelResult(unreachable=True))
    await operation.station.reached(State.CANCELLING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.answer_cancel(CancelResult(stopped=True))


async def ran_into_its_deadline(operation: Operation) -> None:
    await operation.begin_on_node()
    operation.station.answer_cancel(CancelResult(stopped=True))


async def another_was_in_the_way(operation: Operation) -> None:
    operation.station.send_result(Busy(op_id="left-over"))
    operation.station.answer_cancel(CancelResult(stopped=True))
    operation.station.send_result(operation.succeeded())


async def database_was_away(operation: Operation) -> None:
    operation.station.database_is_up = False
    await operation.begin_unseen()
    operation.station.send_result(operation.succeeded())
    await operation.station.refused_writes(2)
    operation.station.database_is_up = True


async def silent_at_first(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


async def row_came_late(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


async def store_was_away(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


async def closed_as_its_row(operation: Operation) -> None:
    await operation.station.commands.get()
    operation.station.row_end = RowEnd(state=State.CANCELLED, reason=Reason.FORCED)
    await operation.handle.signal(names.SIGNAL_ROW_ENDED, RowEndNotice(op_id=operation.op_id))


async def continued_as_new(operation: Operation) -> None:
    operation.station.is_absent = True


async def cancelled_but_never_told(operation: Operation) -> None:
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    for _ in range(20):
        operation.station.answer_cancel(CancelResult(unreachable=True))


def _policy(**changes: object) -> Policy:
    return QUICK.model_copy(update=changes)


async def held_and_released(operation: Operation) -> None:
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.send_result(operation.succeeded())


async def waited_for_nats(operation: Operation) -> None:
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.send_result(operation.succeeded())


async def waited_for_its_turn(operation: Operation) -> None:
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    await operation.station.seen(lambda station: station.rows[-1].reason is Reason.BATCH_TURN)
    operation.station.answer_dispatch(NodeUnreachable())
    await operation.handle.signal(names.SIGNAL_TURN, SlotGranted(op_id=operation.op_id))
    await operation.station.seen(lambda station: station.rows[-1].reason is Reason.NODE_AWAY)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    await operation.station.seen(lambda station: station.rows[-1].reason is Reason.BATCH_TURN)
    await operation.handle.signal(names.SIGNAL_TURN, SlotGranted(op_id=operation.op_id))
    operation.station.send_result(operation.succeeded())


async def loaded_a_model(operation: Operation) -> None:
    await operation.begin_on_node()
    operation.station.send_result(operation.succeeded())


async def loaded_after_its_backend_was_installed(operation: Operation) -> None:
    await operation.station.seen(lambda station: bool(station.rows) and station.rows[-1].reason is Reason.BACKEND)
    operation.station.end_other(State.SUCCEEDED)
    operation.station.send_result(operation.succeeded())


async def did_not_get_its_backend(operation: Operation) -> None:
    operation.station.end_other(State.DEAD_LETTER, Reason.ATTEMPTS_EXHAUSTED)


async def cancelled_while_its_backend_is_installed(operation: Operation) -> None:
    await operation.station.seen(lambda station: bool(station.rows) and station.rows[-1].reason is Reason.BACKEND)
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))


async def failed_to_load(operation: Operation) -> None:
    operation.station.send_result(operation.failed(Reason.SOURCE_DOWN))


async def found_no_node_to_load_on(_: Operation) -> None:
    """The dispatch says it."""


async def unloaded_a_model(operation: Operation) -> None:
    operation.station.send_result(operation.succeeded())


OF_A_MODEL: dict[Play, tuple[Intent, str]] = {
    loaded_a_model: (LOAD, ""),
    loaded_after_its_backend_was_installed: (LOAD, "the-installation"),
    did_not_get_its_backend: (LOAD, "the-installation"),
    cancelled_while_its_backend_is_installed: (LOAD, "the-installation"),
    failed_to_load: (LOAD, ""),
    found_no_node_to_load_on: (LOAD, ""),
    unloaded_a_model: (UNLOAD, ""),
}
"""what is wanted, and the operation that it waits for; all others install a backend"""


SCENARIOS: dict[Play, Policy] = {
    held_and_released: QUICK,
    waited_for_nats: QUICK,
    waited_for_its_turn: QUICK,
    over_at_once: QUICK,
    begun_at_once: QUICK,
    cancelled_before_anybody_asked: QUICK,
    succeeded: QUICK,
    succeeded_slowly: QUICK,
    waited_for_the_node: QUICK,
    expired: _policy(wait_for_node=timedelta(seconds=0.2), node_poll=timedelta(seconds=0.1)),
    refused_permanently: QUICK,
    gave_up: _policy(max_attempts=3),
    source_was_down: QUICK,
    still_installing: QUICK,
    worker_died: QUICK,
    outcome_came_as_a_signal: QUICK,
    cancelled_while_waiting: QUICK,
    cancelled_on_the_node: QUICK,
    cancelled_in_the_web_ui: QUICK,
    cancelled_too_late: QUICK,
    cancelled_after_the_node_came_back: QUICK,
    ran_into_its_deadline: _policy(deadline=timedelta(seconds=0.3)),
    another_was_in_the_way: QUICK,
    database_was_away: QUICK,
    silent_at_first: QUICK,
    row_came_late: QUICK,
    store_was_away: QUICK,
    closed_as_its_row: QUICK,
    continued_as_new: _policy(wait_for_node=timedelta(seconds=2), node_poll=timedelta(seconds=0.1)),
    **dict.fromkeys(OF_A_MODEL, operation_policy(QUICK, Kind.LOAD, Limits())),
    cancelled_but_never_told: _policy(lost_after=timedelta(seconds=0.3), node_poll=timedelta(seconds=0.1)),
}


AT_ONCE: dict[Play, DispatchResult] = {
    over_at_once: Ended(outcome=Outcome(op_id="op", result=Result.SUCCEEDED, changed=True)),
    begun_at_once: Accepted(),
    expired: NodeUnreachable(),
    continued_as_new: NodeUnreachable(),
    silent_at_first: Silent(),
    row_came_late: NotAdmitted(),
    store_was_away: StoreUnreachable(),
    cancelled_while_waiting: NodeUnreachable(),
    waited_for_the_node: NodeUnreachable(),
    waited_for_its_turn: NodeUnreachable(),
    held_and_released: HeldBack(why="freeze, by ada"),
    waited_for_nats: NatsUnreachable(),
    closed_as_its_row: Silent(),
    found_no_node_to_load_on: NodeUnreachable(),
}
"""what comes of the dispatch in these; in all others the node accepts it"""
MEMBERS = frozenset({waited_for_its_turn})
"""of a batch that only listens"""
BEFORE_ANY_WORKER = frozenset({cancelled_before_anybody_asked})
LONG_LIVES = frozenset({continued_as_new})
"""recorded on a server that suggests to continue as new early: the history is of the first run"""

BatchPlay = Callable[[Fleet, Handle], Awaitable[None]]


async def batch_completed(fleet: Fleet, _: Handle) -> None:
    for number in range(3):
        await fleet.until_asked(f"n{number}")
        await fleet.settle(f"n{number}", State.SUCCEEDED)


async def batch_stopped(fleet: Fleet, _: Handle) -> None:
    await fleet.until_asked("n0")
    await fleet.settle("n0", State.FAILED)


async def batch_paused_and_resumed(fleet: Fleet, handle: Handle) -> None:
    await fleet.until_asked("n0")
    await handle.signal(batches.SIGNAL_PAUSE, BatchOrder())
    await fleet.until_state(BatchState.PAUSED)
    await handle.signal(batches.SIGNAL_RESUME, BatchOrder())
    await batch_completed(fleet, handle)


async def batch_cancelled(fleet: Fleet, handle: Handle) -> None:
    await fleet.until_asked("n0")
    await handle.signal(batches.SIGNAL_CANCEL, BatchOrder(by="ada"))


async def batch_gave_a_turn(fleet: Fleet, handle: Handle) -> None:
    await fleet.until_asked("n0")
    await fleet.go_away("n0")
    await fleet.until_asked("n1")
    await fleet.until_watched("n0", "n1")
    await handle.signal(batches.SIGNAL_READY, fleet.returned("n0"))
    await fleet.settle("n1", State.SUCCEEDED)
    await fleet.until_watched("n0")
    await fleet.settle("n0", State.SUCCEEDED)
    await fleet.until_asked("n2")
    await fleet.settle("n2", State.SUCCEEDED)


async def batch_stopped_before_a_return(fleet: Fleet, handle: Handle) -> None:
    await fleet.until_asked("n0")
    await fleet.go_away("n0")
    await fleet.until_asked("n1")
    await fleet.settle("n1", State.FAILED)
    await fleet.until_state(BatchState.STOPPED)
    await handle.signal(batches.SIGNAL_READY, fleet.returned("n0"))


async def batch_wrote_its_row_again(fleet: Fleet, handle: Handle) -> None:
    await fleet.until_asked("n0")
    await fleet.settle("n0", State.SUCCEEDED)
    await fleet.until_asked("n1")
    await handle.signal(batches.SIGNAL_ROW_MISSING, BatchOrder())
    await fleet.until_state(BatchState.RUNNING)
    await batch_completed(fleet, handle)


async def batch_continued_as_new(fleet: Fleet, handle: Handle) -> None:
    await batch_completed(fleet, handle)


async def batch_went_on_in_a_later_run(fleet: Fleet, handle: Handle) -> None:
    await batch_completed(fleet, handle)


BATCH_SCENARIOS: dict[BatchPlay, dict[str, int]] = {
    batch_completed: {"max_parallel": 1},
    batch_stopped: {"max_parallel": 1, "max_failures": 1},
    batch_paused_and_resumed: {"max_parallel": 1},
    batch_cancelled: {"max_parallel": 1},
    batch_gave_a_turn: {"max_parallel": 1},
    batch_stopped_before_a_return: {"max_parallel": 1, "max_failures": 1},
    batch_wrote_its_row_again: {"max_parallel": 1},
    batch_continued_as_new: {"max_parallel": 1},
    batch_went_on_in_a_later_run: {"max_parallel": 1},
}
LONG_BATCHES = frozenset({batch_continued_as_new, batch_went_on_in_a_later_run})
"""recorded on a server that suggests to continue as new early: of the first run, unless the play says otherwise"""

MODEL_SCHEDULER_HISTORY = "model_scheduler_continued_as_new"
"""a run of the model scheduler, which has one path"""
