"""The node's identity at the control plane, stored in its home and readable only by the agent's user."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import structlog
from pydantic import BaseModel, ConfigDict

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.contracts.agent_api import RegisterResponse
from nodesmith.domain.node import NatsCredential

log = structlog.stdlib.get_logger(__name__)

_RENEW_AT = 0.75


class Identity(BaseModel):
    """The node id, its API token, and its NATS credential (none before approval)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_id: str
    api_token: str
    nats_url: str = ""
    nats_jwt: str = ""
    nats_user_seed: str = ""
    issued_at: datetime
    expires_at: datetime | None = None

    def updated_from(self, response: RegisterResponse, now: datetime, seed: str) -> Self:
        """Apply the control plane's response; omitted fields are kept unless the node id or the key changed.

        Only a LocalAI worker receives a seed; the agent generates its own, which never leaves the node.
        """
        api_token = response.api_token or self.api_token
        if response.nats_jwt is None and response.id == self.node_id and seed == self.nats_user_seed:
            return self.model_copy(update={"api_token": api_token})
        return self.model_copy(
            update={
                "node_id": response.id,
                "api_token": api_token,
                "nats_url": response.nats_url or self.nats_url,
                "nats_jwt": response.nats_jwt or "",
                "nats_user_seed": response.nats_user_seed or seed,
                "issued_at": now,
                "expires_at": response.expires_at,
            }
        )

    def is_admitted(self, now: datetime) -> bool:
        """Whether the node has an unexpired NATS credential."""
        return bool(self.nats_jwt) and (self.expires_at is None or now < self.expires_at)

    def renewal_due(self) -> datetime:
        """Return when three quarters of the credential's lifetime have passed."""
        if self.expires_at is None:
            return self.issued_at + timedelta(hours=12)
        return self.issued_at + (self.expires_at - self.issued_at) * _RENEW_AT

    def nats_credential(self) -> NatsCredential:
        far_away = datetime.max.replace(tzinfo=UTC)
        return NatsCredential(jwt=self.nats_jwt, seed=self.nats_user_seed, expires_at=self.expires_at or far_away)


class IdentityFile:
    """`identity.json` in the home, mode 0600."""

    def __init__(self, home: Path) -> None:
        self._path = home / "identity.json"

    def load(self) -> Identity | None:
        try:
            return Identity.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            log.warning("identity.unreadable", file=str(self._path))
            return None

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)

    def save(self, identity: Identity) -> None:
        write_durably(self._path, identity.model_dump_json().encode())
