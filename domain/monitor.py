"""The last completed tick of the fleet monitor."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class MonitorTick:
    """The last tick that the fleet monitor completed."""

    run_id: str
    at: datetime
    """time by the database clock"""
    age: timedelta
    """age at the time of reading"""
