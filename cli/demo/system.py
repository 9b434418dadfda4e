"""The system that the demo starts, kills and looks at: a stack of its own, and one node outside of it."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from cli.client import ApiClient, read
from cli.demo.artifact import NOISE, DemoArtifact
from cli.failures import CommandFailed
from cli.follow import fetch
from contracts.messages import Installed
from contracts.node_http import NodeView
from contracts.operation_http import InstallRequest, JobAccepted, OperationDetail
from stack.child import Child, Program
from stack.home import Home
from stack.record import Condition
from stack.secrets import REGISTRATION_TOKEN
from stack.up import Options, Stack

SPARE = "spare-node"
"""the node that is unplugged: nobody restarts its agent but the demo"""
_POLL = 0.1


class System:
    """Everything the tour does to the system, and everything it asks it."""

    def __init__(self, stack: Stack, api: ApiClient) -> None:
        self._stack = stack
        self._api = api
        self._spare: Child | None = None

    @property
    def home(self) -> Home:
        return self._stack.home

    @property
    def temporal_ui_url(self) -> str:
        connection = self.home.connection()
        return connection.temporal_ui_url if connection else ""

    # asking

    async def install(self, node: str, name: str, uri: str, artifact: DemoArtifact) -> str:
        request = InstallRequest(backend=name, name=name, uri=uri, sha256=artifact.sha256, version="1")
        path = f"/api/nodes/{node}/backends/install"
        return read(JobAccepted, await asyncio.to_thread(self._api.post_once, path, request)).jobID

    async def cancel(self, op_id: str) -> None:
        await asyncio.to_thread(self._api.post, f"/api/operations/{op_id}/cancel")

    async def operation(self, op_id: str) -> OperationDetail | None:
        """None while the API cannot be asked."""
        try:
            return await asyncio.to_thread(fetch, self._api, op_id)
        except CommandFailed as failure:
            if failure.may_pass:
                return None
            raise

    async def operations(self) -> list[str]:
        """The ids of all operations there ever were here."""
        answer = await asyncio.to_thread(self._api.get, "/api/operations", all=True, limit=1000)
        return [entry["op_id"] for entry in answer["operations"]]

    async def node(self, name: str) -> NodeView:
        return read(NodeView, await asyncio.to_thread(self._api.get, f"/api/nodes/{name}"))

    async def listed(self, node: str) -> list[Installed]:
        """What the node says is on its disk."""
        answer = await asyncio.to_thread(self._api.get, f"/api/nodes/{node}/backends")
        return [read(Installed, entry) for entry in answer]

    # looking at disks, past all the software

    def folder(self, node: str, name: str) -> Path:
        return self.home.agents / node / "backends" / name

    def has(self, node: str, name: str, artifact: DemoArtifact) -> bool:
        file = self.folder(node, name) / "current" / NOISE
        if not file.is_file():
            return False
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == artifact.noise_sha256

    # killing and plugging

    def kill(self, names: Iterable[str]) -> dict[str, int]:
        """kill -9, all of them in one go; returns who died."""
        pids = {state.name: state.pid for state in self._stack.states if state.pid is not None}
        victims = {name: pids[name] for name in names}
        for pid in victims.values():
            os.kill(pid, signal.SIGKILL)
        return victims

    def restarts(self) -> dict[str, int]:
        return {state.name: state.restarts for state in self._stack.states}

    async def until_all_run(self) -> None:
        while any(state.condition is not Condition.RUNNING for state in self._stack.states):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)

    async def plug_in(self) -> None:
        """Start the spare node's agent; the first time it has to be approved."""
        environment = {
            "NODESMITH_AGENT_URL": self._api.url,
            "NODESMITH_AGENT_TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            "NODESMITH_AGENT_NAME": SPARE,
            "NODESMITH_AGENT_HOME": str(self.home.agents / SPARE),
        }
        argv = (sys.executable, "-P", "-m", "agent.main")
        self._spare = await Child.start(Program(SPARE, argv, self.home.log(SPARE), environment))

    async def admit(self, name: str) -> None:
        while True:
            try:
                await asyncio.to_thread(self._api.post, f"/api/nodes/{name}/approve")
            except CommandFailed:  # not registered yet
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
    """A stack in `home`, as children of this process: they end with it, however it ends."""
    stack = Stack(Options(home, agents), note=lambda _: None)
    try:
        await stack.start()
        connection = stack.home.connection()
        if connection is None:
            raise CommandFailed("The system started without leaving its address.", code="internal")
        with ApiClient(connection.url, connection.token()) as api:
            system = System(stack, api)
            try:
                yield system
            finally:
                await system.unplug()
    finally:
        await stack.stop()
