"""HTTP shapes of the control plane's keys, without their secrets."""

from datetime import datetime

from pydantic import Field

from nodesmith.contracts.http.shared import Shape, example


class OrderKeyView(Shape):
    kid: str
    """id of the key"""
    until: datetime
    """nodes reject its signatures after this time"""
    signs: bool
    """this API signs orders with it"""


class NodesBehind(Shape):
    """Nodes without the newest trust list: they still accept the keys of an older list."""

    count: int
    """how many nodes"""
    names: list[str]
    """the first few names"""


class KeysView(Shape):
    """The keys that nodes trust."""

    version: int
    """version of the trust list"""
    trust: str
    """fingerprint of the root key, for `nodesmith agent join --trust`"""
    keys: list[OrderKeyView]
    """the order keys, which nodes accept"""
    nodes_behind: NodesBehind | None = None
    """None where a folder of keys is read without an API"""


class RotateKeys(Shape):
    """`POST /api/v1/keys/rotate`."""

    model_config = example(revoke=False)

    revoke: bool = Field(
        default=False,
        description="Nodes immediately reject what older keys signed: for a stolen key. Open operations end and "
        "have to be requested again.",
    )
    root: bool = Field(default=False, description="Replace the root key too; nodes follow automatically.")
