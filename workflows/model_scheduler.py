"""Runs the model scheduler for ever. A singleton, though two at once would do no harm."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.temporal import models as names
    from nodesmith.contracts.temporal.operations import FleetWatch


@workflow.defn(name=names.MODEL_SCHEDULER)
class ModelScheduler:
    @workflow.run
    async def run(self, watch: FleetWatch) -> None:
        await workflow.execute_activity(
            names.WATCH_MODELS, watch, summary="place, scale and unload replicas", **options.watch_fleet(watch)
        )
        workflow.continue_as_new(watch)
