"""The client and the API agree: every route has a method, and every method has a route, with the same shapes."""

import inspect
import io
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Match

from nodesmith.api.app import V1
from nodesmith.client.calls import Call, Endpoint, Paged, Resource
from nodesmith.client.clients import _Resources
from nodesmith.client.exchange import BASE, request_of

WITHOUT_A_METHOD = {
    "GET /api/v1/events": "the stream behind watch()",
    "GET /api/v1/trust": "agents read it",
    "GET /api/v1/ca.pem": "agents read it before they trust the API",
    "POST /api/v1/sign-out": "ends the session of a browser",
}
COMMON = {"reason"}
"""query parameter of every change, which the audit trail reads"""


class Recorder:
    """A transport that records calls instead of sending them."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def send(self, call: Call[Any]) -> None:
        self.calls.append(call)

    iterate = send


def methods() -> Iterator[tuple[str, Endpoint[..., Any] | Paged[..., Any], str]]:
    """Yield name of the resource, method and name of the method."""
    for resource_name, resource in vars(_Resources(Recorder())).items():
        assert isinstance(resource, Resource)
        for name in dir(resource):
            if isinstance(found := inspect.getattr_static(resource, name), Endpoint | Paged):
                yield resource_name, found, name


def recorded(resource_name: str, method: str, *, everything: bool) -> Call[Any]:
    """Return the call that a method describes, with all its parameters or only those that it needs."""
    recorder = Recorder()
    function = getattr(getattr(_Resources(recorder), resource_name), method)
    hints = typing.get_type_hints(inspect.unwrap(function))
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    given = [each for each in parameters if everything or each.default is inspect.Parameter.empty]
    positional = [_value(hints[each.name]) for each in given if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {each.name: _value(hints[each.name]) for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY}
    function(*positional, **named)
    (call,) = recorder.calls
    return call


def _value(hint: Any) -> Any:
    """Return some value of that type."""
    kinds = [each for each in (typing.get_args(hint) or (hint,)) if each is not type(None)]
    kind, origin = kinds[0], typing.get_origin(hint)
    if origin in (Sequence, tuple, list):
        return ("healthy",)
    if origin in (Mapping, dict):
        return {"zone": "a"}
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return kind.model_construct()
    values: dict[Any, Any] = {int: 1, float: 1.0, bool: True, str: "text", datetime: datetime(2026, 1, 1, tzinfo=UTC)}
    return io.BytesIO(b"") if kind is BinaryIO else values.get(kind, "text")


@pytest.fixture(scope="module")
def routes() -> list[APIRoute]:
    found = [route for module in V1 for route in module.router.routes if isinstance(route, APIRoute)]
    return [route for route in found if route.path.startswith(f"{BASE}/")]


def route_of(call: Call[Any], routes: list[APIRoute]) -> APIRoute | None:
    """Return the route that answers, which is the first one that matches."""
    scope = {"type": "http", "method": call.method, "path": f"{BASE}{call.path}", "root_path": "", "headers": []}
    return next((each for each in routes if each.matches(scope)[0] is Match.FULL), None)


def name_of(route: APIRoute) -> str:
    verb = "".join(route.methods or ())
    return f"{verb} {route.path}"


EVERY_METHOD = [pytest.param(resource, name, id=f"{resource}.{name}") for resource, _, name in methods()]


@pytest.mark.parametrize(("resource", "name"), EVERY_METHOD)
def test_every_method_calls_a_route_with_its_shapes(resource: str, name: str, routes: list[APIRoute]) -> None:
    for everything in (False, True):
        call = recorded(resource, name, everything=everything)
        route = route_of(call, routes)
        assert route is not None, f"{call.method} {call.path}"
        assert call.shape == route.response_model
        assert set(request_of(call)["params"]) <= _taken(route), "the API does not take this query parameter"
        assert _sends_body(call) or not _needs_body(route)


def _taken(route: APIRoute) -> set[str]:
    changes = COMMON if route.methods != {"GET"} else set()
    return {each.alias for each in route.dependant.query_params} | changes


def _needs_body(route: APIRoute) -> bool:
    return any(each.field_info.is_required() for each in route.dependant.body_params)


def _sends_body(call: Call[Any]) -> bool:
    return call.body is not None or call.upload is not None


@pytest.mark.parametrize(("resource", "name"), EVERY_METHOD)
def test_every_body_has_only_fields_that_the_api_reads(resource: str, name: str, routes: list[APIRoute]) -> None:
    call = recorded(resource, name, everything=True)
    route = route_of(call, routes)
    assert route is not None
    if call.body is None:
        return
    (expected,) = route.dependant.body_params
    shape = _without_none(expected.field_info.annotation)
    if isinstance(call.body, BaseModel):
        assert isinstance(call.body, shape)
    elif inspect.isclass(shape) and issubclass(shape, BaseModel):
        assert call.body.keys() <= shape.model_fields.keys()
        shape.model_validate(_readable(call.body))
    else:
        assert typing.get_origin(shape) is dict


def _without_none(annotation: Any) -> Any:
    kinds = [each for each in typing.get_args(annotation) if each is not type(None)]
    is_optional = type(None) in typing.get_args(annotation)
    return kinds[0] if is_optional else annotation


def _readable(body: Mapping[str, Any]) -> dict[str, Any]:
    """A value that every shape reads: a memory budget is not just any text."""
    return {key: "80%" if (key, value) == ("value", "text") else value for key, value in body.items()}


def test_every_route_has_a_method(routes: list[APIRoute]) -> None:
    called = {
        name_of(route)
        for resource, _, name in methods()
        for everything in (False, True)
        if (route := route_of(recorded(resource, name, everything=everything), routes))
    }
    assert {name_of(route) for route in routes} - called == set(WITHOUT_A_METHOD)
    assert len(called) > 60


def test_every_list_with_pages_can_be_iterated(routes: list[APIRoute]) -> None:
    """A page that has a cursor needs `each` beside `list`; one that takes no cursor is whole."""
    paged = {resource for resource, method, _ in methods() if isinstance(method, Paged)}
    has_cursor = {
        resource
        for resource, _, name in methods()
        if name == "list" and (route := route_of(recorded(resource, name, everything=False), routes))
        if "cursor" in {each.alias for each in route.dependant.query_params}
    }
    assert paged == has_cursor == {"nodes", "operations", "batches", "backends", "audit"}


def test_every_method_says_what_it_does_or_is_named_after_it() -> None:
    plain = {"get", "delete", "resume", "release", "refresh_all", "reset_max_replicas", "reset_vram_budget"}
    assert [
        f"{resource}.{name}" for resource, method, name in methods() if not method.__doc__ and name not in plain
    ] == []
