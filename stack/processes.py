"""Nodesmith's own processes, as children of the stack: api, worker and agents."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from runtime.begin import WHEN_TOLD
from stack.certificates import Certificates
from stack.child import Program
from stack.external import External
from stack.home import Home
from stack.listening import Listen
from stack.nats import NatsServer
from stack.ports import Ports
from stack.postgres import PostgresServer
from stack.secrets import (
    ADMIN_TOKEN,
    NATS_ACCOUNT_SEED,
    NATS_OPERATOR_SEED,
    NATS_SYSTEM_SEED,
    POSTGRES_PASSWORD,
    REGISTRATION_TOKEN,
    SOURCES_KEY,
    read,
    trust,
)
from stack.servers import LOOPBACK, Server
from stack.temporal import TemporalServer

WORKER_QUEUE = "nodesmith"
"""as in contracts.temporal, which this light process cannot import: it loads the whole of temporalio"""
_AGENT_PREFIX = "NODESMITH_AGENT_"


class Gate:
    """Where loaded processes wait until it is opened: a pipe that they read, and nobody writes to."""

    def __init__(self) -> None:
        self.outside, self._inside = os.pipe()
        self._open = False

    def open(self) -> None:
        """For those who wait, and for whoever comes later."""
        if not self._open:
            self._open = True
            os.close(self._inside)

    def close(self) -> None:
        self.open()
        os.close(self.outside)


@dataclass
class PythonProcess:
    """`python -m module`, with its configuration in the environment; ready when `is_ready` says so."""

    name: str
    module: str
    log: Path
    environment: Mapping[str, str]
    withheld: tuple[str, ...] = ()
    is_ready: Callable[[], bool] = field(default=lambda: True)
    gate: Gate | None = None
    """loaded, it waits here"""

    async def prepare(self) -> None:
        """Nothing: it prepares what it needs."""

    def program(self) -> Program:
        # -P: a folder `api` where `up` was called must not be taken for ours
        argv = (sys.executable, "-P", "-m", "runtime.begin", self.module)
        program = Program(self.name, argv, self.log, {**_direct(), **self.environment}, self.withheld)
        if self.gate is None:
            return program
        return replace(program, argv=(*argv, WHEN_TOLD), stdin=self.gate.outside)

    async def answers(self) -> bool:
        return await asyncio.to_thread(self.is_ready)

    async def settle(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Plan:
    """Everything that belongs to one home, not started yet."""

    home: Home
    ports: Ports
    external: External
    listen: Listen | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.api}"

    @property
    def public_url(self) -> str:
        """How other machines reach the API; empty when they do not."""
        return self.listen.url("https", self.ports.api) if self.listen else ""

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.home.certificates)

    @property
    def temporal_ui_url(self) -> str:
        return self.external.temporal_ui_url if self.external.temporal_address else self._temporal().ui_url

    def servers(self) -> list[Server]:
        """The embedded ones that are needed."""
        wanted: list[Server] = []
        if not self.external.database_url:
            wanted.append(self._postgres())
        if not self.external.nats_url:
            wanted.append(self._nats())
        if not self.external.temporal_address:
            wanted.append(self._temporal())
        return wanted

    def api(self, is_ready: Callable[[], bool]) -> PythonProcess:
        return PythonProcess("api", "api.main", self.home.log("api"), self._control(), is_ready=is_ready)

    def worker(self) -> PythonProcess:
        is_ready = self._always if self.external.temporal_address else self._worker_polls
        return PythonProcess("worker", "workers.main", self.home.log("worker"), self._control(), is_ready=is_ready)

    def _worker_polls(self) -> bool:
        return self._temporal().has_worker(WORKER_QUEUE)

    @staticmethod
    def _always() -> bool:
        """Another's Temporal is not ours to ask: a worker that lives is taken to work."""
        return True

    def agent(self, number: int, gate: Gate) -> PythonProcess:
        name = f"agent-{number}"
        # what `up` has started ends with it, unless the user wants it otherwise
        environment = {f"{_AGENT_PREFIX}KEEP_BACKENDS": "false", f"{_AGENT_PREFIX}STOP_GRACE": "5"}
        environment |= {key: value for key, value in os.environ.items() if key.startswith(_AGENT_PREFIX)}
        environment |= {
            f"{_AGENT_PREFIX}URL": self.url,
            f"{_AGENT_PREFIX}TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            f"{_AGENT_PREFIX}NAME": name,
            f"{_AGENT_PREFIX}HOME": str(self.home.agents / name),
        }
        if self.listen is not None:
            environment[f"{_AGENT_PREFIX}CA_FILE"] = str(self.certificates.ca)
        # an agent is another machine: it knows nothing of the control plane but its address
        log = self.home.log(name)
        return PythonProcess(name, "agent.main", log, environment, withheld=("NODESMITH_",), gate=gate)

    def _control(self) -> dict[str, str]:
        """The settings of api and worker; what is external comes from our own environment."""
        settings = {
            "API_HOST": LOOPBACK,
            "API_PORT": str(self.ports.api),
            "ADMIN_TOKEN_FILE": str(self.home.secret(ADMIN_TOKEN)),
            "REGISTRATION_TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            "GALLERY_FOLDER": str(self.home.gallery),
            "SOURCES_KEY_FILE": str(self.home.secret(SOURCES_KEY)),
        }
        if self.listen is not None:
            settings |= self._opened(self.listen)
        if not self.external.database_url:
            settings["DATABASE_URL"] = self._postgres().url(with_password=False)
            settings["DATABASE_PASSWORD_FILE"] = str(self.home.secret(POSTGRES_PASSWORD))
        if not self.external.nats_url:
            settings["NATS_URL"] = self._nats().url
            settings["NATS_ACCOUNT_SEED_FILE"] = str(self.home.secret(NATS_ACCOUNT_SEED))
            settings["NATS_OPERATOR_SEED_FILE"] = str(self.home.secret(NATS_OPERATOR_SEED))
            settings["NATS_SYSTEM_SEED_FILE"] = str(self.home.secret(NATS_SYSTEM_SEED))
        if not self.external.temporal_address:
            settings["TEMPORAL_ADDRESS"] = self._temporal().address
            settings["TEMPORAL_UI_URL"] = self._temporal().ui_url
        return {f"NODESMITH_{name}": value for name, value in settings.items()}

    def _opened(self, listen: Listen) -> dict[str, str]:
        return {
            "LISTEN_HOST": listen.address,
            "PUBLIC_URL": self.public_url,
            "TLS_CERT_FILE": str(self.certificates.server),
            "TLS_KEY_FILE": str(self.certificates.server_key),
            "CA_FILE": str(self.certificates.ca),
        }

    def _postgres(self) -> PostgresServer:
        password = read(self.home, POSTGRES_PASSWORD)
        return PostgresServer(self.home.postgres, self.ports.postgres, password, self.home.log("postgres"))

    def _nats(self) -> NatsServer:
        return NatsServer(
            self.home.nats,
            self.ports.nats,
            trust(self.home),
            self.home.log("nats"),
            listen=self.listen,
            certificates=self.certificates if self.listen else None,
        )

    def _temporal(self) -> TemporalServer:
        return TemporalServer(
            database=self.home.temporal_database,
            port=self.ports.temporal,
            ui_port=self.ports.temporal_ui,
            http_port=self.ports.temporal_http,
            metrics_port=self.ports.temporal_metrics,
            log=self.home.log("temporal"),
        )


def _direct() -> dict[str, str]:
    """Talk among themselves is not for a proxy that the user has set."""
    spared = ",".join(part for part in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), LOOPBACK) if part)
    return {"no_proxy": spared, "NO_PROXY": spared}
