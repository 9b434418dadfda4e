"""Cursors of lists in pages: the sort key and the id of the last row, so that pages stay correct while rows change."""

import base64
import binascii
import json
from datetime import datetime

from nodesmith.domain.errors import InvalidRequest


def cursor_after(order: str, key: datetime | str | int, row_id: str = "") -> str:
    """Encode where a page ended; `order` names the list and its order, because a cursor is valid only for them."""
    value = key.isoformat() if isinstance(key, datetime) else key
    return base64.urlsafe_b64encode(json.dumps([order, value, row_id]).encode()).decode().rstrip("=")


def read_moment(cursor: str, order: str) -> tuple[datetime, str]:
    """Return the sort key and the id of a list that is ordered by time."""
    value, row_id = _read(cursor, order)
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise bad_cursor()
    return moment, row_id


def read_text(cursor: str, order: str) -> tuple[str, str]:
    """Return the sort key and the id of a list that is ordered by a text."""
    value, row_id = _read(cursor, order)
    if not isinstance(value, str) or "\0" in value:
        raise bad_cursor()
    return value, row_id


def read_number(cursor: str, order: str) -> int:
    """Return the sort key of a list that is ordered by a number."""
    value, _ = _read(cursor, order)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise bad_cursor()
    return value


def _read(cursor: str, order: str) -> tuple[object, str]:
    try:
        known, value, row_id = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    except (binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise bad_cursor() from error
    if known != order or not isinstance(row_id, str) or "\0" in row_id:
        raise bad_cursor()
    return value, row_id


def bad_cursor() -> InvalidRequest:
    return InvalidRequest("cursor: not a valid cursor of this list. Start again without one.", field="cursor")
