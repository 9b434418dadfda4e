"""`nodesmith.domain.eligibility` in SQL, derived from the same table of rules."""

from sqlalchemy import ColumnElement

from nodesmith.domain.eligibility import RULES, Check, Obstacle
from nodesmith.store.tables.core import NodeRow


def hindered_by(why: Obstacle) -> ColumnElement[bool]:
    """`WorkRule.hinders` in SQL, for a statement that selects from `nodes`."""
    rule = RULES[why]
    column: ColumnElement[object] = NodeRow.__table__.c[rule.fact]
    match rule.check:
        case Check.DIFFERS:
            return column != rule.value
        case Check.IS_SET:
            return column.is_not(None)
        case Check.IS_NOT_SET:
            return column.is_(None)
