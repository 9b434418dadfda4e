"""Defines an attack: what an adversary tries, and what refused it.

An attack is an async function that takes the running `System`. It returns the sentence that names what refused it (an
HTTP status, a NATS permission, a signature check ...), read from the real answer. It raises `AttackSucceeded` when the
adversary got what it wanted. A module of this package lists its attacks in `ATTACKS`, and `__main__` lists the modules.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx2

from tests.e2e.fleet import Fleet
from tests.stack.commands import Machine


class AttackSucceeded(Exception):
    """The attack succeeded; the message says what the adversary gained."""


class Severity(StrEnum):
    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class System:
    """A running system with two real agents, `agent-1` (the adversary's) and `agent-2` (the victim)."""

    machine: Machine
    fleet: Fleet
    scratch: Path
    """a folder for the attack's archives and files"""

    @property
    def folder(self) -> Path:
        return self.machine.folder

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.ports['nats']}"

    @property
    def ports(self) -> dict[str, int]:
        return {name: int(port) for name, port in self.ready["ports"].items()}

    @property
    def ready(self) -> dict[str, Any]:
        ready: dict[str, Any] = json.loads((self.scratch / "ready.json").read_text())
        return ready

    def identity(self, node: str) -> dict[str, Any]:
        """Read the identity that a thief finds in a node's home."""
        identity: dict[str, Any] = json.loads((self.folder / "agents" / node / "identity.json").read_text())
        return identity

    async def token(self, role: str) -> str:
        """Create an API token with that role."""
        answer = await self.fleet.http.post("/api/v1/tokens", json={"name": f"attack-{uuid.uuid4().hex}", "role": role})
        answer.raise_for_status()
        token: str = answer.json()["token"]
        return token

    def client(self, token: str = "", **options: Any) -> httpx2.AsyncClient:
        """Create another API client; without a token it is anonymous."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.AsyncClient(base_url=self.fleet.url, headers=headers, timeout=10, trust_env=False, **options)


@dataclass(frozen=True)
class Attack:
    """One attack of the table."""

    title: str
    severity: Severity
    play: Callable[[System], Awaitable[str]]
    seconds: float = 60.0
    """an attack that takes longer counts as a hang"""


@dataclass(frozen=True)
class Verdict:
    """The result of an attack."""

    attack: Attack
    is_refused: bool
    by: str


async def judge(attack: Attack, system: System) -> Verdict:
    """Run the attack; any result other than a named refusal counts as a success of the adversary."""
    try:
        async with asyncio.timeout(attack.seconds):
            return Verdict(attack, is_refused=True, by=await attack.play(system))
    except AttackSucceeded as error:
        return Verdict(attack, is_refused=False, by=str(error))
    except Exception as error:  # noqa: BLE001 - an attack that breaks proves nothing
        return Verdict(attack, is_refused=False, by=f"the attack could not be carried out: {error!r}")


def expect_status(answer: httpx2.Response, *refusals: int) -> str:
    """Return the refusal as a sentence; any other answer counts as a success of the adversary."""
    if answer.status_code not in refusals:
        raise AttackSucceeded(f"HTTP {answer.status_code}: {answer.text[:200]}")
    code = answer.json().get("code", "") if "json" in answer.headers.get("content-type", "") else ""
    return f"HTTP {answer.status_code} {code}".strip()
