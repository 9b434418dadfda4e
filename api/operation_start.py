"""Start one operation on one node, for our own routes and LocalAI's; the audit trail names it."""

from starlette.requests import Request

from nodesmith.api import auditing
from nodesmith.api.auth import require_uri_right
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.views.shapes import fields_of, view_of
from nodesmith.contracts.http.operations import InstallRequest, OperationAccepted
from nodesmith.domain.kinds import Kind
from nodesmith.services.requested_work import RequestedBackend


async def start_operation(
    http: Request,
    deps: Dependencies,
    kind: Kind,
    node: str,
    requested: InstallRequest,
    *,
    actor: str,
    key: str | None,
) -> OperationAccepted:
    require_uri_right(http, requested.uri)
    wanted = RequestedBackend(**fields_of(requested))
    accepted = await deps.admission.ask(kind, node, wanted, actor=actor, idempotency_key=key)
    asked = requested.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    after = {"kind": kind, **asked, "op_id": accepted.op_id}
    auditing.record(http, target=accepted.node_name, target_id=accepted.node_id, after=after)
    return view_of(OperationAccepted, accepted)
