"""Starts and stops the whole system on one machine: servers, api, worker, gateway and approved agents."""

import asyncio
import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodesmith.stack import secrets, tcp_ports
from nodesmith.stack.api import LocalApi
from nodesmith.stack.errors import StackError
from nodesmith.stack.home import Connection, Home
from nodesmith.stack.listening import check_free, resolve
from nodesmith.stack.lock import HomeLock
from nodesmith.stack.processes import record
from nodesmith.stack.processes.own import StackPlan, StartBarrier
from nodesmith.stack.processes.record import ProcessState
from nodesmith.stack.processes.supervisor import Supervisor
from nodesmith.stack.servers import binaries, isolation
from nodesmith.stack.servers.embedded import LOOPBACK, Server
from nodesmith.stack.servers.external import external_servers

_POLL = 0.1
_LONGEST_POLL = 1.0
_AGENT_PATIENCE = 20.0
_PENDING = "pending"
_TRUE_VALUES = frozenset({"1", "true", "yes", "on", "t", "y"})
"""values that the API's settings parse as true"""
_CONNECTED = frozenset({"healthy", "draining"})


@dataclass(frozen=True)
class Options:
    home: Path
    agents: int = 3
    port_base: int | None = None
    listen: str | None = None
    """the address to open for other machines"""


@dataclass(frozen=True)
class Ready:
    """The summary that `up` prints when everything runs."""

    home: str
    pid: int
    url: str
    docs_url: str
    sign_in_url: str
    sign_in_expires_at: str
    temporal_ui_url: str
    gateway_url: str
    """where models are called"""
    token_file: str
    public_url: str
    """for other machines; empty without --listen"""
    logs: str
    agents: list[dict[str, str]]
    ports: dict[str, int]
    seconds: float


