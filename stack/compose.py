"""The secrets of a deployment in containers: those of a home, one more, and what the NATS server trusts."""

import secrets as random
from pathlib import Path

from bus.credentials import server_config
from stack import secrets
from stack.files import write_private
from stack.home import Home

TEMPORAL_PASSWORD = "temporal-password"  # noqa: S105 - the name of a file
NATS_CONFIG = "nats.conf"
"""no secret: it holds signed public keys"""
NATS_PORT = 4222
NATS_MONITOR_PORT = 8222

_ANYWHERE = "0.0.0.0"  # within its container
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
)
_READABLE = 0o444
"""Containers run as users of their own and have to read what is mounted; the folder around it is 0700."""


def make_secrets(folder: Path) -> Path:
    """Make what is missing below `folder`/secrets and replace nothing; return where it is."""
    home = Home(folder)
    home.secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.secrets.chmod(0o700)
    secrets.ensure(home)
    if not home.secret(TEMPORAL_PASSWORD).exists():
        write_private(home.secret(TEMPORAL_PASSWORD), f"{random.token_urlsafe(32)}\n")
    if not home.secret(NATS_CONFIG).exists():
        config = server_config(secrets.trust(home), host=_ANYWHERE, port=NATS_PORT, extra=_EXTRA)
        write_private(home.secret(NATS_CONFIG), config)
    for name in MOUNTED:
        home.secret(name).chmod(_READABLE)
    return home.secrets
