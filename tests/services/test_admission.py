"""Admission: one operation per (node, backend), and bad input starts nothing."""

import asyncio
import socket
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.messages import Installed, Outcome, Result
from nodesmith.contracts.temporal.dispatch import Ended, NodeUnreachable
from nodesmith.contracts.temporal.operations import OperationInput, Policy, Projection, operation_workflow_id
from nodesmith.domain.errors import (
    IdempotencyKeyReused,
    InvalidRequest,
    NodeNotApproved,
    NodeNotForBackends,
    NodesmithError,
    NotInstalled,
    NotRetryable,
    OperationConflict,
    ServiceUnavailable,
    SourceNotAllowed,
    UnknownBackend,
    UnknownNode,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import DrainPolicy
from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.intents import UriRules
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.operations.operations import OperationTable
from tests.deadlines import HANGS_S
from tests.fakes.operation_activities import Station, worker_of
from tests.services.conftest import Join, now
from tests.store.transitions import a_request, transition

ECHO = RequestedBackend(backend="echo")
CPU_ECHO = f"- {{name: cpu-echo, version: '1', uri: 'https://host/echo.tar.gz', sha256: {'c' * 64}}}\n"


async def test_an_admitted_install_is_a_run_and_a_queued_row(
    admission: Admission, runs: TemporalRuns, operations: OperationTable, join: Join
) -> None:
    node = await join()
    accepted = await admission.ask(Kind.INSTALL, node.name, ECHO, actor="ada")
    row = await operations.find(accepted.op_id)
    assert row is not None
    assert (row.state, row.version, row.requested_by) == (State.QUEUED, "2", "ada")
    run = await runs.describe(operation_workflow_id(node.id, "echo"))
    assert run is not None
    assert (run.op_id, run.is_open) == (accepted.op_id, True)


async def test_the_same_request_joins_what_runs(admission: Admission, join: Join) -> None:
    """S14, H31: a duplicate request joins the same operation."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    second = await admission.ask(Kind.INSTALL, node.name, RequestedBackend(backend="builtin@Echo"), actor="bob")
    assert (second.op_id, first.joined, second.joined) == (first.op_id, False, True)


async def test_joining_request_learns_which_limits_are_not_applied(admission: Admission, join: Join) -> None:
    """The running operation keeps its limits; equal limits are not mentioned."""
    node = await join()
    first = replace(ECHO, deadline_s=60.0, max_attempts=3)
    other = replace(ECHO, deadline_s=90.0, max_attempts=3, wait_for_node_s=5.0)
    begun = await admission.ask(Kind.INSTALL, node.id, first, actor="ada")
    same = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="bob")
    joined = await admission.ask(Kind.INSTALL, node.id, other, actor="bob", idempotency_key="limits")
    again = await admission.ask(Kind.INSTALL, node.id, other, actor="bob", idempotency_key="limits")
    assert {each.op_id for each in (same, joined, again)} == {begun.op_id}
    assert (begun.limits_not_applied, same.limits_not_applied) == ([], [])
    assert joined.limits_not_applied == again.limits_not_applied == ["wait_for_node_s", "deadline_s"]
    assert "keeps its own limits" in joined.message


async def test_twenty_requests_at_once_on_two_replicas_are_one_operation(
    admission: Admission, runs: TemporalRuns, join: Join
) -> None:
    """Promise 1."""
    node = await join()
    replicas = [admission, replace(admission)]
    asked = [replicas[number % 2].ask(Kind.INSTALL, node.id, ECHO, actor=f"client-{number}") for number in range(20)]
    answers = await asyncio.gather(*asked)
    assert len({answer.op_id for answer in answers}) == 1
    assert [answer.joined for answer in answers].count(False) == 1


async def test_another_intent_is_refused_and_the_holder_named(admission: Admission, join: Join) -> None:
    """G10: another intent is neither dropped nor reported as a success."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    with pytest.raises(OperationConflict, match=first.op_id):
        await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo", version="1"), actor="bob")


async def test_ended_operation_releases_the_lock(admission: Admission, client: Client, join: Join) -> None:
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    second = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    assert (second.joined, second.op_id != first.op_id) == (False, True)


async def test_a_repeated_idempotency_key_leads_to_the_same_operation(
    admission: Admission, client: Client, join: Join
) -> None:
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key="k1")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    again = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key="k1")
    assert again.op_id == first.op_id
    with pytest.raises(OperationConflict, match="Idempotency-Key"):
        await admission.ask(
            Kind.INSTALL, node.id, RequestedBackend(backend="echo", version="1"), actor="ada", idempotency_key="k1"
        )


