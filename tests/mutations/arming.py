"""Put a deliberate break into a module: a function, a constant or a default is found by name and replaced.

In the copy of the sources that is broken, the module of the target ends with a call of `arm`. So every process that
imports it is broken: tests, workers, agents, and workflows in their sandbox.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NOTES = Path(__file__).parent.parent.parent / ".break-notes"
"""what the broken processes say of the break: reached, or defective"""
_DEFECTS = (NameError, AttributeError, TypeError, KeyError, ImportError)


_REST: dict[Any, Any] = {
    inspect.Parameter.POSITIONAL_ONLY: inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY: inspect.Parameter.VAR_KEYWORD,
}
"""what takes a parameter that a break does not name"""


class Unresolvable(Exception):
    """The target of a break is not there."""


@dataclass(frozen=True)
class Break:
    """One deliberate fault with which some tests fail."""

    rules: tuple[str, ...]
    """numbers of rules, or a word for promises without a number"""
    what: str
    """what is broken, in a few words; no two breaks say the same"""
    target: str
    """`package.module:name`, or `package.module:Class.name`: a function, a constant, a field with a default"""
    by: Callable[..., Any]
    """a function is replaced by `by(original, *its arguments)`, anything else by `by(its value)`"""
    tests: tuple[str, ...]
    """which tests have to fail, each of them: the names of their functions"""
    limit_s: int = 40
    """a test that hangs has failed too"""
    waits: bool = False
    """the broken test waits for what never comes, or takes 10 s for another reason: too slow for the sample"""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        return self.target.partition(":")[2]


@dataclass(frozen=True)
class Place:
    """Where a target is: its owner, a module's namespace or a class, and what is there now."""

    owner: Any
    name: str
    value: Any

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function behind a method, property or function; None for a constant."""
        bare = self.value.fget if isinstance(self.value, property) else self.value
        bare = bare.__func__ if isinstance(bare, staticmethod | classmethod) else bare
        return bare if inspect.isroutine(bare) else None


def rules(numbers: str) -> tuple[str, ...]:
    return tuple(numbers.split())


def names_of(original: Callable[..., Any]) -> SimpleNamespace:
    """The names that the module of a function has: in a workflow, its very classes."""
    return SimpleNamespace(**inspect.unwrap(original).__globals__)


def find(broken: Break, namespace: Mapping[str, Any]) -> Place:
    """The place of a break in the namespace of its module; raise `Unresolvable` when it is not there."""
    owner: Any = namespace
    *classes, last = broken.name.split(".")
    for step in classes:
        owner = _member(broken, owner, step)
    return Place(owner, last, _member(broken, owner, last))


def _member(broken: Break, owner: Any, name: str) -> Any:
    members = owner if isinstance(owner, Mapping) else vars(owner)
    if name in members:
        return members[name]
    fields = getattr(owner, "model_fields", {})
    if name in fields:
        return fields[name].default
    raise Unresolvable(
        f"The break {broken.what!r} has no target: there is no {broken.target} (no {name!r}). "
        "Point it to where that code is now, and see its test fail again."
    )


def check(broken: Break) -> None:
    """Raise `Unresolvable` when a break no longer fits the code as it is."""
    try:
        module = importlib.import_module(broken.module)
    except ImportError as error:
        raise Unresolvable(f"The break {broken.what!r} has no target: {error}.") from error
    place = find(broken, vars(module))
    if place.function is None:
        if broken.by(place.value) == place.value:
            raise Unresolvable(f"The break {broken.what!r} changes nothing: {broken.target} is {place.value!r}.")
        return
    known = inspect.signature(place.function).parameters
    named, takes_any = _parameters(broken.by)
    for name in named:
        if name not in known:
            raise Unresolvable(f"The break {broken.what!r} does not fit: {broken.target} has no parameter {name!r}.")
    for each in known.values():
        if each.name not in named and _REST.get(each.kind, each.kind) not in takes_any:
            raise Unresolvable(f"The break {broken.what!r} does not take the parameter {each.name!r}.")


def _parameters(by: Callable[..., Any]) -> tuple[list[str], set[Any]]:
    """The parameters that a break names, and whether it takes the rest as *args and **kwargs."""
    _, *rest = inspect.signature(by).parameters.values()
    named = [each.name for each in rest if each.kind not in _REST.values()]
    return named, {each.kind for each in rest} & set(_REST.values())


def arm(namespace: dict[str, Any], broken: Break) -> None:
    """Called at the end of the module that is broken."""
    place = find(broken, namespace)
    if place.function is None:
        _assign(place, broken.by(place.value))
        _note("reached", broken.what)
        return
    wrapped: Any = _wrapped(broken, place.function)
    kind = type(place.value)
    _assign(place, kind(wrapped) if kind in (property, staticmethod, classmethod) else wrapped)


def _assign(place: Place, value: Any) -> None:
    fields = getattr(place.owner, "model_fields", {})
    if isinstance(place.owner, dict):
        place.owner[place.name] = value
    elif place.name in fields:
        fields[place.name].default = value
        place.owner.model_rebuild(force=True)
    else:
        setattr(place.owner, place.name, value)


def _wrapped(broken: Break, original: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def broken_later(*args: Any, **kwargs: Any) -> Any:
            with _watched(broken):
                done = broken.by(original, *args, **kwargs)
                return await done if inspect.isawaitable(done) else done

        return broken_later

    @functools.wraps(original)
    def broken_now(*args: Any, **kwargs: Any) -> Any:
        with _watched(broken):
            return broken.by(original, *args, **kwargs)

    return broken_now


@contextmanager
def _watched(broken: Break) -> Iterator[None]:
    """A test that fails because the break itself is wrong proves nothing, so that is noted."""
    _note("reached", broken.what)
    try:
        yield
    except _DEFECTS as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        own_files = (broken.by.__code__.co_filename, _wrapped.__code__.co_filename)
        if trace is not None and trace.tb_frame.f_code.co_filename in own_files:
            _note("defective", f"{type(error).__name__} in line {trace.tb_lineno}: {error}")
        raise


def _note(kind: str, text: str) -> None:
    with _unrestricted():
        NOTES.mkdir(exist_ok=True)
        path = NOTES / kind
        if kind != "reached" or not path.exists():
            path.write_text(text)


def _unrestricted() -> AbstractContextManager[None]:
    """The sandbox of a workflow writes no files."""
    temporal = sys.modules.get("temporalio.workflow")
    if temporal is not None and temporal.unsafe.in_sandbox():
        lifted: AbstractContextManager[None] = temporal.unsafe.sandbox_unrestricted()
        return lifted
    return nullcontext()
