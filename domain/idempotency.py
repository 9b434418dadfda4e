"""`Idempotency-Key`: each key of a caller stands for one request."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StoredAnswer:
    """The response to a request, as far as it may be stored."""

    status: int
    body: object = None
    location: str | None = None
    """the header `Location`, if it has one"""


@dataclass(frozen=True)
class KeyClaim:
    """The record of a key: digest of its request, the id reserved for it, and the result."""

    digest: str
    op_id: str
    """generated when the key was first used, before any job was started"""
    job_id: str | None = None
    """id of the job that the request started; None until the start is recorded"""
    answer: StoredAnswer | None = None
    """response to a request that starts no job; None until it was answered"""
    is_new: bool = False
    """this call inserted the record"""


def request_digest(route: str, target: str, body: Mapping[str, object]) -> str:
    """Return the digest of route, resolved target and body; requests with equal digests are the same request."""
    canonical = json.dumps([route, target, body], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