OWN = RequestedBackend(uri="https://host/own.tar.gz", name="own", sha256="a" * 64)


@pytest.mark.parametrize(
    "other", [{"sha256": "b" * 64}, {"start": True}, {"upgrade_policy": "overlap"}, {"version": "2"}, {"force": True}]
)
async def test_same_uri_with_different_intent_does_not_join(
    admission: Admission, join: Join, other: dict[str, Any]
) -> None:
    """A different digest is another artifact; a different `start` or policy is another result."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, OWN, actor="ada")
    with pytest.raises(OperationConflict, match=first.op_id):
        await admission.ask(Kind.INSTALL, node.id, replace(OWN, **other), actor="bob")


async def test_holder_whose_row_has_ended_is_neither_joined_nor_a_conflict(
    admission: Admission, client: Client, operations: OperationTable, join: Join
) -> None:
    """Protocol 2: the run closes soon; until then the request is refused with "try again"."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    holder, request = await operations.find(first.op_id), await operations.request(first.op_id)
    assert holder is not None
    assert request is not None
    await operations.record(transition(request, State.CANCELLED, run_id=holder.run_id, ended_at=now()))
    for asked in (ECHO, RequestedBackend(backend="echo", version="1")):
        with pytest.raises(ServiceUnavailable, match=first.op_id):
            await admission.ask(Kind.INSTALL, node.id, asked, actor="bob")
    assert len((await operations.listing(OperationFilter(node=node.id), scope=OperationScope.ALL)).operations) == 1
    waiting = asyncio.create_task(admission.ask(Kind.INSTALL, node.id, ECHO, actor="bob"))
    await client.get_workflow_handle(holder.workflow_id).terminate("it closes")
    second = await waiting
    assert (second.joined, second.op_id != first.op_id) == (False, True)


class Crashing(OperationLock):
    """The process crashes before or right after the start, and records nothing."""

    async def admit(self, admitted: OperationInput, load: LoadOrder | None = None) -> tuple[str, bool]:
        if admitted.request.note == "after":
            await super().admit(admitted, load)
        raise ConnectionAbortedError


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_crash_after_the_key_was_inserted_starts_once_under_the_reserved_id(
    admission: Admission, operations: OperationTable, join: Join, dies: str
) -> None:
    """Protocol 5: a key whose start was not recorded is admitted again with its op_id."""
    node, key = await join(), f"crash-{uuid.uuid4()}"
    request = replace(ECHO, reason=dies)
    mortal = replace(admission, lock=Crashing(admission.lock.operations, admission.lock.runs, admission.orders))
    with pytest.raises(ConnectionAbortedError):
        await mortal.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key=key)
    claim = await admission.keys.find("ada", key)
    assert claim is not None
    assert claim.job_id is None
    again = await admission.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key=key)
    assert (again.op_id, again.joined, again.repeated) == (claim.op_id, False, dies == "after")
    assert [row.op_id for row in (await operations.listing(OperationFilter(node=node.id))).operations] == [claim.op_id]
    with pytest.raises(IdempotencyKeyReused, match=claim.op_id):
        await admission.ask(Kind.REMOVE, node.id, request, actor="ada", idempotency_key=key)


