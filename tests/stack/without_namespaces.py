"""Lists a folder as `nobody`, started by root without the permission to create namespaces; a test runs it."""

import asyncio
import ctypes
import sys
from pathlib import Path

from nodesmith.stack.processes.child import Program, User, run_once

PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
NOBODY = 65534


async def main(folder: Path) -> None:
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) == 0
    user = User(NOBODY, NOBODY, (folder,))
    await run_once(Program("list", ("/bin/ls", str(folder)), folder / "list.log", user=user))


asyncio.run(main(Path(sys.argv[1])))
