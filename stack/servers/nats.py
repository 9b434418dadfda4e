"""The embedded NATS server, in operator mode: it trusts only the keys of this home."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from nodesmith.bus.nats_credentials import Trust, server_config, tls_config
from nodesmith.stack.certificates import Certificates
from nodesmith.stack.files import write_private
from nodesmith.stack.listening import Listen
from nodesmith.stack.processes.child import Program
from nodesmith.stack.servers import binaries
from nodesmith.stack.servers.embedded import LOOPBACK

_EXTRA = 'ping_interval: "20s"'
"""detects a dead connection within a minute"""


@dataclass
class NatsServer:
    """A NATS server whose configuration is in `folder`."""

    folder: Path
    port: int
    trust: Trust
    log: Path
    name: str = "nats"
    listen: Listen | None = None
    """set to serve other machines too, with TLS only"""
    certificates: Certificates | None = None

    @property
    def url(self) -> str:
        if self.listen is None:
            return f"nats://{LOOPBACK}:{self.port}"
        return self.listen.url("tls", self.port)

    @property
    def _host(self) -> str:
        return self.listen.address if self.listen else LOOPBACK

    async def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        host = f"[{self._host}]" if ":" in self._host else self._host
        accounts = str(self.folder / "accounts")
        text = server_config(self.trust, host=host, port=self.port, accounts=accounts, extra=f"{_EXTRA}\n{self._tls()}")
        if not self._config.exists() or self._config.read_text() != text:  # on a restart the disk may be full
            write_private(self._config, text)

    def _tls(self) -> str:
        if self.certificates is None:
            return ""
        return tls_config(str(self.certificates.server), str(self.certificates.server_key))

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"

    def program(self) -> Program:
        return Program(self.name, (str(binaries.program("nats-server")), "-c", str(self._config)), self.log)

    async def answers(self) -> bool:
        """Return whether the server sends its INFO greeting."""
        try:
            reader, writer = await asyncio.open_connection(self._host, self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO ")
        except OSError:
            return False
        finally:
            writer.close()

    async def configure(self) -> None:
        """Do nothing: the configuration file is complete."""
