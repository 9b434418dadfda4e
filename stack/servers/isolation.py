"""Decides whether the embedded Temporal runs in a private network namespace, and describes how to isolate it."""

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from nodesmith.stack.errors import StackError
from nodesmith.stack.servers import namespace

SETTING = "NODESMITH_TEMPORAL_ISOLATION"
ON, OFF = "on", "off"
NOT_PERMITTED = (
    "WARNING: this machine permits no network namespace, so every user and every program of it, and a web page by DNS"
    " rebinding, may use the embedded Temporal server without a credential. Nodes obey signed orders only;"
    " docs/explanation/security.md says what is left open."
)
SWITCHED_OFF = f"WARNING: {SETTING}=off: every program of this machine may use the embedded Temporal server"


def is_enabled(environment: Mapping[str, str], note: Callable[[str], None]) -> bool:
    """Follow the setting; where the machine permits no namespace, pass a warning to `note` and return False."""
    chosen = environment.get(SETTING, ON).lower() or ON
    if chosen not in (ON, OFF):
        raise StackError(f"{SETTING} is {chosen}; allowed are {ON} and {OFF}.", remedy="Correct it, or unset it.")
    if chosen == OFF:
        note(SWITCHED_OFF)
        return False
    if not namespace.is_permitted():
        note(NOT_PERMITTED)
        return False
    return True


@dataclass(frozen=True)
class ForwardedPort:
    """A port of the machine, and the port in the namespace to which it is forwarded."""

    outside: int
    inside: int


@dataclass(frozen=True)
class IsolationOrder:
    """The argument of the isolating process; paths only, no secrets, because command lines are public."""

    ports: Sequence[ForwardedPort]
    certificate: str
    key: str
    client_authority: str
    """the CA that signs client certificates"""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "IsolationOrder":
        fields = json.loads(text)
        return cls(**{**fields, "ports": [ForwardedPort(**port) for port in fields["ports"]]})


def context_of(order: IsolationOrder) -> ssl.SSLContext:
    """Create a TLS context that requires a client certificate and negotiates HTTP/2, as gRPC demands."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(order.certificate, order.key)
    context.load_verify_locations(cafile=order.client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
