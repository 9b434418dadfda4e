"""Errors about models and replicas; see `nodesmith.domain.errors`."""

from nodesmith.domain.errors import NodesmithError


class UnknownModel(NodesmithError):
    """There is no such model."""

    code = "unknown_model"


class RevisionConflict(NodesmithError):
    """The model has another revision than the one that the request expects."""

    code = "revision_conflict"


class NoNodeFits(NodesmithError):
    """No registered node can ever run this model."""

    code = "no_node_fits"


class NoReplica(NodesmithError):
    """No replica of this model is loaded."""

    code = "no_replica"
