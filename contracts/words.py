"""User texts: a sentence and a remedy for each code, so that API, CLI and console say the same."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from nodesmith.domain.operation import Operation, Phase, Reason, State


@dataclass(frozen=True)
class Words:
    sentence: str
    remedy: str = ""


REASONS: dict[Reason, Words] = {
    Reason.NODE_AWAY: Words("the node does not answer", "It continues when the node is back."),
    Reason.NATS_DOWN: Words("NATS does not answer, so the node cannot be reached", "It continues when NATS is back."),
    Reason.BATCH_TURN: Words(
        "the node is back; the operation waits for a slot of its batch",
        "It continues when a slot is free, unless the batch is paused.",
    ),
    Reason.BACK_OFF: Words(
        "the last attempt failed", "The next attempt starts automatically. To stop it, cancel the operation."
    ),
    Reason.NODE_BUSY: Words(
        "the node works on another operation of this backend", "It continues when that operation has ended."
    ),
    Reason.SOURCE_DOWN: Words(
        "the source of the artifact is unavailable", "Check the source; the download is retried automatically."
    ),
    Reason.HELD: Words("held by an operator", "Release the hold: `nodesmith release`."),
    Reason.ORDER: Words(
        "the node cannot accept the signed order now",
        "It continues when the API has renewed the order. Check that an API runs and that the node reaches it.",
    ),
    Reason.BACKEND: Words(
        "the backend of the model is being installed", "It continues when that operation has succeeded."
    ),
    Reason.DOWNLOAD_FAILED: Words("the download failed", "Check that the node reaches the source, then retry."),
    Reason.INTERRUPTED: Words("the agent restarted during the operation", "Retry."),
    Reason.NODE_ERROR: Words("the node reported an error", "Read the error and the agent's log, then retry."),
    Reason.BAD_DIGEST: Words(
        "the artifact is not the requested one (its sha256 differs)",
        "Compare the digest in the gallery with the file at the source; nothing was installed.",
    ),
    Reason.SOURCE_DENIED: Words(
        "the source rejected the credentials",
        "Set them: `nodesmith sources add HOST --username NAME --password-stdin`, then retry.",
    ),
    Reason.STILL_RUNS: Words(
        "a process of the backend could not be stopped", "Look at the node's processes; the files were kept."
    ),
    Reason.BAD_ARCHIVE: Words("the archive is damaged or incomplete", "Build or upload the archive again."),
    Reason.ARCHIVE_ESCAPES: Words(
        "the archive has a member that would be written outside its folder",
        "Do not trust this archive; build it again without absolute paths, `..` or links that lead out.",
    ),
    Reason.NO_SUCH_BACKEND: Words("there is no such backend", "`nodesmith backends ls` lists the backends."),
    Reason.NO_DISK: Words("not enough disk space on the node", "Free space on the node, then retry."),
    Reason.UNSUPPORTED_PLATFORM: Words("no build of this backend fits the node", "Choose another backend or node."),
    Reason.NOT_INSTALLED: Words("the backend is not installed on the node", "Install it instead."),
    Reason.NO_PREVIOUS_VERSION: Words(
        "the node has no previous version of this backend", "Install the version that you want."
    ),
    Reason.DID_NOT_START: Words(
        "the backend did not become healthy", "Read the tail of its log in the error, then fix the backend."
    ),
    Reason.ROLLED_BACK: Words(
        "the new version did not become healthy, so the node restored the previous one",
        "Read the tail of its log in the error; the previous version is running.",
    ),
    Reason.REFUSED_BY_NODE: Words("the node refused", "Read its message; retry starts a new operation."),
    Reason.DEADLINE: Words(
        "the operation exceeded its deadline", "Look at the node, then retry with a longer deadline."
    ),
    Reason.LOST_NODE: Words(
        "the node went away during the operation and did not come back", "Bring the node back, then retry."
    ),
    Reason.ENDED_OUTSIDE: Words(
        "ended outside Nodesmith (terminated or deleted in Temporal)", "Retry if you still want it."
    ),
    Reason.NOT_ADMITTED: Words(
        "there is no signed order for it, so nothing was sent to the node",
        "If you requested it, request it again. Otherwise it was started in Temporal directly: "
        "see docs/explanation/security.md.",
    ),
    Reason.REQUESTED: Words("cancelled by request"),
    Reason.SUPERSEDED: Words("replaced by a newer request"),
    Reason.BATCH_STOPPED: Words(
        "its batch stopped because too many members failed", "Fix the cause, then `nodesmith batches retry ID`."
    ),
    Reason.BATCH_CANCELLED: Words(
        "its batch was cancelled", "To run it again: `nodesmith batches retry ID --cancelled`."
    ),
    Reason.NODE_DRAINED: Words("node drained", "Resume the node, then retry."),
    Reason.NODE_REMOVED: Words("node removed"),
    Reason.FORCED: Words(
        "ended by force, without an answer from the node",
        "Nodesmith no longer knows what is on that disk; run `nodesmith nodes inventory NODE --refresh`.",
    ),
    Reason.NODE_NEVER_CAME: Words("the node did not connect in time", "Bring the node back, then retry."),
    Reason.ATTEMPTS_EXHAUSTED: Words("all attempts failed", "Fix the cause named in the last error, then retry."),
    Reason.UNKNOWN: Words("for a reason this version does not know", "Upgrade this client."),
}

STATES: dict[State, Words] = {
    State.QUEUED: Words("queued"),
    State.WAITING: Words("waiting"),
    State.RUNNING: Words("running on the node"),
    State.STILL_INSTALLING: Words("still installing: the node continues, and a worker attaches to it again"),
    State.CANCELLING: Words("cancelling: the node has not confirmed it yet"),
    State.SUCCEEDED: Words("succeeded"),
    State.FAILED: Words("failed"),
    State.CANCELLED: Words("cancelled"),
    State.EXPIRED: Words("expired"),
    State.DEAD_LETTER: Words("gave up"),
    State.UNKNOWN: Words("in a state this version does not know"),
}

NO_WORKER = Words(
    "queued: no worker has picked it up",
    "Check that a worker runs: `nodesmith status`. If not, logs/worker.log says why.",
)
"""computed on read, like `stalled`"""

ERRORS: dict[str, Words] = {
    "internal": Words("An unexpected error occurred in Nodesmith.", "See the logs of the api process."),
    "invalid_request": Words("The request is invalid.", "Correct the request as the detail says, and send it again."),
    "not_signed_in": Words("A valid token is needed.", "Send `Authorization: Bearer <token>`."),
    "not_allowed": Words("The role of this credential does not allow that.", "Use a credential with the right role."),
    "unknown_model": Words("There is no such model.", "List the deployed models with `nodesmith models ls`."),
    "revision_conflict": Words(
        "Somebody else deployed this model meanwhile.",
        "Read it with `nodesmith models show NAME`, and deploy it again.",
    ),
    "no_node_fits": Words(
        "No registered node can ever run this model.",
        "Correct the selector or the memory, add a node, or deploy with `force` and wait for one.",
    ),
    "no_replica": Words(
        "No replica of this model is loaded.", "Retry after the time in Retry-After; `nodesmith models explain NAME`."
    ),
    "source_not_allowed": Words(
        "Fetching from that address is not allowed.",
        "An admin allows hosts, networks and folders with NODESMITH_SOURCE_HOSTS, _NETWORKS and _FOLDERS.",
    ),
    "too_many_failures": Words(
        "Too many wrong credentials came from this address.", "Wait for the time in Retry-After, then use a valid one."
    ),
    "too_many_pending": Words(
        "Too many nodes wait for approval; no more are registered.",
        "Approve or remove nodes (`nodesmith nodes ls --status pending`), let nodes join by `nodesmith nodes invite "
        "--approve`, or raise NODESMITH_PENDING_NODES.",
    ),
    "invite_spent": Words(
        "This invite is used up, expired or revoked.", "Ask for a new one: `nodesmith nodes invite`."
    ),
    "unknown_invite": Words("There is no such invite.", "`nodesmith nodes invites` lists them."),
    "unknown_session": Words(
        "There is no such session.", "`nodesmith sessions ls` lists the browsers that are signed in."
    ),
    "unknown_token": Words("There is no such token.", "`nodesmith tokens ls` lists the tokens."),
    "token_name_taken": Words(
        "An active token already has that name.", "Choose another name, or `nodesmith tokens revoke NAME`."
    ),
    "unknown_node": Words("There is no such node.", "`nodesmith nodes ls` lists the nodes."),
    "unknown_operation": Words("There is no such operation.", "`nodesmith ops ls` lists the operations."),
    "concrete_backend_requires_target": Words(
        "This build fits only some hardware: name the nodes to install it on.",
        "Request the named alternative, or name the nodes.",
    ),
    "unknown_batch": Words("There is no such batch.", "`nodesmith batches ls` lists the batches."),
    "unknown_backend": Words("No gallery has that backend.", "`nodesmith backends ls` lists the backends."),
    "no_build_for_node": Words(
        "No build of this backend fits the node.", "Choose another node, or one of the named builds."
    ),
    "unknown_gallery": Words("There is no such gallery.", "`nodesmith galleries ls` lists the galleries."),
    "gallery_exists": Words("A gallery with that name already exists.", "Choose another name, or remove that gallery."),
    "gallery_unreadable": Words("The gallery cannot be read.", "Check its address; the last good copy stays in use."),
    "not_signed": Words(
        "The artifact lacks a signature that the policy of its gallery requires.",
        "Sign it with a trusted key, or check the gallery's keys and policy: `nodesmith galleries ls`.",
    ),
    "index_expired": Words(
        "The signed index of the gallery has expired.",
        "Let its publisher sign it again (`nodesmith galleries sign`), then run `nodesmith galleries refresh`.",
    ),
    "upload_exists": Words("That version of that backend was already uploaded.", "Give the archive another version."),
    "upload_refused": Words("The archive was rejected.", "Pack it with `nodesmith backend pack DIR`."),
    "upload_too_large": Words(
        "The archive exceeds the upload limit of this installation.",
        "Make it smaller, or let an admin raise NODESMITH_UPLOAD_LIMIT. Nothing was stored.",
    ),
    "unknown_artifact": Words(
        "The registry has no artifact with that name.", "Check repository and tag; nothing was started."
    ),
    "registry_denied": Words(
        "The registry rejected the credentials.",
        "Set them: `nodesmith sources add HOST --username NAME --password-stdin`, then try again.",
    ),
    "registry_down": Words(
        "The registry does not answer, so the tag cannot be resolved to a digest.",
        "Nothing was started. Try again, or name the artifact by its digest: host/name@sha256:...",
    ),
    "unknown_source": Words("There are no source settings for that host.", "`nodesmith sources ls` lists the hosts."),
    "node_pending": Words(
        "The node waits for approval.", "Approve it (`nodesmith nodes approve NODE`), then try again."
    ),
    "node_not_for_backends": Words("The node runs no backends.", "Choose a node of type backend."),
    "node_cannot": Words("The node does not support that.", "Read the message; nothing was changed."),
    "node_drained": Words("The node is drained.", "Resume it, or set on_drained=true in the request."),
    "name_taken": Words(
        "Another machine has that node name.",
        "Choose another name, or release this one: `nodesmith nodes reset-credential NODE`.",
    ),
    "identity_in_use": Words(
        "Another process already runs as this node.",
        "Stop one of the two. A copied machine or folder needs its own name and no identity.json.",
    ),
    "node_removed": Words(
        "This node was removed.",
        "To let it join again, delete retired.json in its agent's home and restart the agent.",
    ),
    "operation_conflict": Words(
        "Another operation holds this backend on this node.", "Wait for it, or cancel it: `nodesmith ops cancel ID`."
    ),
    "idempotency_key_reused": Words(
        "This Idempotency-Key was already used for another request.", "Use a new key for each request."
    ),
    "shown_once": Words(
        "This Idempotency-Key was used before; the secret that its request created is shown only once.",
        "Use a new key. If the first response was lost, revoke what it created: `nodesmith tokens ls` and "
        "`nodesmith nodes invites` list it.",
    ),
    "not_installed": Words(
        "The backend is not installed on the node.",
        "Install it: `nodesmith backends install NAME --on NODE`. If it was installed just now: "
        "`nodesmith nodes inventory NODE --refresh`, then try again.",
    ),
    "operation_ended": Words("The operation has already ended.", "`nodesmith ops show ID` shows the result."),
    "not_dismissable": Words(
        "Only an operation that ended badly can be dismissed.", "Others leave the live list by themselves."
    ),
    "not_retryable": Words("Only an operation that did not succeed can be retried.", "Start a new operation instead."),
    "not_cancellable": Words("This operation can no longer be cancelled.", "Wait for it to end."),
    "foreign_root": Words(
        "The root key of this API does not belong to this installation.",
        "Give this API the NODESMITH_ORDER_KEYS folder of the other replicas.",
    ),
    "order_not_signed": Words(
        "The order of this operation is not signed by a trusted key.",
        "Start a new operation instead. `nodesmith keys ls` lists the keys.",
    ),
    "illegal_transition": Words("The operation cannot make that state transition."),
    "node_away": Words("The node does not answer.", "Start its agent, or check its network."),
    "no_answer": Words("The node did not answer in time; it may have carried out the request.", "Try again."),
    "unavailable": Words("A server that this request needs does not answer.", "Try again; `/readyz` says which."),
    "outcome_unknown": Words(
        "A server did not answer; the request may or may not have been carried out.",
        "Try again: the same request joins a running operation. `nodesmith ops ls` lists the operations.",
    ),
}

_NUMBERED = re.compile(r"(attempt \d+(?: of \d+)?): (.*)", re.DOTALL)
"""how the workflow starts the detail of a back-off"""

LOCALAI_OUTCOMES = {
    State.SUCCEEDED: "completed",
    State.CANCELLED: "cancelled",
    State.FAILED: "failed",
    State.EXPIRED: "failed",
    State.DEAD_LETTER: "failed",
}


def describe(operation: Operation) -> Words:
    """Describe the current state of an operation, and what the reader can do about it."""
    if operation.lacks_worker:
        return NO_WORKER
    state, reason = operation.state, operation.reason
    sentence = tell(state, reason, operation.detail, operation.gauge.phase, until=operation.until)
    return Words(sentence, remedy(state, reason))


def tell(
    state: State,
    reason: Reason | None,
    detail: str = "",
    phase: Phase | None = None,
    *,
    until: datetime | None = None,
    zone: tzinfo | None = UTC,
) -> str:
    """Describe an operation in one line: state and reason. `zone` is the reader's time zone; None is this machine's."""
    if state is State.WAITING and reason is Reason.BACK_OFF:
        return _describe_back_off(detail, until, zone)
    words = STATES[state].sentence
    if phase is not None and state is State.RUNNING:
        words = f"{phase} on the node"
    if reason is not None:
        words = f"{words}: {REASONS[reason].sentence}"
    return f"{words} ({detail})" if detail else words


def remedy(state: State, reason: Reason | None) -> str:
    return REASONS[reason].remedy if reason else STATES[state].remedy


def _describe_back_off(detail: str, until: datetime | None, zone: tzinfo | None) -> str:
    """Return `Retrying: attempt 3 of 10 failed (...). Next try at 17:38:20.`, without the parts that are not known."""
    numbered = _NUMBERED.fullmatch(detail)
    which, why = numbered.groups() if numbered else ("the last attempt", detail)
    failed = f"Retrying: {which} failed ({why})." if why else f"Retrying: {which} failed."
    if until is None:
        return failed
    return f"{failed} Next try at {until.astimezone(zone):%H:%M:%S}{' UTC' if zone is UTC else ''}."
