"""Signed orders for tests: they are really signed, and no check is disabled."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from nodesmith.contracts.nats.messages import Command
from nodesmith.contracts.nats.orders import Order, SignedCommand
from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.operations import OperationRequest
from nodesmith.runtime.keyring import Keyring, create_keys, now_ms
from nodesmith.services.operations.orders import order_of

DAY_MS = 24 * 3600 * 1000


def new_keyring(folder: Path) -> Keyring:
    create_keys(folder)
    return Keyring.opened(folder)


@functools.cache
def shared_keyring() -> Keyring:
    """Return the keyring of all tests that do not rotate keys."""
    return new_keyring(Path(tempfile.mkdtemp(prefix="nodesmith-test-keys-")) / "keys")


def unwrapped(signed: SignedCommand) -> Command:
    """Return the command of a signed order, for simulated nodes that do not verify it."""
    return Order.model_validate_json(signed.order.payload).command(signed.decision)


def signed_request(request: OperationRequest, keyring: Keyring | None = None) -> Signed:
    now = now_ms()
    return (keyring or shared_keyring()).sign(order_of(request, iat=now, exp=now + DAY_MS))


class OrderBook:
    """Signs orders, each newer than the previous one; the same command gives the same order again."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.keyring = keyring or shared_keyring()
        self._signed: dict[str, Signed] = {}
        self._newest = 0

    def order(self, node_id: str, command: Command, **changes: Any) -> Order:
        self._newest = max(now_ms(), self._newest + 1)
        fields = command.model_dump(include=set(Order.model_fields))
        times = {"iat": self._newest, "exp": self._newest + DAY_MS}
        return Order(**{**fields, "node": node_id, **times, **changes})

    def signed(self, node_id: str, command: Command) -> SignedCommand:
        same = command.model_copy(update={"decision": 0}).model_dump_json()
        if same not in self._signed:
            self._signed[same] = self.keyring.sign(self.order(node_id, command))
        return SignedCommand(order=self._signed[same], decision=command.decision)
