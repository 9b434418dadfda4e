"""Cancel, in every state: the node is told before anybody says that it stopped."""

import asyncio

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from contracts import temporal as names
from contracts.messages import Outcome, Result
from contracts.temporal import CancelRequest, CancelWord, NodeBack, NodeWord
from domain.operation import Reason, State
from tests.workflows.conftest import Begin
from tests.workflows.station import Operation, Station, start, worker_of


async def ask_cancel(operation: Operation, *, op_id: str = "", force: bool = False) -> None:
    request = CancelRequest(op_id=op_id or operation.op_id, by="ada", detail="wrong shelf", force=force)
    await operation.handle.signal(names.SIGNAL_CANCEL, request)


async def test_what_never_reached_a_node_is_cancelled_at_once(begin: Begin) -> None:
    """S11."""
    operation = await begin(at_once=NodeWord(away=True))
    await operation.station.reached(State.WAITING)
    await ask_cancel(operation)
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.cancels.empty(), "there was nobody to tell"
    last = operation.station.rows[-1]
    assert (last.cancelled_by, last.reason, last.detail) == ("ada", Reason.REQUESTED, "wrong shelf")


async def test_a_running_install_is_stopped_on_its_node_first(begin: Begin) -> None:
    """G1: cancel reaches the node."""
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    operation.station.say_to_cancel(CancelWord(stopped=True, stopped_after_s=0.2))
    result = await operation.result()
    assert result.state is State.CANCELLED
    assert "node stopped after 0.2 s" in result.detail


async def test_a_node_that_takes_its_time_to_stop_is_told_until_it_has(begin: Begin) -> None:
    """A local activity has a second and a half; what takes longer is not given up, and is shown meanwhile."""
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await operation.station.cancels.get()
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    operation.station.say_to_cancel(CancelWord(stopped=True, stopped_after_s=3))
    assert "node stopped after 3.0 s" in (await operation.result()).detail


async def test_a_cancel_that_comes_too_late_says_what_really_happened(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    outcome = Outcome(op_id=operation.op_id, result=Result.SUCCEEDED, changed=True)
    operation.station.say_to_cancel(CancelWord(outcome=outcome))
    result = await operation.result()
    assert result.state is State.SUCCEEDED
    assert "too late" in result.detail


async def test_a_cancel_for_another_operation_is_dropped(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation, op_id="another")
    operation.station.say(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_cancel_is_delivered_when_the_node_is_back(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.say_to_cancel(CancelWord(away=True))
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.say_to_cancel(CancelWord(stopped=True))
    assert (await operation.result()).state is State.CANCELLED


async def test_force_ends_without_the_nodes_word(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.say_to_cancel(CancelWord(away=True))
    await operation.station.reached(State.CANCELLING)
    await ask_cancel(operation, force=True)
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.rows[-1].reason is Reason.FORCED


async def test_asking_twice_is_harmless(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await ask_cancel(operation)
    # the second may come while the node is being told: it is told again then, which is safe, and answers the same
    for _ in range(2):
        operation.station.say_to_cancel(CancelWord(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    assert {row.seq: row.state for row in operation.station.rows} == {
        1: State.RUNNING,
        2: State.CANCELLING,
        3: State.CANCELLED,
    }


async def test_the_web_uis_own_button_takes_the_same_way(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await operation.handle.cancel()
    operation.station.say_to_cancel(CancelWord(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.rows[-1].cancelled_by == "Temporal Web UI"
    description = await operation.handle.describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED


async def test_a_localai_worker_cannot_be_interrupted_and_its_outcome_stands(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.say_to_cancel(CancelWord(cannot=True))
    await operation.station.reached(State.CANCELLING)
    operation.station.say(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_cancel_sent_while_no_worker_lives_is_carried_out_by_the_next(client: Client, queue: str) -> None:
    """S30, G3: a cancel outlives a restart, and what was cancelled does not come back.

    A worker that died may have sent the command and told nobody, so the node is told all the same.
    """
    station = Station()
    operation = await start(client, station, queue)
    await ask_cancel(operation)
    station.say_to_cancel(CancelWord(stopped=True))
    async with worker_of(client, station, queue):
        assert (await operation.result()).state is State.CANCELLED
    assert (station.asked, station.commands.empty()) == ([], True), "the node got no command"
    assert station.cancels.get_nowait().op_id == operation.op_id
    assert station.states == [State.CANCELLING, State.CANCELLED]


@pytest.mark.parametrize(
    ("word", "state", "said"),
    [
        (CancelWord(away=True), State.CANCELLED, "wrong shelf"),
        (CancelWord(outcome=Outcome(op_id="op", result=Result.SUCCEEDED, changed=True)), State.SUCCEEDED, "too late"),
    ],
    ids=["it is away", "a worker that died had it done"],
)
async def test_before_any_word_of_the_node_what_it_says_to_the_cancel_counts(
    client: Client, queue: str, word: CancelWord, state: State, said: str
) -> None:
    station = Station()
    operation = await start(client, station, queue)
    await ask_cancel(operation)
    station.say_to_cancel(word)
    async with worker_of(client, station, queue):
        result = await operation.result()
    assert (result.state, said in result.detail) == (state, True)


async def test_a_cancel_during_a_back_off_needs_no_node_that_has_ended_its_try(begin: Begin) -> None:
    operation = await begin()
    operation.station.say(operation.failed(Reason.NODE_ERROR))
    await operation.station.seen(lambda station: State.WAITING in station.states)
    await ask_cancel(operation)
    operation.station.say_to_cancel(CancelWord(stopped=True))
    assert (await asyncio.wait_for(operation.result(), 30)).state is State.CANCELLED
