"""Labels of a node: validation, and the automatic labels derived from its hardware."""

import re
from collections.abc import Mapping

from nodesmith.domain.names import is_plain

LONGEST_KEY = 128
LONGEST_VALUE = 255
MOST_LABELS = 200

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")

_VRAM_STEPS = (48, 24, 16, 8)
_GB = 1_000_000_000

VENDOR, VRAM, NAME, SLOTS = "gpu.vendor", "gpu.vram", "node.name", "node.replica-slots"
AUTOMATIC = frozenset({VENDOR, VRAM, NAME, SLOTS})
"""label keys that only Nodesmith writes"""


def complaint(labels: Mapping[str, str]) -> str | None:
    """Return the first problem with these labels, naming the key; None if they are valid."""
    if len(labels) > MOST_LABELS:
        return f"a node has {MOST_LABELS} labels at most"
    for key, value in labels.items():
        if wrong := complaint_about_key(key) or _complaint_about_value(key, value):
            return wrong
    return None


def complaint_about_key(key: str) -> str | None:
    if not 0 < len(key) <= LONGEST_KEY:
        return f"the key {key[:40]!r} has {len(key)} characters; 1 to {LONGEST_KEY} are allowed"
    if not _KEY.fullmatch(key):
        return f"the key {key!r} may only have letters, digits and . _ - / : @ +, and must begin with a letter or digit"
    return None


def _complaint_about_value(key: str, value: str) -> str | None:
    if len(value) > LONGEST_VALUE:
        return f"the value of {key} has {len(value)} characters; {LONGEST_VALUE} are allowed"
    if not is_plain(value):
        return f"the value of {key} has a control character or an invisible character"
    return None


def automatic_labels(*, name: str, gpu_vendor: str | None, total_vram: int | None, slots: int) -> dict[str, str]:
    """Return the labels derived from the facts (R77); a node without GPU gets no GPU label."""
    found = {NAME: name[:LONGEST_VALUE], SLOTS: str(max(slots, 1))}
    if gpu_vendor:
        found[VENDOR] = gpu_vendor[:LONGEST_VALUE]
    if total_vram:
        found[VRAM] = vram_bucket(total_vram)
    return found


def vram_bucket(total_vram: int) -> str:
    """Return the marketed size in decimal GB: a "24 GB" card has a little less than 24 GiB."""
    size = total_vram // _GB
    if size >= 80:  # noqa: PLR2004 - the largest step, open to the top
        return "80GB+"
    return f"{next((step for step in _VRAM_STEPS if size >= step), size)}GB"
