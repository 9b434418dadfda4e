"""The FastAPI application: routes, middleware and error handling around injected dependencies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from nodesmith.api import problems
from nodesmith.api.auditing import LONGEST_REASON, Audited
from nodesmith.api.auth import require_declared_access, viewer
from nodesmith.api.dependencies import ABOUT_KEYS, KEY_HEADER, LONGEST_KEY, Dependencies
from nodesmith.api.idempotency import IdempotentPosts, RepeatedRequest, repeat_answer
from nodesmith.api.login_throttle import LoginThrottle
from nodesmith.api.middleware import RequestBounds
from nodesmith.api.problems import declared
from nodesmith.api.routers import (
    artifacts,
    audit,
    backends,
    batches,
    events,
    fan_out,
    galleries,
    health,
    inventory,
    invites,
    jobs,
    keys,
    labels,
    localai_backends,
    models,
    node_backends,
    node_lifecycle,
    node_list,
    node_models,
    nodes,
    operation_groups,
    operations,
    pages,
    self_service,
    sign_in,
    sources,
    tokens,
)
from nodesmith.contracts.http.shared import Problem

DESCRIPTION = """Durable install, upgrade and removal of inference backends on a fleet of nodes.
A superset of LocalAI's node, backend and operation endpoints. Errors are `application/problem+json`."""

REASON = {
    "name": "reason",
    "in": "query",
    "description": "Reason for the change, kept in the audit trail. A body may have it as a field instead.",
    "schema": {"type": "string", "maxLength": LONGEST_REASON},
}
"""query parameter of every route that changes something"""

KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "description": ABOUT_KEYS,
    "schema": {"type": "string", "maxLength": LONGEST_KEY},
}
"""header of every POST"""

_ROUTERS = (
    health,
    self_service,
    node_list,
    node_models,
    models,
    nodes,
    node_lifecycle,
    labels,
    inventory,
    node_backends,
    operation_groups,
    operations,
    batches,
    events,
    jobs,
    fan_out,
    localai_backends,
    backends,
    galleries,
    artifacts,
    sources,
    tokens,
    invites,
    keys,
    audit,
    sign_in,
    pages,
)


def create_app(deps: Dependencies) -> FastAPI:
    """Build the whole API. It connects to nothing; the background tasks run for as long as the app is served."""
    app = FastAPI(
        title="Nodesmith",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=_lifespan(deps),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(require_declared_access)],
    )
    app.state.deps = deps
    problems.install(app)
    app.add_exception_handler(RepeatedRequest, repeat_answer)
    app.add_middleware(IdempotentPosts)
    app.add_middleware(Audited)
    app.add_middleware(LoginThrottle, failures=deps.failures, known=deps.credentials)
    app.add_middleware(RequestBounds)
    for module in _ROUTERS:
        app.include_router(module.router)
    _serve_openapi(app)
    return app


def _lifespan(deps: Dependencies) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        running = (deps.events, deps.heartbeats, deps.health, deps.gallery, deps.renewal)
        beside = [asyncio.create_task(part.run()) for part in running]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    return lifespan


def _serve_openapi(app: FastAPI) -> None:
    """Serve the schema. It is built on first request, in a thread: building it takes a third of the start-up time."""
    schema = cache(partial(_schema, app))
    app.openapi = schema  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False, dependencies=[Depends(viewer)])
    def openapi() -> dict[str, Any]:
        return schema()


def _add(operation: dict[str, Any], added: dict[str, Any]) -> None:
    parameters = operation.setdefault("parameters", [])
    if not any(parameter["name"] == added["name"] for parameter in parameters):
        parameters.append(added)


def _schema(app: FastAPI) -> dict[str, Any]:
    """FastAPI's schema, with our problem responses instead of its own validation errors."""
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for path, operations_of_path in schema["paths"].items():
        for verb, operation in operations_of_path.items():
            operation["responses"].pop("422", None)
            if verb != "get" and not path.startswith("/api/node/"):
                _add(operation, REASON)
            if verb == "post" and not path.startswith("/api/node/"):
                _add(operation, KEY)
                for status in (400, 409):  # refusals of the key itself
                    operation["responses"].setdefault(str(status), declared(status))
    shapes = schema["components"]["schemas"]
    shapes.pop("HTTPValidationError", None)
    shapes.pop("ValidationError", None)
    shapes["Problem"] = Problem.model_json_schema()
    return schema
