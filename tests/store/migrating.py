"""A process that waits for a word on its standard input, then migrates and says what it found."""

import asyncio
import sys

from sqlalchemy import text

from store import migrating
from store.database import Database


async def main(url: str) -> None:
    database = Database(url, pool_size=1)
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    await database.migrate()
    async with database.session() as session:
        print(await session.scalar(text("SELECT count(*) FROM operations")), flush=True)  # noqa: T201
    await database.close()


if __name__ == "__main__":
    migrating.upgrade  # noqa: B018 - loaded before the word comes, so that all begin at once
    asyncio.run(main(sys.argv[1]))
