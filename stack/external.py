"""Servers that somebody else runs: each address that is given keeps the embedded one from being started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError


@dataclass(frozen=True)
class External:
    """Empty means: ours."""

    database_url: str = ""
    nats_url: str = ""
    nats_account_seed_file: str = ""
    temporal_address: str = ""
    temporal_ui_url: str = ""


def external_servers(environment: Mapping[str, str]) -> External:
    """Read the addresses from `NODESMITH_*`, and refuse what cannot work before anything is started."""
    given = External(
        database_url=environment.get("NODESMITH_DATABASE_URL", ""),
        nats_url=environment.get("NODESMITH_NATS_URL", ""),
        nats_account_seed_file=environment.get("NODESMITH_NATS_ACCOUNT_SEED_FILE", ""),
        temporal_address=environment.get("NODESMITH_TEMPORAL_ADDRESS", ""),
        temporal_ui_url=environment.get("NODESMITH_TEMPORAL_UI_URL", ""),
    )
    if given.nats_url and not given.nats_account_seed_file:
        raise StackError(
            "NODESMITH_NATS_URL names a NATS server of your own, but nothing signs the credentials for it.",
            remedy="Name the file with its account's seed in NODESMITH_NATS_ACCOUNT_SEED_FILE.",
        )
    if given.nats_url and not Path(given.nats_account_seed_file).is_file():
        raise StackError(
            f"There is no file {given.nats_account_seed_file}, which NODESMITH_NATS_ACCOUNT_SEED_FILE names.",
            remedy="Name the file with the account's seed there.",
        )
    return given
