"""HTTP shapes shared by several modules."""

from contextvars import ContextVar
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainSerializer

from nodesmith.domain.addresses import without_query
from nodesmith.domain.wire_enum import WireEnum

_HIDES_QUERIES: ContextVar[bool] = ContextVar("hides_queries", default=False)


def hide_queries(*, hidden: bool) -> None:
    """Set whether the response to this request shows the queries of addresses, which may be secrets."""
    _HIDES_QUERIES.set(hidden)


def _shown(address: str) -> str:
    return without_query(address) if _HIDES_QUERIES.get() else address


def _shown_everywhere(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown_everywhere(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown_everywhere(each) for each in value]
    return _shown(value) if isinstance(value, str) else value


Address = Annotated[str, PlainSerializer(_shown, return_type=str, when_used="json")]
"""an address, or text with addresses; only admins see the queries"""
Facts = Annotated[dict[str, Any], PlainSerializer(_shown_everywhere, return_type=dict[str, Any], when_used="json")]
"""any value that may contain addresses; only admins see the queries"""


class Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


Word = TypeVar("Word", bound=WireEnum)


def one_of_ours(word: Word) -> Word:
    """Refuse a word that no member of an enum has, which the enum reads as `unknown`."""
    if word.name == "UNKNOWN":
        raise ValueError(f"use one of {', '.join(each for each in type(word) if each.name != 'UNKNOWN')}")
    return word


def example(**fields: Any) -> ConfigDict:
    """The configuration of a request's shape: an example for the API's documentation."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


Item = TypeVar("Item")


class Page(Shape, Generic[Item]):
    """One page of a list, in the order of the list."""

    # For the docstrings of each Page[...] pydantic would search the sources of all loaded modules, as it is imported.
    model_config = ConfigDict(use_attribute_docstrings=False)

    items: list[Item] = Field(description="the entries of this page")
    next_cursor: str | None = Field(
        default=None, description="pass it as `cursor` for the next page; null on the last page"
    )


class Problem(Shape):
    """Why a request was refused or failed (RFC 9457)."""

    type: str = "about:blank"
    """always about:blank; `code` names the problem"""
    title: str
    """the phrase of the status"""
    status: int
    """the HTTP status"""
    detail: str
    """what happened, as a sentence"""
    code: str
    """what happened, for programs; codes are added, never changed"""
    remedy: str = ""
    """what to do about it"""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """the values that the sentence names: node, op_id, field, ..."""


class LocalaiProblem(Problem):
    """The same on LocalAI's paths, with `error` in the shape that LocalAI's clients of that path expect."""

    error: Any = None


class Message(Shape):
    message: str
    """what was done, as a sentence"""


class ReasonBody(Shape):
    """Reason for a change, kept in the audit trail."""

    model_config = example(reason="new disks")

    reason: str = Field(default="", max_length=500)
    """why, kept in the audit trail"""


class Readiness(Shape):
    ready: bool
    missing: dict[str, str] = Field(default_factory=dict)
    """server that does not answer -> consequence"""
    degraded: dict[str, str] = Field(default_factory=dict)
    """problem that does not stop requests -> consequence"""


class SignInLink(Shape):
    url: str
    """open it in a browser; it works once"""
    expires_at: datetime
    """when it stops working"""
