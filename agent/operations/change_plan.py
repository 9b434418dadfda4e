"""The plan of one change to a backend or a replica, journaled first so that a restart can resume or undo it.

OLD is the tree before the change: `current` = old, `previous` = previous. NEW is the tree after it: `current` = to,
`previous` = old; after a removal it is gone. Before `PROVEN` a restart rolls back to OLD, after it forward to NEW.
"""

from enum import auto

from pydantic import Field

from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.contracts.nats.messages import Installed, UpgradePolicy
from nodesmith.contracts.nats.wire import Message
from nodesmith.domain.kinds import Kind
from nodesmith.domain.wire_enum import WireEnum


class Step(WireEnum):
    """One step of a plan; each is idempotent."""

    PLACE = auto()
    """move the staged version to its folder"""
    STOP_OLD = auto()
    """stop the running processes before the change"""
    SET_PREVIOUS = auto()
    SET_CURRENT = auto()
    START = auto()
    """start the previous set and the requested process from the new version, and wait until healthy"""
    MOVE_AWAY = auto()
    """move the backend out of its folder"""
    PROVEN = auto()
    """after this a restart rolls forward"""
    RETIRE_OLD = auto()
    """stop the processes of the old version"""
    FREE_SPACE = auto()
    """drop the previous version if the disk is short of space"""
    END = auto()
    """write the outcome to the journal, which closes the plan"""
    CLEAN_UP = auto()
    """delete versions that neither a plan nor a pointer names"""
    UNKNOWN = auto()


_SWITCH = (Step.SET_PREVIOUS, Step.SET_CURRENT, Step.START, Step.PROVEN)
_SWITCH_BY: dict[UpgradePolicy, tuple[Step, ...]] = {
    UpgradePolicy.RESTART: (Step.STOP_OLD, *_SWITCH),
    UpgradePolicy.OVERLAP: (*_SWITCH, Step.RETIRE_OLD),
}
_LAST = (Step.END, Step.CLEAN_UP)
_REMOVAL = (Step.STOP_OLD, Step.MOVE_AWAY, Step.PROVEN, *_LAST)
_OF_REPLICA: dict[Kind, tuple[Step, ...]] = {
    Kind.LOAD: (Step.STOP_OLD, Step.START, Step.PROVEN, Step.END),
    Kind.UNLOAD: (Step.STOP_OLD, Step.PROVEN, Step.END),
}
"""they change processes only: OLD and NEW are the same tree"""


def steps_of(kind: Kind, policy: UpgradePolicy) -> tuple[Step, ...]:
    """Return all steps of a change, in order."""
    if kind in _OF_REPLICA:
        return _OF_REPLICA[kind]
    if kind is Kind.REMOVE:
        return _REMOVAL
    place = () if kind is Kind.ROLLBACK else (Step.PLACE,)
    return (*place, *_SWITCH_BY.get(policy, _SWITCH_BY[UpgradePolicy.RESTART]), Step.FREE_SPACE, *_LAST)


class VersionFolder(Message):
    """One version on the disk: its folder name below the backend's folder, and its digest."""

    folder: str
    digest: str = ""


class ChangePlan(Message):
    """Source, target and completed steps of one change."""

    op_id: str
    kind: Kind
    family: str
    policy: UpgradePolicy = UpgradePolicy.RESTART
    old: VersionFolder | None = None
    """current version before the change"""
    previous: VersionFolder | None = None
    """previous version before the change"""
    to: VersionFolder
    """current version after the change; for a removal, the folder that the backend is moved to"""
    staging: str = ""
    """folder of `to` until it is placed"""
    running: list[ProcessRecord] = Field(default_factory=list)
    """processes of the backend before the change"""
    wanted: list[ProcessRecord] = Field(default_factory=list)
    """processes of the backend after the change"""
    before: Installed | None = None
    done: list[Step] = Field(default_factory=list)
    addresses: dict[str, str] = Field(default_factory=dict)
    """started processes: process key -> host:port"""
    stopped: list[str] = Field(default_factory=list)

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.kind, self.policy)

    @property
    def is_proven(self) -> bool:
        return Step.PROVEN in self.done

    def folder_names(self) -> set[str]:
        """Return the folders that must not be deleted while the plan is open."""
        places = [place.folder for place in (self.old, self.previous, self.to) if place is not None]
        return {name for name in (*places, self.staging) if name}

    def with_done(self, step: Step) -> "ChangePlan":
        return self.model_copy(update={"done": [*self.done, step]})

    def reset(self) -> "ChangePlan":
        """Return the same plan with no step done."""
        return self.model_copy(update={"done": [], "addresses": {}, "stopped": []})
