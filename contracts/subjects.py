"""NATS subjects. The node-bound ones are LocalAI's; protocol 2 adds outcome, cancel, op and heartbeat."""

_UNSAFE = str.maketrans(dict.fromkeys(".*> \t\n", "-"))


def token(identifier: str) -> str:
    """One subject token: what NATS reads as structure becomes a dash, as LocalAI does it."""
    return identifier.translate(_UNSAFE)


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
"""Queue group: each heartbeat is taken by one worker of the control plane."""


def inbox(node_id: str) -> str:
    return f"_INBOX_{token(node_id)}"  # _INBOX_<id>: replies to a node go where no other node may listen


def node_publishes(node_id: str, *, protocol: int) -> list[str]:
    """What a node's credential may publish: its own reports, nothing else."""
    own = f"nodes.{token(node_id)}"
    allowed = [f"{own}.heartbeat", f"{own}.backend.install.*.progress", f"{own}.backend.install.*.outcome"]
    return [*allowed, "_INBOX.>"] if protocol == 1 else allowed


def node_subscribes(node_id: str) -> list[str]:
    """What a node's credential may hear: its own commands and its own inbox."""
    return [f"nodes.{token(node_id)}.>", f"{inbox(node_id)}.>"]


CONTROL_PUBLISHES = ["nodes.>", "_INBOX.>"]
CONTROL_SUBSCRIBES = ["nodes.>", "_INBOX.>"]


def account_lookup(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"  # of nats-server itself, in its system account


def account_update(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.UPDATE"  # of nats-server itself, in its system account
