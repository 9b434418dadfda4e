"""The application: routes and error handling around ready-made parts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from api import problems
from api.auditing import LONGEST_REASON, Audited
from api.auth import undeclared_is_for_admins, viewer
from api.failures import SlowGuessing
from api.middleware import Edge
from api.parts import Parts
from api.routers import (
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
    labels,
    localai_backends,
    models,
    node_backends,
    node_life,
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
from contracts.http import Problem

DESCRIPTION = """Durable install, upgrade and removal of inference backends on a fleet of nodes.
A superset of LocalAI's node, backend and operation endpoints. Errors are `application/problem+json`."""

REASON = {
    "name": "reason",
    "in": "query",
    "description": "Why: kept in the audit trail. A body may have it as a field instead.",
    "schema": {"type": "string", "maxLength": LONGEST_REASON},
}
"""of every change"""

_ROUTERS = (
    health,
    self_service,
    node_list,
    node_models,
    models,
    nodes,
    node_life,
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
    audit,
    sign_in,
    pages,
)


def create_app(parts: Parts) -> FastAPI:
    """The whole API; nothing is connected here, and what runs beside the requests runs as long as it is served."""
    app = FastAPI(
        title="Nodesmith",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=_lifespan(parts),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(undeclared_is_for_admins)],
    )
    app.state.parts = parts
    problems.install(app)
    app.add_middleware(Audited)
    app.add_middleware(SlowGuessing, failures=parts.failures)
    app.add_middleware(Edge)
    for module in _ROUTERS:
        app.include_router(module.router)
    _serve_openapi(app)
    return app


def _lifespan(parts: Parts) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        running = (parts.events, parts.heartbeats, parts.health, parts.gallery)
        beside = [asyncio.create_task(part.run()) for part in running]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    return lifespan


def _serve_openapi(app: FastAPI) -> None:
    """Made when it is first asked for, beside the loop: it takes as long as a third of a start."""
    schema = cache(partial(_schema, app))
    app.openapi = schema  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False, dependencies=[Depends(viewer)])
    def openapi() -> dict[str, Any]:
        return schema()


def _add_reason(operation: dict[str, Any]) -> None:
    parameters = operation.setdefault("parameters", [])
    if not any(parameter["name"] == "reason" for parameter in parameters):
        parameters.append(REASON)


def _schema(app: FastAPI) -> dict[str, Any]:
    """What FastAPI collects, with our problems instead of its own validation errors."""
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for path, operations_of_path in schema["paths"].items():
        for verb, operation in operations_of_path.items():
            operation["responses"].pop("422", None)
            if verb != "get" and not path.startswith("/api/node/"):
                _add_reason(operation)
    shapes = schema["components"]["schemas"]
    shapes.pop("HTTPValidationError", None)
    shapes.pop("ValidationError", None)
    shapes["Problem"] = Problem.model_json_schema()
    return schema
