"""Who may not speak on NATS any more: our account, signed anew and told to the server, which drops their links."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta

from bus.connection import Bus
from bus.credentials import AccountSigner, Trust
from contracts import subjects
from domain.errors import NodeAway, ServiceUnavailable

ANSWER_S = 2.0
_LIFETIME = timedelta(hours=24)
_ACCEPTED = 200


class AccountLink:
    """A link of the server's own account, where accounts are looked up and told."""

    def __init__(self, url: str, trust: Trust, *, tls: ssl.SSLContext | None = None) -> None:
        self._signer = AccountSigner(trust)
        self._bus = Bus(url, lambda: self._signer.system_credential(_LIFETIME), name="accounts", tls=tls)
        self._is_new = asyncio.Event()
        self._bus.on_reconnect(self._is_new.set)

    def start(self) -> None:
        self._is_new.set()
        self._bus.start()

    async def linked_anew(self) -> None:
        """Wait for the next link: the server behind it may have forgotten what it was told."""
        await self._is_new.wait()
        self._is_new.clear()
        await self._bus.wait_up()

    def link_again(self) -> None:
        """As if it were new: what was to be told was not."""
        self._is_new.set()

    async def revoke(self, users: Mapping[str, datetime]) -> None:
        """What was issued to these before a time; in force on return, `ServiceUnavailable` if it was not taken."""
        if not self._bus.is_up:
            raise ServiceUnavailable("NATS does not answer.", server="nats")
        account = self._signer.account
        known = await self._known(account)
        update = self._signer.revoking({user: int(until.timestamp()) for user, until in users.items()}, known)
        said = json.loads(await self._bus.request(subjects.account_update(account), update.encode(), within=ANSWER_S))
        if said.get("data", {}).get("code") != _ACCEPTED:
            raise ServiceUnavailable(f"NATS did not take the account in: {said.get('error')}", server="nats")

    async def _known(self, account: str) -> str:
        """The account as the server has it; empty when it keeps none but those of its configuration."""
        try:
            return (await self._bus.request(subjects.account_lookup(account), b"", within=ANSWER_S)).decode()
        except NodeAway:
            return ""

    async def close(self) -> None:
        await self._bus.close()
