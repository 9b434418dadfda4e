"""HTTP shapes that every topic shares; each topic has a module of its own."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Problem(Shape):
    """RFC 9457, plus `error` in the shape that the old clients of that path read."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""
    error: Any = None


class Message(Shape):
    message: str


class Because(Shape):
    """Why somebody asks for a change; kept with it."""

    reason: str = Field(default="", max_length=500)


class Readiness(Shape):
    ready: bool
    missing: dict[str, str] = Field(default_factory=dict)
    """what does not answer -> what that means"""
    degraded: dict[str, str] = Field(default_factory=dict)
    """what does not work as it should, though requests are served -> what that means"""


class SignInLink(Shape):
    url: str
    expires_at: datetime