async def test_unrecorded_request_that_started_and_ended_is_not_started_again(
    admission: Admission, client: Client, operations: OperationTable, join: Join
) -> None:
    """Another operation of the backend ran in between, so Temporal no longer finds the first by its request id."""
    node, key = await join(), f"late-{uuid.uuid4()}"
    request = replace(ECHO, reason="after")
    mortal = replace(admission, lock=Crashing(admission.lock.operations, admission.lock.runs, admission.orders))
    with pytest.raises(ConnectionAbortedError):
        await mortal.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key=key)
    handle = client.get_workflow_handle(operation_workflow_id(node.id, "echo"))
    await handle.terminate()
    other = await admission.ask(Kind.REMOVE, node.id, ECHO, actor="ada")
    await handle.terminate()
    again = await admission.ask(Kind.INSTALL, node.id, request, actor="ada", idempotency_key=key)
    assert (again.repeated, again.op_id != other.op_id) == (True, True)
    assert len((await operations.listing(OperationFilter(node=node.id), scope=OperationScope.ALL)).operations) == 2
    run = await admission.lock.runs.describe(operation_workflow_id(node.id, "echo"))
    assert run is not None
    assert not run.is_open


class DyingBeforeTheOrder(OperationLock):
    """The process crashes after the start and before the order is written."""

    async def _write(self, first: Projection, load: LoadOrder | None) -> None:
        raise ConnectionAbortedError


async def test_a_request_whose_run_ended_without_an_order_is_started_again_under_its_key(
    admission: Admission, client: Client, operations: OperationTable, join: Join
) -> None:
    """The run waits 30 s for its order and ends as `not_admitted`; the repeated request must not return that run."""
    node, key = await join(), f"unordered-{uuid.uuid4()}"
    lock = DyingBeforeTheOrder(admission.lock.operations, admission.lock.runs, admission.orders)
    with pytest.raises(ConnectionAbortedError):
        await replace(admission, lock=lock).ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
    claim = await admission.keys.find("ada", key)
    assert claim is not None
    lost = a_request(op_id=claim.op_id, node_id=node.id)
    await operations.record(transition(lost, State.FAILED, reason=Reason.NOT_ADMITTED))
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate("it has ended")
    again = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
    row = await operations.find(again.op_id)
    assert row is not None
    assert (row.state, again.joined) == (State.QUEUED, False)
    third = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
    assert (third.op_id, third.repeated) == (again.op_id, True)


async def test_a_refused_request_may_be_corrected_under_its_key(admission: Admission, join: Join) -> None:
    """A request that fails validation reserves nothing."""
    node, key = await join(), f"typo-{uuid.uuid4()}"
    with pytest.raises(UnknownBackend):
        await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="ecko"), actor="ada", idempotency_key=key)
    assert not (await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)).repeated


async def test_a_repeated_request_is_answered_although_the_node_was_drained_since(
    admission: Admission, lifecycle: Lifecycle, join: Join
) -> None:
    node, key = await join(), f"drained-{uuid.uuid4()}"
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
    await lifecycle.drain(node.id, running=DrainPolicy.FINISH, actor="ada")
    again = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
    assert (again.op_id, again.repeated) == (first.op_id, True)


async def test_a_request_that_joined_is_repeated_as_joined(admission: Admission, join: Join) -> None:
    node, key = await join(), f"joined-{uuid.uuid4()}"
    holder = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="bob")
    for repeated in (False, True):
        answer = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada", idempotency_key=key)
        assert (answer.op_id, answer.joined, answer.repeated) == (holder.op_id, True, repeated)


@pytest.mark.parametrize("kind", [Kind.UPGRADE, Kind.ROLLBACK])
async def test_what_is_not_installed_is_neither_upgraded_nor_rolled_back(
    admission: Admission, database: Database, join: Join, kind: Kind
) -> None:
    """S55, on one node too; a missing or stale inventory refuses nothing."""
    node, inventory = await join(), InventoryTable(database)
    await inventory.replace(node.id, [], asked_at=now(), boot_id="")
    with pytest.raises(NotInstalled, match=f"echo is not installed on node {node.name}"):
        await admission.ask(kind, node.id, ECHO, actor="ada")
    await inventory.replace(node.id, [Installed(name="echo", version="1")], asked_at=now(), boot_id="")
    assert not (await admission.ask(kind, node.id, ECHO, actor="ada")).joined
    under_the_name_of_its_build = [Installed(name="cpu-echo", family="cpu-echo")]
    named = await join()
    await inventory.replace(named.id, under_the_name_of_its_build, asked_at=now(), boot_id="")
    catalogue = Catalogue(
        read_index("- {name: echo, capabilities: {default: cpu-echo}}\n" + CPU_ECHO, gallery="m").entries
    )
    metas = replace(admission, intents=replace(admission.intents, catalogue=catalogue))
    assert not (await metas.ask(kind, named.id, ECHO, actor="ada")).joined
    unread = await join()
    assert not (await admission.ask(kind, unread.id, ECHO, actor="ada")).joined


