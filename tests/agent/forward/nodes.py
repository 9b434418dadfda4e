"""A CA, a gateway's certificate, and real forwarder processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.forward.control import SOCKET, ForwarderAway, ForwarderClient
from nodesmith.domain.forwarding import GATEWAY_NAME, server_name
from nodesmith.gateway.forwarder_tls import ForwarderTls
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from nodesmith.stack.certificates import Certificates
from tests.deadlines import HANGS_S

NODE = "0198c0de-0000-7000-8000-000000000001"


@dataclass(frozen=True)
class Trust:
    """One installation's CA and the certificate of its gateway."""

    files: Certificates

    @classmethod
    def create(cls, folder: Path, client_name: str = GATEWAY_NAME) -> "Trust":
        files = Certificates(folder, client_name=client_name)
        files.ensure_mutual("127.0.0.1")
        return cls(files)

    @property
    def tls(self) -> ForwarderTls:
        return ForwarderTls(self.files.client, self.files.client_key, self.files.ca)

    def certify(self, folder: Path, node_id: str = NODE) -> NodeCertificate:
        node = NodeCertificate(folder)
        authority = ReplicaAuthority.load(self.files.ca, self.files.ca_key)
        node.store(authority.sign_node(node.request(), node_id), self.files.ca.read_text())
        return node


@dataclass
class ForwarderProcess:
    folder: Path
    environment: dict[str, str]
    port: int
    node_id: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> ForwarderClient:
        return ForwarderClient(self.folder / SOCKET)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def name(self, key: str) -> str:
        return server_name(self.node_id, key)

    async def start(self) -> None:
        argv = [sys.executable, "-P", "-m", "nodesmith.agent.forward.main"]
        environment = {**os.environ, **self.environment}
        self.process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
        async with asyncio.timeout(HANGS_S):
            while not await self._answers():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()

    async def _answers(self) -> bool:
        try:
            await self.client.keys()
        except ForwarderAway:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def forwarder(trust: Trust, folder: Path, node_id: str = NODE) -> AsyncIterator[ForwarderProcess]:
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    files = trust.certify(folder, node_id)
    port = free_port()
    settings = {
        "NODE_ID": node_id,
        "FOLDER": str(folder),
        "PORT": str(port),
        "CERT_FILE": str(files.cert_file),
        "KEY_FILE": str(files.key_file),
        "CA_FILE": str(files.ca_file),
    }
    environment = {f"NODESMITH_FORWARD_{name}": value for name, value in settings.items()}
    running = ForwarderProcess(folder, environment, port, node_id)
    await running.start()
    try:
        yield running
    finally:
        running.kill()
