"""The API under test: the real composition on real servers, asked over a real socket."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from nodesmith.api.assembly import compose
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.main import ApiServer
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.domain.node import Protocol
from nodesmith.runtime.keyring import create_keys
from nodesmith.runtime.listening import bind
from nodesmith.runtime.settings import ControlSettings
from tests.deadlines import HANGS_S

T = TypeVar("T")

ADMIN_TOKEN = "test-admin-token"
REGISTRATION_TOKEN = "test-registration-token"


@dataclass(frozen=True)
class Api:
    """One API process, as far as a client can tell."""

    url: str
    deps: Dependencies
    http: httpx2.AsyncClient
    """signed in as the admin, by token"""

    async def register(self, **facts: Any) -> dict[str, Any]:
        """A new node of our own; `id` and `api_token` are in the answer."""
        key = KeyPair.create(Role.USER)
        made = {"nats_key": key.public, "machine_id": "m1"} if facts.get("protocol", 2) == Protocol.NODESMITH else {}
        body = {"name": f"node-{secrets.token_hex(4)}", "protocol": 2, **made, **facts}
        answer = await self.http.post("/api/node/register", json=body, headers=bearer(REGISTRATION_TOKEN))
        assert answer.status_code == 201, answer.text
        kept = {"nats_key": key.public, "nats_user_seed": key.seed} if made else {}
        return {**kept, **answer.json()}

    async def approved_node(self, **facts: Any) -> dict[str, Any]:
        node = await self.register(**facts)
        answer = await self.http.post(f"/api/nodes/{node['id']}/approve")
        assert answer.status_code == 200, answer.text
        return {**node, **answer.json()}


def a_nats_key() -> str:
    """As an agent makes one, of which nobody needs the seed."""
    return KeyPair.create(Role.USER).public


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
        pending_nodes=100_000,
        order_keys=with_keys(folder / "order-keys"),
        localai_workers=True,
    )


def with_keys(folder: Path) -> Path:
    create_keys(folder)
    return folder


def written(path: Path, secret: str) -> Path:
    path.write_text(f"{secret}\n")
    return path


@asynccontextmanager
async def composed(settings: ControlSettings, *, queue: str) -> AsyncIterator[Api]:
    async with AsyncExitStack() as closing:
        deps = await compose(settings, closing, queue=queue)
        yield await closing.enter_async_context(served(deps))


@asynccontextmanager
async def served(deps: Dependencies) -> AsyncIterator[Api]:
    """Serve these parts on a free port for as long as the block lasts."""
    listening, stop = bind("127.0.0.1", 0), asyncio.Event()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving = asyncio.create_task(ApiServer(deps, listening).run_until(stop))
    async with httpx2.AsyncClient(base_url=url, headers=bearer(ADMIN_TOKEN), timeout=30) as http:
        try:
            yield Api(url, deps, http)
        finally:
            stop.set()
            await serving


async def ready(api: Api) -> None:
    await until(lambda: api.http.get("/readyz"), lambda answer: answer.status_code == 200)


async def until(fetch: Callable[[], Awaitable[T]], condition: Callable[[T], bool]) -> T:
    """Ask again until the answer satisfies the condition."""
    async with asyncio.timeout(HANGS_S):
        while True:
            answer = await fetch()
            if condition(answer):
                return answer
            await asyncio.sleep(0.02)
