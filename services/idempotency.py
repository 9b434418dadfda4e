"""A request that is repeated with its `Idempotency-Key` is answered with what it became the first time."""

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel

from domain.errors import IdempotencyKeyReused
from domain.idempotency import Claim, request_digest
from domain.identity import new_op_id
from services.gate import after_start


class IdempotencyKeys(Protocol):
    """Unique on (actor, key). Keys live for 7 days."""

    async def find(self, actor: str, key: str) -> Claim | None: ...
    async def claim(self, actor: str, key: str, *, digest: str, op_id: str) -> Claim: ...
    async def note(self, actor: str, key: str, *, op_id: str, job_id: str) -> None: ...


@dataclass(frozen=True)
class KeyedRequest:
    """One request of one caller; without a key every request is a new one."""

    keys: IdempotencyKeys
    actor: str
    key: str | None
    digest: str

    @classmethod
    def of(
        cls, keys: IdempotencyKeys, actor: str, key: str | None, *, route: str, target: str, body: BaseModel
    ) -> "KeyedRequest":
        digest = request_digest(route, target, body.model_dump(mode="json")) if key else ""
        return cls(keys, actor, key, digest)

    async def earlier(self) -> Claim | None:
        """What this key stands for already. Looked up before the request is checked: the world may have changed."""
        known = await self.keys.find(self.actor, self.key) if self.key else None
        return self._same(known) if known is not None else None

    async def claim(self) -> Claim:
        """The id under which this request may be started; inserted before the start, so that nobody draws another."""
        op_id = new_op_id()
        if not self.key:
            return Claim("", op_id, is_new=True)
        return self._same(await self.keys.claim(self.actor, self.key, digest=self.digest, op_id=op_id))

    async def note(self, claim: Claim, job_id: str) -> None:
        if self.key and claim.job_id is None:
            await after_start(self.keys.note(self.actor, self.key, op_id=claim.op_id, job_id=job_id))

    def _same(self, claim: Claim) -> Claim:
        if claim.digest == self.digest:
            return claim
        job_id = claim.job_id or claim.op_id
        raise IdempotencyKeyReused(
            f"This Idempotency-Key belongs to another request (operation {job_id}).", op_id=job_id
        )
