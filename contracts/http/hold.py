"""HTTP shapes of the hold."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.http.shared import Shape, example


class HoldBody(Shape):
    model_config = example(reason="release freeze")

    reason: str = Field(min_length=1, max_length=500)
    """why; shown with every operation that it holds back"""


class HoldView(Shape):
    """Whether work is held, by whom and why."""

    held: bool
    """true: nothing that has not reached a node starts"""
    reason: str = ""
    """why"""
    by: str = ""
    """who set it"""
    since: datetime | None = None
    """since when"""
