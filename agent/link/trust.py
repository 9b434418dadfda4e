"""Verifies orders against the trust list that this node pinned, using the control plane's clock."""

import asyncio
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import structlog
from pydantic import ValidationError

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.contracts.nats.orders import SignedTrustList, TrustChain
from nodesmith.contracts.nats.wire import Signed
from nodesmith.runtime.signing import VerifyKey
from nodesmith.runtime.trust_lists import NotTrusted, first_contact, follow, read_list

log = structlog.stdlib.get_logger(__name__)

CHAIN_PATH = "/api/v1/trust"
ASK_AGAIN_S = 10.0
"""minimum between two requests because of unknown keys: whoever controls NATS can invent any number of them"""
_TIMEOUT_S = 10.0
_MAX_CLOCK_LEAD_MS = 24 * 3600 * 1000
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class UnknownKey(Exception):
    """The order is signed by a key that is not in the pinned list."""


class KeyExpired(Exception):
    """The order is signed by an expired key."""


class PinFile:
    """`trust.json` in the home: the newest trust list that this node verified."""

    def __init__(self, home: Path) -> None:
        self._path = home / "trust.json"

    def load(self) -> SignedTrustList | None:
        """Raise if the file is damaged: the agent must not start and pin a new list without verification."""
        try:
            return SignedTrustList.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None

    def save(self, pinned: SignedTrustList) -> None:
        write_durably(self._path, pinned.model_dump_json().encode())


class PinInMemory:
    """Pin of a simulated node."""

    def __init__(self) -> None:
        self._pinned: SignedTrustList | None = None

    def load(self) -> SignedTrustList | None:
        return self._pinned

    def save(self, pinned: SignedTrustList) -> None:
        self._pinned = pinned


class PinnedTrust:
    """The pinned trust list; it only ever advances to newer verified versions."""

    def __init__(
        self, http: httpx2.AsyncClient, pins: PinFile | PinInMemory, *, expected: str = "", may_replace: bool = False
    ) -> None:
        """`expected`: fingerprint of the control plane's root key, from the invite. `may_replace`: an operator of
        this node entered it, so it overrides a pin of another control plane."""
        self._may_replace = may_replace and bool(expected)
        self._http = http
        self._pins = pins
        self._expected = expected
        self._clock_offset_ms: int | None = None
        """the control plane's clock minus ours; None until it has answered"""
        self._newest_iat = 0
        self._refreshing = asyncio.Lock()
        self._looking_up = asyncio.Lock()
        self._looked_up_at = float("-inf")
        self._keys: dict[str, tuple[VerifyKey, int]] = {}
        self._pinned: SignedTrustList | None = None
        if (pinned := pins.load()) is not None:
            self._use_list(pinned)

    @property
    def version(self) -> int:
        """Version of the pinned list; 0 means none."""
        return read_list(self._pinned).version if self._pinned is not None else 0

    async def refresh(self) -> None:
        """Fetch the control plane's chain and verify it from the pinned list on. Raises `NotTrusted`."""
        before = self._pinned
        async with self._refreshing:
            if self._pinned is not before:  # a concurrent call has refreshed it
                return
            if self._pinned is None:
                self._refuse_unsafe_contact()
            newest = self._verify_chain(await self._fetch_chain())
            if newest is not self._pinned:
                self._pins.save(newest)
                self._use_list(newest)
                log.info("trust.pinned", version=self.version)

    async def look_up(self, kid: str) -> None:
        """Refresh because of an unknown key, at most once in `ASK_AGAIN_S`. Raises `NotTrusted`."""
        async with self._looking_up:
            if kid in self._keys:  # a concurrent call has fetched it
                return
            if time.monotonic() - self._looked_up_at < ASK_AGAIN_S:
                raise NotTrusted(f"It asked for newer keys less than {ASK_AGAIN_S:.0f} s ago.")
            self._looked_up_at = time.monotonic()
            await self.refresh()

    def verify(self, purpose: str, signed: Signed) -> None:
        """Verify a signature; raises `UnknownKey`, `KeyExpired` or `BadSignature`."""
        known = self._keys.get(signed.kid)
        if known is None:
            raise UnknownKey(signed.kid)
        key, until = known
        if self.now() > until:
            raise KeyExpired(signed.kid)
        key.verify(purpose, signed.payload, signed.signature)

    def now(self) -> int:
        """Return milliseconds by the control plane's clock, at least the issue time of the newest verified order.

        An order issued a day ahead of that clock was signed while the clock was wrong, and is not used as a minimum.
        """
        now = _now_ms() + (self._clock_offset_ms or 0)
        is_absurd = self._clock_offset_ms is not None and self._newest_iat - now > _MAX_CLOCK_LEAD_MS
        return now if is_absurd else max(now, self._newest_iat)

    def note_iat(self, iat: int) -> None:
        self._newest_iat = max(self._newest_iat, iat)

    def set_clock(self, date: str | None) -> None:
        """Set the clock offset from the `Date` header of a response, because this machine's clock may be wrong."""
        if date is None:
            return
        try:
            server_time = parsedate_to_datetime(date)
        except ValueError:
            return
        self._clock_offset_ms = int(server_time.timestamp() * 1000) - _now_ms()

    def _verify_chain(self, chain: TrustChain) -> SignedTrustList:
        try:
            return self._verified(chain)
        except ValueError as error:
            raise NotTrusted("The control plane sent trust lists that this agent cannot read.") from error

    def _verified(self, chain: TrustChain) -> SignedTrustList:
        if self._pinned is None:
            return first_contact(chain, self._expected)
        try:
            return follow(self._pinned, chain)
        except NotTrusted:
            if not self._may_replace:
                raise
            return first_contact(chain, self._expected)

    async def _fetch_chain(self) -> TrustChain:
        try:
            answer = (await self._http.get(CHAIN_PATH, timeout=_TIMEOUT_S)).raise_for_status()
            return TrustChain.model_validate_json(answer.content)
        except httpx2.HTTPError as error:
            raise NotTrusted(f"The trust lists of the control plane cannot be fetched: {error!r}") from error
        except ValidationError as error:
            raise NotTrusted("The control plane sent trust lists that this agent cannot read.") from error

    def _refuse_unsafe_contact(self) -> None:
        """Without a fingerprint the first list is trusted, so the connection must be safe from interception."""
        url = urlsplit(str(self._http.base_url))
        if self._expected or url.scheme == "https" or url.hostname in _LOOPBACK:
            return
        raise NotTrusted(
            f"This node cannot verify its control plane: {self._http.base_url} is neither https nor this machine. Join "
            "with the full command that `nodesmith nodes invite` prints (it has --trust), or set NODESMITH_AGENT_TRUST."
        )

    def _use_list(self, pinned: SignedTrustList) -> None:
        self._pinned = pinned
        self._keys = {key.kid: (VerifyKey.from_text(key.key), key.until) for key in read_list(pinned).keys}


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