@pytest.mark.parametrize("kind", [Kind.UPGRADE, Kind.ROLLBACK])
async def test_retry_of_an_upgrade_is_refused_after_the_backend_was_removed(
    admission: Admission, client: Client, database: Database, operations: OperationTable, join: Join, kind: Kind
) -> None:
    """S55, for a retry too."""
    node, inventory = await join(), InventoryTable(database)
    await inventory.replace(node.id, [Installed(name="echo", version="1")], asked_at=now(), boot_id="")
    first = await admission.ask(kind, node.id, ECHO, actor="ada")
    stored = await operations.request(first.op_id)
    assert stored is not None
    ended = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": now()}
    await operations.record(Projection(request=stored, workflow_id="w", at=now(), seq=1, **ended))
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    await inventory.replace(node.id, [], asked_at=now(), boot_id="")
    with pytest.raises(NotInstalled, match=f"echo is not installed on node {node.name}"):
        await admission.retry(first.op_id, actor="ada")


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        (Kind.REMOVE, {}, {"wait_for_node": None}),
        (Kind.REMOVE, {"wait_for_node_s": 60}, {"wait_for_node": timedelta(seconds=60)}),
        (Kind.INSTALL, {}, {"wait_for_node": timedelta(days=7)}),
        (
            Kind.INSTALL,
            {"wait_for_node_s": 5, "deadline_s": 7, "max_attempts": 2},
            {"wait_for_node": timedelta(seconds=5), "deadline": timedelta(seconds=7), "max_attempts": 2},
        ),
    ],
)
async def test_a_retry_keeps_the_policy_of_the_original(
    admission: Admission,
    client: Client,
    operations: OperationTable,
    join: Join,
    kind: Kind,
    asked: dict[str, Any],
    expected: dict[str, object],
) -> None:
    """A retried removal also waits for its node without limit; requested limits are kept too."""
    node = await join()
    first = await admission.ask(kind, node.id, replace(ECHO, **asked), actor="ada")
    stored = await operations.request(first.op_id)
    assert stored is not None
    ended = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": now()}
    await operations.record(Projection(request=stored, workflow_id="w", at=now(), seq=1, **ended))
    handle = client.get_workflow_handle(operation_workflow_id(node.id, "echo"))
    await handle.terminate()
    await admission.retry(first.op_id, actor="bob")
    history = await handle.fetch_history()
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    started: OperationInput = (await client.data_converter.decode(payloads, [OperationInput]))[0]
    assert started.policy == Policy().model_copy(update=expected)


