"""Servers outside the stack: for each address that is set, `up` does not start the embedded server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodesmith.stack.errors import StackError


@dataclass(frozen=True)
class External:
    """The addresses of external servers; an empty address selects the embedded server."""

    database_url: str = ""
    nats_url: str = ""
    nats_account_seed_file: str = ""
    temporal_address: str = ""
    temporal_ui_url: str = ""


def external_servers(environment: Mapping[str, str]) -> External:
    """Read the addresses from `NODESMITH_*`, and refuse an unusable set before any process is started."""
    given = External(
        database_url=environment.get("NODESMITH_DATABASE_URL", ""),
        nats_url=environment.get("NODESMITH_NATS_URL", ""),
        nats_account_seed_file=environment.get("NODESMITH_NATS_ACCOUNT_SEED_FILE", ""),
        temporal_address=environment.get("NODESMITH_TEMPORAL_ADDRESS", ""),
        temporal_ui_url=environment.get("NODESMITH_TEMPORAL_UI_URL", ""),
    )
    if given.nats_url and not given.nats_account_seed_file:
        raise StackError(
            "NODESMITH_NATS_URL names an external NATS server, but the seed that signs credentials for it is missing.",
            remedy="Set NODESMITH_NATS_ACCOUNT_SEED_FILE to the file with its account's seed.",
        )
    if given.nats_url and not Path(given.nats_account_seed_file).is_file():
        raise StackError(
            f"NODESMITH_NATS_ACCOUNT_SEED_FILE names {given.nats_account_seed_file}, which does not exist.",
            remedy="Set it to the file with the account's seed.",
        )
    return given
