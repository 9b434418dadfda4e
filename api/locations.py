"""The header `Location`: the address of what a request created or ordered."""

from typing import Any

from fastapi import Response

_HEADER = {"Location": {"description": "Address of what it created or ordered.", "schema": {"type": "string"}}}


def declared_location(status: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route: the answer with this status has the header."""
    return {status: {"headers": _HEADER}}


def locate(response: Response, address: str) -> None:
    response.headers["Location"] = address
