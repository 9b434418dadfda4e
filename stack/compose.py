"""The secret files of a container deployment: those of a home, Temporal's password and the NATS configuration."""

import secrets as random
from pathlib import Path

from nodesmith.bus.nats_credentials import server_config
from nodesmith.runtime.keyring import Keyring
from nodesmith.stack import secrets
from nodesmith.stack.files import write_private
from nodesmith.stack.home import Home

TEMPORAL_PASSWORD = "temporal-password"  # noqa: S105 - the name of a file
NATS_CONFIG = "nats.conf"
"""not secret: it holds signed public keys"""
TRUST = "trust"
"""not secret: the fingerprint of the root key, for agents"""
NATS_PORT = 4222
NATS_MONITOR_PORT = 8222

_ALL_INTERFACES = "0.0.0.0"  # within its container
_EXTRA = f'ping_interval: "20s"\nhttp: "127.0.0.1:{NATS_MONITOR_PORT}"'
MOUNTED = (
    secrets.ADMIN_TOKEN,
    secrets.REGISTRATION_TOKEN,
    secrets.POSTGRES_PASSWORD,
    secrets.NATS_ACCOUNT_SEED,
    secrets.NATS_OPERATOR_SEED,
    secrets.NATS_SYSTEM_SEED,
    secrets.SOURCES_KEY,
    TEMPORAL_PASSWORD,
    NATS_CONFIG,
    TRUST,
)
_READABLE = 0o444
"""Containers run as other users and must read the mounted files; the enclosing folder is 0700."""


def make_secrets(folder: Path) -> Path:
    """Create the missing files in `folder`/secrets, replace none, and return that path."""
    home = Home(folder)
    home.secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.secrets.chmod(0o700)
    secrets.ensure(home)
    if not home.secret(TEMPORAL_PASSWORD).exists():
        write_private(home.secret(TEMPORAL_PASSWORD), f"{random.token_urlsafe(32)}\n")
    if not home.secret(NATS_CONFIG).exists():
        config = server_config(secrets.trust(home), host=_ALL_INTERFACES, port=NATS_PORT, extra=_EXTRA)
        write_private(home.secret(NATS_CONFIG), config)
    write_private(home.secret(TRUST), f"{Keyring.opened(home.secret(secrets.ORDER_KEYS)).fingerprint}\n")
    for name in MOUNTED:
        home.secret(name).chmod(_READABLE)
    _make_readable(home.secret(secrets.ORDER_KEYS))
    return home.secrets


def _make_readable(keys: Path) -> None:
    for file in keys.iterdir():
        file.chmod(_READABLE)
    keys.chmod(0o755)
