"""Comma-separated lists in settings: `ghcr.io,*.example.com`, `10.0.0.0/8,192.168.0.0/16`."""

from ipaddress import ip_network
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from nodesmith.domain.source_policy import Network


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _networks(value: object) -> object:
    names = _names(value)
    return tuple(ip_network(each) if isinstance(each, str) else each for each in names) if names else ()  # type: ignore[attr-defined]


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
Networks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_networks)]
