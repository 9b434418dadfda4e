"""The activity that records an operation: which writes of a run it accepts."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.exceptions import ApplicationError

from nodesmith.activities.records import RecordActivities
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.bus.signed_messages import Signatures, Signed, opened, seal
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal.operations import OperationRequest, RecordResult, Transitions
from nodesmith.domain.audit_change import ChangeState
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import State
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from nodesmith.store.tables.core import OperationRow
from tests.fakes.node_link import AcceptingProofs
from tests.services.conftest import TOKEN, now, orders_on
from tests.store.transitions import a_request, transition


async def test_activity_refuses_an_end_without_an_outcome_after_dispatch(
    database: Database, operations: OperationTable
) -> None:
    """Promise 3: a dispatched operation is not `cancelled` before its node confirms it."""
    request, permits = a_request(), PermitTable(database)
    await orders_on(database).admit(transition(request, State.QUEUED, seq=0))
    await permits.permit(request.op_id, 1, token="a", on_node=False)
    cancelled = Transitions(rows=(transition(request, State.CANCELLED, ended_at=now()),), only_unsent=True)
    record = RecordActivities(VerifiedRecords(operations, AcceptingProofs()), AuditTrail(database)).record
    assert await record(cancelled) == RecordResult(written=False)
    await permits.withdraw(request.op_id, 1, token="a")
    assert await record(cancelled) == RecordResult(written=True)


async def test_run_that_no_api_admitted_leaves_a_row_in_the_audit_trail(
    database: Database, operations: OperationTable
) -> None:
    """An admin must see the intent, and that no API admitted it."""
    request, trail = a_request(node_id="n-1"), AuditTrail(database)
    await RecordActivities(VerifiedRecords(operations, AcceptingProofs()), trail).report_not_admitted(request)
    (entry,), _ = await trail.page(action="operations.not_admitted")
    assert (entry.actor, entry.target, entry.target_id, entry.outcome) == (
        "Temporal",
        "n-1-name",
        "n-1",
        ChangeState.DONE,
    )
    after: Any = entry.after
    assert (after["op_id"], after["wanted"]["uri"]) == (request.op_id, request.wanted.uri)


async def test_row_about_a_forged_run_is_short(database: Database, operations: OperationTable) -> None:
    long = "x" * 100_000
    request, trail = a_request(node_id="n-forged"), AuditTrail(database)
    wanted = request.wanted.model_copy(update={"uri": long, "mirrors": (long,) * 100})
    forged = request.model_copy(update={"wanted": wanted, "requested_by": long, "node_name": long})
    await RecordActivities(VerifiedRecords(operations, AcceptingProofs()), trail).report_not_admitted(forged)
    found, _ = await trail.page(action="operations.not_admitted")
    (entry,) = [each for each in found if each.target_id == "n-forged"]
    assert len(str(entry)) < 60_000


@dataclass(frozen=True)
class SignedScene:
    """A registered node with its key, an open operation of it, and the activity that records ends."""

    key: KeyPair
    node_id: str
    request: OperationRequest
    records: RecordActivities
    operations: OperationTable

    def outcome(self, *, result: Result = Result.SUCCEEDED, key: KeyPair | None = None, op_id: str = "") -> Outcome:
        said = Outcome(op_id=op_id or self.request.op_id, node_id=self.node_id, result=result)
        signed = seal(key or self.key, Signed.OUTCOME, self.node_id, said.encode()).decode()
        return said.model_copy(update={"signed": signed})

    async def record(self, outcome: Outcome | None, state: State = State.SUCCEEDED) -> RecordResult:
        row = transition(self.request, state, outcome=outcome, ended_at=now())
        return await self.records.record(Transitions(rows=(row,)))


@pytest.fixture
async def signed(
    registration: Registration, nodes: Nodes, operations: OperationTable, database: Database
) -> SignedScene:
    key = KeyPair.create(Role.USER)
    node = RegisterRequest(name=f"n-{key.public}", protocol=Protocol.NODESMITH, machine_id="m", nats_key=key.public)
    node_id = (await registration.register(node, bearer=TOKEN)).id
    request = a_request(node_id=node_id)
    await operations.insert_queued(transition(request, State.QUEUED, seq=0))
    records = RecordActivities(VerifiedRecords(operations, Signatures(nodes)), AuditTrail(database))
    return SignedScene(key, node_id, request, records, operations)


async def test_success_is_recorded_with_the_signed_outcome_of_the_node(signed: SignedScene, database: Database) -> None:
    outcome = signed.outcome()
    assert (await signed.record(outcome)).written
    async with database.session() as session:
        kept = await session.scalar(select(OperationRow.signed_outcome).where(OperationRow.node_id == signed.node_id))
    assert kept == outcome.signed
    assert opened(signed.key.public, Signed.OUTCOME, signed.node_id, kept.encode())


@pytest.mark.parametrize("forgery", ["no outcome", "not signed", "another key", "another operation", "it failed"])
async def test_success_without_the_signed_outcome_of_the_node_moves_no_state(signed: SignedScene, forgery: str) -> None:
    """As an attacker with access to Temporal could write it into a run."""
    outcome = {
        "no outcome": None,
        "not signed": signed.outcome().model_copy(update={"signed": ""}),
        "another key": signed.outcome(key=KeyPair.create(Role.USER)),
        "another operation": signed.outcome(op_id="op-of-another"),
        "it failed": signed.outcome(result=Result.FAILED).model_copy(update={"result": Result.SUCCEEDED}),
    }[forgery]
    with pytest.raises(ApplicationError) as refused:
        await signed.record(outcome)
    assert refused.value.non_retryable
    row = await signed.operations.find(signed.request.op_id)
    assert row is not None
    assert row.state is State.QUEUED


async def test_an_operation_stays_with_its_node(signed: SignedScene, registration: Registration) -> None:
    """The valid signature of another node cannot end this operation."""
    key = KeyPair.create(Role.USER)
    node = RegisterRequest(name=f"n-{key.public}", protocol=Protocol.NODESMITH, machine_id="m", nats_key=key.public)
    other = (await registration.register(node, bearer=TOKEN)).id
    stolen = replace(signed, key=key, node_id=other, request=signed.request.model_copy(update={"node_id": other}))
    assert not (await stolen.record(stolen.outcome())).written
    row = await signed.operations.find(signed.request.op_id)
    assert row is not None
    assert (row.state, row.node_id) == (State.QUEUED, signed.node_id)
