"""The system that the demo starts, kills and inspects: a temporary stack, and one node outside of it."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from nodesmith.cli.commands.demo.artifact import NOISE, DemoArtifact
from nodesmith.cli.errors import CommandFailed
from nodesmith.client import AsyncClient, ClientError
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.http.operations import OperationBody, OperationDetail
from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation_filter import OperationScope
from nodesmith.stack.home import Home
from nodesmith.stack.processes.child import Child, Program
from nodesmith.stack.processes.record import Condition
from nodesmith.stack.secrets import REGISTRATION_TOKEN
from nodesmith.stack.up import Options, Stack

SPARE = "spare-node"
"""the node that is unplugged: only the demo restarts its agent"""
LOOPBACK = "127.0.0.0/8"
"""the network of the demo's artifact server"""
_POLL = 0.1


class System:
    """The actions and queries of the tour."""

    def __init__(self, stack: Stack, api: AsyncClient) -> None:
        self._stack = stack
        self._api = api
        self._spare: Child | None = None

    @property
    def home(self) -> Home:
        return self._stack.home

    @property
    def token(self) -> str:
        connection = self.home.connection()
        return connection.token() if connection else ""

    @property
    def temporal_ui_url(self) -> str:
        connection = self.home.connection()
        return connection.temporal_ui_url if connection else ""

    # API calls

    async def install(self, node: str, name: str, uri: str, artifact: DemoArtifact) -> str:
        request = OperationBody(
            kind=Kind.INSTALL, node=node, backend=name, name=name, uri=uri, sha256=artifact.sha256, version="1"
        )
        return (await self._api.operations.create(request)).op_id

    async def cancel(self, op_id: str) -> None:
        await self._api.operations.cancel(op_id)

    async def operation(self, op_id: str) -> OperationDetail | None:
        """Return the operation; None while the API does not answer."""
        try:
            return await self._api.operations.get(op_id)
        except ClientError as error:
            if error.is_retryable:
                return None
            raise

    async def operations(self) -> list[str]:
        """Return the ids of all operations of this system."""
        return [each.op_id async for each in self._api.operations.each(scope=OperationScope.ALL)]

    async def node(self, name: str) -> NodeView:
        return await self._api.nodes.get(name)

    async def listed(self, node: str) -> list[Installed]:
        """Return the backends that the node reports."""
        return (await self._api.nodes.refresh_inventory(node)).backends

    # direct inspection of the nodes' disks

    def folder(self, node: str, name: str) -> Path:
        return self.home.agents / node / "backends" / name

    def has_installed(self, node: str, name: str, artifact: DemoArtifact) -> bool:
        file = self.folder(node, name) / "current" / NOISE
        if not file.is_file():
            return False
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == artifact.noise_sha256

    # faults

    def kill(self, names: Iterable[str]) -> dict[str, int]:
        """Kill the processes with SIGKILL, all at once, and return their pids."""
        pids = {state.name: state.pid for state in self._stack.states if state.pid is not None}
        victims = {name: pids[name] for name in names}
        for pid in victims.values():
            os.kill(pid, signal.SIGKILL)
        return victims

    def restarts(self) -> dict[str, int]:
        return {state.name: state.restarts for state in self._stack.states}

    async def wait_until_running(self) -> None:
        while any(state.condition is not Condition.RUNNING for state in self._stack.states):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)

    async def plug_in(self) -> None:
        """Start the spare node's agent; the first time, the node needs an approval."""
        environment = {
            "NODESMITH_AGENT_URL": self._api.url,
            "NODESMITH_AGENT_TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            "NODESMITH_AGENT_NAME": SPARE,
            "NODESMITH_AGENT_HOME": str(self.home.agents / SPARE),
            "NODESMITH_AGENT_SOURCE_NETWORKS": LOOPBACK,
        }
        argv = (sys.executable, "-P", "-m", "nodesmith.agent.main")
        self._spare = await Child.start(Program(SPARE, argv, self.home.log(SPARE), environment))

    async def approve(self, name: str) -> None:
        while True:
            try:
                await self._api.nodes.approve(name)
            except ClientError:  # not registered yet
                await asyncio.sleep(_POLL)
            else:
                return

    async def unplug(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            await self._spare.wait()
            self._spare = None


@asynccontextmanager
async def running_system(home: Path, agents: int) -> AsyncIterator[System]:
    """Run a stack in `home` as children of this process, which end with it however it ends."""
    os.environ["NODESMITH_SOURCE_NETWORKS"] = LOOPBACK
    stack = Stack(Options(home, agents), note=lambda _: None)
    try:
        await stack.start()
        connection = stack.home.connection()
        if connection is None:
            raise CommandFailed("The system started but wrote no connection file.", code="internal")
        async with AsyncClient(connection.url, connection.token()) as api:
            system = System(stack, api)
            try:
                yield system
            finally:
                await system.unplug()
    finally:
        await stack.stop()
