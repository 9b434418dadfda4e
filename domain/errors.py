"""One root for everything Nodesmith refuses or cannot do; the docstring of a class is its default message."""


class NodesmithError(Exception):
    """Something went wrong in Nodesmith."""

    code = "internal"

    def __init__(self, message: str = "", **facts: object) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.facts = facts
        super().__init__(self.message)


class InvalidRequest(NodesmithError):
    """The request cannot be understood."""

    code = "invalid_request"


class NotSignedIn(NodesmithError):
    """A valid token is needed."""

    code = "not_signed_in"


class NotAllowed(NodesmithError):
    """This credential may not do that."""

    code = "not_allowed"


class TooManyFailures(NodesmithError):
    """Too many wrong credentials came from this address."""

    code = "too_many_failures"


class InviteSpent(NodesmithError):
    """This invite admits nobody any more."""

    code = "invite_spent"


class UnknownInvite(NodesmithError):
    """There is no such invite."""

    code = "unknown_invite"


class UnknownToken(NodesmithError):
    """There is no such token."""

    code = "unknown_token"


class TokenNameTaken(NodesmithError):
    """A token of that name is in force already."""

    code = "token_name_taken"


class UnknownNode(NodesmithError):
    """There is no such node."""

    code = "unknown_node"


class UnknownOperation(NodesmithError):
    """There is no such operation."""

    code = "unknown_operation"


class ConcreteBackend(NodesmithError):
    """That build is for some hardware only, and was asked for everybody."""

    code = "concrete_backend_requires_target"


class UnknownBatch(NodesmithError):
    """There is no such batch."""

    code = "unknown_batch"


class UnknownBackend(NodesmithError):
    """No gallery has that backend."""

    code = "unknown_backend"


class NoBuildForNode(NodesmithError):
    """No build of this backend fits the node."""

    code = "no_build_for_node"


class UnknownGallery(NodesmithError):
    """There is no such gallery."""

    code = "unknown_gallery"


class GalleryExists(NodesmithError):
    """There is a gallery of that name already."""

    code = "gallery_exists"


class GalleryUnreadable(NodesmithError):
    """The gallery cannot be read."""

    code = "gallery_unreadable"


class UploadExists(NodesmithError):
    """That version of that backend is there already."""

    code = "upload_exists"


class UploadRefused(NodesmithError):
    """The archive cannot be taken in."""

    code = "upload_refused"


class UploadTooLarge(NodesmithError):
    """The archive is larger than this site takes."""

    code = "upload_too_large"


class UnknownArtifact(NodesmithError):
    """The registry has nothing under that name."""

    code = "unknown_artifact"


class RegistryDenied(NodesmithError):
    """The registry wants other credentials."""

    code = "registry_denied"


class RegistryDown(NodesmithError):
    """The registry does not answer, so nobody knows what the tag stands for now."""

    code = "registry_down"


class UnknownSource(NodesmithError):
    """Nothing is set for that host."""

    code = "unknown_source"


class NodeNotApproved(NodesmithError):
    """The node waits for approval."""

    code = "node_pending"


class NodeNotForBackends(NodesmithError):
    """The node runs no backends."""

    code = "node_not_for_backends"


class NodeCannot(NodesmithError):
    """The node cannot do that."""

    code = "node_cannot"


class NodeDrained(NodesmithError):
    """The node is drained."""

    code = "node_drained"


class NameTaken(NodesmithError):
    """Another machine holds that node name."""

    code = "name_taken"


class IdentityInUse(NodesmithError):
    """Another process is this node already."""

    code = "identity_in_use"


class NodeRemoved(NodesmithError):
    """This node was removed."""

    code = "node_removed"


class OperationConflict(NodesmithError):
    """Another operation holds this backend on this node."""

    code = "operation_conflict"


class IdempotencyKeyReused(OperationConflict):
    """This Idempotency-Key belongs to another request."""

    code = "idempotency_key_reused"


class NotInstalled(NodesmithError):
    """The backend is not installed on the node."""

    code = "not_installed"


class OperationEnded(NodesmithError):
    """The operation has ended already."""

    code = "operation_ended"


class NotRetryable(NodesmithError):
    """Only an operation that did not succeed can be retried."""

    code = "not_retryable"


class NotCancellable(NodesmithError):
    """This operation cannot be cancelled any more."""

    code = "not_cancellable"


class IllegalTransition(NodesmithError):
    """The operation cannot go from that state to the other."""

    code = "illegal_transition"


class ServiceUnavailable(NodesmithError):
    """A server that this request needs does not answer."""

    code = "unavailable"


class OutcomeUnknown(ServiceUnavailable):
    """A server was asked to change something and did not answer: it is not known whether it did."""

    code = "outcome_unknown"


class AlreadyRunning(NodesmithError):
    """Temporal has an open run of that workflow id."""

    code = "operation_conflict"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id=run_id)
        self.run_id = run_id


class NodeAway(NodesmithError):
    """Nobody answers at the node: nothing was delivered."""

    code = "node_away"


class NoAnswer(NodesmithError):
    """The node did not answer in time: it may have done what was asked."""

    code = "no_answer"


class LinkDown(NoAnswer):
    """NATS does not answer: nothing was delivered, and nothing is known of the node."""

    code = "unavailable"
