"""Scaling: the plan of one tick of the scheduler, a pure function of a snapshot.

A replica counts if its node is healthy. A replica in the right place and of the current revision is *settled*;
one that has to move (its node is drained or no longer matches, or its revision is old) serves until it is replaced.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from nodesmith.domain.deployment import Deployment
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.placement import PlacementNode, Refusal, WhyNot, place, refusal_of
from nodesmith.domain.replica import ENDING, STARTING, Replica, ReplicaState
from nodesmith.domain.selector import Selector
from nodesmith.domain.selector import parse as parse_selector
from nodesmith.domain.tick import (
    LOST_AFTER,
    NOTHING,
    Fleet,
    FleetIndex,
    Plan,
    PlannedDrain,
    PlannedEviction,
    PlannedPlacement,
    Unsatisfied,
    counts,
    is_wanted,
    last_use,
    missing_words,
    planned_replica,
)

IDLE_AFTER = timedelta(minutes=5)
"""a replica above the minimum is unloaded after this time without need"""
SCALE_PAUSE = timedelta(seconds=30)
"""between two steps down of one model"""
REPEAT_AFTER = timedelta(seconds=30)
"""the start of an unload is repeated after this time: a run that exists is joined"""
MOST_TICKS = 3
"""ticks without a place before a model is unsatisfiable"""
UNSATISFIABLE_FOR = timedelta(minutes=5)
MOST_PLACEMENTS = 200
"""in one tick; the next one follows at once"""

_NEVER_TARGETS = (
    WhyNot.NO_MATCH,
    WhyNot.NO_BACKENDS,
    WhyNot.LOCALAI_WORKER,
    WhyNot.NOT_APPROVED,
    WhyNot.NOT_HEALTHY,
)
_FULL = (WhyNot.NO_SLOT, WhyNot.MEMORY)
_parse_selector = lru_cache(1000)(parse_selector)


def plan_tick(fleet: Fleet) -> Plan:
    """Plan one tick over all models; models that routers wait for come first."""
    plan, index = Plan(), FleetIndex(fleet)
    for deployment in sorted(fleet.deployments, key=lambda each: (not is_wanted(each, fleet.now), each.name)):
        _ModelPlan(index, deployment, plan).make()
    for name, replicas in index.replicas.items():
        if name not in index.deployments:
            for replica in replicas:
                plan.retire(replica, "the model was removed")
        for replica in replicas:
            _continue(replica, index, plan)
    plan.again_within = min(map(_remaining, _doubtful(fleet)), default=None)
    return plan


def _doubtful(fleet: Fleet) -> Iterator[tuple[PlacementNode, datetime]]:
    """Nodes whose replicas count although they are unreachable."""
    for node in fleet.nodes:
        if node.replicas and not node.is_serving and counts(node, fleet.now):
            yield node, fleet.now


def _remaining(doubtful: tuple[PlacementNode, datetime]) -> timedelta:
    """How long the replicas of this node still count."""
    node, now = doubtful
    return LOST_AFTER - (now - (node.unreachable_since or now))


def _continue(replica: Replica, index: FleetIndex, plan: Plan) -> None:
    """Continue what earlier ticks decided about this replica."""
    node, now = index.nodes[replica.node_id], index.fleet.now
    if node.has_left:
        plan.forget.append(replica)
        return
    is_drained = replica.state is ReplicaState.DRAINING and replica.in_flight == 0
    is_delayed = replica.state is ReplicaState.UNLOADING and now - replica.changed_at > REPEAT_AFTER
    is_resting = node.id in index.fleet.rests.get(replica.model, {})
    if node.is_serving and not is_resting and (is_drained or is_delayed):
        plan.unload.append(replica)


class _ModelPlan:
    """The plan for one model."""

    def __init__(self, index: FleetIndex, deployment: Deployment, plan: Plan) -> None:
        self._index, self._fleet, self._now, self._plan = index, index.fleet, index.fleet.now, plan
        self._model, self._spec = deployment, deployment.spec
        self._selector: Selector = _parse_selector(deployment.selector)
        self._settled: list[Replica] = []
        self._moving: list[tuple[Replica, str]] = []
        """loaded, and why each has to move"""
        self._is_turning_over = False
        """a replica of this model is on its way out"""
        for replica in index.replicas.get(deployment.name, ()):
            self._sort(replica)

    def make(self) -> None:
        self._plan.start += [each for each in self._settled if each.state is ReplicaState.PLACING]
        if self._model.spread_all:
            self._spread()
        else:
            self._scale()
        self._move()

    # the replicas as they are ---------------------------------------------------------------------------------

    def _sort(self, replica: Replica) -> None:
        node = self._index.nodes[replica.node_id]
        if not counts(node, self._now):
            return
        if replica.state in ENDING:
            self._is_turning_over = True
        elif (why := self._why_move(replica, node)) is None:
            self._settled.append(replica)
        elif replica.state in STARTING:
            self._plan.stop.append(replica)
        else:
            self._moving.append((replica, why))

    def _why_move(self, replica: Replica, node: PlacementNode) -> str | None:
        if replica.revision != self._model.revision:
            return f"revision {self._model.revision} replaces it"
        if node.status is NodeStatus.DRAINING:
            return "its node is drained"
        return None if self._selector.matches(node.labels) else "its node no longer matches the selector"

    @property
    def _loaded(self) -> list[Replica]:
        return [replica for replica in self._settled if replica.state is ReplicaState.LOADED]

    @property
    def _is_starting(self) -> bool:
        return any(replica.state in STARTING for replica in self._settled)

    @property
    def _is_all_busy(self) -> bool:
        serving = [*self._loaded, *(replica for replica, _ in self._moving)]
        return bool(serving) and all(replica.in_flight > 0 for replica in serving)

    # how many --------------------------------------------------------------------------------------------------

    def _scale(self) -> None:
        if self._is_all_busy or is_wanted(self._model, self._now):
            self._plan.busy.append(self._model.name)
        missing = self._floor() - len(self._settled)
        if missing > 0:
            self._add(missing)
            return
        self._note_satisfied()
        if 0 < self._model.max_replicas < len(self._settled):
            self._reduce(self._model.max_replicas, "there are more than the maximum")
        elif self._needs_one_more():
            self._place(self._fleet.nodes)
        elif self._has_one_too_many():
            self._reduce(len(self._settled) - 1, "it is not needed", only_idle=True)

    def _floor(self) -> int:
        """Replicas that must exist: the minimum, one if a router waits, and a successor of each one that moves."""
        asked = 1 if is_wanted(self._model, self._now) else 0
        floor = max(self._model.min_replicas, asked, len(self._moving))
        return min(floor, self._model.max_replicas or floor)

    def _needs_one_more(self) -> bool:
        """All are busy, and no further one is on its way."""
        has_room = self._model.max_replicas == 0 or len(self._settled) < self._model.max_replicas
        return has_room and not self._is_starting and not self._moving and self._is_all_busy

    def _has_one_too_many(self) -> bool:
        """Nobody needed all replicas for a while, and the last step is long ago."""
        if self._moving or self._is_starting or len(self._settled) <= self._model.min_replicas:
            return False
        needed = [self._model.last_busy_at, self._model.wanted_at, *(each.loaded_at for each in self._settled)]
        if len(self._settled) == 1:
            needed += [each.last_used for each in self._settled]
        if any(when is not None and self._now - when < IDLE_AFTER for when in needed):
            return False
        scaled = self._model.last_scaled_at
        return scaled is None or self._now - scaled >= SCALE_PAUSE

    def _reduce(self, keep: int, why: str, *, only_idle: bool = False) -> None:
        """Give up those that do not serve yet, then idle ones; the highest index first (R94)."""
        victims = [each for each in self._settled if not only_idle or each.in_flight == 0]
        victims.sort(
            key=lambda each: (each.state is ReplicaState.LOADED, each.in_flight > 0, -each.index, last_use(each))
        )
        for victim in victims[: len(self._settled) - keep]:
            self._settled.remove(victim)
            self._plan.retire(victim, why, keep=keep)

    # where -----------------------------------------------------------------------------------------------------

    def _add(self, number: int) -> None:
        if self._rests():
            return
        for _ in range(number):
            refusals = self._place(self._fleet.nodes)
            if refusals is not None:
                self._make_room(refusals)
                return
        self._note_satisfied()

    def _rests(self) -> bool:
        until = self._model.unsatisfiable_until
        return until is not None and until > self._now and not self._fleet.capacity_changed

    def _place(self, nodes: Iterable[PlacementNode]) -> Sequence[Refusal] | None:
        """Plan one replica; if no node fits, return why."""
        if len(self._plan.place) >= MOST_PLACEMENTS:
            return None
        rests = self._fleet.rests.get(self._model.name, {})
        answer = place(self._spec, self._selector, nodes, now=self._now, resting=rests, explain=False)
        if answer.choice is None:
            return answer.refusals
        planned = planned_replica(self._model, answer.choice, self._now)
        self._index.nodes[planned.node_id].add(planned)
        self._settled.append(planned)
        is_per_node = self._model.spread_all
        upto = 1 if is_per_node else len(self._settled)
        self._plan.place.append(PlannedPlacement(self._model.name, answer.choice, upto, is_per_node))
        return None

    def _make_room(self, refusals: Sequence[Refusal]) -> None:
        """Nothing fits: wait for what is ending, else replace an old revision, else evict, else say what is missing."""
        full = {each.node_id for each in refusals if each.why in _FULL}
        if full & self._index.freeing:
            return
        outdated = [
            each for each in self._moving if each[0].revision != self._model.revision and each[0].node_id in full
        ]
        if outdated:
            self._replace_in_place(outdated)
        elif (eviction := self._eviction(refusals)) is not None:
            self._plan.evict.append(eviction)
        else:
            self._note_unsatisfied(refusals)

    def _replace_in_place(self, outdated: list[tuple[Replica, str]]) -> None:
        """Drain one old replica although its successor is not loaded: both do not fit. One at a time."""
        if self._is_turning_over or self._is_starting:
            return
        victim = min(outdated, key=lambda each: (each[0].in_flight, -each[0].index))
        self._moving.remove(victim)
        self._is_turning_over = True
        self._plan.drain.append(PlannedDrain(victim[0], f"{victim[1]}, and both do not fit"))

    def _eviction(self, refusals: Sequence[Refusal]) -> PlannedEviction | None:
        """The candidate where the fewest idle replicas have to go (H16): it meets every other condition."""
        found = []
        for refusal in refusals:
            node = self._index.nodes[refusal.node_id]
            if refusal.why is WhyNot.MEMORY and node.free is not None:
                missing = self._spec.memory - node.free
                number = _how_many(self._evictable(node), missing)
                if number is not None:
                    found.append((number, node.id, missing))
        return PlannedEviction(self._model.name, *min(found)[1:]) if found else None

    def _evictable(self, node: PlacementNode) -> list[int]:
        """Reservations of idle replicas that their models can spare, the least recently used first."""
        idle = [each for each in node.replicas if each.state is ReplicaState.LOADED and each.in_flight == 0]
        idle.sort(key=last_use)
        return [each.reserved for each in idle if each.model != self._model.name and self._index.can_spare(each.model)]

    # one on each node ------------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """One replica on each matching node; further ones are given up."""
        seen: set[str] = set()
        for replica in sorted(self._settled, key=lambda each: (each.state is not ReplicaState.LOADED, each.index)):
            if replica.node_id in seen:
                self._settled.remove(replica)
                self._plan.retire(replica, "each node has one replica")
            seen.add(replica.node_id)
        if self._rests():
            return
        refusals: list[Refusal] = []
        for node in self._targets():
            if node.id not in seen:
                refusals += self._place([node]) or []
        if refusals:
            self._make_room(refusals)
        else:
            self._note_satisfied()

    def _targets(self) -> list[PlacementNode]:
        """Nodes that should have a replica, whether or not it fits now."""
        found = []
        for node in self._fleet.nodes:
            refusal = refusal_of(self._spec, self._selector, node, now=self._now)
            if refusal is None or refusal.why not in _NEVER_TARGETS:
                found.append(node)
        return found

    # moving ----------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Drain those that have to move, as far as their successors are loaded."""
        if not self._moving:
            return
        needed = self._needed_while_moving()
        spare = len(self._loaded) + len(self._moving) - needed
        leaving = sorted(self._moving, key=lambda each: (each[0].in_flight, -each[0].index))
        for replica, why in leaving[: max(spare, 0)]:
            self._plan.drain.append(PlannedDrain(replica, why, NOTHING if self._model.spread_all else needed))

    def _needed_while_moving(self) -> int:
        if not self._model.spread_all:
            return self._floor()
        unserved = {node.id for node in self._targets()} - {each.node_id for each in self._loaded}
        return len(self._loaded) + sum(each.node_id in unserved for each, _ in self._moving)

    # what people are told --------------------------------------------------------------------------------------

    def _note_satisfied(self) -> None:
        if self._model.unsatisfiable_ticks or self._model.unsatisfiable_until:
            self._plan.satisfied.append(self._model.name)

    def _note_unsatisfied(self, refusals: Sequence[Refusal]) -> None:
        """Count the tick; after three, the model rests for five minutes unless something changes."""
        ticks = 1 if self._fleet.capacity_changed else min(self._model.unsatisfiable_ticks + 1, MOST_TICKS)
        until = self._now + UNSATISFIABLE_FOR if ticks >= MOST_TICKS else None
        wanted = len(self._targets()) if self._model.spread_all else self._floor()
        why = missing_words(len(self._settled), wanted, refusals)
        self._plan.unsatisfied.append(Unsatisfied(self._model.name, ticks, until, why))


def _how_many(sizes: Sequence[int], missing: int) -> int | None:
    """How many of these reservations, in this order, have to be freed; None if all of them do not suffice."""
    freed = 0
    for number, size in enumerate(sizes, 1):
        freed += size
        if freed >= missing:
            return number
    return None
