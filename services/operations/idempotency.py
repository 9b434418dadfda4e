"""Idempotency keys: a request repeated with the same `Idempotency-Key` gets the answer of the first one."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from pydantic_core import to_jsonable_python

from nodesmith.domain.errors import IdempotencyKeyReused
from nodesmith.domain.idempotency import KeyClaim, StoredAnswer, request_digest
from nodesmith.domain.identity import new_op_id
from nodesmith.services.operations.operation_lock import after_start

POLL_INTERVAL_S = 0.05


class IdempotencyKeys(Protocol):
    """Keys, unique on (actor, key) and kept for 7 days."""

    async def find(self, actor: str, key: str) -> KeyClaim | None: ...
    async def claim(self, actor: str, key: str, *, digest: str, op_id: str) -> KeyClaim: ...
    async def note(self, actor: str, key: str, *, op_id: str, job_id: str) -> None: ...
    async def answer(self, actor: str, key: str, *, op_id: str, answer: StoredAnswer) -> None: ...
    async def withdraw(self, actor: str, key: str, *, op_id: str) -> None: ...


@dataclass(frozen=True)
class KeyedRequest:
    """One request of one caller with its key; without a key every request is new."""

    keys: IdempotencyKeys
    actor: str
    key: str | None
    digest: str

    @classmethod
    def of(
        cls, keys: IdempotencyKeys, actor: str, key: str | None, *, route: str, target: str, body: object
    ) -> "KeyedRequest":
        digest = request_digest(route, target, to_jsonable_python(body)) if key else ""
        return cls(keys, actor, key, digest)

    async def earlier(self) -> KeyClaim | None:
        """The earlier claim of this key, looked up before validation, because the state may have changed since."""
        known = await self.keys.find(self.actor, self.key) if self.key else None
        return self._check_digest(known) if known is not None else None

    async def claim(self) -> KeyClaim:
        """Reserve the id for this request; stored before the start, so that a concurrent repetition gets it too."""
        op_id = new_op_id()
        if not self.key:
            return KeyClaim("", op_id, is_new=True)
        return self._check_digest(await self.keys.claim(self.actor, self.key, digest=self.digest, op_id=op_id))

    async def note(self, claim: KeyClaim, job_id: str) -> None:
        if self.key and claim.job_id is None:
            await after_start(self.keys.note(self.actor, self.key, op_id=claim.op_id, job_id=job_id))

    async def begin(self, *, patience_s: float) -> KeyClaim:
        """Claim the key of a request that starts no job; while another process handles it, wait for the answer.

        Without an answer in time that process is slow or dead, and the claim is returned without an answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            claim = await self.claim()
            if claim.is_new or claim.answer is not None or loop.time() >= deadline:
                return claim
            await asyncio.sleep(POLL_INTERVAL_S)

    async def answered(self, claim: KeyClaim, answer: StoredAnswer) -> None:
        if self.key:
            await self.keys.answer(self.actor, self.key, op_id=claim.op_id, answer=answer)

    async def withdraw(self, claim: KeyClaim) -> None:
        """Delete the claim of a request that had no effect: its key can be used again, also for another request."""
        if self.key and claim.is_new:
            await self.keys.withdraw(self.actor, self.key, op_id=claim.op_id)

    async def discard(self, claim: KeyClaim) -> None:
        """Delete a claim whose id can never be started again, also of another process; the next one gets a new id."""
        if self.key:
            await self.keys.withdraw(self.actor, self.key, op_id=claim.op_id)

    def _check_digest(self, claim: KeyClaim) -> KeyClaim:
        if claim.digest == self.digest:
            return claim
        if claim.job_id is None:
            raise IdempotencyKeyReused
        raise IdempotencyKeyReused(
            f"This Idempotency-Key belongs to another request (operation {claim.job_id}).", op_id=claim.job_id
        )
