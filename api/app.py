"""The FastAPI application: routes, middleware and error handling around injected dependencies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from nodesmith.api import problems
from nodesmith.api.auditing import LONGEST_REASON, Audited
from nodesmith.api.auth import require_declared_access, viewer
from nodesmith.api.dependencies import ABOUT_KEYS, KEY_HEADER, LONGEST_KEY, Dependencies
from nodesmith.api.idempotency import IdempotentPosts, RepeatedRequest, repeat_answer
from nodesmith.api.localai import (
    catalogue,
    fan_out,
    installed,
    jobs,
    node_models,
    node_settings,
    scheduling,
    self_service,
)
from nodesmith.api.localai import nodes as localai_nodes
from nodesmith.api.localai import operations as localai_operations
from nodesmith.api.login_throttle import LoginThrottle
from nodesmith.api.middleware import RequestBounds
from nodesmith.api.problems import declared
from nodesmith.api.v1 import (
    audit,
    backends,
    batches,
    deployments,
    events,
    galleries,
    hold,
    inventory,
    invites,
    keys,
    models,
    node_access,
    node_backends,
    node_labels,
    nodes,
    operation_groups,
    operations,
    sign_in,
    sources,
    tokens,
)
from nodesmith.api.web import artifacts, health, pages
from nodesmith.contracts.http.nodes import LeaveBody
from nodesmith.contracts.http.operations import OperationEvent, ProgressTick, StreamReset
from nodesmith.contracts.http.replicas import ModelNotice
from nodesmith.contracts.http.shared import LocalaiProblem, Problem
from nodesmith.contracts.nats.presence import Resources

DESCRIPTION = """Durable install, upgrade and removal of inference backends on a fleet of nodes.
`/api/v1` is our own API: lists are pages with `items` and `next_cursor`, errors are `application/problem+json`.
The other paths are LocalAI's node, backend and operation endpoints, for its clients and workers."""

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

_REFERENCE = "#/components/schemas/{model}"
_ADDED_SHAPES = (Problem, LocalaiProblem, OperationEvent, ProgressTick, StreamReset, ModelNotice, Resources, LeaveBody)
"""shapes of errors, of the event stream, and of bodies that are read leniently: no route names them as its types"""

V1 = (
    nodes,
    node_labels,
    node_backends,
    inventory,
    models,
    deployments,
    operation_groups,
    operations,
    batches,
    hold,
    events,
    backends,
    galleries,
    sources,
    tokens,
    invites,
    keys,
    sign_in,
    audit,
)
"""our own API"""

LOCALAI = (
    scheduling,
    self_service,
    node_access,
    node_models,
    localai_nodes,
    node_settings,
    localai_operations,
    jobs,
    fan_out,
    installed,
    catalogue,
)
"""LocalAI's paths, and what our own agents ask on them"""

ROUTERS = (*V1, *LOCALAI, health, artifacts, pages)


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
        generate_unique_id_function=_operation_id,
    )
    app.state.deps = deps
    problems.install(app)
    app.add_exception_handler(RepeatedRequest, repeat_answer)
    app.add_middleware(IdempotentPosts)
    app.add_middleware(Audited)
    app.add_middleware(LoginThrottle, failures=deps.failures, known=deps.credentials)
    app.add_middleware(RequestBounds)
    for module in ROUTERS:
        app.include_router(module.router)
    _serve_openapi(app)
    return app


def _operation_id(route: APIRoute) -> str:
    """The name of the route's function, so that generated clients have good names."""
    return f"localai_{route.name}" if problems.is_localai(route.path) else route.name


def _lifespan(deps: Dependencies) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        running = (deps.events, deps.heartbeats, deps.health, deps.gallery, deps.renewal, deps.starter)
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


def _declare_localai_problems(operation: dict[str, Any]) -> None:
    for response in operation["responses"].values():
        if problems.MEDIA_TYPE in response.get("content", {}):
            reference = _REFERENCE.format(model=LocalaiProblem.__name__)
            response["content"] = {problems.MEDIA_TYPE: {"schema": {"$ref": reference}}}


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
            if problems.is_localai(path):
                _declare_localai_problems(operation)
    shapes = schema["components"]["schemas"]
    shapes.pop("HTTPValidationError", None)
    shapes.pop("ValidationError", None)
    for shape in _ADDED_SHAPES:
        described = shape.model_json_schema(mode="serialization", ref_template=_REFERENCE)
        shapes |= described.pop("$defs", {})
        shapes[shape.__name__] = described
    return schema
