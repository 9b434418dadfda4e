"""Describes what a successful operation changed on its node."""

from nodesmith.contracts.nats.messages import Installed, Outcome
from nodesmith.domain.kinds import Kind


def what_changed(outcome: Outcome, kind: Kind) -> str:
    """Describe the change; a no-op is never reported as a change, nor a start as a no-op."""
    before, after = _version(outcome.before), _version(outcome.after)
    if kind.rules.locks_replica:
        return _what_runs(outcome, after)
    if kind.rules.removes:
        return f"{before} removed".strip() if outcome.changed else "it was not installed; nothing changed"
    if not outcome.changed:
        return f"{after} was installed already; nothing changed".strip()
    if was_only_started(outcome.before, outcome.after):
        where = ", ".join(f"{key} on {address}" for key, address in outcome.addresses.items())
        return f"{after} was installed already; started {where}".strip()
    return f"{before} -> {after}" if before else after


def _what_runs(outcome: Outcome, version: str) -> str:
    where = ", ".join(f"{key} on {address}" for key, address in outcome.addresses.items())
    if where:
        return f"{'loaded' if outcome.changed else 'was loaded already:'} {where}, backend {version}"
    return f"stopped {', '.join(outcome.stopped_process_keys)}" if outcome.changed else "it did not run"


def was_only_started(before: Installed | None, after: Installed | None) -> bool:
    """Return whether the same copy of the same version was installed before and after."""
    if before is None or after is None or not after.digest:
        return False
    return (before.digest, before.installed_at) == (after.digest, after.installed_at)


def _version(installed: Installed | None) -> str:
    return (installed.version or installed.digest[:19]) if installed else ""
