"""The embedded Temporal server with its Web UI, on a SQLite file, tuned by measurement."""

import asyncio
import http.client
import json
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodesmith.stack.certificates import Certificates
from nodesmith.stack.processes.child import Program, run_once
from nodesmith.stack.servers import binaries
from nodesmith.stack.servers.embedded import LOOPBACK, is_listening
from nodesmith.stack.servers.isolation import ForwardedPort, IsolationOrder

NAMESPACE = "default"
RETENTION_HOURS = 720
PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": "full",  # an acknowledged operation survives power loss
}
DYNAMIC_CONFIG = {
    # one partition: strict order, and a third of the tail latency
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    "matching.enableFairness": "true",
    # the default of 20 polls a second makes every hop wait up to 50 ms
    "history.transferProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxPollRPS": "2000",
    "history.visibilityProcessorMaxPollRPS": "2000",
    # the dev server reads search attributes ten times an operation: a tenth of its processor time
    "system.forceSearchAttributesCacheRefreshOnRead": "false",
    # no outgoing requests
    "frontend.enableServerVersionCheck": "false",
    # The HTTP API cannot be switched off, and accepts requests of any web page or local user. No client can send a
    # host name with blanks; the Nexus routes do not check the host.
    "frontend.httpAllowedHosts": '["no host is allowed"]',
    "system.enableNexus": "false",
}
SEARCH_ATTRIBUTES = ("NodesmithNode", "NodesmithBackend", "NodesmithKind", "NodesmithState", "NodesmithBatch")
"""same as in `contracts/temporal/operations.py`, which is not imported here because it loads all of temporalio. A new
database has them from the start; api and worker register them for an old or external database."""
_WITHHELD = ("NODESMITH_", "TEMPORAL_")
_PATIENCE = 5.0
_NO_CONFIG = ("--disable-config-file", "--disable-config-env")


@dataclass
class TemporalServer:
    """A dev server on `database`; tests add dynamic configuration.

    It has no authentication. With `certificates` it runs in a private network namespace, and a forwarder on its ports
    requires a client certificate; without, every process of the machine can use it.
    """

    database: Path
    port: int
    web_port: int
    """of the Web UI's server; users reach it through another port, behind our sign-in"""
    metrics_port: int
    log: Path
    dynamic_config: Mapping[str, str] = field(default_factory=dict)
    certificates: Certificates | None = None
    name: str = "temporal"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def web_url(self) -> str:
        return f"{'https' if self.certificates else 'http'}://{LOOPBACK}:{self.web_port}"

    async def prepare(self) -> None:
        self.database.parent.mkdir(parents=True, exist_ok=True)
        if self.certificates is not None:
            self.certificates.ensure_mutual(LOOPBACK)

    def program(self) -> Program:
        environment = {"TEMPORAL_VERSION_CHECK_DISABLED": "1"}
        argv = self._server() if self.certificates is None else self._isolated(self.certificates)
        return Program(self.name, argv, self.log, environment, _WITHHELD)

    def _isolated(self, certificates: Certificates) -> tuple[str, ...]:
        """Return the command line that isolates the server; ports are the same inside and outside the namespace."""
        order = IsolationOrder(
            ports=[ForwardedPort(port, port) for port in (self.port, self.web_port)],
            certificate=str(certificates.server),
            key=str(certificates.server_key),
            client_authority=str(certificates.ca),
        )
        return (sys.executable, "-P", "-m", "nodesmith.stack.servers.isolated", order.to_json(), *self._server())

    def _server(self) -> tuple[str, ...]:
        listen = ("--ip", LOOPBACK, "--port", str(self.port), "--ui-port", str(self.web_port))
        more = ("--http-port", "0", "--metrics-port", str(self.metrics_port))
        quiet = ("--log-level", "warn", "--ui-disable-news-fetch", *_NO_CONFIG)
        tuned = (
            *_pairs("--sqlite-pragma", PRAGMAS),
            *_pairs("--dynamic-config-value", {**DYNAMIC_CONFIG, **self.dynamic_config}),
            *_pairs("--search-attribute", dict.fromkeys(SEARCH_ATTRIBUTES, "Keyword")),
        )
        start = (str(binaries.program("temporal")), "server", "start-dev", "--db-filename", str(self.database))
        return (*start, *listen, *more, *quiet, *tuned)

    async def answers(self) -> bool:
        """Return whether both ports are open and the Temporal namespace exists.

        The order matters: a request to the Web UI before the frontend listens costs a second of back-off.
        """
        if not (await is_listening(self.port) and await is_listening(self.web_port)):
            return False
        return "config" in await asyncio.to_thread(self._namespace)

    async def configure(self) -> None:
        """Set the retention of closed runs to 30 days instead of one."""
        config = (await asyncio.to_thread(self._namespace)).get("config", {})
        if config.get("workflowExecutionRetentionTtl") == f"{RETENTION_HOURS * 3600}s":
            return
        update = ("operator", "namespace", "update", "--namespace", NAMESPACE, "--retention", f"{RETENTION_HOURS}h")
        argv = (str(binaries.program("temporal")), *update, "--address", self.address, *self._tls(), *_NO_CONFIG)
        await run_once(
            Program("temporal-retention", argv, self.log.with_name("temporal-retention.log"), withheld=_WITHHELD)
        )

    def has_worker(self, queue: str) -> bool:
        """Return whether a worker polls this task queue."""
        return bool(self._get(f"task-queues/{queue}").get("pollers"))

    def _tls(self) -> tuple[str, ...]:
        certificates = self.certificates
        if certificates is None:
            return ()
        return (
            *("--tls-ca-path", str(certificates.ca)),
            *("--tls-cert-path", str(certificates.client), "--tls-key-path", str(certificates.client_key)),
        )

    def _namespace(self) -> dict[str, Any]:
        return self._get("")

    def _get(self, path: str) -> dict[str, Any]:
        """Send a request to its Web UI, its only HTTP endpoint; return an empty dict on failure."""
        connection = self._connection()
        try:
            connection.request("GET", f"/api/v1/namespaces/{NAMESPACE}/{path}".rstrip("/"))
            answer: dict[str, Any] = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        else:
            return answer
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection(LOOPBACK, self.web_port, timeout=_PATIENCE)
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        context.load_cert_chain(self.certificates.client, self.certificates.client_key)
        return http.client.HTTPSConnection(LOOPBACK, self.web_port, timeout=_PATIENCE, context=context)


def _pairs(option: str, values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (option, f"{key}={value}")]
