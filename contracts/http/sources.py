"""HTTP shapes of source settings: what an admin sets."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from nodesmith.contracts.http.shared import Shape, example


class SourceRequest(Shape):
    """`PUT /api/v1/sources/{host}`: how nodes and galleries reach that host."""

    model_config = example(username="robot", proxy="http://proxy.example:3128")

    username: str = Field(default="", max_length=255)
    """user name at that host; empty: none"""
    password: str = Field(default="", max_length=4096)
    """its password; stored encrypted, never shown"""
    ca: str = Field(default="", max_length=64 * 1024)
    """additional trusted certificates in PEM"""
    proxy: str = Field(default="", max_length=2048)
    """address of the proxy that leads there, e.g. http://proxy:3128"""
    realms: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-\[\]:]+$", max_length=255)]] = Field(
        default_factory=list, max_length=8
    )
    """hosts (name, or name:port) of token services to which the registry's password may be sent"""


class SourceView(Shape):
    """The settings of a host, without secrets."""

    host: str
    """name, or name:port"""
    username: str = ""
    """user name at that host"""
    has_password: bool = False
    """a password is set"""
    has_ca: bool = False
    """certificates are set"""
    has_proxy: bool = False
    """a proxy is set"""
    realms: list[str] = Field(default_factory=list)
    """hosts of token services that may get the password too"""
    updated_by: str = ""
    """who set it last"""
    updated_at: datetime | None = None
    """when it was set last"""