@pytest.mark.parametrize(
    ("request_", "error", "names"),
    [
        (RequestedBackend(), InvalidRequest, "backend name or uri required"),
        (RequestedBackend(backend="nope"), UnknownBackend, "nope"),
        (RequestedBackend(backend="echo", version="99"), UnknownBackend, "99"),
        (RequestedBackend(uri="ftp://host/x.tar.gz"), InvalidRequest, "scheme"),
        (RequestedBackend(uri="https:///x.tar.gz"), InvalidRequest, "host"),
        (RequestedBackend(uri="https://ada:secret@host/x.tar.gz"), InvalidRequest, "password"),
        (RequestedBackend(uri="https://[broken/x.tar.gz"), InvalidRequest, "malformed"),
        (RequestedBackend(uri="https://host/"), InvalidRequest, "name"),
        (RequestedBackend(uri="https://host/x.tar.gz"), InvalidRequest, "needs its sha256"),
        (RequestedBackend(uri="file:///x.tar.gz"), InvalidRequest, "needs its sha256"),
        (RequestedBackend(uri="docker://ada:secret@host/x:1"), InvalidRequest, "password"),
        (RequestedBackend(uri="ada@registry.invalid/x/y:1"), InvalidRequest, "password"),
        (RequestedBackend(uri="oci://registry.invalid/UPPER:1"), InvalidRequest, "not a valid registry reference"),
        (RequestedBackend(uri="/etc/passwd"), InvalidRequest, "not a valid registry reference"),
        (
            RequestedBackend(uri=f"r.invalid/x@sha256:{'a' * 64}", sha256="b" * 64),
            InvalidRequest,
            "differs from the sha256",
        ),
    ],
)
async def test_bad_input_starts_nothing(
    admission: Admission,
    runs: TemporalRuns,
    join: Join,
    request_: RequestedBackend,
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
    request = RequestedBackend(uri="https://host/own-2.tar.gz", name="own", alias="mine", sha256="sha256:" + "B" * 64)
    accepted = await admission.ask(Kind.INSTALL, node.id, request, actor="ada")
    stored = await operations.request(accepted.op_id)
    assert stored is not None
    assert stored.wanted.model_dump(include={"uri", "name", "alias", "family", "sha256"}) == {
        "uri": "https://host/own-2.tar.gz",
        "name": "own",
        "alias": "mine",
        "family": "mine",
        "sha256": "b" * 64,
    }


async def test_sources_that_are_not_allowed_are_refused_before_anything_is_opened_or_connected(
    admission: Admission, join: Join
) -> None:
    """Existing and missing files, open and closed ports get the same answer, so nothing can be probed."""
    node, rules = await join(), UriRules(frozenset({"file", "http", "oci"}))
    strict = replace(admission, intents=replace(admission.intents, rules=rules))
    said = set()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        for uri in ("file:///etc/shadow", "file:///no/such", f"oci://127.0.0.1:{port}/a/b", "127.0.0.1:9/a/b"):
            with pytest.raises(SourceNotAllowed) as refusal:
                await strict.ask(
                    Kind.INSTALL, node.id, RequestedBackend(uri=uri, sha256="b" * 64, name="x"), actor="ada"
                )
            said.add(refusal.value.message)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert len(said) == 1


async def test_without_temporal_the_answer_is_unavailable_and_comes_soon(admission: Admission, join: Join) -> None:
    node = await join()
    nowhere = await connect(ControlSettings(temporal_address="127.0.0.1:9"), lazy=True)
    cut_off = replace(admission, lock=OperationLock(admission.operations, TemporalRuns(nowhere), admission.orders))
    async with asyncio.timeout(HANGS_S):
        with pytest.raises(ServiceUnavailable):
            await cut_off.ask(Kind.INSTALL, node.id, ECHO, actor="ada")


async def test_a_newer_request_replaces_one_that_never_reached_its_node(
    admission: Admission, client: Client, runs: TemporalRuns, operations: OperationTable, join: Join
) -> None:
    """Design 4: superseded, as long as it was not dispatched."""
    node = await join()
    station = Station()
    async with worker_of(client, station, runs.queue):
        station.answer_dispatch(NodeUnreachable())
        first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
        await station.reached(State.WAITING)
        second = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo", version="1"), actor="bob")
        assert second.op_id != first.op_id
        last = next(row for row in reversed(station.rows) if row.request.op_id == first.op_id)
        assert (last.state, last.reason) == (State.CANCELLED, Reason.SUPERSEDED)
        assert second.op_id in last.detail


async def test_operation_continues_when_its_superseding_request_is_refused(
    admission: Admission, client: Client, runs: TemporalRuns, operations: OperationTable, join: Join
) -> None:
    """The newer request was refused because no worker answered in time; it must not end the older one later."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    with pytest.raises(OperationConflict, match=first.op_id):
        await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo", version="1"), actor="bob")
    station = Station()
    station.send_result(Ended(outcome=Outcome(op_id=first.op_id, result=Result.SUCCEEDED, changed=True)))
    async with worker_of(client, station, runs.queue):
        await station.seen(lambda seen: bool(seen.rows) and seen.rows[-1].state in ENDED)
    assert (station.rows[-1].request.op_id, station.rows[-1].state) == (first.op_id, State.SUCCEEDED)


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD_LETTER, State.EXPIRED])
async def test_a_retry_is_a_new_operation_that_names_the_old(
    admission: Admission, client: Client, operations: OperationTable, join: Join, state: State
) -> None:
    """S48, superseded: a dead letter is kept with everything that a retry needs."""
    node = await join()
    request = RequestedBackend(uri="https://host/own-2.tar.gz", name="own", alias="mine", sha256="b" * 64)
    first = await admission.ask(Kind.INSTALL, node.id, request, actor="ada")
    with pytest.raises(NotRetryable, match="queued"):
        await admission.retry(first.op_id, actor="bob")
    stored = await operations.request(first.op_id)
    assert stored is not None
    failed = Projection(
        request=stored, workflow_id="w", at=now(), seq=1, state=state, reason=Reason.NO_DISK, ended_at=now()
    )
    await operations.record(failed)
    await client.get_workflow_handle(operation_workflow_id(node.id, "mine")).terminate()
    again = await admission.retry(first.op_id, actor="bob")
    redriven = await operations.request(again.op_id)
    assert redriven is not None
    assert (redriven.retry_of, redriven.requested_by) == (first.op_id, "bob")
    assert redriven.wanted == stored.wanted, "uri, name and alias too (G6)"


async def test_a_retry_is_bound_to_its_key(
    admission: Admission, client: Client, operations: OperationTable, join: Join
) -> None:
    node, key = await join(), str(uuid.uuid4())
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    stored = await operations.request(first.op_id)
    assert stored is not None
    ended = {"state": State.FAILED, "reason": Reason.NO_DISK, "ended_at": now()}
    await operations.record(Projection(request=stored, workflow_id="w", at=now(), seq=1, **ended))
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate()
    retried = await admission.retry(first.op_id, actor="ada", idempotency_key=key)
    again = await admission.retry(first.op_id, actor="ada", idempotency_key=key)
    assert (again.op_id, again.repeated, again.joined) == (retried.op_id, True, False)
    with pytest.raises(IdempotencyKeyReused, match=retried.op_id):
        await admission.retry(first.op_id, actor="ada", note="another", idempotency_key=key)


@pytest.mark.parametrize("kind", [Kind.ROLLBACK, Kind.REMOVE])
async def test_rollback_and_removal_need_no_gallery(
    admission: Admission, operations: OperationTable, join: Join, kind: Kind
) -> None:
    node = await join()
    accepted = await admission.ask(kind, node.id, RequestedBackend(backend="unheard-of"), actor="ada")
    stored = await operations.request(accepted.op_id)
    assert stored is not None
    assert (stored.wanted.kind, stored.wanted.family, stored.wanted.uri) == (kind, "unheard-of", "")
    with pytest.raises(InvalidRequest, match="backend name required"):
        await admission.ask(kind, node.id, RequestedBackend(), actor="ada")


# a holder that is being cancelled --------------------------------------------------------------------------------


async def test_request_during_a_cancel_does_not_join_what_is_being_cancelled(
    admission: Admission, operations: OperationTable, join: Join
) -> None:
    """Joining would return 202 for an operation that then ends as `cancelled`."""
    node = await join()
    first = await admission.ask(Kind.INSTALL, node.id, ECHO, actor="ada")
    row, request = await operations.find(first.op_id), await operations.request(first.op_id)
    assert row is not None
    assert request is not None
    await operations.record(transition(request, State.CANCELLING, run_id=row.run_id))
    with pytest.raises(OperationConflict, match="being cancelled"):
        await admission.ask(Kind.INSTALL, node.id, ECHO, actor="bob")
