"""Errors as `application/problem+json`; the member `error` has the shape that LocalAI's clients of a path expect."""

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from nodesmith.api.pages import NOT_SIGNED_IN, sign_in_page
from nodesmith.contracts.http.shared import Problem
from nodesmith.contracts.words import ERRORS, Words
from nodesmith.domain import errors, model_errors
from nodesmith.domain.errors import InvalidRequest, NodesmithError

log = structlog.stdlib.get_logger(__name__)

STATUS: dict[type[NodesmithError], int] = {
    errors.NodesmithError: 500,
    errors.InvalidRequest: 400,
    errors.NotSignedIn: 401,
    errors.NotAllowed: 403,
    errors.SourceNotAllowed: 403,
    errors.TooManyFailures: 429,
    errors.TooManyPending: 429,
    errors.InviteSpent: 403,
    errors.UnknownInvite: 404,
    errors.UnknownToken: 404,
    errors.UnknownSession: 404,
    errors.TokenNameTaken: 409,
    errors.UnknownNode: 404,
    errors.UnknownOperation: 404,
    errors.UnknownBatch: 404,
    model_errors.UnknownModel: 404,
    model_errors.RevisionConflict: 409,
    model_errors.NoNodeFits: 409,
    model_errors.NoReplica: 503,
    errors.ConcreteBackend: 409,
    errors.UnknownBackend: 404,
    errors.NoBuildForNode: 409,
    errors.UnknownGallery: 404,
    errors.GalleryExists: 409,
    errors.GalleryUnreadable: 400,
    errors.NotSigned: 409,
    errors.IndexExpired: 409,
    errors.UploadExists: 409,
    errors.UploadRefused: 400,
    errors.UploadTooLarge: 413,
    errors.UnknownArtifact: 404,
    errors.RegistryDenied: 409,
    errors.RegistryDown: 503,
    errors.UnknownSource: 404,
    errors.NodeNotApproved: 409,
    errors.NodeNotForBackends: 409,
    errors.NodeCannot: 409,
    errors.NodeDrained: 409,
    errors.NameTaken: 409,
    errors.IdentityInUse: 409,
    errors.NodeRemoved: 410,
    errors.OperationConflict: 409,
    errors.IdempotencyKeyReused: 409,
    errors.ShownOnce: 409,
    errors.NotInstalled: 409,
    errors.OperationEnded: 409,
    errors.NotRetryable: 409,
    errors.NotDismissable: 409,
    errors.NotCancellable: 409,
    errors.OrderNotSigned: 409,
    errors.ForeignRoot: 503,
    errors.IllegalTransition: 409,
    errors.AlreadyRunning: 409,
    errors.ServiceUnavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.NodeAway: 503,
    errors.NoAnswer: 504,
    errors.BadSignature: 504,
    errors.LinkDown: 503,
}
"""Maps each domain error to an HTTP status; an error without a row fails a test."""

RETRY_AFTER_S = 2
_LOCALAI_MEMBERS = {"meta_alternative"}
"""facts that LocalAI's clients expect beside `error`"""
MEDIA_TYPE = "application/problem+json"
_INTERNAL = 500


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route: `statuses`, and 401, 403, 413, 429, 500 and 503, which every route has."""
    return {status: declared(status) for status in sorted({*statuses, 401, 403, 413, 429, 500, 503})}


def declared(status: int) -> dict[str, Any]:
    """One error response in the OpenAPI schema."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}


def install(app: Starlette) -> None:
    """Register the handlers: every failure becomes a problem."""
    app.add_exception_handler(NodesmithError, _on_domain_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_defect)


async def _on_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, NodesmithError)  # noqa: S101 - registered for this class
    status = STATUS[type(error)]
    request.state.error = error  # for the audit trail
    if status >= _INTERNAL:
        log.warning("request.failed", path=request.url.path, status=status, error=error.message)
    if status == HTTPStatus.UNAUTHORIZED and wants_page(request):
        is_plain = error.message == ERRORS[error.code].sentence  # that sentence is about tokens, for programs
        return HTMLResponse(sign_in_page(NOT_SIGNED_IN if is_plain else escape(error.message)), status_code=status)
    return respond(request, status, error.code, error.message, facts=error.facts)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class
    field, complaint = _first_complaint(error)
    sentence = f"{field}: {complaint}" if field else complaint
    return respond(request, 400, InvalidRequest.code, sentence, facts={"field": field} if field else {})


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    if error.status_code == HTTPStatus.NOT_MODIFIED:
        return Response(status_code=error.status_code, headers=error.headers)
    code = HTTPStatus(error.status_code).name.lower()
    return respond(request, error.status_code, code, _routing_sentence(request, error), headers=error.headers)


async def _on_defect(request: Request, error: Exception) -> Response:
    """An unexpected exception: the log has the traceback, the caller gets a sentence."""
    log.error("request.crashed", path=request.url.path, exc_info=error)
    return respond(request, _INTERNAL, NodesmithError.code, ERRORS[NodesmithError.code].sentence)


def respond(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    facts: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        remedy=ERRORS.get(code, Words("")).remedy,
        facts={name: _json_value(value) for name, value in (facts or {}).items()},
    )
    body = problem.model_dump()
    if is_localai(request.url.path):
        body["error"] = old_shape(request.url.path, status, detail)
        body |= {name: value for name, value in problem.facts.items() if name in _LOCALAI_MEMBERS}
    return JSONResponse(body, status, {**_extra_headers(status), **(headers or {})}, media_type=MEDIA_TYPE)


def _json_value(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(each) for each in value]
    return str(value)


def is_localai(path: str) -> bool:
    """Return whether LocalAI's clients ask at that path."""
    return path.startswith(("/api/", "/backends")) and not f"{path}/".startswith("/api/v1/")


def old_shape(path: str, status: int, message: str) -> Any:
    """The member `error` in the shape that LocalAI's clients of that path expect."""
    if path.startswith("/api/node/") and status == HTTPStatus.UNAUTHORIZED:
        return message
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        kind = "invalid_request_error" if status == HTTPStatus.UNAUTHORIZED else "authorization_error"
        return {"code": status, "message": message, "type": kind}
    if path.startswith(("/api/node/", "/api/nodes")):
        return {"code": status, "message": message, "type": "node_error"}
    if (path == "/backends" or path.startswith("/backends/")) and status != HTTPStatus.CONFLICT:
        return {"code": status, "message": message, "type": ""}
    return message


def wants_page(request: Request) -> bool:
    """Return whether a browser asks for a page, as opposed to a program that reads JSON."""
    return "text/html" in request.headers.get("accept", "")


def _extra_headers(status: int) -> dict[str, str]:
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


def _routing_sentence(request: Request, error: HTTPException) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return f"There is nothing at {request.url.path}."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.url.path} does not take {request.method}."
    return str(error.detail)


_NO_OBJECT = {
    "missing": "A JSON object is needed as the body.",
    "model_attributes_type": "The body is not a JSON object.",
}


def _first_complaint(error: RequestValidationError) -> tuple[str, str]:
    """Return the field that is wrong, as the caller wrote it, and what is wrong with it."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "", "The body is not valid JSON."
    if first["loc"] == ("body",) and first["type"] in _NO_OBJECT:
        return "", _NO_OBJECT[first["type"]]
    complaint = first["msg"].removeprefix("Value error, ").rstrip(".")
    return ".".join(str(part) for part in first["loc"][1:]), f"{complaint}."
