"""docs/reference/settings.md: every NODESMITH_* variable, from the settings classes."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.servers import binaries, isolation
from tests.reference.markdown import sentence, table

_INTRODUCTION = """\
# Settings

Generated from `runtime/settings.py`, `runtime/gateway_settings.py`, `agent/settings.py` and `stack/servers/` by
`make reference`. A test fails when this page is out of date.

Settings are environment variables. Durations are written `90`, `90s`, `15m`, `24h`, `7d`, or in ISO 8601 (`PT15M`);
sizes are bytes; lists are separated by commas, lists of paths by colons. Secrets are always files.
"""

MEANINGS = {
    "database_url": "The PostgreSQL database.",
    "database_password_file": "File with its password, if the URL has none.",
    "nats_url": "The NATS server.",
    "nats_system_seed_file": "API only; seed of the system account of NATS, which receives the revocations.",
    "nats_credential_lifetime": "How long a NATS credential is valid; nodes renew theirs earlier.",
    "temporal_address": "The frontend of Temporal.",
    "temporal_namespace": "The namespace in Temporal.",
    "temporal_cert_file": "Client certificate for Temporal.",
    "temporal_key_file": "Key of the client certificate.",
    "temporal_ui_port": "API only; the port where the API serves the Temporal Web UI.",
    "api_host": "The address where the API listens.",
    "api_port": "The port where the API listens.",
    "tls_cert_file": "Certificate of `NODESMITH_LISTEN_HOST`.",
    "tls_key_file": "Key of that certificate.",
    "admin_token_file": "File with a token that has the role admin.",
    "registration_token_file": "File with the token that lets nodes register, as pending.",
    "control_slots": "Short activities that one worker runs at the same time.",
    "node_slots": "Nodes that one worker follows at the same time.",
    "fleet_tick": "How often the fleet monitor looks.",
    "gateway_host": "The address where the gateway listens.",
    "gateway_port": "The port where the gateway listens.",
    "gateway_key_file": "Key of that certificate.",
    "log_level": "DEBUG, INFO or WARNING.",
    "accept_timeout": "How long a node has to accept a command.",
    "heartbeat_timeout": "How long Temporal waits for a worker that follows a node, before another one attaches.",
    "back_off_first": "Pause after the first failed attempt; each further pause is twice as long.",
    "back_off_cap": "The longest pause.",
    "max_attempts": "Failed attempts, before the operation gives up.",
}
"""of fields that have no docstring in the code"""

CLIENT = (
    ("NODESMITH_HOME", "", "The home folder of `nodesmith up`."),
    ("NODESMITH_URL", "", "The address of the API."),
    ("NODESMITH_TOKEN", "", "The token for the API."),
    ("NODESMITH_REGISTRATION_TOKEN", "", "The registration token, for the nodes of `nodesmith simulate`."),
)


def page() -> str:
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("Client commands", CLIENT),
            *_section("Embedded servers (`nodesmith up`)", _embedded()),
            *_section("Control plane (`nodesmith api`, `nodesmith worker`)", _rows(ControlSettings, "NODESMITH_")),
            *_section("Limits of operations", _rows(Policy, "NODESMITH_POLICY__")),
            *_section("Gateway (`nodesmith gateway`)", _rows(GatewaySettings, "NODESMITH_")),
            *_section("Agent (`nodesmith agent`)", _rows(AgentSettings, "NODESMITH_AGENT_")),
        ]
    )


def _section(title: str, rows: Any) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield from table(("variable", "default", "meaning"), ((f"`{name}`", shown, text) for name, shown, text in rows))
    yield ""


def _embedded() -> Iterator[tuple[str, str, str]]:
    text = "`off` runs Temporal without a network namespace of its own: every program of the machine may then use it."
    yield isolation.SETTING, isolation.ON, text
    for name, custom in binaries.CUSTOM_PROGRAMS.items():
        oldest = ".".join(str(part) for part in custom.oldest)
        yield custom.setting, "", f"Absolute path of your own `{name}`, version {oldest} or newer."


def _rows(settings: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    text = _docstrings(settings)
    for name, field in settings.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            meaning = text.get(name) or MEANINGS.get(name, "")
            yield f"{prefix}{name.upper()}", _default(field), sentence(meaning)


def _docstrings(settings: type[BaseModel]) -> dict[str, str]:
    """Field -> the string below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: str(below.value.value)
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.default_factory is not None:
        return "host name"
    if value is None or value in ("", (), frozenset()):
        return ""
    return f"`{_written(value)}`"


def _written(value: object) -> str:
    if isinstance(value, timedelta):
        return _duration(value.total_seconds())
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(seconds: float) -> str:
    for unit, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds > unit and seconds % unit == 0:
            return f"{seconds / unit:g}{letter}"
    return f"{seconds:g}s"
