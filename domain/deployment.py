"""Deployments: what a node needs to load a model, and the rule for how many replicas run where."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import auto

from nodesmith.domain import selector as selectors
from nodesmith.domain.budget import parse as parse_size
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.wire_enum import WireEnum

GIB = 2**30

LONGEST_NAME = 180
"""a workflow id has the node's id and the model's name, in 255 characters"""
RESERVED_ENDINGS = frozenset({"explain", "replicas", "scale", "load-status", "acquire", "logs"})
"""a model of this last name would hide a route"""
MOST_REPLICAS = 10_000
MOST_FILES = 1000
MOST_ARGUMENTS = 500
LONGEST_ARGUMENT = 4096
LONGEST_ENVIRONMENT = 64 * 1024

READY_PATH = "/health"
READY_BASE = timedelta(minutes=5)
READY_PER_GIB = timedelta(seconds=20)
READY_CAP = timedelta(hours=6)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9][A-Za-z0-9._+-]*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"(\d{1,5})(?:(\.\.)(\d{0,5}))?")


class RoutePolicy(WireEnum):
    """How a router chooses among the loaded replicas."""

    INHERIT = ""
    """the default of the router"""
    ROUND_ROBIN = auto()
    PREFIX_CACHE = auto()
    """prompts with the same beginning go to the same replica while the load allows it"""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a model, identified by its digest: models that share a file share it on the disk."""

    uri: str
    sha256: str
    name: str
    """under which the backend finds it"""
    size: int = 0
    """bytes; 0: unknown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What a node needs to load one replica."""

    model: str
    revision: int
    backend: str
    files: tuple[ModelFile, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    memory: int = 0
    """bytes that a replica reserves; 0: unknown, no reservation"""
    ready_path: str = READY_PATH
    ready_seconds: int = 0
    """how long a replica may take to get ready; 0: by the size of its files"""

    @property
    def size(self) -> int:
        """Bytes of all files; 0 if one of them is unknown."""
        return sum(file.size for file in self.files) if all(file.size for file in self.files) else 0

    @property
    def ready_within(self) -> timedelta:
        """How long a replica may take from the start of its process until it is ready."""
        if self.ready_seconds:
            return timedelta(seconds=self.ready_seconds)
        known = sum(file.size for file in self.files)
        return min(READY_BASE + READY_PER_GIB * (known / GIB), READY_CAP)

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(file.sha256 for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How many replicas of a model run, where, and how calls are spread over them."""

    selector: str = ""
    min_replicas: int = 0
    max_replicas: int = 1
    """0: as many as fit"""
    spread_all: bool = False
    """one replica on each matching node; `min_replicas` and `max_replicas` are then 0"""
    policy: RoutePolicy = RoutePolicy.INHERIT
    balance_abs_threshold: int = 0
    balance_rel_threshold: float = 0.0
    min_prefix_match: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule(Rule):
    """The rule of a model, which may not be deployed yet."""

    model: str
    unsatisfiable_until: datetime | None = None
    unsatisfiable_ticks: int = 0
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Rule):
    """A model that the scheduler keeps loaded, by its rule."""

    name: str
    spec: LoadSpec
    unsatisfiable_until: datetime | None = None
    """placement is not tried before this time, unless something changes"""
    unsatisfiable_ticks: int = 0
    unsatisfiable_why: str = ""
    wanted_at: datetime | None = None
    """when a router last had a call for it and no free replica"""
    last_busy_at: datetime | None = None
    """when the scheduler last saw a call"""
    last_scaled_at: datetime | None = None
    created_at: datetime
    updated_at: datetime

    @property
    def revision(self) -> int:
        return self.spec.revision


def validate_spec(spec: LoadSpec) -> None:
    """Raise `InvalidRequest` for the first problem, naming the field."""
    validate_name(spec.model)
    if not spec.backend.strip():
        raise _refused("backend", "name the backend that serves the model")
    _validate_files(spec.files)
    _validate_arguments(spec.arguments)
    _validate_environment(spec.environment)
    if spec.memory < 0:
        raise _refused("memory", "is negative")
    if not spec.ready_path.startswith("/"):
        raise _refused("ready_path", "must begin with /")
    if not 0 <= spec.ready_seconds <= READY_CAP.total_seconds():
        raise _refused("ready_seconds", f"must be between 0 and {READY_CAP.total_seconds():.0f}")


def validate_rule(rule: Rule) -> None:
    """Raise `InvalidRequest` for the first problem, naming the field."""
    selectors.parse(rule.selector)
    if rule.min_replicas < 0 or rule.max_replicas < 0:
        raise _refused("replicas", "min_replicas and max_replicas must not be negative")
    if max(rule.min_replicas, rule.max_replicas) > MOST_REPLICAS:
        raise _refused("replicas", f"a model has {MOST_REPLICAS} replicas at most")
    if rule.max_replicas and rule.min_replicas > rule.max_replicas:
        raise _refused("replicas", f"min_replicas ({rule.min_replicas}) is above max_replicas ({rule.max_replicas})")
    if rule.spread_all and (rule.min_replicas or rule.max_replicas):
        raise _refused("spread_all", "excludes min_replicas and max_replicas: the number of matching nodes decides")
    _validate_routing(rule)


def validate_name(name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME:
        raise _refused("name", f"has {len(name)} characters; 1 to {LONGEST_NAME} are allowed")
    if not _NAME.fullmatch(name) or ".." in name or "//" in name or name.endswith("/"):
        raise _refused("name", "may only have letters, digits and . _ - / : @ +, and must begin with a letter or digit")
    if name.rsplit("/", 1)[-1] in RESERVED_ENDINGS:
        raise _refused("name", f"must not end in /{name.rsplit('/', 1)[-1]}, which is a route of the API")


def parse_memory(text: str) -> int:
    """Parse "12GiB", "12GB" or bytes; raise `InvalidRequest` for anything else."""
    try:
        size = parse_size(text)
    except InvalidRequest:
        size = None
    if size is None or size.share is not None:
        raise _refused("memory", f"{text[:40]!r} is not a size; write 12GiB, 12GB, or a number of bytes")
    return size.size or 0


def parse_replicas(text: str) -> tuple[int, int]:
    """Parse "2" (exactly), "1..4" or "1.." (without limit) into minimum and maximum."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or (found[2] is None and int(found[1]) == 0):
        raise _refused("replicas", f"{text[:40]!r} is not a number of replicas; write 2, 1..4, or 1.. for no limit")
    lowest = int(found[1])
    if found[2] is None:
        return lowest, lowest
    highest = int(found[3] or 0)
    if found[3] and highest < max(lowest, 1):
        raise _refused("replicas", f"the minimum {lowest} is above the maximum {highest}")
    return lowest, highest


def environment_of(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables in one order, so that equal environments are equal specifications."""
    return tuple(sorted(variables.items()))


def _validate_files(files: Iterable[ModelFile]) -> None:
    names: set[str] = set()
    for number, file in enumerate(files, 1):
        where = f"files: file {number}"
        if not file.uri:
            raise _refused("files", f"{where} has no uri")
        if not _DIGEST.fullmatch(file.sha256):
            raise _refused("files", f"{where} ({file.uri[:200]}) needs its SHA-256: 64 lower-case hexadecimal digits")
        if not _FILE_NAME.fullmatch(file.name) or ".." in file.name:
            raise _refused("files", f"{where} has the name {file.name[:80]!r}, which is not a relative file name")
        if file.name in names:
            raise _refused("files", f"two files have the name {file.name}")
        if file.size < 0:
            raise _refused("files", f"{where} has a negative size")
        names.add(file.name)
    if len(names) > MOST_FILES:
        raise _refused("files", f"a model has {MOST_FILES} files at most")


def _validate_arguments(arguments: tuple[str, ...]) -> None:
    if len(arguments) > MOST_ARGUMENTS:
        raise _refused("arguments", f"a backend gets {MOST_ARGUMENTS} arguments at most")
    for argument in arguments:
        if len(argument) > LONGEST_ARGUMENT or "\0" in argument:
            raise _refused("arguments", f"{argument[:40]!r} is longer than {LONGEST_ARGUMENT} characters or has a NUL")


def _validate_environment(environment: tuple[tuple[str, str], ...]) -> None:
    for name, value in environment:
        if not _VARIABLE.fullmatch(name):
            raise _refused("environment", f"{name[:40]!r} is not the name of a variable")
        if "\0" in value:
            raise _refused("environment", f"the value of {name} has a NUL")
    if sum(len(name) + len(value) for name, value in environment) > LONGEST_ENVIRONMENT:
        raise _refused("environment", f"has more than {LONGEST_ENVIRONMENT} characters")


def _validate_routing(rule: Rule) -> None:
    if rule.policy is RoutePolicy.UNKNOWN:
        raise _refused("route_policy", 'use "", round_robin or prefix_cache')
    if rule.balance_abs_threshold < 0:
        raise _refused("balance_abs_threshold", "must not be negative")
    if rule.balance_rel_threshold != 0 and rule.balance_rel_threshold < 1:
        raise _refused("balance_rel_threshold", "must be 0 or at least 1")
    if not 0 <= rule.min_prefix_match <= 1:
        raise _refused("min_prefix_match", "must be between 0 and 1")


def _refused(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {why}.", field=field)
