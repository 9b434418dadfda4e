"""API keys of clients: checked against the tokens of the store, with a short cache."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from nodesmith.domain.access import Role
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.token_hash import hash_token
from nodesmith.gateway.answers import Refusal, unavailable

CACHED_S = 10.0
"""how long a revoked key is still accepted at most"""
OUTAGE_S = 3600.0
"""how long a key that was valid is accepted while PostgreSQL does not answer"""
_MOST_CACHED = 10_000
LONGEST_KEY = 512

Lookup = Callable[[str], Awaitable["tuple[str, Role] | None"]]
"""name and role of the token with this hash"""


@dataclass
class ClientKey:
    """A key that may call models, and the calls that it has open."""

    name: str
    checked_at: float
    is_valid: bool
    calls: int = 0


class ApiKeys:
    def __init__(
        self, lookup: Lookup, *, calls_per_key: int = 256, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup = lookup
        self._calls_per_key = calls_per_key
        self._clock = clock
        self._cache: OrderedDict[str, ClientKey] = OrderedDict()

    def cached(self, shown: str) -> ClientKey | None:
        """The key, if it was checked a short time ago and is valid."""
        key = self._cache.get(hash_token(shown)) if shown else None
        if key is None or not key.is_valid or self._clock() - key.checked_at > CACHED_S:
            return None
        return key

    async def check(self, shown: str) -> ClientKey:
        """Return the valid key; raise a refusal otherwise."""
        if not shown or len(shown) > LONGEST_KEY:
            raise _unauthorised("Give an API key: Authorization: Bearer KEY.")
        hashed = hash_token(shown)
        key = self._cache.get(hashed)
        if key is None or self._clock() - key.checked_at > CACHED_S:
            key = await self._look_up(hashed, key)
        if not key.is_valid:
            raise _unauthorised("The API key is not valid.")
        return key

    @contextmanager
    def counted(self, key: ClientKey) -> Iterator[None]:
        """Count one call of a key; refuse one beyond its limit."""
        if key.calls >= self._calls_per_key:
            text = f"The API key has {key.calls} open calls; that is its limit."
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "key_limit", text, retry_after_s=1)
        key.calls += 1
        try:
            yield
        finally:
            key.calls -= 1

    async def _look_up(self, hashed: str, known: ClientKey | None) -> ClientKey:
        now = self._clock()
        try:
            found = await self._lookup(hashed)
        except ServiceUnavailable as error:
            if known is not None and known.is_valid and now - known.checked_at < OUTAGE_S:
                return known
            raise unavailable("not_ready", "The gateway cannot check API keys now.") from error
        key = known or self._cache.get(hashed) or ClientKey("", now, is_valid=False)
        key.checked_at = now
        key.name = found[0] if found else ""
        key.is_valid = found is not None and found[1].includes(Role.CLIENT)
        self._remember(hashed, key)
        return key

    def _remember(self, hashed: str, key: ClientKey) -> None:
        """Keep the newest: guessed keys must not fill the memory. A key with open calls keeps its count."""
        self._cache[hashed] = key
        self._cache.move_to_end(hashed)
        while len(self._cache) > _MOST_CACHED:
            self._cache.popitem(last=False)


def _unauthorised(text: str) -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, "invalid_api_key", text)
