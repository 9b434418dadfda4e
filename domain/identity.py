"""Identifiers that every replica must compute alike: operation ids, families, intent digests."""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from urllib.parse import urlsplit

LONGEST_FAMILY = 180
_KEPT = 140
_NAMESPACE = uuid.UUID("6e6f6465-736d-5974-8000-6f7065726174")


def new_op_id() -> str:
    """Return a UUIDv7: it sorts by creation time, which keeps the index of the operations compact."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def derived_op_id(*parts: str) -> str:
    """Return the same id for the same parts on every process; used for members of a batch."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(parts)))


@lru_cache(10_000)  # a gallery of a thousand entries calls it twelve thousand times
def family_of(name: str, *, alias: str = "", uri: str = "") -> str:
    """Return the lock key of a backend on a node; each family allows one operation at a time."""
    asked = alias or name or _last_part(uri)
    bare = asked.rsplit("@", 1)[-1].strip().casefold().replace("/", "__")
    if len(bare) <= LONGEST_FAMILY:
        return bare
    return f"{bare[:_KEPT]}~{hashlib.sha256(bare.encode()).hexdigest()[:16]}"


def _last_part(uri: str) -> str:
    """Return the last path part without archive suffix, registry tag and digest."""
    file_name = PurePosixPath(urlsplit(uri).path).name.partition("@")[0].partition(":")[0]
    for ending in (".tar.gz", ".tgz", ".tar.zst", ".tar"):
        file_name = file_name.removesuffix(ending)
    return file_name


def intent_digest(wanted: Mapping[str, object]) -> str:
    """Return the intent in 16 hex digits; requests with equal digests are the same operation."""
    canonical = json.dumps(wanted, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
