"""What an operation locks: a backend on its node, or one replica of a model there."""

from nodesmith.contracts.temporal.operations import Intent, OperationRequest, operation_workflow_id
from nodesmith.domain.kinds import lock_name
from nodesmith.domain.replica import process_key


def replica_workflow_id(node_id: str, model: str, index: int) -> str:
    """The workflow id, and so the lock, of a load or unload."""
    return f"model:{node_id}:{process_key(model, index)}"  # model:{node_id}:{model}#{index}


def workflow_id_of(request: OperationRequest) -> str:
    wanted = request.wanted
    if wanted.kind.rules.locks_replica:
        return replica_workflow_id(request.node_id, wanted.model, wanted.replica_index)
    return operation_workflow_id(request.node_id, wanted.family)


def lock_of(wanted: Intent) -> str:
    """Return what orders are numbered by on their node; `Order.lock` of the same operation is equal."""
    return lock_name(wanted.kind, wanted.family, wanted.model, wanted.replica_index)
