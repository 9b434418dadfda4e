"""Measures what the namespace and the TLS forwarder of the embedded Temporal add to one operation."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.operations import Ends, install
from benchmarks.stage import Stage, p50, simulated, stage, timed, verdict
from nodesmith.stack.servers.isolation import OFF, ON, SETTING

ROUNDS = 150
WARM_UP = 15


@dataclass
class Side:
    """A stack with one instant node, and the durations of its operations."""

    on: Stage
    ends: Ends
    node: str
    accepted: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    async def operate(self) -> None:
        async def whole() -> None:
            op_ids: list[str] = []

            async def ask() -> None:
                op_ids.append(await install(self.on, self.node))

            self.accepted.append(await timed(ask))
            await self.ends.ended(*op_ids)

        self.ended.append(await timed(whole))

    def clear(self) -> None:
        self.accepted.clear()
        self.ended.clear()


@asynccontextmanager
async def side(chosen: str) -> AsyncIterator[Side]:
    async with stage(environment={SETTING: chosen}) as on, simulated(on, 1, prefix="instant", seconds=0) as (node,):
        ends, ready = Ends(), asyncio.Event()
        following = asyncio.create_task(ends.follow(on, ready))
        await ready.wait()
        try:
            yield Side(on, ends, node)
        finally:
            following.cancel()


async def main() -> int:
    async with AsyncExitStack() as closing:
        sides = [await closing.enter_async_context(side(chosen)) for chosen in (OFF, ON)]
        for number in range(WARM_UP + ROUNDS):
            if number == WARM_UP:
                for each in sides:
                    each.clear()
            for each in sides if number % 2 else reversed(sides):
                await each.operate()
        for line in _lines(sides):
            sys.stdout.write(f"{line}\n")
    return 0


def _lines(sides: Sequence[Side]) -> list[str]:
    plain, isolated = sides
    lines = []
    for what, before, after in (
        ("POST -> 202, p50, isolated to plain", plain.accepted, isolated.accepted),
        ("one operation, p50, isolated to plain", plain.ended, isolated.ended),
    ):
        figures = f"({p50(after) * 1e3:.1f} ms, plain {p50(before) * 1e3:.1f} ms)"
        lines.append(verdict(what, p50(after) / p50(before), bar=1.1, goal=1.05) + figures)
    return lines


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
