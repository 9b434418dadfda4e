"""Text as PostgreSQL can hold it: nodes and callers may send anything."""

from typing import Any


def storable(value: Any) -> Any:
    """Replace NUL characters, at any depth: one of them would stop the whole write, again and again."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [storable(each) for each in value]
    return value
