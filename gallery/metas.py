"""Metas: names that resolve to one build per kind of hardware. Choice of build, families, and cycles."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from nodesmith.domain.identity import family_of
from nodesmith.gallery.entries import Entry, Unusable

Leads = Callable[[Entry], list[str]]

FALLBACKS = ("default", "cpu")
"""fallbacks, in this order, for a node whose capability a meta does not name; there are no others"""


def choose_build(capabilities: Mapping[str, str], capability: str) -> str | None:
    """Return the name of the build for a node of this capability."""
    return next((capabilities[key] for key in (capability, *FALLBACKS) if key in capabilities), None)


def with_families(entries: Sequence[Entry]) -> list[Entry]:
    """Set the meta of each build, and the family of each entry: alias, else meta, else its own name."""
    metas = _meta_of(entries)
    return [_with_family(entry, metas.get(family_of(entry.artifact.name), "")) for entry in entries]


def _meta_of(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the first meta that lists a build; metas that are not development variants come first."""
    found: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: entry.is_development):
        if entry.is_meta:
            for name in entry.capabilities.values():
                found.setdefault(family_of(name), entry.artifact.name)
    return found


def _with_family(entry: Entry, meta: str) -> Entry:
    artifact = entry.artifact
    own = meta if not entry.is_meta else ""
    family = family_of(own or artifact.name, alias=entry.alias)
    return dataclasses.replace(entry, artifact=dataclasses.replace(artifact, meta=own, family=family))


def without_cycles(entries: Sequence[Entry]) -> tuple[list[Entry], list[Unusable]]:
    """Separate cycles: metas that refer to each other, and entries that are each other's alias."""
    named = {family_of(entry.artifact.name): entry for entry in reversed(entries)}
    cyclic = _in_cycles(named, _builds_of) | _in_cycles(named, _alias_of)
    sound = [entry for entry in entries if family_of(entry.artifact.name) not in cyclic]
    reason = "It refers to itself through others (a cycle of aliases)."
    return sound, [
        Unusable(entry.gallery, entry.artifact.name, reason)
        for entry in entries
        if family_of(entry.artifact.name) in cyclic
    ]


def _builds_of(entry: Entry) -> list[str]:
    return [family_of(name) for name in entry.capabilities.values()] if entry.is_meta else []


def _alias_of(entry: Entry) -> list[str]:
    """Ignore an alias that is the entry's own name."""
    alias = family_of(entry.alias)
    return [alias] if alias and alias != family_of(entry.artifact.name) else []


def _in_cycles(named: Mapping[str, Entry], leads_to: Leads) -> set[str]:
    """Remove nodes without successors, then nodes without predecessors; cycles remain. Visits each name once."""
    leads = {name: {to for to in leads_to(entry) if to in named} for name, entry in named.items()}
    return set(_reversed(_without_leaves(_reversed(_without_leaves(leads)))))


def _without_leaves(leads: dict[str, set[str]]) -> dict[str, set[str]]:
    left, back = {name: set(to) for name, to in leads.items()}, _reversed(leads)
    ends = [name for name, to in left.items() if not to]
    while ends:
        end = ends.pop()
        del left[end]
        for name in back.get(end, ()):
            left[name].discard(end)
            if not left[name]:
                ends.append(name)
    return left


def _reversed(leads: Mapping[str, set[str]]) -> dict[str, set[str]]:
    turned: dict[str, set[str]] = {name: set() for name in leads}
    for name, to in leads.items():
        for each in to:
            turned[each].add(name)
    return turned
