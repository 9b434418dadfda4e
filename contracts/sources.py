"""How hosts are reached: what an admin sets, and what a node is told."""

from datetime import datetime

from pydantic import Field

from contracts.http import Shape


class SourceAccess(Shape):
    """`GET /api/node/{id}/sources?host=`: how a node reaches a source. Asked for at use, never kept."""

    host: str
    """name, or name:port"""
    username: str = ""
    password: str = ""
    ca: str = ""
    """certificates in PEM that are trusted beside the system's"""
    proxy: str = ""


class SourceRequest(Shape):
    """`PUT /api/sources/{host}`: how that host is reached, by nodes and for galleries."""

    username: str = Field(default="", max_length=255)
    password: str = Field(default="", max_length=4096)
    ca: str = Field(default="", max_length=64 * 1024)
    proxy: str = Field(default="", max_length=2048)


class SourceView(Shape):
    """What is set for a host, without what must not be seen."""

    host: str
    username: str = ""
    has_password: bool = False
    has_ca: bool = False
    has_proxy: bool = False
    updated_by: str = ""
    updated_at: datetime | None = None
