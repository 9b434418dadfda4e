"""State of a removed node: it logs the removal and stops contacting the control plane, also after restarts."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import structlog
from pydantic import BaseModel, ConfigDict

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.contracts.nats.presence import StopWhy

log = structlog.stdlib.get_logger(__name__)

MESSAGES = {
    StopWhy.REMOVED: "An admin removed this node from the control plane.",
    StopWhy.CREDENTIAL_RESET: "An admin released the name of this node for another machine.",
}


class Retired(BaseModel):
    """Why and when this node was removed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    why: StopWhy
    at: datetime

    @classmethod
    def now(cls, why: StopWhy) -> Self:
        return cls(why=why, at=datetime.now(UTC))


class Retirement:
    """`retired.json` in the home. Delete the file to let the agent register again."""

    def __init__(self, home: Path) -> None:
        self._path = home / "retired.json"

    def load(self) -> Retired | None:
        try:
            return Retired.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            log.warning("retired.unreadable", file=str(self._path))
            return None

    def record(self, why: StopWhy) -> Retired:
        retired = Retired.now(why)
        write_durably(self._path, retired.model_dump_json().encode())
        return retired

    def clear(self) -> None:
        """Allow the node to register again, after a new invite."""
        self._path.unlink(missing_ok=True)

    def log_status(self, retired: Retired) -> None:
        log.error(
            "agent.retired",
            why=retired.why,
            since=retired.at.isoformat(),
            message=MESSAGES.get(retired.why, MESSAGES[StopWhy.REMOVED]),
            remedy=f"To let it join again, delete {self._path} and restart the agent.",
        )
