"""HTTP shapes of tokens, invites and the audit trail."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from nodesmith.contracts.http.shared import Address, Facts, Shape, example
from nodesmith.contracts.node_fields import CheckedLabels
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

    model_config = example(name="night-shift", role="operator")

    name: str = Field(min_length=1, max_length=100, pattern=FULL_NAME, description="Its holder; appears as actor.")
    role: Role
    """what its holder may do"""
    expires_in_s: float | None = Field(
        default=90 * DAY_S, gt=0, le=3650 * DAY_S, description="Default: 90 days. null: until it is revoked."
    )


class TokenView(Shape):
    """One token, without its secret, which is shown once, when the token is created."""

    id: str
    """identifies the token, and grants no access"""
    name: str
    """its holder; appears as actor in the audit trail"""
    role: Role
    """what its holder may do"""
    created_by: str
    """who created it"""
    created_at: datetime
    """when it was created"""
    expires_at: datetime | None = None
    """when it expires; null: never"""
    revoked_at: datetime | None = None
    """when it was revoked; null: it is valid"""
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
    """the holder of the token that signed it in"""
    role: Role
    """what the browser may do"""
    signed_in_at: datetime
    """when it signed in"""
    expires_at: datetime
    """when it has to sign in again"""


class InviteRequest(Shape):
    """`POST /api/v1/invites`."""

    model_config = example(uses=3, labels={"zone": "a"})

    approve: bool = Field(default=False, description="Nodes that join with it are approved automatically.")
    ttl_s: float = Field(default=3600, gt=0, le=30 * DAY_S)
    """seconds until it expires"""
    uses: int = Field(default=1, ge=1, le=10_000, description="How many nodes may join with it.")
    labels: Annotated[CheckedLabels, AfterValidator(_settable)] = Field(default_factory=dict)
    """an admin's labels for the nodes that join with it"""


class InviteView(Shape):
    id: str
    """identifies the invite, and grants no access"""
    approve: bool
    """nodes that join with it are approved automatically"""
    uses: int
    """how many nodes may join with it"""
    used: int
    """how many have joined"""
    labels: dict[str, str]
    """an admin's labels for the nodes that join with it"""
    created_by: str
    """who created it"""
    created_at: datetime
    """when it was created"""
    expires_at: datetime
    """when it expires"""
    revoked_at: datetime | None = None
    """when it was revoked; null: it was not"""


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
    """number of the entry; newer ones are greater"""
    at: datetime
    """when the change was requested"""
    actor: str
    """who changed it: the name of a token, or the program that did"""
    action: str
    """resource and verb, e.g. nodes.approve"""
    target: Address
    """name of what was changed"""
    target_id: str = ""
    """its id; empty if the name is its id"""
    before: Facts | None = None
    """the fields that changed, before the change"""
    after: Facts | None = None
    """after the change; for an `unknown` change, the request"""
    reason: Address = ""
    """why, as the caller put it"""
    outcome: ChangeState = ChangeState.DONE
    """`unknown`: the change was begun, and the process ended before it could record the result"""
