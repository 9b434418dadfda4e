"""Revokes NATS users: sends the newly signed account to the server, which disconnects them."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta

from nodesmith.bus.connection import Bus
from nodesmith.bus.nats_credentials import AccountSigner, Trust
from nodesmith.contracts.nats import subjects
from nodesmith.domain.errors import NodeAway, ServiceUnavailable

ANSWER_TIMEOUT_S = 2.0
_LIFETIME = timedelta(hours=24)
_ACCEPTED = 200


class AccountLink:
    """A connection of the server's system account, which can look up and update accounts."""

    def __init__(self, url: str, trust: Trust, *, tls: ssl.SSLContext | None = None) -> None:
        self._signer = AccountSigner(trust)
        self._bus = Bus(url, lambda: self._signer.system_credential(_LIFETIME), name="accounts", tls=tls)
        self._has_new_link = asyncio.Event()
        self._bus.on_reconnect(self._has_new_link.set)

    def start(self) -> None:
        self._has_new_link.set()
        self._bus.start()

    async def wait_for_new_link(self) -> None:
        """Wait for the next new connection: the server behind it may have lost earlier updates."""
        await self._has_new_link.wait()
        self._has_new_link.clear()
        await self._bus.wait_up()

    def mark_link_as_new(self) -> None:
        """Treat the current connection as new, because an update failed and must be repeated."""
        self._has_new_link.set()

    async def revoke(self, users: Mapping[str, datetime]) -> None:
        """Revoke credentials issued to these users before a time; raises `ServiceUnavailable` if the server refuses."""
        if not self._bus.is_up:
            raise ServiceUnavailable("NATS does not answer.", server="nats")
        account = self._signer.account
        stored = await self._stored_account(account)
        update = self._signer.sign_with_revocations(
            {user: int(until.timestamp()) for user, until in users.items()}, stored
        )
        answer = await self._bus.request(subjects.account_update(account), update.encode(), within=ANSWER_TIMEOUT_S)
        answer_body = json.loads(answer.data)
        if answer_body.get("data", {}).get("code") != _ACCEPTED:
            raise ServiceUnavailable(f"NATS rejected the account update: {answer_body.get('error')}", server="nats")

    async def _stored_account(self, account: str) -> str:
        """Return the account JWT that the server stores; empty if it only has its configured accounts."""
        try:
            answer = await self._bus.request(subjects.account_lookup(account), b"", within=ANSWER_TIMEOUT_S)
            return answer.data.decode()
        except NodeAway:
            return ""

    async def close(self) -> None:
        await self._bus.close()
