"""A parent process that a test kills: starts three children, prints their pids, waits."""

import asyncio
import sys
from pathlib import Path

from nodesmith.stack.processes.supervisor import Supervisor
from tests.stack.test_supervisor import Script


async def main(folder: Path) -> None:
    supervisor = Supervisor(lambda _: None)
    await supervisor.start([Script(folder, name) for name in ("one", "two", "three")])
    print(*(state.pid for state in supervisor.states), flush=True)  # noqa: T201
    await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1])))
