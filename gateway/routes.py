"""The replicas of each model, how busy they are, and the requests that wait for one. All in memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from nodesmith.domain.routing import DEFAULT_BOUNDS, ModelRoute, ReplicaRoute, RouteSnapshot, pick
from nodesmith.gateway.answers import Refusal, unavailable

SKIP_S = 10.0
"""how long a replica is avoided after a failed connection"""


@dataclass(frozen=True)
class RouteLimits:
    replica_calls: int = 256
    """requests of this gateway at one replica; more wait"""
    queue: int = 256
    """requests that wait for one model; more are refused"""
    wait_s: float = 60.0
    """how long a request waits for a replica"""


class Replica:
    """A replica as this gateway sees it; a candidate of `domain.routing.pick`."""

    __slots__ = ("available", "failed_until", "id", "last_used", "others", "own", "route")

    def __init__(self, route: ReplicaRoute) -> None:
        self.id = route.id
        self.own = 0
        """requests of this gateway"""
        self.others = 0
        """requests of the other gateways and routers, as of the last synchronisation"""
        self.last_used = 0.0
        self.available = 0
        self.failed_until = 0.0
        self.route = route
        self.update(route, synchronised=0)

    @property
    def in_flight(self) -> int:
        return self.own + self.others

    def update(self, route: ReplicaRoute, *, synchronised: int) -> None:
        """Take over what the store says; `synchronised` of its count are this gateway's own."""
        if route.address != self.route.address:
            self.failed_until = 0.0
        self.route = route
        self.available = route.available
        self.last_used = max(self.last_used, route.last_used)
        self.others = max(0, route.in_flight - synchronised)


class Model:
    """A model, its replicas and its queue."""

    def __init__(self, route: ModelRoute) -> None:
        self.route = route
        self.replicas: dict[str, Replica] = {}
        self.waiting: deque[asyncio.Future[None]] = deque()

    def wake(self, count: int) -> None:
        """Let the first waiting requests look for a replica again."""
        for waiter in list(self.waiting)[:count]:
            if not waiter.done():
                waiter.set_result(None)


