"""HTTP shapes of source settings: what an admin sets, and what a node receives."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from nodesmith.contracts.http.shared import Shape


class SourceAccess(Shape):
    """`GET /api/node/{id}/sources?host=`: how a node reaches a source. Read at each use, never stored."""

    host: str
    """name, or name:port"""
    username: str = ""
    password: str = ""
    ca: str = ""
    """additional trusted certificates in PEM"""
    proxy: str = ""
    realms: list[str] = Field(default_factory=list)
    """hosts of token services that may get the password too"""


class SourceRequest(Shape):
    """`PUT /api/v1/sources/{host}`: how nodes and galleries reach that host."""

    username: str = Field(default="", max_length=255)
    password: str = Field(default="", max_length=4096)
    ca: str = Field(default="", max_length=64 * 1024)
    proxy: str = Field(default="", max_length=2048)
    realms: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-\[\]:]+$", max_length=255)]] = Field(
        default_factory=list, max_length=8
    )
    """hosts (name, or name:port) of token services to which the registry's password may be sent"""


class SourceView(Shape):
    """The settings of a host, without secrets."""

    host: str
    username: str = ""
    has_password: bool = False
    has_ca: bool = False
    has_proxy: bool = False
    realms: list[str] = Field(default_factory=list)
    updated_by: str = ""
    updated_at: datetime | None = None
