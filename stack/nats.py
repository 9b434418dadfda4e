"""The embedded NATS server, in operator mode: it trusts our keys and nobody else."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bus.credentials import Trust, server_config, tls_config
from stack import binaries
from stack.certificates import Certificates
from stack.child import Program
from stack.files import write_private
from stack.listening import Listen
from stack.servers import LOOPBACK

_EXTRA = 'ping_interval: "20s"'
"""a link that died without a word is noticed within a minute"""


@dataclass
class NatsServer:
    """A server whose configuration lies in `folder`."""

    folder: Path
    port: int
    trust: Trust
    log: Path
    name: str = "nats"
    listen: Listen | None = None
    """for other machines too, and then only with TLS"""
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
        if not self._config.exists() or self._config.read_text() != text:  # a restart needs no room on the disk
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
        """It greets every connection with one line."""
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

    async def settle(self) -> None:
        """Nothing to tell: the configuration says it all."""
