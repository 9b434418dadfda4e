"""The health checks of the API: servers, fleet monitor and signed galleries."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from temporalio.client import Client

from nodesmith.api.health import FLEET_MONITOR, TEMPORAL, Check
from nodesmith.bus.connection import Bus
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.runtime.monitor_run import MonitorRun
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.operations.monitor_guard import check_monitor, longest_silence
from nodesmith.store.database import Database
from nodesmith.store.operations.monitor_ticks import MonitorTicks

POSTGRESQL = "postgresql"
GALLERIES = "galleries"
GALLERY_REFUSED = (
    "The signed index of a gallery was refused or has expired: its last good index is used until it expires."
    " `nodesmith galleries ls` shows which one and why."
)
MONITOR_AWAY = (
    "The fleet monitor does not run or has not completed a tick lately: operations that were ended in Temporal from"
    " outside are not repaired.  A worker restarts it."
)


def server_checks(
    database: Database, bus: Bus, runs: TemporalRuns, preparing: Mapping[str, "asyncio.Task[None]"]
) -> dict[str, Check]:
    """The servers that the API depends on; PostgreSQL and Temporal must also be prepared."""

    async def ask_nats() -> None:
        if not bus.is_up:
            raise ServiceUnavailable("NATS does not answer.")

    def prepared(name: str, ping: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            await ping()
            if not preparing[name].done() or preparing[name].exception() is not None:
                raise ServiceUnavailable(f"{name} is not prepared yet.")

        return ask

    return {
        POSTGRESQL: Check(
            prepared(POSTGRESQL, database.ping), "PostgreSQL does not answer: nothing can be read or accepted."
        ),
        "nats": Check(ask_nats, "NATS does not answer: operations wait for their nodes."),
        TEMPORAL: Check(
            prepared(TEMPORAL, runs.ping), "Temporal does not answer: no operation can be started or cancelled."
        ),
    }


def monitor_check(settings: ControlSettings, temporal: Client, database: Database) -> dict[str, Check]:
    """The fleet monitor: it must run, and must have completed a tick recently."""
    silence = longest_silence(settings.monitor_silence, settings.fleet_tick)
    ask = partial(check_monitor, MonitorTicks(database), MonitorRun(temporal), silence)
    return {FLEET_MONITOR: Check(ask, MONITOR_AWAY, is_needed=False)}
