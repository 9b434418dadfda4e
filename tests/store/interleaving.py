"""A change that another process commits between two statements of a reader, at the same place in every run."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.util import await_only

from nodesmith.store.database import Database

Change = Callable[[], Awaitable[Any]]


@contextmanager
def changed_after(database: Database, query: str, change: Change) -> Iterator[None]:
    """Make `change` right after the first statement that contains `query`, before the reader sends its next one.

    `change` has to use a connection of its own.
    """
    engine, left = database._engine.sync_engine, [change]

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if query in statement and left:
            await_only(left.pop()())

    event.listen(engine, "after_cursor_execute", executed)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", executed)
    assert not left, f"nobody asked: {query}"
