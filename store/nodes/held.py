"""What the replicas of a node hold, for statements that select nodes."""

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.selectable import ScalarSelect

from nodesmith.domain.placement import SEEN_AFTER
from nodesmith.domain.replica import ReplicaState
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.models import ReplicaRow


def held_by_replicas() -> ScalarSelect[list[int]]:
    """Loaded replicas, open calls, reserved bytes, and those of them that the last reading does not show yet."""
    row = ReplicaRow
    is_unseen = or_(
        row.loaded_at.is_(None), NodeRow.resources_at.is_(None), row.loaded_at > NodeRow.resources_at - SEEN_AFTER
    )
    loaded = func.count().filter(row.state == ReplicaState.LOADED.value)
    calls, reserved = func.coalesce(func.sum(row.in_flight), 0), func.coalesce(func.sum(row.reserved), 0)
    unseen = func.coalesce(func.sum(row.reserved).filter(is_unseen), 0)
    sums = select(func.jsonb_build_array(loaded, calls, reserved, unseen, type_=JSONB))
    return sums.where(row.node_id == NodeRow.id).correlate(NodeRow).scalar_subquery()
