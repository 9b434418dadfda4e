"""The secrets of the API, read before any connection is opened."""

from dataclasses import dataclass
from pathlib import Path

from nodesmith.domain.errors import InvalidRequest
from nodesmith.runtime.keyring import Keyring
from nodesmith.runtime.settings import ControlSettings

SHORTEST_SECRET = 16
"""characters; a shorter secret can be guessed over HTTP"""


@dataclass(frozen=True)
class ApiSecrets:
    """They have no defaults."""

    account_seed: str
    admin_token: str
    registration_token: str
    keyring: Keyring

    @classmethod
    def read(cls, settings: ControlSettings) -> "ApiSecrets":
        return cls(
            account_seed=_secret("NATS_ACCOUNT_SEED_FILE", settings.nats_account_seed_file),
            admin_token=_secret("ADMIN_TOKEN_FILE", settings.admin_token_file),
            registration_token=_secret("REGISTRATION_TOKEN_FILE", settings.registration_token_file),
            keyring=Keyring.opened(settings.order_keys),
        )


def _secret(name: str, path: Path | None) -> str:
    secret = path.read_text().strip() if path else ""
    if len(secret) < SHORTEST_SECRET:
        raise InvalidRequest(
            f"NODESMITH_{name} has to name a file with a secret of at least {SHORTEST_SECRET} characters in it."
        )
    return secret
