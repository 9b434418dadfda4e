"""Kinds of operations: one row per kind, with everything that differs between kinds outside their handlers."""

from dataclasses import dataclass

from nodesmith.domain.replica import process_key
from nodesmith.domain.wire_enum import WireEnum


class Kind(WireEnum):
    INSTALL = "install"
    UPGRADE = "upgrade"
    ROLLBACK = "rollback"
    REMOVE = "remove"
    LOAD = "load"
    UNLOAD = "unload"
    UNKNOWN = "unknown"

    @property
    def rules(self) -> "KindRules":
        return RULES[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """What is true of all operations of one kind."""

    noun: str
    """names such an operation in messages"""
    subject: str
    """last word of the NATS subject on which the node receives it"""
    needs_artifact: bool = False
    """the request names a backend of a gallery or a uri, and the node downloads it"""
    needs_installed: bool = False
    """refused on a node without the backend"""
    changes_installed: bool = False
    """the signed order names the digest that it replaces or removes"""
    removes: bool = False
    """takes the backend or the replica away; on a node without it there is nothing to do"""
    cancellable_on_node: bool = True
    """false: once it runs on the node, it is completed"""
    waits_without_limit: bool = False
    """waits for an absent node for ever; the other kinds wait for `wait_for_node` of the settings"""
    locks_replica: bool = False
    """locks one replica of a model on its node instead of the backend: several share a backend"""
    scheduled: bool = False
    """the model scheduler decides what follows a failure: one attempt, and no wait for an absent node"""
    stops_on_failures: bool = False
    """a batch stops after a few failures by default"""
    localai: bool = True
    """LocalAI workers can do it"""
    requestable: bool = True
    """people may ask for it; the model scheduler asks for the others"""


RULES: dict[Kind, KindRules] = {
    Kind.INSTALL: KindRules(noun="installation", subject="install", needs_artifact=True),
    Kind.UPGRADE: KindRules(
        noun="upgrade",
        subject="upgrade",
        needs_artifact=True,
        needs_installed=True,
        changes_installed=True,
        stops_on_failures=True,
    ),
    Kind.ROLLBACK: KindRules(
        noun="rollback",
        subject="upgrade",
        needs_installed=True,
        changes_installed=True,
        stops_on_failures=True,
        localai=False,
    ),
    Kind.REMOVE: KindRules(
        noun="removal",
        subject="delete",
        changes_installed=True,
        removes=True,
        cancellable_on_node=False,
        waits_without_limit=True,
        stops_on_failures=True,
    ),
    Kind.LOAD: KindRules(
        noun="load", subject="install", locks_replica=True, scheduled=True, localai=False, requestable=False
    ),
    Kind.UNLOAD: KindRules(
        noun="unload",
        subject="delete",
        removes=True,
        cancellable_on_node=False,
        locks_replica=True,
        scheduled=True,
        localai=False,
        requestable=False,
    ),
    Kind.UNKNOWN: KindRules(noun="change", subject="install", localai=False, requestable=False),
}
"""`unknown` is a kind of a newer peer: it is shown, and never requested"""


def lock_name(kind: Kind, family: str, model: str, index: int) -> str:
    """Return what an operation has to itself on its node: one replica of a model, or a backend."""
    return f"model:{process_key(model, index)}" if kind.rules.locks_replica else family
