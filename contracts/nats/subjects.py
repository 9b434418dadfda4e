"""NATS subjects. The subjects of nodes are LocalAI's; protocol 2 adds outcome, cancel, op and heartbeat."""

from nodesmith.domain.kinds import Kind

_UNSAFE = str.maketrans(dict.fromkeys(".*> \t\n", "-"))


def token(identifier: str) -> str:
    """Return one subject token: characters with a meaning in NATS become a dash, as in LocalAI."""
    return identifier.translate(_UNSAFE)


def node_of(subject: str) -> str:
    """Return the token of the node that a subject names."""
    return subject.split(".")[1]


def command(node_id: str, kind: Kind) -> str:
    """Return the subject on which a node receives operations of that kind: one of the three below."""
    return f"nodes.{token(node_id)}.backend.{kind.rules.subject}"


def install(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.install"  # nodes.<id>.backend.install


def upgrade(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.upgrade"  # nodes.<id>.backend.upgrade


def delete(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.delete"  # nodes.<id>.backend.delete


def list_backends(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.list"  # nodes.<id>.backend.list


def stop_backend(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.stop"  # nodes.<id>.backend.stop


def stop_node(node_id: str) -> str:
    return f"nodes.{token(node_id)}.stop"  # nodes.<id>.stop


def models_running(node_id: str) -> str:
    return f"nodes.{token(node_id)}.models.running"  # nodes.<id>.models.running


def unload_model(node_id: str) -> str:
    return f"nodes.{token(node_id)}.model.unload"  # nodes.<id>.model.unload


def stop_model(node_id: str) -> str:
    return f"nodes.{token(node_id)}.model.stop"  # nodes.<id>.model.stop


def delete_model(node_id: str) -> str:
    return f"nodes.{token(node_id)}.model.delete"  # nodes.<id>.model.delete


def logs(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.logs"  # nodes.<id>.backend.logs          (protocol 2)


def boot(node_id: str) -> str:
    return f"nodes.{token(node_id)}.boot"  # nodes.<id>.boot                  (protocol 2)


def trust(node_id: str) -> str:
    return f"nodes.{token(node_id)}.trust"  # nodes.<id>.trust                 (protocol 2)


def cancel(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.cancel"  # nodes.<id>.backend.cancel        (protocol 2)


def operation(node_id: str) -> str:
    return f"nodes.{token(node_id)}.backend.op"  # nodes.<id>.backend.op            (protocol 2)


def heartbeat(node_id: str) -> str:
    return f"nodes.{token(node_id)}.heartbeat"  # nodes.<id>.heartbeat             (protocol 2)


def progress(node_id: str, op_id: str) -> str:
    # nodes.<id>.backend.install.<op>.progress, for every kind of operation
    return f"nodes.{token(node_id)}.backend.install.{token(op_id)}.progress"


def outcome(node_id: str, op_id: str) -> str:
    # nodes.<id>.backend.install.<op>.outcome, for every kind of operation    (protocol 2)
    return f"nodes.{token(node_id)}.backend.install.{token(op_id)}.outcome"


EVERY_PROGRESS = "nodes.*.backend.install.*.progress"
EVERY_OUTCOME = "nodes.*.backend.install.*.outcome"
EVERY_HEARTBEAT = "nodes.*.heartbeat"

HEARTBEAT_SINKS = "heartbeat-sinks"
"""Queue group: each heartbeat is handled by one worker of the control plane."""


def reply(asked: str, session: str, nonce: str) -> str:
    """Return the subject for the reply to a request on `asked`; no other node may publish there."""
    return f"_R.{node_of(asked)}.{session}.{nonce}"  # _R.<id>.<session>.<token>, 128 random bits each


def replies(session: str) -> str:
    return f"_R.*.{session}.*"  # every answer to one connection of the control plane


EVERY_REPLY = "_R.>"


def node_publishes(node_id: str) -> list[str]:
    """The subjects that a node's credential may publish: its own reports and replies."""
    own = token(node_id)
    return [heartbeat(node_id), *(f"nodes.{own}.backend.install.*.{kind}" for kind in REPORTS), f"_R.{own}.*.*"]


def node_subscribes(node_id: str) -> list[str]:
    """The subjects that a node's credential may subscribe to: its own commands."""
    return [f"nodes.{token(node_id)}.>"]


REPORTS = ("progress", "outcome")
CONTROL_PUBLISHES = ["nodes.>"]
CONTROL_SUBSCRIBES = [EVERY_HEARTBEAT, EVERY_PROGRESS, EVERY_OUTCOME, EVERY_REPLY]


def account_lookup(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"  # of nats-server itself, in its system account


def account_update(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.UPDATE"  # of nats-server itself, in its system account
