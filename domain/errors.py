"""All errors of Nodesmith, with one root class; the docstring of a class is its default message."""


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


class SourceNotAllowed(NodesmithError):
    """This source is not allowed: its host, network or folder is not on the allow list."""

    code = "source_not_allowed"


class TooManyFailures(NodesmithError):
    """Too many wrong credentials came from this address."""

    code = "too_many_failures"


class TooManyPending(NodesmithError):
    """Too many nodes wait for approval."""

    code = "too_many_pending"


class InviteSpent(NodesmithError):
    """This invite is used up, expired or revoked."""

    code = "invite_spent"


class UnknownInvite(NodesmithError):
    """There is no such invite."""

    code = "unknown_invite"


class UnknownSession(NodesmithError):
    """There is no such session."""

    code = "unknown_session"


class UnknownToken(NodesmithError):
    """There is no such token."""

    code = "unknown_token"


class TokenNameTaken(NodesmithError):
    """An active token already has that name."""

    code = "token_name_taken"


class UnknownNode(NodesmithError):
    """There is no such node."""

    code = "unknown_node"


class UnknownOperation(NodesmithError):
    """There is no such operation."""

    code = "unknown_operation"


class ConcreteBackend(NodesmithError):
    """This build fits only some hardware: name the nodes to install it on."""

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
    """A gallery with that name already exists."""

    code = "gallery_exists"


class GalleryUnreadable(NodesmithError):
    """The gallery cannot be read."""

    code = "gallery_unreadable"


class NotSigned(NodesmithError):
    """The artifact lacks a signature that the policy of its gallery requires."""

    code = "not_signed"


class IndexExpired(NodesmithError):
    """The signed index of the gallery has expired."""

    code = "index_expired"


class UploadExists(NodesmithError):
    """That version of that backend was already uploaded."""

    code = "upload_exists"


class UploadRefused(NodesmithError):
    """The archive was rejected."""

    code = "upload_refused"


class UploadTooLarge(NodesmithError):
    """The archive exceeds the upload limit of this installation."""

    code = "upload_too_large"


class UnknownArtifact(NodesmithError):
    """The registry has no artifact with that name."""

    code = "unknown_artifact"


class RegistryDenied(NodesmithError):
    """The registry rejected the credentials."""

    code = "registry_denied"


class RegistryDown(NodesmithError):
    """The registry does not answer, so the tag cannot be resolved to a digest."""

    code = "registry_down"


class UnknownSource(NodesmithError):
    """There are no source settings for that host."""

    code = "unknown_source"


class NodeNotApproved(NodesmithError):
    """The node waits for approval."""

    code = "node_pending"


class NodeNotForBackends(NodesmithError):
    """The node runs no backends."""

    code = "node_not_for_backends"


class NodeCannot(NodesmithError):
    """The node does not support that."""

    code = "node_cannot"


class NodeDrained(NodesmithError):
    """The node is drained."""

    code = "node_drained"


class NameTaken(NodesmithError):
    """Another machine holds that node name."""

    code = "name_taken"


class IdentityInUse(NodesmithError):
    """Another process already runs as this node."""

    code = "identity_in_use"


class NodeRemoved(NodesmithError):
    """This node was removed."""

    code = "node_removed"


class OperationConflict(NodesmithError):
    """Another operation holds this backend on this node."""

    code = "operation_conflict"


class IdempotencyKeyReused(OperationConflict):
    """This Idempotency-Key was already used for another request."""

    code = "idempotency_key_reused"


class ShownOnce(NodesmithError):
    """This Idempotency-Key was used before, and the secret that its request made is shown only once."""

    code = "shown_once"


class NotInstalled(NodesmithError):
    """The backend is not installed on the node."""

    code = "not_installed"


class OperationEnded(NodesmithError):
    """The operation has already ended."""

    code = "operation_ended"


class NotRetryable(NodesmithError):
    """Only an operation that did not succeed can be retried."""

    code = "not_retryable"


class NotDismissable(NodesmithError):
    """Only an operation that ended badly can be dismissed."""

    code = "not_dismissable"


class NotCancellable(NodesmithError):
    """This operation cannot be cancelled any more."""

    code = "not_cancellable"


class ForeignRoot(NodesmithError):
    """The root key of this API does not belong to this installation."""

    code = "foreign_root"


class OrderNotSigned(NodesmithError):
    """The order of this operation is not signed by a trusted key."""

    code = "order_not_signed"


class IllegalTransition(NodesmithError):
    """The operation cannot make that state transition."""

    code = "illegal_transition"


class ServiceUnavailable(NodesmithError):
    """A server that this request needs does not answer."""

    code = "unavailable"


class OutcomeUnknown(ServiceUnavailable):
    """A server did not answer a change request: it is unknown whether the change was made."""

    code = "outcome_unknown"


class AlreadyRunning(NodesmithError):
    """Temporal has an open run of that workflow id."""

    code = "operation_conflict"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id=run_id)
        self.run_id = run_id


class NodeAway(NodesmithError):
    """The node does not answer: nothing was delivered."""

    code = "node_away"


class NoAnswer(NodesmithError):
    """The node did not answer in time: it may have done what was asked."""

    code = "no_answer"


class BadSignature(NoAnswer):
    """A message of the node is not signed with the node's key and was dropped."""


class LinkDown(NoAnswer):
    """NATS does not answer: nothing was delivered, and nothing is known of the node."""

    code = "unavailable"
