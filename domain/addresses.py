"""Hides the query part of addresses that are shown to users, because a presigned query is a secret."""

import re

HIDDEN = "?(hidden)"
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]{1,15}://[^\s?#\"'<>]*)\?[^\s\"'<>;]*", re.IGNORECASE)


def without_query(text: str) -> str:
    """Return the text with the query of each address replaced by a placeholder."""
    return _ADDRESS.sub(rf"\1{HIDDEN}", text) if "?" in text and "://" in text else text
