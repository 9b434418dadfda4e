"""A load waits for the operation that installs its backend."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.temporal import dispatch as names
    from nodesmith.contracts.temporal.dispatch import OtherEnd, OtherOperation
    from nodesmith.contracts.temporal.operations import OperationInput, RunState
    from nodesmith.contracts.words import tell
    from nodesmith.domain.operation import Event, Reason, State
    from nodesmith.workflows.operation_record import OperationRecord


class BackendWait:
    """Watches the other operation in an activity, so that a long installation adds nothing to the history."""

    def __init__(self, start: OperationInput, state: RunState, record: OperationRecord) -> None:
        self._after = start.request.after
        self._run = state
        self._record = record

    @property
    def is_needed(self) -> bool:
        return bool(self._after) and not self._run.has_backend

    async def wait(self) -> None:
        """Return when the backend is installed, or a cancel or a report about the row came; fail with the other."""
        self._record.move(Event.POSTPONE, reason=Reason.BACKEND, detail=f"operation {self._after}")
        await self._record.write()
        watching = workflow.start_activity(
            names.WATCH_OPERATION,
            OtherOperation(op_id=self._after),
            result_type=OtherEnd,
            summary=f"wait for {self._after}",
            **options.watch_operation(),
        )
        await workflow.wait_condition(lambda: watching.done() or self._run.cancel is not None or self._run.row_doubted)
        if not watching.done():
            watching.cancel()
            return
        self._apply(await watching)

    def _apply(self, end: OtherEnd) -> None:
        if end.state is State.SUCCEEDED:
            self._run.has_backend = True
            return
        why = f"operation {self._after} did not install it: {tell(end.state, end.reason)}"
        self._record.move(Event.FAIL, reason=Reason.NOT_INSTALLED, detail=why)
