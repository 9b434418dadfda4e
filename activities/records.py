"""Activities that write operation rows and audit entries to PostgreSQL."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import OperationRequest, RecordResult, Transitions
from nodesmith.domain.audit_change import AuditChange
from nodesmith.domain.errors import BadSignature
from nodesmith.services.access.invites import AuditTrail
from nodesmith.services.operations.verified_records import VerifiedRecords

TEMPORAL = "Temporal"
"""the audit actor of a run that was started in Temporal and not through an API"""
_LONGEST, _MOST = 2048, 20


class RecordActivities:
    def __init__(self, records: VerifiedRecords, trail: AuditTrail) -> None:
        self._records = records
        self._trail = trail

    @activity.defn(name=names.RECORD)
    async def record(self, transitions: Transitions) -> RecordResult:
        """Write rows and their events in one transaction; a repeated or late write changes nothing.

        An outcome that the node did not sign fails the run; the repair then asks the node and corrects the row.
        """
        try:
            return await self._records.record(*transitions.rows, only_unsent=transitions.only_unsent)
        except BadSignature as error:
            raise ApplicationError(error.message, type="bad_signature", non_retryable=True) from error

    @activity.defn(name=names.REPORT_NOT_ADMITTED)
    async def report_not_admitted(self, request: OperationRequest) -> None:
        """Audit a run that was started in Temporal without admission by an API, so that an admin sees its request."""
        after = _shortened(request.model_dump(mode="json", include={"op_id", "wanted", "requested_by", "batch_id"}))
        change = AuditChange(
            TEMPORAL,
            "operations.not_admitted",
            request.node_name[:_LONGEST],
            target_id=request.node_id[:_LONGEST],
            after=after,
        )
        await self._trail.complete(await self._trail.begin(change), change)


def _shortened(value: Any) -> Any:
    """Cut texts and lists: this request was never checked, and may have 2 MB."""
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value[:_MOST]]
    return value[:_LONGEST] if isinstance(value, str) else value
