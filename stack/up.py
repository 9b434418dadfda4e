"""The whole system on one machine: servers, then api and worker, then agents; approved and ready to use."""

import asyncio
import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stack import ports, record, secrets
from stack.api import LocalApi
from stack.errors import StackError
from stack.external import external_servers
from stack.home import Connection, Home
from stack.listening import check_free, resolve
from stack.lock import HomeLock
from stack.processes import Gate, Plan
from stack.record import ProcessState
from stack.servers import Server
from stack.supervisor import Supervisor

_POLL = 0.1
_LONGEST_POLL = 1.0
_AGENT_PATIENCE = 20.0
_PENDING = "pending"
_ON = frozenset({"1", "true", "yes", "on", "t", "y"})
"""what the api takes for yes"""
_SETTLED = frozenset({"healthy", "draining"})


@dataclass(frozen=True)
class Options:
    home: Path
    agents: int = 3
    port_base: int | None = None
    listen: str | None = None
    """an address for other machines"""


@dataclass(frozen=True)
class Ready:
    """What there is to know once everything runs."""

    home: str
    pid: int
    url: str
    docs_url: str
    sign_in_url: str
    sign_in_expires_at: str
    temporal_ui_url: str
    token_file: str
    public_url: str
    """for other machines; empty without --listen"""
    logs: str
    agents: list[dict[str, str]]
    ports: dict[str, int]
    seconds: float


