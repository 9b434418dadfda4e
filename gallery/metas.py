"""Metas: a name that stands for one build per kind of hardware. Which build, whose family, and metas without end."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from domain.identity import family_of
from gallery.entries import Entry, Unusable

Leads = Callable[[Entry], list[str]]

FALLBACKS = ("default", "cpu")
"""in this order, for a node whose capability a meta does not name; there is no other kinship of capabilities"""


def chosen(capabilities: Mapping[str, str], capability: str) -> str | None:
    """The name of the build for a node of this capability."""
    return next((capabilities[key] for key in (capability, *FALLBACKS) if key in capabilities), None)


def families(entries: Sequence[Entry]) -> list[Entry]:
    """Give each build its meta, and each entry its family: alias, else meta, else its own name."""
    metas = _meta_of(entries)
    return [_with_family(entry, metas.get(family_of(entry.artifact.name), "")) for entry in entries]


def _meta_of(entries: Sequence[Entry]) -> dict[str, str]:
    """The first meta that lists a build; one that is no development variant goes first."""
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


def without_endless_metas(entries: Sequence[Entry]) -> tuple[list[Entry], list[Unusable]]:
    """Set apart what leads back to itself: metas that stand for each other, and entries that are each other's alias."""
    named = {family_of(entry.artifact.name): entry for entry in reversed(entries)}
    endless = _in_circles(named, _stood_for) | _in_circles(named, _alias_of)
    sound = [entry for entry in entries if family_of(entry.artifact.name) not in endless]
    reason = "It stands for itself, by way of others (a cycle of aliases)."
    return sound, [
        Unusable(entry.gallery, entry.artifact.name, reason)
        for entry in entries
        if family_of(entry.artifact.name) in endless
    ]


def _stood_for(entry: Entry) -> list[str]:
    return [family_of(name) for name in entry.capabilities.values()] if entry.is_meta else []


def _alias_of(entry: Entry) -> list[str]:
    """An alias that is the entry's own name leads nowhere else."""
    alias = family_of(entry.alias)
    return [alias] if alias and alias != family_of(entry.artifact.name) else []


def _in_circles(named: Mapping[str, Entry], leads_to: Leads) -> set[str]:
    """Without what leads nowhere, and then what nothing leads to, circles are left; each name is looked at once."""
    leads = {name: {to for to in leads_to(entry) if to in named} for name, entry in named.items()}
    return set(_turned(_without_ends(_turned(_without_ends(leads)))))


def _without_ends(leads: dict[str, set[str]]) -> dict[str, set[str]]:
    left, back = {name: set(to) for name, to in leads.items()}, _turned(leads)
    ends = [name for name, to in left.items() if not to]
    while ends:
        end = ends.pop()
        del left[end]
        for name in back.get(end, ()):
            left[name].discard(end)
            if not left[name]:
                ends.append(name)
    return left


def _turned(leads: Mapping[str, set[str]]) -> dict[str, set[str]]:
    turned: dict[str, set[str]] = {name: set() for name in leads}
    for name, to in leads.items():
        for each in to:
            turned[each].add(name)
    return turned
