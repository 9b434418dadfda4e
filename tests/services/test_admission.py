"""Admission: one operation per (node, backend), and bad input starts nothing."""

import asyncio
from dataclasses import replace

import pytest
from temporalio.client import Client

from contracts.operation_http import InstallRequest
from contracts.temporal import NodeWord, Projection, operation_workflow_id
from domain.errors import (
    InvalidRequest,
    NodeNotApproved,
    NodeNotForBackends,
    NodesmithError,
    NotRetryable,
    OperationConflict,
    ServiceUnavailable,
    UnknownBackend,
    UnknownNode,
)
from domain.operation import Kind, Reason, State
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect
from services.admission import Admission
from services.gate import Gate
from store.operations import OperationTable
from tests.services.conftest import Join, now
from tests.workflows.station import Station, worker_of

ECHO = InstallRequest(backend="echo")


async def test_an_admitted_install_is_a_run_and_a_queued_row(
    admission: Admission, runs: TemporalRuns, operations: OperationTable, join: Join
) -> None:
    node = await join()
    accepted = await admission.ask(Kind.INSTALL, node.name, ECHO, actor="ada")
    row = await operations.find(accepted.jobID)
    assert row is not None
    assert (row.state, row.version, row.requested_by) == (State.QUEUED, "2", "ada")
    run = await runs.describe(operation_workflow_id(node.id, "echo"))
    assert run is not None
    assert (run.op_id, run.is_open) == (accepted.jobID, True)


async def test_the_same_request_joins_what_runs(admission: Admission, join: Join) -> None:
    """S14, H31: a duplicate dispatch is the same operation."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    second = await admission.ask(Kind.INSTALL, node.name, InstallRequest(backend="builtin@Echo"), actor="bob")
    assert (second.jobID, first.joined, second.joined) == (first.jobID, False, True)


async def test_twenty_requests_at_once_on_two_replicas_are_one_operation(
    admission: Admission, runs: TemporalRuns, join: Join
) -> None:
    """Promise 1."""
    node = await join()
    replicas = [admission, replace(admission)]
    asked = [replicas[number % 2].ask(Kind.INSTALL, node.id, ECHO, actor=f"client-{number}") for number in range(20)]
    answers = await asyncio.gather(*asked)
    assert len({answer.jobID for answer in answers}) == 1
    assert [answer.joined for answer in answers].count(False) == 1


async def test_another_intent_is_refused_and_the_holder_named(admission: Admission, join: Join) -> None:
    """G10: another intent is neither dropped nor told as a success."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    with pytest.raises(OperationConflict, match=first.jobID):
        await admission.ask(Kind.INSTALL, node.id, InstallRequest(backend="echo", version="1"), actor="bob")


async def test_an_operation_that_ended_makes_room_for_the_next(
    admission: Admission, client: Client, join: Join
) -> None:
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    second = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    assert (second.joined, second.jobID != first.jobID) == (False, True)


async def test_a_repeated_idempotency_key_leads_to_the_same_operation(
    admission: Admission, client: Client, join: Join
) -> None:
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key="k1")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    again = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key="k1")
    assert again.jobID == first.jobID
    with pytest.raises(OperationConflict, match="Idempotency-Key"):
        await admission.ask(
            Kind.INSTALL, node.id, InstallRequest(backend="echo", version="1"), actor="ada", idempotency_key="k1"
        )


@pytest.mark.parametrize(
    ("request_", "error", "names"),
    [
        (InstallRequest(), InvalidRequest, "backend name or uri required"),
        (InstallRequest(backend="nope"), UnknownBackend, "nope"),
        (InstallRequest(backend="echo", version="99"), UnknownBackend, "99"),
        (InstallRequest(uri="ftp://host/x.tar.gz"), InvalidRequest, "scheme"),
        (InstallRequest(uri="https:///x.tar.gz"), InvalidRequest, "host"),
        (InstallRequest(uri="https://ada:secret@host/x.tar.gz"), InvalidRequest, "password"),
        (InstallRequest(uri="https://[broken/x.tar.gz"), InvalidRequest, "malformed"),
        (InstallRequest(uri="https://host/"), InvalidRequest, "name"),
        (InstallRequest(uri="https://host/x.tar.gz"), InvalidRequest, "needs its sha256"),
        (InstallRequest(uri="file:///x.tar.gz"), InvalidRequest, "needs its sha256"),
        (InstallRequest(uri="docker://ada:secret@host/x:1"), InvalidRequest, "password"),
        (InstallRequest(uri="ada@registry.invalid/x/y:1"), InvalidRequest, "password"),
        (InstallRequest(uri="oci://registry.invalid/UPPER:1"), InvalidRequest, "no reference"),
        (InstallRequest(uri="/etc/passwd"), InvalidRequest, "no reference"),
        (InstallRequest(uri=f"r.invalid/x@sha256:{'a' * 64}", sha256="b" * 64), InvalidRequest, "another one"),
    ],
)
async def test_bad_input_starts_nothing(
    admission: Admission,
    runs: TemporalRuns,
    join: Join,
    request_: InstallRequest,
    error: type[NodesmithError],
    names: str,
) -> None:
    node = await join()
    with pytest.raises(error, match=names):
        await admission.ask(Kind.INSTALL, node.id, request_, actor="ada")
    assert await runs.describe(operation_workflow_id(node.id, "echo")) is None