class RouteTable:
    """Chooses replicas. `wanted` is called with a model that has no free one."""

    def __init__(
        self,
        limits: RouteLimits | None = None,
        *,
        wanted: Callable[[str], None] = lambda _model: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or RouteLimits()
        self.models: dict[str, Model] = {}
        self.is_loaded = False
        self.synchronised: dict[str, int] = {}
        """this gateway's counts, as the store has them"""
        self.held: dict[str, Replica] = {}
        """replicas with requests of this gateway in flight, also those that get no new ones"""
        self.changed: set[str] = set()
        """replicas whose count differs from what was synchronised"""
        self._wanted = wanted
        self._clock = clock

    # what the store says

    def load(self, snapshot: RouteSnapshot) -> None:
        """Replace the routes; requests in flight at a removed replica go on."""
        routes = {route.name: route for route in snapshot.models}
        known = self._replicas()
        self.models = {name: self._model(route) for name, route in routes.items()}
        for route in snapshot.replicas:
            if route.model in self.models:
                replica = known.get(route.id) or Replica(route)
                replica.update(route, synchronised=self.synchronised.get(route.id, 0))
                self.models[route.model].replicas[route.id] = replica
        self.is_loaded = True
        self.tick()

    def tick(self) -> None:
        """Wake waiting requests: a replica may have come, or the time to avoid one may be over."""
        for model in self.models.values():
            model.wake(len(model.waiting))

    def _model(self, route: ModelRoute) -> Model:
        model = self.models.get(route.name) or Model(route)
        model.route = route
        model.replicas = {}
        return model

    def _replicas(self) -> dict[str, Replica]:
        routed = {replica.id: replica for model in self.models.values() for replica in model.replicas.values()}
        return {**self.held, **routed}

    # what this gateway counts

    def apply_totals(self, written: Mapping[str, int], totals: Mapping[str, int]) -> None:
        """Note that the store has our counts `written`, and what all holders together have."""
        self.synchronised |= written
        self.synchronised = {name: count for name, count in self.synchronised.items() if count}
        for replica in self._replicas().values():
            if replica.id in totals:
                replica.others = max(0, totals[replica.id] - written.get(replica.id, 0))

    def counts(self, ids: Iterable[str]) -> dict[str, int]:
        """Requests in flight; a replica that is drained counts until its last one has ended."""
        return {name: self.held[name].own if name in self.held else 0 for name in ids}

    def release(self, model: str, replica: Replica) -> None:
        replica.own -= 1
        if not replica.own:
            self.held.pop(replica.id, None)
        replica.last_used = time.time()
        self.changed.add(replica.id)
        if (known := self.models.get(model)) is not None and known.waiting:
            known.wake(1)

    def fail(self, replica: Replica) -> None:
        """Avoid a replica for a while: its connection failed. Later failures do not prolong the time."""
        if replica.failed_until <= self._clock():
            replica.failed_until = self._clock() + SKIP_S

    def succeed(self, model: str, replica: Replica) -> None:
        """Use a replica again that answers after a failure."""
        replica.failed_until = 0.0
        if (known := self.models.get(model)) is not None:
            known.wake(len(known.waiting))

    # what a request asks for

    def deadline(self) -> float:
        """Until when a request that begins now waits for replicas."""
        return self._clock() + self.limits.wait_s

    async def acquire(self, name: str, *, prefix: bytes | None, tried: Collection[str], deadline: float) -> Replica:
        """Return a replica, counted as in flight; wait for one if need be. Ends with `release`."""
        model = self._find(name)
        if not model.waiting and (found := self._free(model, prefix, tried)) is not None:
            return self._count(found)
        if len(model.waiting) >= self.limits.queue:
            text = f"{len(model.waiting)} requests wait for {name} already."
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "queue_full", text, retry_after_s=5)
        return await self._wait(name, prefix, deadline)

    async def _wait(self, name: str, prefix: bytes | None, deadline: float) -> Replica:
        """Wait in line for a replica without a recent failure."""
        while (left := deadline - self._clock()) > 0:
            model = self._find(name)
            self._wanted(name)
            if await self._wait_turn(model, left) and (found := self._sound(self._find(name), prefix)) is not None:
                return self._count(found)
        raise self._no_replica(name)

    async def _wait_turn(self, model: Model, seconds: float) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        model.waiting.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            model.waiting.remove(waiter)
        return True

    def _free(self, model: Model, prefix: bytes | None, tried: Collection[str]) -> Replica | None:
        """A replica for a new request: one without a recent failure, else any that this request has not tried."""
        if (found := self._sound(model, prefix, tried)) is not None:
            return found
        return pick([each for each in self._below_limit(model) if each.id not in tried])

    def _sound(self, model: Model, prefix: bytes | None, tried: Collection[str] = ()) -> Replica | None:
        now, bounds = self._clock(), model.route.bounds
        sound = [each for each in self._below_limit(model) if each.failed_until <= now and each.id not in tried]
        return pick(sound, prefix=prefix if bounds else None, bounds=bounds or DEFAULT_BOUNDS)

    def _below_limit(self, model: Model) -> list[Replica]:
        return [each for each in model.replicas.values() if each.own < self.limits.replica_calls]

    def _count(self, replica: Replica) -> Replica:
        replica.own += 1
        self.held[replica.id] = replica
        replica.last_used = time.time()
        self.changed.add(replica.id)
        return replica

    def _find(self, name: str) -> Model:
        if not self.is_loaded:
            raise unavailable("not_ready", "The gateway has not read its routes yet.")
        model = self.models.get(name)
        if model is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "model_not_found", f"There is no model {name}.")
        return model

    def _no_replica(self, name: str) -> Refusal:
        model = self._find(name)
        if model.replicas:
            return unavailable("busy", f"No replica of {name} became free within {self.limits.wait_s:g} s.")
        return Refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "model_loading",
            f"{name} is not loaded yet.",
            retry_after_s=10,
            loading={"model": name, **model.route.loading},
        )
