"""Starts the forwarder of this node so that it outlives the agent, and finds it again after a restart."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.forward.control import SOCKET, ForwarderAway, ForwarderClient
from nodesmith.agent.run.backend_process import BackendProcess, ProcessRecord
from nodesmith.agent.run.confinement import Launch
from nodesmith.agent.run.logs import LogRing
from nodesmith.runtime.process_identity import boot_id, started_at

log = structlog.stdlib.get_logger(__name__)

_NAME = "forwarder"
_START_S = 20.0
_POLL_S = 0.05
_TRIES = 5
_STOP_S = 0.5
"""for connections that are still open when the backends have been stopped"""


class ForwarderRecord(ProcessRecord):
    """The stored record of the forwarder; `host` and `port` are where gateways reach it."""

    node_id: str


@dataclass(frozen=True)
class ForwarderRules:
    home: Path
    control_plane: str
    """URL: without `host`, the node is reached at the address from which it reaches the control plane"""
    host: str
    listen: str
    """address to listen on; empty: `host`"""
    first_port: int
    last_port: int
    log_limit: int

    @property
    def folder(self) -> Path:
        return self.home / "forward"

    def ports(self, before: int) -> Iterator[int]:
        """The ports to try: the one that gateways know first."""
        if before in range(self.first_port, self.last_port + 1):
            yield before
        yield from (port for port in range(self.first_port, self.last_port + 1) if port != before)


class ForwarderProgram:
    """The process of the forwarder; at most one runs for a home."""

    def __init__(self, rules: ForwarderRules, certificate: NodeCertificate) -> None:
        self._rules = rules
        self._certificate = certificate
        self._file = rules.folder / "process.json"
        self._process: BackendProcess | None = None
        self._host = ""
        self.record: ForwarderRecord | None = None
        self.client = ForwarderClient(rules.folder / SOCKET)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    async def adopt(self) -> None:
        """Find the forwarder that an earlier agent started."""
        self.record = await asyncio.to_thread(self._read)
        self._process = BackendProcess.find(self.record) if self.record is not None else None
        if self._process is not None and self.record is not None:
            log.info("forward.adopted", pid=self._process.pid, port=self.record.port)

    async def ensure(self, node_id: str) -> bool:
        """Start the forwarder unless it runs as this node; return whether it was started."""
        if not (self.is_running and self._host):
            self._host = self._rules.host or await asyncio.to_thread(own_address, self._rules.control_plane)
        if self.is_running and self.record is not None and self._is_right(self.record, node_id):
            return False
        before = self.record.port if self.record is not None else 0
        await self._end_unrecorded()
        await self.stop()
        tries = _TRIES
        for port in self._rules.ports(before):
            if tries and await asyncio.to_thread(is_free, self._listen, port):
                if await self._start(node_id, port):
                    return True
                tries -= 1
        raise ForwarderAway(f"The forwarder did not start; {self._ring().path} says why, unless no port is free.")

    async def wait_ended(self) -> None:
        """Wait until it ends; without end if it does not run."""
        if self._process is None:
            await asyncio.Event().wait()
        else:
            await self._process.wait_ended()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(_STOP_S)
        self._process = None

    def rotate_log(self) -> None:
        self._ring().rotate()

    @property
    def _listen(self) -> str:
        return self._rules.listen or self._host

    def _is_right(self, record: ForwarderRecord, node_id: str) -> bool:
        is_in_range = self._rules.first_port <= record.port <= self._rules.last_port
        return (record.node_id, record.host) == (node_id, self._host) and is_in_range

    async def _start(self, node_id: str, port: int) -> bool:
        self.record, process = await asyncio.to_thread(self._spawn, node_id, port)
        self._process = process
        deadline = asyncio.get_running_loop().time() + _START_S
        while process.is_alive() and asyncio.get_running_loop().time() < deadline:
            if await self._answering_pid() == process.pid:
                log.info("forward.started", pid=process.pid, host=self._host, port=port)
                return True
            await asyncio.sleep(_POLL_S)
        await self.stop()
        return False

    def _spawn(self, node_id: str, port: int) -> tuple[ForwarderRecord, BackendProcess]:
        self._rules.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        argv = [sys.executable, "-P", "-m", "nodesmith.agent.forward.main"]
        process = BackendProcess.start(Launch(argv, self._environment(node_id, port)), self._ring().path)
        record = ForwarderRecord(
            key=_NAME,
            family=_NAME,
            folder=self._rules.folder,
            pid=process.pid,
            started=process.started,
            boot=boot_id(),
            host=self._host,
            port=port,
            node_id=node_id,
        )
        write_durably(self._file, record.model_dump_json().encode())
        return record, process

    def _environment(self, node_id: str, port: int) -> dict[str, str]:
        settings = {
            "NODE_ID": node_id,
            "FOLDER": str(self._rules.folder.absolute()),
            "HOST": self._listen,
            "PORT": str(port),
            "CERT_FILE": str(self._certificate.cert_file.absolute()),
            "KEY_FILE": str(self._certificate.key_file.absolute()),
            "CA_FILE": str(self._certificate.ca_file.absolute()),
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NODESMITH_")}
        return inherited | {f"NODESMITH_FORWARD_{name}": value for name, value in settings.items()}

    async def _end_unrecorded(self) -> None:
        """Kill a forwarder of this home that the record does not name: its agent was killed before it wrote it."""
        pid = await self._answering_pid()
        if pid and (self._process is None or pid != self._process.pid):
            BackendProcess(pid, started_at(pid)).kill()

    async def _answering_pid(self) -> int:
        try:
            return await self.client.pid()
        except ForwarderAway:
            return 0

    def _read(self) -> ForwarderRecord | None:
        try:
            return ForwarderRecord.model_validate_json(self._file.read_bytes())
        except (OSError, ValueError):
            return None

    def _ring(self) -> LogRing:
        return LogRing(self._rules.home / "logs", _NAME, self._rules.log_limit)


def own_address(url: str) -> str:
    """The address of this machine from which it reaches a URL; nothing is sent. Blocking."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    family, kind, _, _, target = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def is_free(host: str, port: int) -> bool:
    """Whether a port can be listened on. Blocking."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError:
            return False
    return True
