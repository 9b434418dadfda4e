"""Idempotency keys, and the list of all POST routes."""

import secrets

from fastapi.routing import APIRoute

from nodesmith.api.app import ROUTERS

POSTS = [
    route
    for module in ROUTERS
    for route in module.router.routes
    if isinstance(route, APIRoute) and "POST" in (route.methods or ())
]


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_hex(8)}
