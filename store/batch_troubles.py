"""Why attempts of a batch's members failed: counted from the events, the most frequent causes first."""

from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from contracts.batches import Trouble
from contracts.words import REASONS
from domain.operation import Reason
from store.models import UNSUCCESSFUL, one_of

MOST_CAUSES = 3
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
    LIMIT {MOST_CAUSES + 1}
""")  # noqa: S608 - the words come from the domain
"""A back-off says in its detail which attempt failed and why; a permanent failure has the cause as its reason."""


@dataclass(frozen=True)
class Troubles:
    """How often members of a batch failed, on how many nodes, and why."""

    attempts: int = 0
    nodes: int = 0
    causes: list[Trouble] = field(default_factory=list)

    def told(self) -> str:
        """One line, the three most frequent causes; empty when nothing failed."""
        if not self.attempts:
            return ""
        said = ", ".join(f"{each.attempts} x {each.cause} ({_nodes(each.nodes)})" for each in self.causes)
        attempts = "1 failed attempt" if self.attempts == 1 else f"{self.attempts} failed attempts"
        return f"{attempts} on {_nodes(self.nodes)}: {said}"


async def troubles_of(session: AsyncSession, batch_id: str) -> Troubles:
    rows = (await session.execute(_CAUSES, {"batch_id": batch_id})).all()
    causes = [Trouble(cause=_cause(row.cause), attempts=row.attempts, nodes=row.nodes) for row in rows[1:]]
    return Troubles(rows[0].attempts, rows[0].nodes, causes)


def _cause(said: str) -> str:
    """A bare reason is told with its sentence."""
    reason = Reason(said)
    return said if reason is Reason.UNKNOWN else REASONS[reason].sentence


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
