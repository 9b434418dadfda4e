"""The secrets of a home: created at the first start, one file each, readable by the owner only."""

import secrets

from nodesmith.bus.nats_credentials import Trust, new_trust
from nodesmith.runtime.keyring import create_keys
from nodesmith.stack.files import write_private
from nodesmith.stack.home import Home

ADMIN_TOKEN = "admin-token"  # noqa: S105 - the name of a file
REGISTRATION_TOKEN = "registration-token"  # noqa: S105
POSTGRES_PASSWORD = "postgres-password"  # noqa: S105
NATS_OPERATOR_SEED = "nats-operator-seed"
NATS_ACCOUNT_SEED = "nats-account-seed"
NATS_SYSTEM_SEED = "nats-system-seed"
SOURCES_KEY = "sources-key"
ORDER_KEYS = "order-keys"
"""a folder: root key, order keys and the chain of trust lists"""


def ensure(home: Home) -> None:
    """Create the missing secrets; never replace one."""
    trust = new_trust()
    fresh = {
        ADMIN_TOKEN: f"nsadmin-{secrets.token_urlsafe(32)}",
        REGISTRATION_TOKEN: f"nsreg-{secrets.token_urlsafe(32)}",
        POSTGRES_PASSWORD: secrets.token_urlsafe(32),
        NATS_OPERATOR_SEED: trust.operator_seed,
        NATS_ACCOUNT_SEED: trust.account_seed,
        NATS_SYSTEM_SEED: trust.system_seed,
        SOURCES_KEY: secrets.token_urlsafe(32),
    }
    for name, value in fresh.items():
        if not home.secret(name).exists():
            write_private(home.secret(name), f"{value}\n")
    create_keys(home.secret(ORDER_KEYS))


def read(home: Home, name: str) -> str:
    return home.secret(name).read_text().strip()


def trust(home: Home) -> Trust:
    """Return the keys that the embedded NATS server trusts."""
    return Trust(
        operator_seed=read(home, NATS_OPERATOR_SEED),
        account_seed=read(home, NATS_ACCOUNT_SEED),
        system_seed=read(home, NATS_SYSTEM_SEED),
    )
