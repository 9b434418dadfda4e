"""Calls: each request of the API is described once, as data, and sent by the synchronous or the asynchronous client.

class Nodes(Resource[Mode]):
    @endpoint
    def get(self, node: str) -> Call[NodeView]:
        return Call("GET", f"/nodes/{segment(node)}", NodeView)

client.nodes.get("a")           # Client: a NodeView
await client.nodes.get("a")     # AsyncClient: the same, awaited
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote

from pydantic import BaseModel

from nodesmith.contracts.http.shared import Page

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)
Parameters = ParamSpec("Parameters")


@dataclass(frozen=True)
class Call(Generic[Answer_co]):
    """One request, and the shape of its answer."""

    method: str
    path: str
    """below /api/v1"""
    shape: Any
    """the type of the answer, which pydantic reads"""
    body: BaseModel | Mapping[str, Any] | None = None
    query: Mapping[str, object] | None = None
    """a list repeats the name; None and "" leave it out"""
    upload: BinaryIO | None = None
    key: str = ""
    """Idempotency-Key of a POST; by default each call has one of its own"""

    def after(self, cursor: str) -> "Call[Answer_co]":
        """The same call, for the page after that cursor."""
        return replace(self, query={**(self.query or {}), "cursor": cursor})


class Sync:
    """Marks the resources of the synchronous client."""


class Async:
    """Marks the resources of the asynchronous client."""


Mode = TypeVar("Mode", Sync, Async)


class Transport(Protocol):
    def send(self, call: Call[Any]) -> Any: ...
    def iterate(self, call: Call[Any]) -> Any: ...


class Resource(Generic[Mode]):
    """A group of calls. `Mode` says whether they return answers, or awaitables of answers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _send(self, call: Call[Any]) -> Any:
        return self._transport.send(call)

    def _iterate(self, call: Call[Any]) -> Any:
        return self._transport.iterate(call)


class Endpoint(Generic[Parameters, Answer]):
    """A method that describes a call; on a resource it sends the call."""

    def __init__(self, describe: Callable[Concatenate[Any, Parameters], Call[Answer]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, resource: Resource[Sync], owner: Any = None) -> Callable[Parameters, Answer]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: Any = None) -> Callable[Parameters, Awaitable[Answer]]: ...
    def __get__(self, resource: Any, owner: Any = None) -> Any:
        if resource is None:
            return self._describe

        @functools.wraps(self._describe)
        def send(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            return resource._send(self._describe(resource, *args, **kwargs))  # noqa: SLF001 - the resource's own method

        return send


class Paged(Generic[Parameters, Answer]):
    """A method that describes the first page of a list; on a resource it iterates over the items of all pages."""

    def __init__(self, describe: Callable[Concatenate[Any, Parameters], Call[Any]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, resource: Resource[Sync], owner: Any = None) -> Callable[Parameters, Iterator[Answer]]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: Any = None) -> Callable[Parameters, AsyncIterator[Answer]]: ...
    def __get__(self, resource: Any, owner: Any = None) -> Any:
        if resource is None:
            return self._describe

        @functools.wraps(self._describe)
        def iterate(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            return resource._iterate(self._describe(resource, *args, **kwargs))  # noqa: SLF001 - the resource's own

        return iterate


def paged(describe: Callable[Concatenate[Any, Parameters], Call[Page[Answer]]]) -> Paged[Parameters, Answer]:
    """Turn a method that describes the first page of a list into one that iterates over all its items."""
    return Paged(describe)


def endpoint(describe: Callable[Concatenate[Any, Parameters], Call[Answer]]) -> Endpoint[Parameters, Answer]:
    """Turn a method that describes a call into one that sends it."""
    return Endpoint(describe)


def because(reason: str) -> dict[str, str]:
    """The body of a request that takes a reason and nothing else. The API checks it, in the same words for all."""
    return {"reason": reason} if reason else {}


def segment(name: str) -> str:
    """Quote one path segment: a name may contain a slash or a space."""
    return quote(name, safe="")
