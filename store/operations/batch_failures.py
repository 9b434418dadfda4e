"""Failure causes of a batch's members, counted from the events, the most frequent first."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.batch import AttemptFailures, FailureCount
from nodesmith.store.tables.core import UNSUCCESSFUL, one_of

MAX_CAUSES = 3
_LONGEST_CAUSE = 200

_CAUSES = text(f"""
    SELECT grouping(cause) AS is_total, cause, count(*) AS attempts, count(DISTINCT op_id) AS nodes
    FROM (
        SELECT event.op_id, left(
            CASE WHEN event.reason IN ('back_off', 'attempts_exhausted')
                THEN regexp_replace(event.detail, '^attempt [0-9]+: ', '')
                ELSE coalesce(event.reason, event.detail) END, {_LONGEST_CAUSE}) AS cause
        FROM operation_events AS event JOIN batch_members AS member USING (op_id)
        WHERE member.batch_id = :batch_id AND (event.reason = 'back_off' OR {one_of("event.state", UNSUCCESSFUL)})
    ) AS failed
    GROUP BY GROUPING SETS ((cause), ())
    ORDER BY grouping(cause) DESC, attempts DESC, cause
    LIMIT {MAX_CAUSES + 1}
""")  # noqa: S608 - the words come from the domain
"""The detail of a back-off names the failed attempt and its cause; the reason of a permanent failure is the cause."""


async def failures_of(session: AsyncSession, batch_id: str) -> AttemptFailures:
    rows = (await session.execute(_CAUSES, {"batch_id": batch_id})).all()
    causes = [FailureCount(cause=row.cause, attempts=row.attempts, nodes=row.nodes) for row in rows[1:]]
    return AttemptFailures(rows[0].attempts, rows[0].nodes, causes)
