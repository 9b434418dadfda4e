"""The last completed tick of each monitor, by the database clock, because workers' clocks may differ."""

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from nodesmith.contracts.temporal.operations import FLEET_MONITOR_ID
from nodesmith.domain.monitor import MonitorTick
from nodesmith.store.database import Database
from nodesmith.store.tables.core import MonitorTickRow

_LAST = select(
    MonitorTickRow.run_id,
    MonitorTickRow.ticked_at.label("at"),
    (func.now(type_=MonitorTickRow.ticked_at.type) - MonitorTickRow.ticked_at).label("age"),
)


class MonitorTicks:
    def __init__(self, database: Database, monitor: str = FLEET_MONITOR_ID) -> None:
        self._database = database
        self._monitor = monitor

    async def write(self, run_id: str) -> None:
        """Record that this run of the monitor has just completed a tick."""
        tick = insert(MonitorTickRow).values(monitor=self._monitor, run_id=run_id, ticked_at=func.now())
        newer = {"run_id": tick.excluded.run_id, "ticked_at": tick.excluded.ticked_at}
        async with self._database.autocommit() as connection:
            await connection.execute(tick.on_conflict_do_update(index_elements=[MonitorTickRow.monitor], set_=newer))

    async def last(self) -> MonitorTick | None:
        async with self._database.autocommit() as connection:
            row = (await connection.execute(_LAST.where(MonitorTickRow.monitor == self._monitor))).first()
        return MonitorTick(run_id=row.run_id, at=row.at, age=row.age) if row else None