@dataclass
class Stack:
    """The running system of one home. After `start`, successful or not, call `stop`."""

    options: Options
    note: Callable[[str], None]
    changed: Callable[[list[ProcessState]], None] = lambda _: None
    _lock: HomeLock | None = field(default=None, init=False)
    _approving: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.home = Home(self.options.home)
        self._supervisor = Supervisor(self._record)
        self._barrier = StartBarrier()

    @property
    def states(self) -> list[ProcessState]:
        return self._supervisor.states

    async def start(self) -> Ready:
        """Start everything; raise `StackError` on failure, and name a full disk whichever process hit it."""
        try:
            return await self._start()
        except OSError as error:
            if error.errno != errno.ENOSPC and error.filename is None:  # not about a file
                raise
            raise self.home.unusable(error) from error
        except StackError as error:
            if self.home.folder.exists() and self.home.is_full():
                full = OSError(errno.ENOSPC, f"no space left; {error.message}")
                raise self.home.unusable(full) from error
            raise

    async def _start(self) -> Ready:
        began = time.monotonic()
        plan = self._prepare()
        api = LocalApi(self._connection(plan))
        # Loading Python takes as long as starting the servers, so both run in parallel; api and worker wait for the
        # servers. The agents load a little later, so that the API is first, and wait at the barrier until it is ready.
        agents = [plan.agent(number, self._barrier) for number in range(1, self.options.agents + 1)]
        await self._start_processes(plan.servers(), [plan.api(api.ready), plan.worker(), plan.gateway()], agents)
        self._barrier.open()
        approved = await self._approve_agents(api)
        link = await asyncio.to_thread(api.sign_in_link)
        return self._ready(plan, link, approved, time.monotonic() - began)

    async def stop(self) -> None:
        if self._approving is not None:
            self._approving.cancel()
        await self._supervisor.stop()
        self._barrier.close()
        if self._lock is not None:
            self.home.processes_file.unlink(missing_ok=True)
            self._lock.release()

    def _prepare(self) -> StackPlan:
        """Check and prepare everything that can fail before the first process is started."""
        external = external_servers(os.environ)
        binaries.check_custom_programs()
        listen = resolve(self.options.listen) if self.options.listen else None
        fresh = self.home.create()
        self._lock = HomeLock.acquire(self.home.lock_file)
        self.note(f"home {self.home.folder}{' (new)' if fresh else ''}")
        record.end_leftovers(self.home.processes_file)
        chosen = tcp_ports.choose(self.home, self.options.port_base, self.note)
        secrets.ensure(self.home)
        is_isolated = not external.temporal_address and isolation.is_enabled(os.environ, self.note)
        plan = StackPlan(self.home, chosen, external, listen, is_isolated)
        self._prepare_access(plan)
        return plan

    def _prepare_access(self, plan: StackPlan) -> None:
        """Create the certificates of Temporal's clients, the gateway and --listen; warn about automatic approval."""
        plan.gateway_certificates.ensure_client()
        if plan.temporal_certificates is not None:  # api and worker read them while the server starts
            plan.temporal_certificates.ensure_mutual(LOOPBACK)
        if os.environ.get("NODESMITH_AUTO_APPROVE", "").lower() in _TRUE_VALUES:
            self.note("WARNING: NODESMITH_AUTO_APPROVE is on: nodes with the registration token join without approval")
        if plan.listen is not None:
            check_free(plan.listen, *plan.open_ports)
            plan.certificates.ensure(plan.listen.name)
            self.note(f"open for other machines at {plan.public_url}: `nodesmith nodes invite`")
        elif plan.certificates.ca.exists():
            self.note("other machines cannot reach this system: start it with --listen to open it")

    def _connection(self, plan: StackPlan) -> Connection:
        ca = plan.certificates.ca if plan.listen else None
        connection = Connection(
            url=plan.url,
            token_file=self.home.secret(secrets.ADMIN_TOKEN),
            temporal_ui_url=plan.temporal_ui_url,
            gateway_url=plan.gateway_url,
            ca_file=ca,
            temporal_address=plan.temporal_address,
            temporal_certificates=plan.temporal_certificates.folder if plan.temporal_certificates else None,
        )
        self.home.write_connection(connection)
        return connection

    async def _start_processes(self, *groups: Sequence[Server]) -> None:
        began = time.monotonic()
        await self._supervisor.start(*groups)
        names = ", ".join(server.name for group in groups for server in group)
        if names:
            self.note(f"{names} ({time.monotonic() - began:.1f} s)")

    async def _approve_agents(self, api: LocalApi) -> list[dict[str, str]]:
        """Approve the local agents and wait a while for their heartbeats; late ones are approved in the background."""
        names = {f"agent-{number}" for number in range(1, self.options.agents + 1)}
        began = time.monotonic()
        approval = AgentApproval(api, names, since=datetime.now(UTC))
        self._approving = asyncio.create_task(approval.run(), name="approve local agents")
        await asyncio.wait([self._approving], timeout=_AGENT_PATIENCE)
        nodes = [node for node in await asyncio.to_thread(api.nodes) if node["name"] in names]
        approved = [node["name"] for node in nodes if node["status"] != _PENDING]
        self.note(f"{len(approved)} of {len(names)} agents approved ({time.monotonic() - began:.1f} s)")
        return [{key: str(node[key]) for key in ("id", "name", "status")} for node in nodes]

    def _record(self, states: list[ProcessState]) -> None:
        record.write(self.home.processes_file, states)
        self.changed(states)

    def _ready(self, plan: StackPlan, link: dict[str, Any], agents: list[dict[str, str]], seconds: float) -> Ready:
        return Ready(
            home=str(self.home.folder),
            pid=os.getpid(),
            url=plan.url,
            docs_url=f"{plan.url}/docs",
            sign_in_url=link["url"],
            sign_in_expires_at=link["expires_at"],
            temporal_ui_url=plan.temporal_ui_url,
            gateway_url=plan.gateway_url,
            token_file=str(self.home.secret(secrets.ADMIN_TOKEN)),
            public_url=plan.public_url,
            logs=str(self.home.logs),
            agents=sorted(agents, key=lambda agent: agent["name"]),
            ports=asdict(plan.ports),
            seconds=round(seconds, 2),
        )


@dataclass(frozen=True)
class AgentApproval:
    """Approves the local agents as they register."""

    api: LocalApi
    names: set[str]
    since: datetime

    async def run(self) -> None:
        """Poll with growing pauses until every agent is approved and has sent a heartbeat."""
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
        except StackError:  # the API is restarting: retry
            return False
        return self.names == {node["name"] for node in ours if self._is_connected(node)}

    def _is_connected(self, node: dict[str, Any]) -> bool:
        """Return whether the node sent a heartbeat since this start; earlier ones do not count."""
        heartbeat = node["last_heartbeat"]
        is_recent = heartbeat is not None and datetime.fromisoformat(heartbeat) >= self.since
        return is_recent and node["status"] in _CONNECTED