async def test_nodes_that_may_not_get_work_are_refused(admission: Admission, join: Join) -> None:
    """S49, superseded: what is refused here never has to be pruned.

    H20, R91: unknown, pending and agent nodes are refused, never a success with zero nodes.
    """
    with pytest.raises(UnknownNode, match="nobody"):
        await admission.ask(Kind.INSTALL, "nobody", ECHO, actor="ada")
    with pytest.raises(NodeNotApproved):
        await admission.ask(Kind.INSTALL, (await join(approved=False)).id, ECHO, actor="ada")
    with pytest.raises(NodeNotForBackends):
        await admission.ask(Kind.INSTALL, (await join(node_type="agent")).id, ECHO, actor="ada")


async def test_an_install_by_uri_carries_everything_to_the_run(
    admission: Admission, operations: OperationTable, join: Join
) -> None:
    """S12. G6, H25: uri, name and alias are never lost."""
    node = await join()
    request = InstallRequest(uri="https://host/own-2.tar.gz", name="own", alias="mine", sha256="sha256:" + "B" * 64)
    accepted = await admission.ask(Kind.INSTALL, node.id, request, actor="ada")
    stored = await operations.request(accepted.jobID)
    assert stored is not None
    assert stored.wanted.model_dump(include={"uri", "name", "alias", "family", "sha256"}) == {
        "uri": "https://host/own-2.tar.gz",
        "name": "own",
        "alias": "mine",
        "family": "mine",
        "sha256": "b" * 64,
    }


async def test_without_temporal_the_answer_is_unavailable_and_comes_soon(admission: Admission, join: Join) -> None:
    node = await join()
    nowhere = await connect(ControlSettings(temporal_address="127.0.0.1:9"), lazy=True)
    cut_off = replace(admission, gate=Gate(admission.operations, TemporalRuns(nowhere)))
    async with asyncio.timeout(20):
        with pytest.raises(ServiceUnavailable):
            await cut_off.ask(Kind.INSTALL, node.id, ECHO, actor="ada")


async def test_a_newer_request_replaces_one_that_never_reached_its_node(
    admission: Admission, client: Client, runs: TemporalRuns, operations: OperationTable, join: Join
) -> None:
    """Design 4: superseded, as long as the node has not heard of it."""
    node = await join()
    station = Station()
    async with worker_of(client, station, runs.queue):
        station.say_at_once(NodeWord(away=True))
        first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
        await station.reached(State.WAITING)
        second = await admission.ask(Kind.INSTALL, node.id, InstallRequest(backend="echo", version="1"), actor="bob")
        assert second.jobID != first.jobID
        last = next(row for row in reversed(station.rows) if row.request.op_id == first.jobID)
        assert (last.state, last.reason) == (State.CANCELLED, Reason.SUPERSEDED)
        assert second.jobID in last.detail


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD_LETTER, State.EXPIRED])
async def test_a_retry_is_a_new_operation_that_names_the_old(
    admission: Admission, client: Client, operations: OperationTable, join: Join, state: State
) -> None:
    """S48, superseded: a dead letter is kept, with all that is needed to drive it again."""
    node = await join()
    request = InstallRequest(uri="https://host/own-2.tar.gz", name="own", alias="mine", sha256="b" * 64)
    first = await admission.ask(Kind.INSTALL, node.id, request, actor="ada")
    with pytest.raises(NotRetryable, match="queued"):
        await admission.retry(first.jobID, actor="bob")
    stored = await operations.request(first.jobID)
    assert stored is not None
    failed = Projection(
        request=stored, workflow_id="w", at=now(), seq=1, state=state, reason=Reason.NO_DISK, ended_at=now()
    )
    await operations.record(failed)
    await client.get_workflow_handle(operation_workflow_id(node.id, "mine")).terminate()
    again = await admission.retry(first.jobID, actor="bob")
    redriven = await operations.request(again.jobID)
    assert redriven is not None
    assert (redriven.retry_of, redriven.requested_by) == (first.jobID, "bob")
    assert redriven.wanted == stored.wanted, "uri, name and alias too (G6)"


@pytest.mark.parametrize("kind", [Kind.ROLLBACK, Kind.REMOVE])
async def test_rollback_and_removal_need_no_gallery(
    admission: Admission, operations: OperationTable, join: Join, kind: Kind
) -> None:
    node = await join()
    accepted = await admission.ask(kind, node.id, InstallRequest(backend="unheard-of"), actor="ada")
    stored = await operations.request(accepted.jobID)
    assert stored is not None
    assert (stored.wanted.kind, stored.wanted.family, stored.wanted.uri) == (kind, "unheard-of", "")
    with pytest.raises(InvalidRequest, match="backend name required"):
        await admission.ask(kind, node.id, InstallRequest(), actor="ada")
