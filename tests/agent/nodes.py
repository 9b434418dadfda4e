"""An agent under test, with helpers to send commands and inspect its disk."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nodesmith.agent.main import run
from nodesmith.agent.settings import AgentSettings
from nodesmith.bus.commands import NodeClient
from nodesmith.contracts.nats.messages import Answer, Command, CommandReply, Outcome
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.kinds import Kind
from tests.agent.archives import digest
from tests.agent.waiting import until
from tests.agent.web import Web
from tests.orders import OrderBook

LONG = 30.0


class StartAgent(Protocol):
    async def __call__(self, name: str = "agent-1", **settings: Any) -> "Node": ...


@dataclass
class Node:
    """One agent: its home, its web server, and the control plane's NATS client."""

    name: str
    home: Path
    site: Web
    control: NodeClient
    orders: OrderBook = field(default_factory=OrderBook)

    @property
    def id(self) -> str:
        return self.site.nodes[self.name].id

    def environment(self, **settings: Any) -> dict[str, Any]:
        """Return the agent's settings for tests: no disk headroom, short timeouts."""
        self.home.mkdir(exist_ok=True)
        token = self.home / "registration-token"
        token.write_text(self.site.registration_token)
        defaults = {"disk_headroom": 0, "source_tries": 1, "heartbeat_interval": 0.2, "journal_interval": 0.05}
        return {"url": self.site.url, "name": self.name, "home": self.home, "token_file": token} | defaults | settings

    async def linked(self) -> None:
        """Wait until the agent answers over NATS."""
        await until(lambda: self.name in self.site.nodes, within=LONG, pause=0.01)
        async with asyncio.timeout(LONG):
            while not await self._answers():  # noqa: ASYNC110 - another process may be the one that answers
                await asyncio.sleep(0.01)

    async def _answers(self) -> bool:
        try:
            await self.control.list_backends(self.id, within=2)
        except (NodeAway, NoAnswer):  # one reply may be lost while the connection is renewed
            return False
        return True

    async def send(self, command: Command) -> CommandReply:
        """Send a command signed by the control plane."""
        return await self.control.order(self.id, command.kind, self.orders.signed(self.id, command), within=LONG)

    async def outcome_of(self, command: Command) -> Outcome:
        """Send a command and wait for its outcome."""
        async with self.control.attach(self.id, command.op_id) as reports:
            reply = await self.send(command)
            assert reply.answer is Answer.ACCEPTED, reply
            while not isinstance(report := await reports.next(LONG), Outcome):
                assert report is not None
            return report

    def command(self, content: bytes, *, version: str = "1", family: str = "echo", **fields: Any) -> Command:
        """Serve an archive under a unique path, and return the command that installs it."""
        path = f"/artifacts/{family}-{version}-{digest(content)[:8]}.tar.gz"
        if path not in self.site.files:
            self.site.serve(path, content)
        return Command(
            **{
                "op_id": str(uuid.uuid4()),
                "kind": Kind.INSTALL,
                "backend": family,
                "family": family,
                "version": version,
                "uri": path,
                "sha256": digest(content),
                "size": len(content),
                "decision": 1,
                **fields,
            }
        )

    def served(self, command: Command) -> Any:
        return self.site.files[command.uri]

    def live(self, family: str = "echo") -> Path:
        return self.home / "backends" / family / "current"

    def journal(self, op_id: str) -> str:
        return (self.home / "journal" / f"{op_id}.json").read_text()

    def partial_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.home / "downloads").glob("*.part"))

    def tree(self) -> dict[str, bytes | str]:
        """Return all files of installed backends."""
        root = self.home / "backends"
        return {
            str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }


@asynccontextmanager
async def agent_in_process(node: Node, settings: dict[str, Any]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(run(AgentSettings(**node.environment(**settings)), stop))
    try:
        yield
    finally:
        stop.set()
        assert await asyncio.wait_for(running, LONG) == 0
