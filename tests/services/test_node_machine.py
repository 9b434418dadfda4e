"""State machine test of nodes: in any order of events the status is correct and approval cannot be bypassed."""

import asyncio
import secrets
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import IdentityInUse, InvalidRequest, NodesmithError
from nodesmith.domain.node import DrainPolicy, NodeStatus
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.registration import CONNECT_TIMEOUT, Registration
from nodesmith.store.database import Database
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from tests.databases import migrated_template
from tests.fakes.node_link import SimulatedPresence, SimulatedRevocation
from tests.servers import PostgresForTests
from tests.services.conftest import TOKEN, registration_on
from tests.services.test_lifecycle import RecordedSignals
from tests.services.test_registration import a_node
from tests.store.clock import SetClock

T = TypeVar("T")

SILENT_AFTER_S = 60
AWAY_AFTER_S = 15
TOUCH_EVERY_S = 14


class World:
    """The registry on PostgreSQL, driven step by step; its clock is the test's."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.clock = SetClock()
        self.database = self.run(self._open(url))
        self.nodes = Nodes(self.database, clock=self.clock)
        life, self.presence = NodeLifecycle(self.database), SimulatedPresence()
        self.lifecycle = Lifecycle(
            self.nodes, life, RecordedSignals(), self.presence, self.clock, SimulatedRevocation()
        )
        self.registration: Registration = registration_on(self.database, self.presence, clock=self.clock)

    async def _open(self, url: str) -> Database:
        return Database(url)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def listen(self) -> None:
        self.run(self.nodes.touch_listening(self.clock.now))

    def close(self) -> None:
        self.run(self.database.close())
        self._runner.close()


@dataclass
class Known:
    """The model of one node."""

    name: str
    id: str
    credential: str
    boot: str
    boot_at: datetime
    beat_at: datetime | None = None
    approved: bool = False
    drained: bool = False
    leaving: bool = False
    left: bool = False
    heard: bool = False
    unreachable: bool = False
    unheard_s: float = 0
    """how long the sink has listened without a heartbeat"""

    def is_another(self, boot: str, now: datetime) -> None:
        self.boot_at = self.boot_at if boot == self.boot else now
        self.boot, self.leaving, self.left = boot, False, False

    def is_on_its_way(self, now: datetime) -> bool:
        is_heard = self.beat_at is not None and self.beat_at >= self.boot_at
        return self.approved and not self.left and not is_heard and now - self.boot_at < CONNECT_TIMEOUT

    def status(self) -> NodeStatus:
        if not self.approved:
            return NodeStatus.PENDING
        if self.drained or (self.leaving and not self.left):
            return NodeStatus.DRAINING
        if self.left or not self.heard or self.unheard_s > SILENT_AFTER_S:
            return NodeStatus.OFFLINE
        return NodeStatus.UNHEALTHY if self.unreachable else NodeStatus.HEALTHY


@dataclass
class Fleet:
    known: dict[int, Known] = field(default_factory=dict)


def is_there(life: "Life") -> bool:
    return 0 in life.fleet.known


BYSTANDER = 1
soon = st.sampled_from([True, True, False])
which = st.just(0)
"""all events happen to the first node; only time passes for the second"""


class Life(RuleBasedStateMachine):
    """A node and a bystander, one admin, and a control plane that may stall."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.prefix = secrets.token_hex(4)
        self.fleet = Fleet()
        self.world.clock.forward(seconds=3600)
        self.world.listen()

    @initialize()
    def both_are_there(self) -> None:
        for number in (0, BYSTANDER):
            self.register(number, "boot")
            self.approve(number)
            self.heartbeat(number, from_it=True)

    def teardown(self) -> None:
        for number in list(self.fleet.known):
            self.remove(number)

    def _request(self, number: int, boot: str) -> Any:
        return a_node(name=f"{self.prefix}-{number}", machine_id=f"m{number}", boot_id=boot)

    @rule(number=which, boot=st.uuids(), approved=soon)
    def register(self, number: int, boot: object, approved: bool = False) -> None:
        """New, or restarted: with the node's own credential if it has one."""
        known, now = self.fleet.known.get(number), self.world.clock.now
        is_new = known is None
        asking = self.world.registration.register(
            self._request(number, str(boot)), bearer=known.credential if known else TOKEN
        )
        if known and known.boot != str(boot) and known.is_on_its_way(now):
            with pytest.raises(IdentityInUse):
                self.world.run(asking)
            return
        answer = self.world.run(asking)
        if known is None:
            known = Known(answer.name, answer.id, answer.api_token or "", str(boot), now)
            self.fleet.known[number] = known
        known.is_another(str(boot), now)
        assert answer.id == known.id
        assert bool(answer.nats_jwt) is known.approved, "a voice on the bus exactly when approved"
        if is_new:
            self._looked_at(number, approved)

    def _looked_at(self, number: int, approved: bool) -> None:
        """Approve often, so that most runs go beyond pending nodes."""
        self.every_status_is_the_right_one()
        if approved:
            self.approve(number)

    @precondition(is_there)
    @rule(number=which)
    def renew(self, number: int) -> None:
        if known := self.fleet.known.get(number):
            self.world.run(self.world.registration.register(self._request(number, known.boot), bearer=known.credential))
            known.leaving = known.left = False

    @precondition(is_there)
    @rule(number=which, boot=st.uuids())
    def copy(self, number: int, boot: object) -> None:
        """A second process with the same identity, while the first answers."""
        known = self.fleet.known.get(number)
        if known is None or known.boot == str(boot):
            return
        self.world.presence.there = {(known.id, known.boot)}
        try:
            self.world.run(self.world.registration.register(self._request(number, str(boot)), bearer=known.credential))
        except IdentityInUse:
            assert known.approved
            assert not known.left
        else:
            assert known.left or not known.approved
            known.is_another(str(boot), self.world.clock.now)
        finally:
            self.world.presence.there = set()

    @precondition(is_there)
    @rule(number=which)
    def approve(self, number: int) -> None:
        if known := self.fleet.known.get(number):
            try:
                self.world.run(self.world.registration.approve(known.name))
            except InvalidRequest:
                assert known.approved
            known.approved = True

    @precondition(is_there)
    @rule(number=which)
    def drain(self, number: int) -> None:
        if known := self.fleet.known.get(number):
            self.world.run(self.world.lifecycle.drain(known.id, running=DrainPolicy.FINISH, actor="ada"))
            known.drained = True

    @precondition(is_there)
    @rule(number=which)
    def resume(self, number: int) -> None:
        if known := self.fleet.known.get(number):
            self.world.run(self.world.lifecycle.resume(known.id))
            known.drained = known.leaving = False

    @precondition(is_there)
    @rule(number=which, step=st.sampled_from(["leaving", "stayed"]))
    def speak_for_itself(self, number: int, step: str) -> None:
        self._say(number, step)
        known = self.fleet.known[number]
        known.leaving = step == "leaving"
        known.left = known.left and step != "stayed"

    @precondition(is_there)
    @rule(number=which)
    def leave(self, number: int) -> None:
        """A last heartbeat arrives after the leave message."""
        self._say(number, "left")
        self.fleet.known[number].left = True
        self.heartbeat(number, from_it=True)

    def _say(self, number: int, step: str) -> None:
        known = self.fleet.known[number]
        node = self.world.run(self.world.registration.authenticate_node(known.id, bearer=known.credential))
        self.world.run(getattr(self.world.lifecycle, step)(node))

    @precondition(is_there)
    @rule(number=which)
    def remove(self, number: int) -> None:
        if known := self.fleet.known.pop(number, None):
            self.world.run(self.world.lifecycle.remove(known.name, actor="ada"))
            with pytest.raises(NodesmithError):
                self.world.run(self.world.registration.authenticate_node(known.id, bearer=known.credential))

    @precondition(is_there)
    @rule(number=which, approved=soon)
    def reset_credential(self, number: int, approved: bool) -> None:
        """The same machine may reclaim its name, but not its approval."""
        if known := self.fleet.known.get(number):
            self.world.run(self.world.lifecycle.reset_credential(known.name))
            again = self.world.run(self.world.registration.register(self._request(number, "after-reset"), bearer=TOKEN))
            known.credential, known.boot = again.api_token or "", ""
            known.is_another("after-reset", self.world.clock.now)
            known.approved = False
            self._looked_at(number, approved)

    @precondition(is_there)
    @rule(number=which)
    def another_speaks_while_it_is_silent(self, number: int) -> None:
        self.time_passes(steps=5)
        self.heartbeat(number, from_it=False)

    @precondition(is_there)
    @rule(number=which, from_it=st.sampled_from([True, True, True, False]))
    def heartbeat(self, number: int, from_it: bool) -> None:
        """A heartbeat of the node's process, or of another one with the same identity."""
        if known := self.fleet.known.get(number):
            beat = Heartbeat(node_id=known.id, boot_id=known.boot if from_it else "an-impostor")
            self.world.run(self.world.nodes.heartbeats([beat], self.world.clock.now))
            if from_it:
                known.heard, known.unheard_s, known.unreachable = True, 0, False
                known.beat_at = self.world.clock.now

    @precondition(is_there)
    @rule(number=which)
    def nobody_answers(self, number: int) -> None:
        if known := self.fleet.known.get(number):
            self.world.run(self.world.nodes.mark_unreachable(known.id, self.world.clock.now))
            known.unreachable = True

    @rule(steps=st.sampled_from([1, 2, 5]))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.world.clock.forward(seconds=TOUCH_EVERY_S)
            self.world.listen()
        for known in self.fleet.known.values():
            known.unheard_s += steps * TOUCH_EVERY_S

    @rule(steps=st.sampled_from([1, 2, 5]))
    def control_plane_stalls(self, steps: int) -> None:
        """After a short gap silence keeps counting; after a stall every node gets the full time again."""
        stalled = steps * TOUCH_EVERY_S
        self.world.clock.forward(seconds=stalled)
        self.every_status_is_the_right_one()
        self.world.listen()
        for known in self.fleet.known.values():
            known.unheard_s = 0 if stalled > AWAY_AFTER_S else known.unheard_s + stalled

    @invariant()
    def every_status_is_the_right_one(self) -> None:
        listed = [node for node in self.world.run(self.world.nodes.list()) if node.name.startswith(self.prefix)]
        assert {node.name: node.status for node in listed} == {
            known.name: known.status() for known in self.fleet.known.values()
        }
        assert {node.name for node in listed if node.approved_at} == {
            known.name for known in self.fleet.known.values() if known.approved
        }


@pytest.fixture(scope="module")
async def url(postgres_server: PostgresForTests) -> str:
    return await postgres_server.create_database(template=await migrated_template(postgres_server))


@pytest.fixture
def world(url: str) -> Iterator[World]:
    world = World(url)
    yield world
    world.close()


def test_node_lifecycle_matches_the_reference_model(world: World) -> None:
    """R2, R14, R16, R18, R22, R23, R28, R29, R30, H1, H2, H3, H4, H5, H7: against a model that fits on a page."""
    machine = type("LifeInThisWorld", (Life,), {"world": world})
    untraced = (Phase.generate, Phase.shrink)  # the explain phase traces every line, which is ten times slower
    how = settings(max_examples=12, stateful_step_count=40, deadline=None, derandomize=True, phases=untraced)
    run_state_machine_as_test(machine, settings=how)
