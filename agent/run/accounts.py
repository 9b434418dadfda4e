"""Chooses the user that backends run as; only an agent that runs as root can use another user."""

import grp
import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ACCOUNT = "nodesmith-backend"
"""default user of backends for an agent that runs as root, if it exists"""
_GPU_GROUPS = ("video", "render")


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def account_of(setting: str) -> Account | None:
    """Resolve the setting; None is the agent's user. Empty selects `nodesmith-backend` if it exists and we are root."""
    is_root = os.geteuid() == 0
    if setting == "none" or (not setting and not is_root):
        return None
    try:
        found = _account(setting or ACCOUNT)
    except KeyError as error:
        if not setting:
            return None
        raise ValueError(f"NODESMITH_AGENT_BACKEND_USER is {setting!r}, but this machine has no such user.") from error
    if not is_root and found.uid != os.geteuid():
        raise ValueError("NODESMITH_AGENT_BACKEND_USER requires an agent that runs as root.")
    return found


def _account(name: str) -> Account:
    """Look up a name, uid or uid:gid; adds the groups that own GPU devices."""
    uid, _, gid = name.partition(":")
    extra = set(_ids_of(_GPU_GROUPS))
    if uid.isdigit():
        return Account(int(uid), int(gid or uid), tuple(sorted(extra)))
    known = pwd.getpwnam(name)
    return Account(known.pw_uid, known.pw_gid, tuple(sorted({*os.getgrouplist(name, known.pw_gid), *extra})))


def _ids_of(names: Iterable[str]) -> Iterator[int]:
    known = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    yield from (known[name] for name in names if name in known)
