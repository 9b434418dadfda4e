"""HTTP shapes of tokens, invites and the audit trail."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from contracts.http import Shape
from contracts.node_http import CheckedLabels
from domain.access import Role
from domain.change import Known
from domain.labels import AUTOMATIC

DAY_S = 86400.0
FULL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"


def _settable(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if key in AUTOMATIC:
            raise ValueError(f"the label {key} follows from what a node is; it cannot be given")
    return labels


class TokenRequest(Shape):
    """`POST /api/tokens`."""

    name: str = Field(min_length=1, max_length=100, pattern=FULL_NAME, description="Who: appears as actor.")
    role: Role
    expires_in_s: float | None = Field(
        default=90 * DAY_S, gt=0, le=3650 * DAY_S, description="Default: 90 days. null: until it is revoked."
    )


class TokenView(Shape):
    """One token, without its secret: that is shown once, when it is made."""

    id: str
    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """to the minute"""


class TokenCreated(TokenView):
    token: str
    """shown only here; only its hash is kept"""


class InviteRequest(Shape):
    """`POST /api/invites`."""

    approve: bool = Field(default=False, description="Nodes that join with it are approved at once.")
    ttl_s: float = Field(default=3600, gt=0, le=30 * DAY_S)
    uses: int = Field(default=1, ge=1, le=10_000, description="How many nodes may join with it.")
    labels: Annotated[CheckedLabels, AfterValidator(_settable)] = Field(default_factory=dict)


class InviteView(Shape):
    id: str
    approve: bool
    uses: int
    used: int
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


class InviteCreated(InviteView):
    token: str
    """shown only here; only its hash is kept"""
    url: str
    """the address of the API for other machines"""
    ca_sha256: str = ""
    """fingerprint of the CA behind that address; empty without TLS of our own"""
    command: str
    """what to run on the other machine"""


class AuditEntry(Shape):
    """One change: who, what, on what, from what to what, when and why."""

    id: int
    at: datetime
    actor: str
    action: str
    """resource and verb, e.g. nodes.approve"""
    target: str
    target_id: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    """as it is now; of a change that is `unknown`, what was asked for"""
    reason: str = ""
    outcome: Known = Known.DONE
    """`unknown`: it was begun, and whoever made it ended before it could say how it went"""


class AuditPage(Shape):
    entries: list[AuditEntry]
    next: int | None = None
    """pass it as `before_id` for the next page; absent on the last"""
