"""Names in the certificates between gateways and the forwarders of nodes."""

import hashlib

GATEWAY_NAME = "gateway.nodesmith.internal"
"""name in the certificate of every gateway"""
_NODES = "replica.nodesmith.internal"
_SCHEME = "tls://"


def server_name(node_id: str, process_key: str) -> str:
    """The TLS server name of a replica. A process key may contain characters that no host name has: it is hashed."""
    return f"{hashlib.sha256(process_key.encode()).hexdigest()[:32]}.{node_id}.{_NODES}"


def node_name(node_id: str) -> str:
    """Name in the certificate of a node: valid for all its replicas, and for no other node's."""
    return f"*.{node_id}.{_NODES}"


def forwarded(address: str) -> str:
    """The address of a replica behind a forwarder, as its node reports it."""
    return _SCHEME + address


def split_address(reported: str) -> tuple[str, bool]:
    """Host and port of a reported address, and whether a forwarder listens there."""
    return reported.removeprefix(_SCHEME), reported.startswith(_SCHEME)
