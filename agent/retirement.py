"""A node that was removed: it says so, leaves the control plane alone, and stays that way over restarts."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import structlog
from pydantic import BaseModel, ConfigDict

from agent.durable import write_durably
from contracts.messages import StopWhy

log = structlog.stdlib.get_logger(__name__)

SENTENCES = {
    StopWhy.REMOVED: "This node was removed from the control plane by an admin.",
    StopWhy.CREDENTIAL_RESET: "The name of this node was given free for another machine by an admin.",
}


class Retired(BaseModel):
    """Why this node does not take part any more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    why: StopWhy
    at: datetime

    @classmethod
    def now(cls, why: StopWhy) -> Self:
        return cls(why=why, at=datetime.now(UTC))


class Retirement:
    """`retired.json` of the home. Whoever deletes it lets the agent ask for admission again."""

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

    def begin(self, why: StopWhy) -> Retired:
        retired = Retired.now(why)
        write_durably(self._path, retired.model_dump_json().encode())
        return retired

    def end(self) -> None:
        """Invited again."""
        self._path.unlink(missing_ok=True)

    def tell(self, retired: Retired) -> None:
        log.error(
            "agent.retired",
            why=retired.why,
            since=retired.at.isoformat(),
            message=SENTENCES.get(retired.why, SENTENCES[StopWhy.REMOVED]),
            remedy=f"To let it join again, delete {self._path} and restart the agent.",
        )
