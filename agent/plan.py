"""The plan of one change of a backend: written down before the first change, so that a restart goes on or back.

OLD is the tree before the change: `current` = old, `previous` = previous. NEW is the tree after it: `current` = to,
`previous` = old; after a removal nothing is there. Without `PROVEN` a restart goes back to OLD, with it on to NEW.
"""

from enum import auto

from pydantic import Field

from agent.launch import Record
from contracts.messages import Installed, Message, UpgradePolicy
from domain.operation import Kind
from domain.wire import WireEnum


class Step(WireEnum):
    """What is done, one after the other; each sets something absolutely and can be repeated."""

    PLACE = auto()
    """the staged version gets its folder"""
    STOP_OLD = auto()
    """what runs ends before the change"""
    SET_PREVIOUS = auto()
    SET_CURRENT = auto()
    START = auto()
    """what ran, and what is asked for, runs from the new version and is healthy"""
    MOVE_AWAY = auto()
    """the backend is out of sight"""
    PROVEN = auto()
    """from here on a restart goes forward"""
    RETIRE_OLD = auto()
    """what ran beside the new version ends"""
    FREE_SPACE = auto()
    """the previous version is given up if the disk is short of space"""
    END = auto()
    """the outcome is in the journal, and the plan is closed with it"""
    CLEAN_UP = auto()
    """versions that no plan and no pointer names are deleted"""
    UNKNOWN = auto()


_SWITCH = (Step.SET_PREVIOUS, Step.SET_CURRENT, Step.START, Step.PROVEN)
_SWITCH_BY: dict[UpgradePolicy, tuple[Step, ...]] = {
    UpgradePolicy.RESTART: (Step.STOP_OLD, *_SWITCH),
    UpgradePolicy.OVERLAP: (*_SWITCH, Step.RETIRE_OLD),
}
_LAST = (Step.END, Step.CLEAN_UP)
_REMOVAL = (Step.STOP_OLD, Step.MOVE_AWAY, Step.PROVEN, *_LAST)


def steps_of(kind: Kind, policy: UpgradePolicy) -> tuple[Step, ...]:
    """All steps of a change, in their order."""
    if kind is Kind.REMOVE:
        return _REMOVAL
    place = () if kind is Kind.ROLLBACK else (Step.PLACE,)
    return (*place, *_SWITCH_BY.get(policy, _SWITCH_BY[UpgradePolicy.RESTART]), Step.FREE_SPACE, *_LAST)


class Place(Message):
    """One version on the disk: the name of its folder below the backend's, and what it is."""

    folder: str
    digest: str = ""


class Plan(Message):
    """What will be done, from where to where, and how far it is."""

    op_id: str
    kind: Kind
    family: str
    policy: UpgradePolicy = UpgradePolicy.RESTART
    old: Place | None = None
    """serves before the change"""
    previous: Place | None = None
    """the one before it"""
    to: Place
    """will serve; of a removal: where the backend is moved to"""
    staging: str = ""
    """where `to` lies until it gets its folder"""
    running: list[Record] = Field(default_factory=list)
    """processes of the backend before the change"""
    wanted: list[Record] = Field(default_factory=list)
    """processes that run after it"""
    before: Installed | None = None
    done: list[Step] = Field(default_factory=list)
    addresses: dict[str, str] = Field(default_factory=dict)
    """what was started: process key -> host:port"""
    stopped: list[str] = Field(default_factory=list)

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.kind, self.policy)

    @property
    def is_proven(self) -> bool:
        return Step.PROVEN in self.done

    def names(self) -> set[str]:
        """Folders that nobody may delete while the plan is open."""
        places = [place.folder for place in (self.old, self.previous, self.to) if place is not None]
        return {name for name in (*places, self.staging) if name}

    def with_done(self, step: Step) -> "Plan":
        return self.model_copy(update={"done": [*self.done, step]})

    def undone(self) -> "Plan":
        """The same plan from its beginning."""
        return self.model_copy(update={"done": [], "addresses": {}, "stopped": []})
