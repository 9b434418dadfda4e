"""Nodesmith's own processes, as children of the stack: api, worker, gateway and agents."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodesmith.domain.forwarding import GATEWAY_NAME
from nodesmith.runtime.process_start import WAIT_FOR_START
from nodesmith.stack.api import answers_ok
from nodesmith.stack.certificates import CA_LIFETIME, Certificates
from nodesmith.stack.home import Home
from nodesmith.stack.listening import Listen
from nodesmith.stack.processes.child import Program
from nodesmith.stack.secrets import (
    ADMIN_TOKEN,
    NATS_ACCOUNT_SEED,
    NATS_OPERATOR_SEED,
    NATS_SYSTEM_SEED,
    ORDER_KEYS,
    POSTGRES_PASSWORD,
    REGISTRATION_TOKEN,
    SOURCES_KEY,
    read,
    trust,
)
from nodesmith.stack.servers.embedded import LOOPBACK, Server
from nodesmith.stack.servers.external import External
from nodesmith.stack.servers.nats import NatsServer
from nodesmith.stack.servers.postgres import PostgresServer
from nodesmith.stack.servers.temporal import TemporalServer
from nodesmith.stack.tcp_ports import Ports

WORKER_QUEUE = "nodesmith"
"""same as in `contracts/temporal/operations.py`, which is not imported here because it loads all of temporalio"""
_AGENT_PREFIX = "NODESMITH_AGENT_"
_SOURCES = frozenset({"NODESMITH_SOURCE_HOSTS", "NODESMITH_SOURCE_NETWORKS", "NODESMITH_SOURCE_FOLDERS"})
"""local agents use the control plane's source settings unless they have their own"""


