"""The embedded NATS server, in operator mode: it trusts our keys and nobody else."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bus.credentials import Trust, server_config
from stack import binaries
from stack.child import Program
from stack.files import write_private
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

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    async def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = server_config(self.trust, host=LOOPBACK, port=self.port, extra=_EXTRA)
        write_private(self._config, text)

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"

    def program(self) -> Program:
        return Program(self.name, (str(binaries.program("nats-server")), "-c", str(self._config)), self.log)

    async def answers(self) -> bool:
        """It greets every connection with one line."""
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
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
