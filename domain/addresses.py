"""Hides the query part of addresses that are shown to users, because a presigned query is a secret."""

import re

HIDDEN = "?(hidden)"
_WORD = re.compile(r"\S+")
_AFTER_ADDRESS = "\"'<>;,.)"
"""punctuation of the sentence around an address"""


def without_query(text: str) -> str:
    """Return the text with the query of each address replaced by a placeholder."""
    return _WORD.sub(_hidden, text) if "?" in text and "://" in text else text


def _hidden(found: re.Match[str]) -> str:
    """Cut from the first `?` to white space: any other character may be in a query, quotes and semicolons included."""
    word = found[0]
    address = word.find("://")
    query = word.find("?", address) if address >= 0 else -1
    return word if query < 0 else f"{word[:query]}{HIDDEN}{word[len(word.rstrip(_AFTER_ADDRESS)) :]}"
