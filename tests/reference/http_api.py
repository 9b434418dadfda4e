"""docs/reference/http.md: every route with its role, parameters and body, from the OpenAPI document."""

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant

from nodesmith.api import auth
from nodesmith.api.app import create_app
from nodesmith.api.dependencies import Dependencies
from tests.reference.markdown import sentence, table

_ROLES = {
    auth.admin: "admin",
    auth.operator: "operator",
    auth.any_role: "viewer",
    auth.own_node: "the node itself",
    auth.viewer_or_node: "viewer, or a node",
    auth.viewer: "viewer",
    auth.anyone: "no credential",
}
"""dependency of a route -> who may call it; the first one that a route has counts"""
_ON_EVERY_CHANGE = ("reason", "Idempotency-Key")

_INTRODUCTION = """\
# HTTP API

Generated from the OpenAPI document of the API by `make reference`. A test fails when this page is out of date.

What holds for all routes (errors, `Idempotency-Key`, `reason`, the event stream, LocalAI's clients) is in
[HTTP conventions](http-conventions.md). `GET /openapi.json` of a running system has all shapes; `/docs` shows them.
An install by uri needs the role of `NODESMITH_URI_INSTALLS`, whatever the table says.
"""


def page() -> str:
    app = create_app(cast("Dependencies", SimpleNamespace(failures=None, credentials=None)))
    document = app.openapi()
    roles = _roles(app)
    groups: defaultdict[str, list[tuple[str, str, dict[str, Any]]]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            groups[operation.get("tags", ["pages"])[0]].append((verb.upper(), path, operation))
    lines = [line for tag in sorted(groups) for line in _group(tag, groups[tag], roles)]
    return "\n".join([_INTRODUCTION, *lines, *_shapes(document)])


def _group(
    tag: str, operations: list[tuple[str, str, dict[str, Any]]], roles: dict[tuple[str, str], str]
) -> Iterator[str]:
    yield f"## {tag[:1].upper()}{tag[1:]}"
    yield ""
    columns = ("route", "role", "what it does", "query", "body", "answers")
    yield from table(columns, (_row(verb, path, each, roles[verb, path]) for verb, path, each in operations))
    yield ""


def _row(verb: str, path: str, operation: dict[str, Any], role: str) -> tuple[str, ...]:
    reported = operation.get("description", "").split("\n\n")[0] or operation["summary"]
    parameters = [each["name"] for each in operation.get("parameters", ()) if each["in"] in ("query", "header")]
    query = ", ".join(f"`{name}`" for name in parameters if name not in _ON_EVERY_CHANGE)
    return (
        f"`{verb} {path}`",
        role,
        sentence(reported),
        query,
        _body(operation.get("requestBody", {})),
        " ".join(sorted(operation["responses"])),
    )


def _body(body: dict[str, Any]) -> str:
    return ", ".join(_name(kind, content.get("schema", {})) for kind, content in body.get("content", {}).items())


def _name(kind: str, schema: dict[str, Any]) -> str:
    reference = schema.get("$ref") or next((each["$ref"] for each in schema.get("anyOf", ()) if "$ref" in each), "")
    return f"[{_short(reference)}](#{_short(reference).lower()})" if reference else f"`{kind}`"


def _short(reference: str) -> str:
    return reference.rpartition("/")[2]


def _shapes(document: dict[str, Any]) -> Iterator[str]:
    """The bodies of requests; answers have more fields and are in the OpenAPI document."""
    wanted = {
        _short(content["schema"][key])
        for operations in document["paths"].values()
        for operation in operations.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for key in content.get("schema", {})
        if key == "$ref"
    } | {
        _short(each["$ref"])
        for operations in document["paths"].values()
        for operation in operations.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for each in content.get("schema", {}).get("anyOf", ())
        if "$ref" in each
    }
    yield "## Bodies of requests"
    yield ""
    for name in sorted(wanted):
        shape = document["components"]["schemas"][name]
        yield f"### {name}"
        yield ""
        required = shape.get("required", ())
        rows = (
            (f"`{field}`", _type(schema), "yes" if field in required else "", schema.get("description", ""))
            for field, schema in shape.get("properties", {}).items()
        )
        yield from table(("field", "type", "required", "meaning"), rows)
        yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _short(schema["$ref"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _roles(app: FastAPI) -> dict[tuple[str, str], str]:
    routes = [route for each in app.routes for route in getattr(getattr(each, "original_router", None), "routes", ())]
    return {
        (method, route.path_format): _role(route.dependant, changes=method not in ("GET", "HEAD"))
        for route in routes
        for method in getattr(route, "methods", ())
    }


def _role(dependant: Dependant, *, changes: bool) -> str:
    called = set(_calls(dependant))
    reads = {auth.viewer, auth.viewer_or_node} if changes else set()
    return next((role for call, role in _ROLES.items() if call in called - reads), "admin")


def _calls(dependant: Dependant) -> Iterator[Any]:
    for below in dependant.dependencies:
        yield below.call
        yield from _calls(below)