class StartBarrier:
    """Holds loaded processes until it is opened: they read from a pipe whose write end `open` closes."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        self._open = False

    def open(self) -> None:
        """Let waiting processes, and all that start later, continue."""
        if not self._open:
            self._open = True
            os.close(self._write_end)

    def close(self) -> None:
        self.open()
        os.close(self.read_end)


@dataclass
class PythonProcess:
    """`python -m module`, configured by its environment; ready when `is_ready` returns True."""

    name: str
    module: str
    log: Path
    environment: Mapping[str, str]
    withheld: tuple[str, ...] = ()
    is_ready: Callable[[], bool] = field(default=lambda: True)
    barrier: StartBarrier | None = None
    """where the process waits after it has loaded"""

    async def prepare(self) -> None:
        """Do nothing: the process prepares what it needs itself."""

    def program(self) -> Program:
        # -P: a folder `api` in the working directory must not shadow our package
        argv = (sys.executable, "-P", "-m", "nodesmith.runtime.process_start", self.module)
        program = Program(self.name, argv, self.log, {**_proxy_bypass(), **self.environment}, self.withheld)
        if self.barrier is None:
            return program
        return replace(program, argv=(*argv, WAIT_FOR_START), stdin=self.barrier.read_end)

    async def answers(self) -> bool:
        return await asyncio.to_thread(self.is_ready)

    async def configure(self) -> None:
        """Do nothing: the environment configures the process."""


@dataclass(frozen=True)
class StackPlan:
    """Describes every process of one home, and starts none of them."""

    home: Home
    ports: Ports
    external: External
    listen: Listen | None = None
    isolates_temporal: bool = False

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.api}"

    @property
    def public_url(self) -> str:
        """URL of the API for other machines; empty without --listen."""
        return self.listen.url("https", self.ports.api) if self.listen else ""

    @property
    def gateway_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.gateway}"

    @property
    def public_gateway_url(self) -> str:
        """URL of the gateway for other machines; empty without --listen."""
        return self.listen.url("https", self.ports.gateway) if self.listen else ""

    @property
    def open_ports(self) -> list[int]:
        """Ports that --listen opens for other machines."""
        nats = [] if self.external.nats_url else [self.ports.nats]
        temporal_ui = [] if self.external.temporal_address else [self.ports.temporal_ui]
        return [self.ports.api, self.ports.gateway, *nats, *temporal_ui]

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.home.certificates)

    @property
    def gateway_certificates(self) -> Certificates:
        """CA and certificate with which the gateway and the forwarders of nodes know each other."""
        return Certificates(self.home.gateway_certificates, lifetime=CA_LIFETIME, client_name=GATEWAY_NAME)

    @property
    def temporal_ui_url(self) -> str:
        """URL of the Web UI for users of this machine, behind the API's sign-in."""
        if self.external.temporal_address:
            return self.external.temporal_ui_url
        return f"http://{LOOPBACK}:{self.ports.temporal_ui}"

    @property
    def temporal_address(self) -> str:
        return self.external.temporal_address or f"{LOOPBACK}:{self.ports.temporal}"

    @property
    def temporal_certificates(self) -> Certificates | None:
        """Certificates of the embedded Temporal's clients, all on this machine; None when it requires none."""
        if self.external.temporal_address or not self.isolates_temporal:
            return None
        return Certificates(self.home.temporal_certificates, lifetime=CA_LIFETIME)

    def servers(self) -> list[Server]:
        """Return the embedded servers that no external address replaces."""
        needed: list[Server] = []
        if not self.external.database_url:
            needed.append(self._postgres())
        if not self.external.nats_url:
            needed.append(self._nats())
        if not self.external.temporal_address:
            needed.append(self._temporal())
        return needed

    def api(self, is_ready: Callable[[], bool]) -> PythonProcess:
        environment = {
            **self._control_plane_settings(),
            "NODESMITH_ORDER_KEYS": str(self.home.secret(ORDER_KEYS)),
            "NODESMITH_GATEWAY_CA_FILE": str(self.gateway_certificates.ca),
            "NODESMITH_GATEWAY_CA_KEY_FILE": str(self.gateway_certificates.ca_key),
        }
        return PythonProcess("api", "nodesmith.api.main", self.home.log("api"), environment, is_ready=is_ready)

    def worker(self) -> PythonProcess:
        is_ready = self._is_assumed_ready if self.external.temporal_address else self._is_worker_polling
        return PythonProcess(
            "worker",
            "nodesmith.workers.main",
            self.home.log("worker"),
            self._control_plane_settings(),
            is_ready=is_ready,
        )

    def gateway(self) -> PythonProcess:
        environment = {
            **self._control_plane_settings(),
            "NODESMITH_GATEWAY_HOST": LOOPBACK,
            "NODESMITH_GATEWAY_PORT": str(self.ports.gateway),
            "NODESMITH_GATEWAY_CA_FILE": str(self.gateway_certificates.ca),
            "NODESMITH_GATEWAY_CERT_FILE": str(self.gateway_certificates.client),
            "NODESMITH_GATEWAY_KEY_FILE": str(self.gateway_certificates.client_key),
        }
        log = self.home.log("gateway")
        return PythonProcess("gateway", "nodesmith.gateway.main", log, environment, is_ready=self._is_gateway_ready)

    def _is_gateway_ready(self) -> bool:
        return answers_ok(self.gateway_url, "/readyz")

    def _is_worker_polling(self) -> bool:
        return self._temporal().has_worker(WORKER_QUEUE)

    @staticmethod
    def _is_assumed_ready() -> bool:
        """Treat a live worker as ready: `up` has no access to the pollers of an external Temporal."""
        return True

    def agent(self, number: int, barrier: StartBarrier) -> PythonProcess:
        name = f"agent-{number}"
        # backends stop together with `up` unless the user's environment overrides this
        environment = {f"{_AGENT_PREFIX}KEEP_BACKENDS": "false", f"{_AGENT_PREFIX}STOP_GRACE": "5"}
        environment |= {_agent_setting(key): value for key, value in os.environ.items() if key in _SOURCES}
        environment |= {key: value for key, value in os.environ.items() if key.startswith(_AGENT_PREFIX)}
        environment |= {
            f"{_AGENT_PREFIX}URL": self.url,
            f"{_AGENT_PREFIX}TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            f"{_AGENT_PREFIX}NAME": name,
            f"{_AGENT_PREFIX}HOME": str(self.home.agents / name),
            f"{_AGENT_PREFIX}BACKEND_HIDDEN": str(self.home.folder),
        }
        if self.listen is not None:
            environment[f"{_AGENT_PREFIX}CA_FILE"] = str(self.certificates.ca)
        # an agent acts as another machine: of the control plane it receives only the address
        log = self.home.log(name)
        return PythonProcess(name, "nodesmith.agent.main", log, environment, withheld=("NODESMITH_",), barrier=barrier)

    def _control_plane_settings(self) -> dict[str, str]:
        """Return the settings of api and worker; they inherit those of external servers from our environment."""
        settings = {
            "API_HOST": LOOPBACK,
            "API_PORT": str(self.ports.api),
            "ADMIN_TOKEN_FILE": str(self.home.secret(ADMIN_TOKEN)),
            "REGISTRATION_TOKEN_FILE": str(self.home.secret(REGISTRATION_TOKEN)),
            "GALLERY_FOLDER": str(self.home.gallery),
            "SOURCES_KEY_FILE": str(self.home.secret(SOURCES_KEY)),
        }
        if self.listen is not None:
            settings |= self._listen_settings(self.listen)
        if not self.external.database_url:
            settings["DATABASE_URL"] = self._postgres().url(with_password=False)
            settings["DATABASE_PASSWORD_FILE"] = str(self.home.secret(POSTGRES_PASSWORD))
        if not self.external.nats_url:
            settings["NATS_URL"] = self._nats().url
            settings["NATS_ACCOUNT_SEED_FILE"] = str(self.home.secret(NATS_ACCOUNT_SEED))
            settings["NATS_OPERATOR_SEED_FILE"] = str(self.home.secret(NATS_OPERATOR_SEED))
            settings["NATS_SYSTEM_SEED_FILE"] = str(self.home.secret(NATS_SYSTEM_SEED))
        if not self.external.temporal_address:
            settings |= self._temporal_settings()
        return {f"NODESMITH_{name}": value for name, value in settings.items()}

    def _temporal_settings(self) -> dict[str, str]:
        server, certificates = self._temporal(), self.temporal_certificates
        public_ui_url = self.listen.url("https", self.ports.temporal_ui) if self.listen else ""
        settings = {
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_UI_URL": public_ui_url or self.temporal_ui_url,
            "TEMPORAL_UI_PORT": str(self.ports.temporal_ui),
            "TEMPORAL_UI_SERVER": server.web_url,
        }
        if certificates is not None:
            settings["TEMPORAL_CA_FILE"] = str(certificates.ca)
            settings["TEMPORAL_CERT_FILE"] = str(certificates.client)
            settings["TEMPORAL_KEY_FILE"] = str(certificates.client_key)
        return settings

    def _listen_settings(self, listen: Listen) -> dict[str, str]:
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
            web_port=self.ports.temporal_web,
            metrics_port=self.ports.temporal_metrics,
            log=self.home.log("temporal"),
            certificates=self.temporal_certificates,
        )


def _proxy_bypass() -> dict[str, str]:
    """Return variables that exclude loopback traffic from a proxy that the user has set."""
    bypassed = ",".join(part for part in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), LOOPBACK) if part)
    return {"no_proxy": bypassed, "NO_PROXY": bypassed}


def _agent_setting(setting: str) -> str:
    return setting.replace("NODESMITH_", _AGENT_PREFIX)
