"""Running models as the nodes report them, with the calls that routers count."""

from collections.abc import Sequence

from nodesmith.api.dependencies import Dependencies
from nodesmith.api.views.deployments import with_calls
from nodesmith.api.views.models import model_view
from nodesmith.contracts.http.models import NodeModel
from nodesmith.domain.running_model import LoadedModel


async def counted(deps: Dependencies, models: Sequence[LoadedModel]) -> list[NodeModel]:
    """Add what is known of those processes that are replicas of a deployment."""
    calls = await deps.deployments.by_process({model.node_id for model in models})
    return with_calls([model_view(model) for model in models], calls)
