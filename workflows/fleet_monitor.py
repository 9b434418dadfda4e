"""The singleton that keeps rows and nodes honest; two at once would be harmless."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import temporal as names
    from contracts.temporal import FleetWatch


@workflow.defn(name=names.FLEET_MONITOR)
class FleetMonitor:
    @workflow.run
    async def run(self, watch: FleetWatch) -> None:
        await workflow.execute_activity(
            names.WATCH_FLEET, watch, summary="repair rows, stop orphans", **options.watch_fleet(watch)
        )
        workflow.continue_as_new(watch)