@dataclass
class Stack:
    """One home, from lock to lock: `start`, and whatever came of it, `stop`."""

    options: Options
    note: Callable[[str], None]
    changed: Callable[[list[ProcessState]], None] = lambda _: None
    _lock: HomeLock | None = field(default=None, init=False)
    _approving: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.home = Home(self.options.home)
        self._supervisor = Supervisor(self._record)
        self._gate = Gate()

    @property
    def states(self) -> list[ProcessState]:
        return self._supervisor.states

    async def start(self) -> Ready:
        """`StackError` when it cannot be; a full disk is named, whoever noticed it."""
        try:
            return await self._start()
        except OSError as error:
            if error.errno != errno.ENOSPC and error.filename is None:  # not of a file
                raise
            raise self.home.unusable(error) from error
        except StackError as error:
            if self.home.folder.exists() and self.home.is_full():
                full = OSError(errno.ENOSPC, f"no space left; {error.message}")
                raise self.home.unusable(full) from error
            raise

    async def _start(self) -> Ready:
        began = time.monotonic()
        plan = self._claim()
        api = LocalApi(self._connection(plan))
        # Loading takes as long as the servers' start: api and worker wait for those by themselves. The agents are
        # loaded a little later, so that the api is first, and wait at the gate until it is there.
        agents = [plan.agent(number, self._gate) for number in range(1, self.options.agents + 1)]
        await self._step(plan.servers(), [plan.api(api.ready), plan.worker()], agents)
        self._gate.open()
        approved = await self._approved(api)
        link = await asyncio.to_thread(api.sign_in_link)
        return self._ready(plan, link, approved, time.monotonic() - began)

    async def stop(self) -> None:
        if self._approving is not None:
            self._approving.cancel()
        await self._supervisor.stop()
        self._gate.close()
        if self._lock is not None:
            self.home.processes_file.unlink(missing_ok=True)
            self._lock.release()

    def _claim(self) -> Plan:
        """Everything that can be refused is refused here, before the first process."""
        external = external_servers(os.environ)
        listen = resolve(self.options.listen) if self.options.listen else None
        fresh = self.home.create()
        self._lock = HomeLock.acquire(self.home.lock_file)
        self.note(f"home {self.home.folder}{' (new)' if fresh else ''}")
        record.end_leftovers(self.home.processes_file)
        chosen = ports.choose(self.home, self.options.port_base, self.note)
        secrets.ensure(self.home)
        plan = Plan(self.home, chosen, external, listen)
        self._open(plan)
        return plan

    def _open(self, plan: Plan) -> None:
        """For other machines: a certificate for the address; and a word about who gets in, and who does not."""
        if os.environ.get("NODESMITH_AUTO_APPROVE", "").lower() in _ON:
            self.note("WARNING: NODESMITH_AUTO_APPROVE is on: whoever has the registration token takes part, unseen")
        if plan.listen is not None:
            check_free(plan.listen, plan.ports.api, *([] if plan.external.nats_url else [plan.ports.nats]))
            plan.certificates.ensure(plan.listen.name)
            self.note(f"open for other machines at {plan.public_url}: `nodesmith nodes invite`")
        elif plan.certificates.ca.exists():
            self.note("other machines do not reach this start: --listen opens it for them")

    def _connection(self, plan: Plan) -> Connection:
        ca = plan.certificates.ca if plan.listen else None
        connection = Connection(plan.url, self.home.secret(secrets.ADMIN_TOKEN), plan.temporal_ui_url, ca)
        self.home.write_connection(connection)
        return connection

    async def _step(self, *groups: Sequence[Server]) -> None:
        began = time.monotonic()
        await self._supervisor.start(*groups)
        names = ", ".join(server.name for group in groups for server in group)
        if names:
            self.note(f"{names} ({time.monotonic() - began:.1f} s)")

    async def _approved(self, api: LocalApi) -> list[dict[str, str]]:
        """Approve our own agents, and give them a while to be heard; a late one is approved later."""
        names = {f"agent-{number}" for number in range(1, self.options.agents + 1)}
        began = time.monotonic()
        welcome = Welcome(api, names, since=datetime.now(UTC))
        self._approving = asyncio.create_task(welcome.run(), name="approve local agents")
        await asyncio.wait([self._approving], timeout=_AGENT_PATIENCE)
        nodes = [node for node in await asyncio.to_thread(api.nodes) if node["name"] in names]
        approved = [node["name"] for node in nodes if node["status"] != _PENDING]
        self.note(f"{len(approved)} of {len(names)} agents approved ({time.monotonic() - began:.1f} s)")
        return [{key: str(node[key]) for key in ("id", "name", "status")} for node in nodes]

    def _record(self, states: list[ProcessState]) -> None:
        record.write(self.home.processes_file, states)
        self.changed(states)

    def _ready(self, plan: Plan, link: dict[str, Any], agents: list[dict[str, str]], seconds: float) -> Ready:
        return Ready(
            home=str(self.home.folder),
            pid=os.getpid(),
            url=plan.url,
            docs_url=f"{plan.url}/docs",
            sign_in_url=link["url"],
            sign_in_expires_at=link["expires_at"],
            temporal_ui_url=plan.temporal_ui_url,
            token_file=str(self.home.secret(secrets.ADMIN_TOKEN)),
            public_url=plan.public_url,
            logs=str(self.home.logs),
            agents=sorted(agents, key=lambda agent: agent["name"]),
            ports=asdict(plan.ports),
            seconds=round(seconds, 2),
        )


@dataclass(frozen=True)
class Welcome:
    """Approves our own agents as they register."""

    api: LocalApi
    names: set[str]
    since: datetime

    async def run(self) -> None:
        """Until every one has been approved and heard; more and more patiently."""
        pause = _POLL
        while not await asyncio.to_thread(self._is_complete):
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, _LONGEST_POLL)

    def _is_complete(self) -> bool:
        try:
            ours = [node for node in self.api.nodes() if node["name"] in self.names]
            for node in ours:
                if node["status"] == _PENDING:
                    self.api.approve(node["id"])
        except StackError:  # it is being restarted: ask again
            return False
        return self.names == {node["name"] for node in ours if self._is_heard(node)}

    def _is_heard(self, node: dict[str, Any]) -> bool:
        """Heard by this start: what was heard before the last stop does not count."""
        heard = node["last_heartbeat"]
        return node["status"] in _SETTLED and heard is not None and datetime.fromisoformat(heard) >= self.since
