"""The API under test: the real composition on real servers, asked over a real socket."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from api.composition import compose
from api.main import ApiServer, bind
from api.parts import Parts
from runtime.settings import ControlSettings

T = TypeVar("T")

ADMIN_TOKEN = "test-admin-token"
REGISTRATION_TOKEN = "test-registration-token"


@dataclass(frozen=True)
class Api:
    """One API process, as far as a client can tell."""

    url: str
    parts: Parts
    http: httpx2.AsyncClient
    """signed in as the admin, by token"""

    async def register(self, **facts: Any) -> dict[str, Any]:
        """A new node of our own; `id` and `api_token` are in the answer."""
        body = {"name": f"node-{secrets.token_hex(4)}", "protocol": 2, "machine_id": "m1", **facts}
        answer = await self.http.post("/api/node/register", json=body, headers=bearer(REGISTRATION_TOKEN))
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def approved_node(self, **facts: Any) -> dict[str, Any]:
        node = await self.register(**facts)
        answer = await self.http.post(f"/api/nodes/{node['id']}/approve")
        assert answer.status_code == 200, answer.text
        return {**node, **answer.json()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def settings_for(
    folder: Path, *, database_url: str, nats_url: str, account_seed: str, temporal: str
) -> ControlSettings:
    return ControlSettings(
        database_url=database_url,
        nats_url=nats_url,
        nats_account_seed_file=written(folder / "account-seed", account_seed),
        temporal_address=temporal,
        temporal_ui_url="http://temporal.test",
        admin_token_file=written(folder / "admin-token", ADMIN_TOKEN),
        registration_token_file=written(folder / "registration-token", REGISTRATION_TOKEN),
        gallery_folder=folder / "gallery",
        sources_key_file=written(folder / "sources-key", "test-sources-key"),
        sign_in_failures=1_000_000,
    )


def written(path: Path, secret: str) -> Path:
    path.write_text(f"{secret}\n")
    return path


@asynccontextmanager
async def composed(settings: ControlSettings, *, queue: str) -> AsyncIterator[Api]:
    async with AsyncExitStack() as closing:
        parts = await compose(settings, closing, queue=queue)
        yield await closing.enter_async_context(served(parts))


@asynccontextmanager
async def served(parts: Parts) -> AsyncIterator[Api]:
    """Serve these parts on a free port for as long as the block lasts."""
    listening, stop = bind("127.0.0.1", 0), asyncio.Event()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving = asyncio.create_task(ApiServer(parts, listening).run_until(stop))
    async with httpx2.AsyncClient(base_url=url, headers=bearer(ADMIN_TOKEN), timeout=30) as http:
        try:
            yield Api(url, parts, http)
        finally:
            stop.set()
            await serving


async def ready(api: Api) -> None:
    await until(lambda: api.http.get("/readyz"), lambda answer: answer.status_code == 200)


async def until(fetch: Callable[[], Awaitable[T]], condition: Callable[[T], bool]) -> T:
    """Ask again until the answer satisfies the condition."""
    async with asyncio.timeout(30):
        while True:
            answer = await fetch()
            if condition(answer):
                return answer
            await asyncio.sleep(0.02)
