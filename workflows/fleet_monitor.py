"""Runs the fleet watch for ever: repair rows, stop orphans. A singleton, though two at once would do no harm."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.temporal import operations as names
    from nodesmith.contracts.temporal.operations import FleetWatch


@workflow.defn(name=names.FLEET_MONITOR)
class FleetMonitor:
    @workflow.run
    async def run(self, watch: FleetWatch) -> None:
        await workflow.execute_activity(
            names.WATCH_FLEET, watch, summary="repair rows, stop orphans", **options.watch_fleet(watch)
        )
        workflow.continue_as_new(watch)
