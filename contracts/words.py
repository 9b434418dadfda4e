"""The table of words: for each code a sentence and a remedy. API, CLI and console say the same thing."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from domain.operation import Phase, Reason, State


@dataclass(frozen=True)
class Words:
    sentence: str
    remedy: str = ""


REASONS: dict[Reason, Words] = {
    Reason.NODE_AWAY: Words("the node does not answer", "It goes on by itself when the node is back."),
    Reason.NATS_DOWN: Words(
        "NATS does not answer, so nobody can ask the node", "It goes on by itself when NATS is back."
    ),
    Reason.BATCH_TURN: Words(
        "the node is back; it has to wait for its turn in the batch",
        "It goes on by itself, unless the batch is paused.",
    ),
    Reason.BACK_OFF: Words("the last attempt failed; it is tried again", "Wait, or cancel the operation."),
    Reason.NODE_BUSY: Words("the node works on another operation of this backend", "It goes on by itself."),
    Reason.SOURCE_DOWN: Words("the source of the artifact does not deliver", "Check the source; it is asked again."),
    Reason.HELD: Words("held by an operator", "Release the hold."),
    Reason.DOWNLOAD_FAILED: Words("the download failed", "Check that the node reaches the source, then retry."),
    Reason.INTERRUPTED: Words("the agent was restarted in the middle", "Retry."),
    Reason.NODE_ERROR: Words("the node reported an error", "Read the error and the agent's log, then retry."),
    Reason.BAD_DIGEST: Words(
        "the artifact is not the one that was asked for (sha256 differs)",
        "Compare the digest in the gallery with the file at the source; nothing was installed.",
    ),
    Reason.SOURCE_DENIED: Words(
        "the source wants other credentials",
        "Give it some: `nodesmith sources add HOST --username NAME --password-stdin`, then retry.",
    ),
    Reason.STILL_RUNS: Words(
        "a process of the backend could not be stopped", "Look at the node's processes; the files were kept."
    ),
    Reason.BAD_ARCHIVE: Words("the archive is damaged or cut off", "Build or upload the archive again."),
    Reason.ARCHIVE_ESCAPES: Words(
        "the archive has a member that would leave its folder",
        "Do not trust this archive; build it again without absolute paths, `..` or links that lead out.",
    ),
    Reason.NO_SUCH_BACKEND: Words("there is no such backend", "`nodesmith backends ls` lists what there is."),
    Reason.NO_DISK: Words("not enough disk space on the node", "Free space on the node, then retry."),
    Reason.UNSUPPORTED_PLATFORM: Words("no build of this backend fits the node", "Choose another backend or node."),
    Reason.NOT_INSTALLED: Words("the backend is not installed on the node", "Install it instead."),
    Reason.NO_PREVIOUS_VERSION: Words(
        "the node has no previous version of this backend", "Install the version that is wanted."
    ),
    Reason.DID_NOT_START: Words(
        "it did not become healthy", "Read the tail of its log in the error, then mend the backend."
    ),
    Reason.ROLLED_BACK: Words(
        "the new version did not become healthy, so the node went back to the previous one",
        "Read the tail of its log in the error; the previous version serves.",
    ),
    Reason.REFUSED_BY_NODE: Words("the node refused", "Read its message; retry starts a new operation."),
    Reason.DEADLINE: Words("it took longer than its deadline", "Look at the node, then retry with a longer deadline."),
    Reason.LOST_NODE: Words(
        "the node went away with work on it and did not come back", "Bring the node back, then retry."
    ),
    Reason.ENDED_OUTSIDE: Words(
        "ended outside Nodesmith (terminated or deleted in Temporal)", "Retry if it is still wanted."
    ),
    Reason.REQUESTED: Words("cancelled by request"),
    Reason.SUPERSEDED: Words("replaced by a newer request"),
    Reason.BATCH_STOPPED: Words(
        "its batch stopped because too many others failed", "Mend the cause, then `nodesmith batches retry ID`."
    ),
    Reason.BATCH_CANCELLED: Words(
        "its batch was cancelled", "`nodesmith batches retry ID --cancelled` asks for it again."
    ),
    Reason.NODE_DRAINED: Words("node drained", "Resume the node, then retry."),
    Reason.NODE_REMOVED: Words("node removed"),
    Reason.FORCED: Words("ended by force, without the node's word", "Look at the node's inventory."),
    Reason.NODE_NEVER_CAME: Words("the node did not come in time", "Bring the node back, then retry."),
    Reason.ATTEMPTS_EXHAUSTED: Words("all attempts failed", "Mend the cause named by the last error, then retry."),
    Reason.UNKNOWN: Words("for a reason this version does not know", "Upgrade this client."),
}

STATES: dict[State, Words] = {
    State.QUEUED: Words("queued"),
    State.WAITING: Words("waiting"),
    State.RUNNING: Words("running on the node"),
    State.STILL_INSTALLING: Words("still installing: the node goes on, we attach to it again"),
    State.CANCELLING: Words("cancelling: the node has not been told yet"),
    State.SUCCEEDED: Words("succeeded"),
    State.FAILED: Words("failed"),
    State.CANCELLED: Words("cancelled"),
    State.EXPIRED: Words("expired"),
    State.DEAD_LETTER: Words("gave up"),
    State.UNKNOWN: Words("in a state this version does not know"),
}

NO_WORKER = Words(
    "queued: no worker has picked it up",
    "Is a worker running? `nodesmith status` says so, and logs/worker.log why not.",
)
"""derived on read, like `stalled`"""

ERRORS: dict[str, Words] = {
    "internal": Words("Something went wrong in Nodesmith.", "Look into the logs of the api process."),
    "invalid_request": Words("The request cannot be understood.", "Correct what is named, and send it again."),
    "not_signed_in": Words("A valid token is needed.", "Send `Authorization: Bearer <token>`."),
    "not_allowed": Words("This credential may not do that.", "Use a credential with the right role."),
    "too_many_failures": Words(
        "Too many wrong credentials came from this address.", "Wait as long as Retry-After says, then use a valid one."
    ),
    "invite_spent": Words("This invite admits nobody any more.", "Ask for a new one: `nodesmith nodes invite`."),
    "unknown_invite": Words("There is no such invite.", "`nodesmith nodes invites` lists them."),
    "unknown_token": Words("There is no such token.", "`nodesmith tokens ls` lists the tokens."),
    "token_name_taken": Words(
        "A token of that name is in force already.", "Choose another name, or `nodesmith tokens revoke NAME`."
    ),
    "unknown_node": Words("There is no such node.", "`nodesmith nodes ls` lists the nodes."),
    "unknown_operation": Words("There is no such operation.", "`nodesmith ops ls` lists the operations."),
    "concrete_backend_requires_target": Words(
        "That build is for some hardware only, and was asked for everybody.",
        "Ask for the alternative that is named, or name the nodes.",
    ),
    "unknown_batch": Words("There is no such batch.", "`nodesmith batches ls` lists the batches."),
    "unknown_backend": Words("No gallery has that backend.", "`nodesmith backends ls` lists what there is."),
    "no_build_for_node": Words(
        "No build of this backend fits the node.", "Choose another node, or one of the builds that are named."
    ),
    "unknown_gallery": Words("There is no such gallery.", "`nodesmith galleries ls` lists the galleries."),
    "gallery_exists": Words("There is a gallery of that name already.", "Choose another name, or remove that one."),
    "gallery_unreadable": Words("The gallery cannot be read.", "Check its address; the last good copy stays in use."),
    "upload_exists": Words("That version of that backend is there already.", "Give the archive another version."),
    "upload_refused": Words("The archive cannot be taken in.", "Pack it with `nodesmith backend pack DIR`."),
    "upload_too_large": Words(
        "The archive is larger than this site takes.",
        "Make it smaller, or let the admin raise NODESMITH_UPLOAD_LIMIT; nothing was kept.",
    ),
    "unknown_artifact": Words(
        "The registry has nothing under that name.", "Check repository and tag; nothing was started."
    ),
    "registry_denied": Words(
        "The registry wants other credentials.",
        "Give it some: `nodesmith sources add HOST --username NAME --password-stdin`, then ask again.",
    ),
    "registry_down": Words(
        "The registry does not answer, so nobody knows what the tag stands for now.",
        "Nothing was started. Ask again, or name the artifact by its digest: host/name@sha256:...",
    ),
    "unknown_source": Words("Nothing is set for that host.", "`nodesmith sources ls` lists the hosts."),
    "node_pending": Words("The node waits for approval.", "`nodesmith nodes approve NODE`, then ask again."),
    "node_not_for_backends": Words("The node runs no backends.", "Choose a node of type backend."),
    "node_cannot": Words("The node cannot do that.", "Read what it says; nothing was changed."),
    "node_drained": Words("The node is drained.", "Resume it, or ask with on_drained=true."),
    "name_taken": Words(
        "Another machine holds that node name.",
        "Choose another name, or give this one free: `nodesmith nodes reset-credential NODE`.",
    ),
    "identity_in_use": Words(
        "Another process is this node already.",
        "Stop one of the two. A copied machine or folder needs a name of its own and no identity.json.",
    ),
    "node_removed": Words(
        "This node was removed.",
        "To let it join again, delete retired.json in its agent's home and restart the agent.",
    ),
    "operation_conflict": Words(
        "Another operation holds this backend on this node.", "Wait for it, or cancel it: `nodesmith ops cancel ID`."
    ),
    "idempotency_key_reused": Words(
        "This Idempotency-Key belongs to another request.", "Send another request with a key of its own."
    ),
    "not_installed": Words(
        "The backend is not installed on the node.",
        "Install it: `nodesmith backends install NAME --on NODE`. If it was put there just now: "
        "`nodesmith nodes inventory NODE --refresh`, then ask again.",
    ),
    "operation_ended": Words("The operation has ended already.", "`nodesmith ops show ID` tells how."),
    "not_retryable": Words("Only an operation that did not succeed can be retried.", "Ask for it as a new one."),
    "not_cancellable": Words("This operation cannot be cancelled any more.", "Wait for it to end."),
    "illegal_transition": Words("The operation cannot go from that state to the other."),
    "node_away": Words("Nobody answers at the node.", "Start its agent, or look at its network."),
    "no_answer": Words("The node did not answer in time; it may have done it.", "Ask again."),
    "unavailable": Words("A server that this request needs does not answer.", "Try again; `/readyz` says which."),
    "outcome_unknown": Words(
        "A server did not answer: it is not known whether the request was carried out.",
        "Ask again: the same request joins what runs already. `nodesmith ops ls` shows what runs.",
    ),
}

_NUMBERED = re.compile(r"(attempt \d+(?: of \d+)?): (.*)", re.DOTALL)
"""how the workflow begins the detail of a back-off"""

LOCALAI_TASK_TYPES = {
    "install": "Installation",
    "upgrade": "Installation",
    "rollback": "Installation",
    "remove": "deletion",
}
LOCALAI_OUTCOMES = {
    State.SUCCEEDED: "completed",
    State.CANCELLED: "cancelled",
    State.FAILED: "failed",
    State.EXPIRED: "failed",
    State.DEAD_LETTER: "failed",
}


def tell(
    state: State,
    reason: Reason | None,
    detail: str = "",
    phase: Phase | None = None,
    *,
    until: datetime | None = None,
    zone: tzinfo | None = UTC,
) -> str:
    """One line for a person: what the operation does, and why. `zone` is the reader's; None is this machine's."""
    if state is State.WAITING and reason is Reason.BACK_OFF:
        return _tell_back_off(detail, until, zone)
    words = STATES[state].sentence
    if phase is not None and state is State.RUNNING:
        words = f"{phase} on the node"
    if reason is not None:
        words = f"{words}: {REASONS[reason].sentence}"
    return f"{words} ({detail})" if detail else words


def remedy(state: State, reason: Reason | None) -> str:
    return REASONS[reason].remedy if reason else STATES[state].remedy


def _tell_back_off(detail: str, until: datetime | None, zone: tzinfo | None) -> str:
    """`Retrying: attempt 3 of 10 failed (...). Next try at 17:38:20.`, as far as it is known."""
    numbered = _NUMBERED.fullmatch(detail)
    which, why = numbered.groups() if numbered else ("the last attempt", detail)
    failed = f"Retrying: {which} failed ({why})." if why else f"Retrying: {which} failed."
    if until is None:
        return failed
    return f"{failed} Next try at {until.astimezone(zone):%H:%M:%S}{' UTC' if zone is UTC else ''}."
