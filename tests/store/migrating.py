"""A process that waits for a line on stdin, then migrates and prints a row count."""

import asyncio
import sys

from sqlalchemy import text

from nodesmith.store import migrating
from nodesmith.store.database import Database


async def main(url: str) -> None:
    database = Database(url, pool_size=1)
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    await database.migrate()
    async with database.session() as session:
        print(await session.scalar(text("SELECT count(*) FROM operations")), flush=True)  # noqa: T201
    await database.close()


if __name__ == "__main__":
    migrating.upgrade  # noqa: B018 - loaded before the line arrives, so that all processes start together
    asyncio.run(main(sys.argv[1]))
