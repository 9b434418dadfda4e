"""Running models as the nodes report them, with the calls that routers count."""

from collections.abc import Sequence

from nodesmith.api.dependencies import Dependencies
from nodesmith.api.views.deployments import with_calls
from nodesmith.contracts.http.models import NodeModel


async def counted(deps: Dependencies, models: Sequence[NodeModel]) -> list[NodeModel]:
    """Add what is known of those processes that are replicas of a deployment."""
    return with_calls(models, await deps.deployments.by_process({model.node_id for model in models}))
