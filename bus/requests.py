"""Open requests: each has its own reply subject, which only the requested node may publish to."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from nats.aio.msg import Msg

from nodesmith.contracts.nats import subjects
from nodesmith.domain.errors import NoAnswer, NodeAway

RANDOM_BYTES = 16
_NO_RESPONDERS = "503"


@dataclass(frozen=True)
class Reply:
    """A reply as received, with its subject."""

    subject: str
    data: bytes


class Requests:
    """The open requests of one connection, by reply subject; the client's own inbox would be shared by all nodes."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(RANDOM_BYTES)
        self._open: dict[str, asyncio.Future[Reply]] = {}

    @property
    def subject(self) -> str:
        """The wildcard subject of all replies to this connection."""
        return subjects.replies(self._session)

    @contextlib.contextmanager
    def expect(self, target: str) -> Iterator[tuple[str, "asyncio.Future[Reply]"]]:
        """Yield a new reply subject and a future for its reply; a reply after the block is dropped."""
        subject = subjects.reply(target, self._session, secrets.token_hex(RANDOM_BYTES))
        answer = self._open[subject] = asyncio.get_running_loop().create_future()
        try:
            yield subject, answer
        finally:
            del self._open[subject]
            answer.cancel()

    async def receive(self, message: Msg) -> None:
        """Deliver a reply to its request. The server itself replies 503 when no client is subscribed."""
        answer = self._open.get(message.subject)
        if answer is None or answer.done():
            return
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            answer.set_exception(NodeAway())
        else:
            answer.set_result(Reply(message.subject, message.data))

    def fail_all(self) -> None:
        """Fail all open requests after the connection was lost."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(NoAnswer("The connection to NATS was lost before the answer arrived."))
