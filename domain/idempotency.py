"""`Idempotency-Key`: one key of one caller is one request."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What a key stands for: the request by its digest, the id reserved for it, and the job that it became."""

    digest: str
    op_id: str
    """drawn when the key was first used, before anything was started"""
    job_id: str | None = None
    """what was answered; None as long as nobody noted that it was started"""
    is_new: bool = False
    """this call inserted it"""


def request_digest(route: str, target: str, body: Mapping[str, object]) -> str:
    """Two requests with one digest are one request: same route, same resolved target, same whole body."""
    asked = json.dumps([route, target, body], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()
