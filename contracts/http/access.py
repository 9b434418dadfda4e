"""HTTP shapes of tokens, invites and the audit trail."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from nodesmith.contracts.http.nodes import CheckedLabels
from nodesmith.contracts.http.shared import Address, Facts, Shape
from nodesmith.domain.access import Role
from nodesmith.domain.audit_change import ChangeState
from nodesmith.domain.labels import AUTOMATIC

DAY_S = 86400.0
FULL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"


def _settable(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if key in AUTOMATIC:
            raise ValueError(f"the label {key} is automatic; it cannot be set")
    return labels


class TokenRequest(Shape):
    """`POST /api/v1/tokens`."""

    name: str = Field(min_length=1, max_length=100, pattern=FULL_NAME, description="Its holder; appears as actor.")
    role: Role
    expires_in_s: float | None = Field(
        default=90 * DAY_S, gt=0, le=3650 * DAY_S, description="Default: 90 days. null: until it is revoked."
    )


class TokenView(Shape):
    """One token, without its secret, which is shown once, when the token is created."""

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
    """shown only here; only its hash is stored"""


class SessionView(Shape):
    """A signed-in browser."""

    id: str
    """identifies the session, and grants no access"""
    actor: str
    role: Role
    signed_in_at: datetime
    expires_at: datetime


class InviteRequest(Shape):
    """`POST /api/v1/invites`."""

    approve: bool = Field(default=False, description="Nodes that join with it are approved automatically.")
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
    """shown only here; only its hash is stored"""
    url: str
    """the address of the API for other machines"""
    ca_sha256: str = ""
    """fingerprint of the CA of that address; empty without our own TLS"""
    trust: str = ""
    """fingerprint of the root key that a joining node trusts"""
    command: str
    """the command to run on the other machine"""


class AuditEntry(Shape):
    """One change: actor, action, target, before, after, time and reason."""

    id: int
    at: datetime
    actor: str
    action: str
    """resource and verb, e.g. nodes.approve"""
    target: Address
    target_id: str = ""
    before: Facts | None = None
    after: Facts | None = None
    """after the change; for an `unknown` change, the request"""
    reason: Address = ""
    outcome: ChangeState = ChangeState.DONE
    """`unknown`: the change was begun, and the process ended before it could record the result"""
