"""Makes text storable in PostgreSQL, because nodes and callers may send any characters."""

from typing import Any


def storable(value: Any) -> Any:
    """Replace NUL characters at any depth: a single one would make the whole write fail at every retry."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [storable(each) for each in value]
    return value
