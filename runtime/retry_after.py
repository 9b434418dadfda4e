"""Parses the HTTP header Retry-After."""

import email.utils
from datetime import UTC, datetime


def retry_after_s(header: str) -> float | None:
    """Return the seconds to wait, from a number or a date; None if the header is neither."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((aware - datetime.now(UTC)).total_seconds(), 0.0)
