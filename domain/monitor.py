"""What is known of the fleet monitor."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class MonitorTick:
    """The last tick that the fleet monitor completed."""

    run_id: str
    at: datetime
    """by the clock of the database"""
    age: timedelta
    """when it was read"""
