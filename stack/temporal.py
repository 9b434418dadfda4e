"""The embedded Temporal server with its Web UI, on a SQLite file, with the settings that were measured best."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack import binaries
from stack.child import Program, run_once
from stack.servers import LOOPBACK, is_listening

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
    # the dev server reads them from the database ten times an operation: a tenth of its processor time
    "system.forceSearchAttributesCacheRefreshOnRead": "false",
    # no network
    "frontend.enableServerVersionCheck": "false",
}
SEARCH_ATTRIBUTES = ("NodesmithNode", "NodesmithBackend", "NodesmithKind", "NodesmithState", "NodesmithBatch")
"""as in contracts.temporal, which this light process cannot import. A new database has them from the start; api and
worker register them too, for one that is old or not ours."""
_WITHHELD = ("NODESMITH_", "TEMPORAL_")
_NO_CONFIG = ("--disable-config-file", "--disable-config-env")


@dataclass
class TemporalServer:
    """A dev server on `database`; tests add dynamic configuration."""

    database: Path
    port: int
    ui_port: int
    http_port: int
    metrics_port: int
    log: Path
    dynamic_config: Mapping[str, str] = field(default_factory=dict)
    name: str = "temporal"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def ui_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ui_port}"

    async def prepare(self) -> None:
        self.database.parent.mkdir(parents=True, exist_ok=True)

    def program(self) -> Program:
        listen = ("--ip", LOOPBACK, "--port", str(self.port), "--ui-port", str(self.ui_port))
        more = ("--http-port", str(self.http_port), "--metrics-port", str(self.metrics_port))
        quiet = ("--log-level", "warn", "--ui-disable-news-fetch", *_NO_CONFIG)
        tuned = (
            *_pairs("--sqlite-pragma", PRAGMAS),
            *_pairs("--dynamic-config-value", {**DYNAMIC_CONFIG, **self.dynamic_config}),
            *_pairs("--search-attribute", dict.fromkeys(SEARCH_ATTRIBUTES, "Keyword")),
        )
        start = (str(binaries.program("temporal")), "server", "start-dev", "--db-filename", str(self.database))
        argv = (*start, *listen, *more, *quiet, *tuned)
        return Program(self.name, argv, self.log, {"TEMPORAL_VERSION_CHECK_DISABLED": "1"}, _WITHHELD)

    async def answers(self) -> bool:
        """The namespace is there, and both doors are open.

        Not asked through the Web UI: before the frontend listens, one question there costs a second of back-off.
        """
        if "config" not in await asyncio.to_thread(self._namespace):
            return False
        return await is_listening(self.port) and await is_listening(self.ui_port)

    async def settle(self) -> None:
        """Keep closed runs for 30 days instead of one."""
        config = (await asyncio.to_thread(self._namespace)).get("config", {})
        if config.get("workflowExecutionRetentionTtl") == f"{RETENTION_HOURS * 3600}s":
            return
        update = ("operator", "namespace", "update", "--namespace", NAMESPACE, "--retention", f"{RETENTION_HOURS}h")
        argv = (str(binaries.program("temporal")), *update, "--address", self.address, *_NO_CONFIG)
        await run_once(
            Program("temporal-retention", argv, self.log.with_name("temporal-retention.log"), withheld=_WITHHELD)
        )

    def has_worker(self, queue: str) -> bool:
        """Does anybody poll this task queue?"""
        return bool(self._get(f"task-queues/{queue}").get("pollers"))

    def _namespace(self) -> dict[str, Any]:
        return self._get("")

    def _get(self, path: str) -> dict[str, Any]:
        """Ask the server's own HTTP API; an empty answer when it has none to give."""
        connection = http.client.HTTPConnection(LOOPBACK, self.http_port, timeout=5)
        try:
            connection.request("GET", f"/api/v1/namespaces/{NAMESPACE}/{path}".rstrip("/"))
            answer: dict[str, Any] = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        else:
            return answer
        finally:
            connection.close()


def _pairs(option: str, values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (option, f"{key}={value}")]
