"""Replicas in the database: every change of state is guarded, so that repeated and late calls do nothing."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, delete, exists, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.deployment import LoadSpec
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.operation import OPEN, State
from nodesmith.domain.replica import STARTING, Replica, ReplicaState, ReportedReplica, ReportedReplicas, process_key
from nodesmith.domain.tick import PlannedDrain, rest_after
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.deployments import spec_of
from nodesmith.store.models.statements import LOCK, loaded_and_serving, replica_of
from nodesmith.store.tables.core import NodeRow, OperationRow
from nodesmith.store.tables.models import LoadFailureRow, ModelRow, ReplicaRow

LONGEST_REASON = 500
ADOPT_AFTER = timedelta(seconds=60)
"""reports are older than this only if the node's link was down"""
ENDED_FOR = timedelta(seconds=30)
"""an operation that ended reports its result to the replica within this time"""

_STARTING = [state.value for state in STARTING]
_LOADED, _DRAINING = ReplicaState.LOADED.value, ReplicaState.DRAINING.value
_ON_NODE = [_LOADED, _DRAINING, ReplicaState.UNLOADING.value]


class ReplicaTable:
    """The table `replicas`; see `nodesmith.services.models.ports`."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    # steps of the scheduler ------------------------------------------------------------------------------------

    async def loading(self, replica: Replica) -> bool:
        """Its load was started."""
        placed = update(ReplicaRow).where(ReplicaRow.id == replica.id, ReplicaRow.state == ReplicaState.PLACING.value)
        started = placed.values(state=ReplicaState.LOADING.value, changed_at=func.now()).returning(ReplicaRow.id)
        async with self._database.session() as session:
            return await session.scalar(started) is not None

    async def drain(self, planned: PlannedDrain) -> bool:
        """Give it no more calls; False if too few replicas would remain."""
        loaded = update(ReplicaRow).where(ReplicaRow.id == planned.replica.id, ReplicaRow.state == _LOADED)
        if planned.keep >= 0:
            serving = loaded_and_serving(planned.replica.model, self._clock()).correlate(None).scalar_subquery()
            loaded = loaded.where(serving > planned.keep)
        async with self._database.session() as session:
            await session.execute(LOCK)
            drained = loaded.values(state=_DRAINING, changed_at=func.now()).returning(ReplicaRow.id)
            return await session.scalar(drained) is not None

    async def unloading(self, replica: Replica) -> Replica | None:
        """It has no calls left: give it the operation that unloads it. None if it has calls, or is not drained."""
        idle = update(ReplicaRow).where(
            ReplicaRow.id == replica.id, ReplicaRow.state == _DRAINING, ReplicaRow.in_flight == 0
        )
        values = {"state": ReplicaState.UNLOADING.value, "op_id": new_op_id(), "changed_at": func.now()}
        async with self._database.session() as session:
            row = await session.scalar(idle.values(**values).returning(ReplicaRow))
            return replica_of(row) if row else None

    async def forget(self, replica: Replica) -> bool:
        """Delete a row without a process: never started, or its node stopped everything when it left."""
        has_left = exists().where(NodeRow.id == ReplicaRow.node_id, NodeRow.left_at.is_not(None))
        is_placed = ReplicaRow.state == ReplicaState.PLACING.value
        return await self._delete(ReplicaRow.id == replica.id, or_(is_placed, has_left))

    async def to_start(self) -> Sequence[tuple[Replica, LoadSpec | None]]:
        """Replicas without an operation: those to load, with what to load, and those to unload."""
        known = exists().where(OperationRow.op_id == ReplicaRow.op_id)
        wanted = select(ReplicaRow, ModelRow).outerjoin(
            ModelRow, and_(ModelRow.name == ReplicaRow.model_name, ModelRow.revision == ReplicaRow.revision)
        )
        to_load = and_(ReplicaRow.state == ReplicaState.PLACING.value, ModelRow.name.is_not(None))
        to_unload = and_(ReplicaRow.state == ReplicaState.UNLOADING.value, ~known)
        async with self._database.reading() as session:
            found = await session.execute(wanted.where(or_(to_load, to_unload)).order_by(ReplicaRow.created_at))
            return [(replica_of(row), _spec_to_load(row, model)) for row, model in found]

    async def ended(self) -> Sequence[tuple[Replica, State, str]]:
        """Replicas whose operation ended a while ago without a report, because it was ended from outside."""
        has_ended = and_(
            OperationRow.state.not_in([state.value for state in OPEN]),
            OperationRow.ended_at < self._clock() - ENDED_FOR,
            ReplicaRow.state.in_([*_STARTING, ReplicaState.UNLOADING.value]),
        )
        wanted = select(ReplicaRow, OperationRow.state, OperationRow.detail)
        wanted = wanted.join(OperationRow, OperationRow.op_id == ReplicaRow.op_id).where(has_ended)
        async with self._database.reading() as session:
            return [(replica_of(row), State(state), detail) for row, state, detail in await session.execute(wanted)]

    # what became of a load or unload ---------------------------------------------------------------------------

    async def loaded(self, op_id: str, address: str, node_seq: int) -> bool:
        starting = update(ReplicaRow).where(ReplicaRow.op_id == op_id, ReplicaRow.state.in_(_STARTING))
        async with self._database.session() as session:
            row = await session.scalar(starting.values(**_loaded_values(address, node_seq)).returning(ReplicaRow))
            if row is None:
                known = select(ReplicaRow.id).where(ReplicaRow.op_id == op_id, ReplicaRow.state.in_(_ON_NODE))
                return await session.scalar(known) is not None
            await _forgive(session, row.model_name, row.node_id)
            return True

    async def failed(self, op_id: str, reason: str) -> bool:
        """Delete a replica that could not be loaded, or drain it again; its node rests for this model."""
        async with self._database.session() as session:
            row = await session.scalar(select(ReplicaRow).where(ReplicaRow.op_id == op_id).with_for_update())
            if row is None or row.state in (_LOADED, _DRAINING):
                return False
            await self._rest(session, row, reason)
            if row.state in _STARTING:
                await session.delete(row)
            else:
                row.state, row.changed_at = _DRAINING, self._clock()
            return True

    async def gone(self, op_id: str) -> bool:
        return await self._delete(ReplicaRow.op_id == op_id, ReplicaRow.state.not_in([_LOADED, _DRAINING]))

    async def reported(self, node_id: str, boot_id: str, number: int, replicas: ReportedReplicas) -> None:
        """Compare the rows of a node with its own list: missing ones are gone, unknown ones are adopted."""

        def is_newer(row: ReplicaRow) -> bool:
            return row.boot_id != boot_id or row.node_seq < number

        async with self._database.session() as session:
            await session.execute(LOCK)
            known = select(NodeRow.id).where(NodeRow.id == node_id, NodeRow.boot_id == boot_id)
            if await session.scalar(known) is None:
                return
            await _delete_missing(session, node_id, boot_id, number, replicas)
            rows = {
                (row.model_name, row.replica_index): row
                for row in await session.scalars(select(ReplicaRow).where(ReplicaRow.node_id == node_id))
            }
            for each in replicas:
                row = rows.get((each.model, each.index))
                if row is None:
                    await _adopt(session, node_id, boot_id, number, each)
                elif row.op_id == each.op_id and row.state in _STARTING:
                    done = update(ReplicaRow).where(ReplicaRow.id == row.id, ReplicaRow.state.in_(_STARTING))
                    await session.execute(done.values(**_loaded_values(each.address, number)))
                elif row.state in _ON_NODE and row.address != each.address and is_newer(row):
                    # it was started again, on another port; an older report must not move it back
                    row.address, row.boot_id, row.node_seq = each.address, boot_id, number

    async def _rest(self, session: AsyncSession, row: ReplicaRow, reason: str) -> None:
        failure = await session.get(LoadFailureRow, (row.model_name, row.node_id), with_for_update=True)
        failures = failure.failures + 1 if failure else 1
        values = {
            "revision": row.revision,
            "failures": failures,
            "rest_until": self._clock() + rest_after(failures),
            "why": reason[:LONGEST_REASON],
        }
        first = insert(LoadFailureRow).values(model_name=row.model_name, node_id=row.node_id, **values)
        key = [LoadFailureRow.model_name, LoadFailureRow.node_id]
        await session.execute(first.on_conflict_do_update(index_elements=key, set_=values))

    async def _delete(self, *conditions: ColumnElement[bool]) -> bool:
        gone = delete(ReplicaRow).where(*conditions).returning(ReplicaRow.id)
        async with self._database.session() as session:
            return await session.scalar(gone) is not None


def _spec_to_load(row: ReplicaRow, model: ModelRow | None) -> LoadSpec | None:
    """What to load; None for a replica that is unloaded."""
    if model is None or row.state != ReplicaState.PLACING.value:
        return None
    return spec_of(model.name, model.revision, model.load)


def _loaded_values(address: str, node_seq: int) -> dict[str, object]:
    boot_id = select(NodeRow.boot_id).where(NodeRow.id == ReplicaRow.node_id).scalar_subquery()
    return {
        "state": _LOADED,
        "address": address,
        "loaded_at": func.now(),
        "node_seq": node_seq,
        "boot_id": boot_id,
        "changed_at": func.now(),
    }


async def _forgive(session: AsyncSession, model: str, node_id: str) -> None:
    """Loading this model works on this node: earlier failures no longer count."""
    row = LoadFailureRow
    await session.execute(delete(row).where(row.model_name == model, row.node_id == node_id))


async def _delete_missing(
    session: AsyncSession, node_id: str, boot_id: str, number: int, replicas: ReportedReplicas
) -> None:
    """Delete rows of processes that the node no longer has; a report from before the load proves nothing."""
    is_older = or_(ReplicaRow.boot_id != boot_id, ReplicaRow.node_seq < number)
    rows = await session.scalars(
        select(ReplicaRow).where(ReplicaRow.node_id == node_id, ReplicaRow.state.in_(_ON_NODE), is_older)
    )
    present = {(each.model, each.index) for each in replicas}
    for row in rows:
        if (row.model_name, row.replica_index) not in present:
            await session.delete(row)
    await session.flush()


async def _adopt(session: AsyncSession, node_id: str, boot_id: str, number: int, found: ReportedReplica) -> None:
    """Insert a replica that runs without a row: it serves if it is current, and is unloaded otherwise.

    A report from before an unload that has just ended proves nothing.
    """
    key = process_key(found.model, found.index)
    has_ended = OperationRow.ended_at > func.now() - ADOPT_AFTER
    is_recent = exists().where(OperationRow.node_id == node_id, has_ended, OperationRow.backend == key)
    if await session.scalar(select(is_recent)):
        return
    model = await session.get(ModelRow, found.model)
    is_current = model is not None and model.revision == found.revision
    adopted = insert(ReplicaRow).values(
        id=new_op_id(),
        node_id=node_id,
        model_name=found.model,
        replica_index=found.index,
        revision=found.revision,
        state=_LOADED if is_current else _DRAINING,
        address=found.address,
        op_id=found.op_id or new_op_id(),
        reserved=model.load.get("memory", 0) if model is not None else literal(0),
        loaded_at=func.now(),
        node_seq=number,
        boot_id=boot_id,
    )
    await session.execute(adopted.on_conflict_do_nothing())
