"""Who may say what on NATS: operator, accounts and users as signed JWTs, and the server's configuration."""

import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bus.nkeys import KeyPair, Role
from contracts import subjects
from domain.node import NatsCredential

REPLY_WINDOW = timedelta(minutes=20)
"""How long a node may answer one request; outlives the 15-minute request of protocol 1."""
REPLIES = 5
"""How many messages one request may be answered with."""

_UNLIMITED = -1
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Trust:
    """The root of all credentials, as seeds: the operator, our account and the server's own account."""

    operator_seed: str
    account_seed: str
    system_seed: str


def new_trust() -> Trust:
    """Fresh keys, for the first start of a server."""
    return Trust(
        operator_seed=KeyPair.create(Role.OPERATOR).seed,
        account_seed=KeyPair.create(Role.ACCOUNT).seed,
        system_seed=KeyPair.create(Role.ACCOUNT).seed,
    )


def tls_config(certificate: str, key: str) -> str:
    """The part of a nats-server configuration that admits only TLS; `auto`: LocalAI's client waits for a greeting."""
    return f'tls: {{ cert_file: "{certificate}", key_file: "{key}", handshake_first: auto, timeout: 5 }}'


def server_config(trust: Trust, *, host: str, port: int, accounts: str = "", extra: str = "") -> str:
    """The text of a nats-server configuration that trusts exactly these keys; it holds no secret.

    `accounts` is a folder where the server keeps what it is told of accounts later: who was revoked stays so over
    its restarts. Without one it forgets, and is told again when the control plane is linked again.
    """
    operator = KeyPair.from_seed(trust.operator_seed)
    account = KeyPair.from_seed(trust.account_seed)
    system = KeyPair.from_seed(trust.system_seed)
    return "\n".join(
        [
            f'listen: "{host}:{port}"',
            f"operator: {_operator_jwt(operator, system.public)}",
            f"system_account: {system.public}",
            f'resolver: {{ type: full, dir: "{accounts}", allow_delete: false }}' if accounts else "resolver: MEMORY",
            "resolver_preload: {",
            f"  {account.public}: {_sign(operator, _first_claims(account.public, 'nodesmith'))}",
            f"  {system.public}: {_sign(operator, _first_claims(system.public, 'system'))}",
            "}",
            extra,
            "",
        ]
    )


class AccountSigner:
    """Signs our account anew, with the users that may not speak any more."""

    def __init__(self, trust: Trust) -> None:
        self._operator = KeyPair.from_seed(trust.operator_seed)
        self._system = trust.system_seed
        self.account = KeyPair.from_seed(trust.account_seed).public

    def revoking(self, users: Mapping[str, int], known: str = "") -> str:
        """`known` is the account as the server has it: its limits stay, its revocations are these and no others."""
        claims = _read(known) if known else _first_claims(self.account, "nodesmith")
        nats = {**claims["nats"], "revocations": dict(users)}
        return _sign(self._operator, {**claims, "nats": nats, "iat": int(time.time())})

    def system_credential(self, lifetime: timedelta) -> NatsCredential:
        """May tell the server about accounts."""
        return CredentialIssuer(self._system).unconfined("nodesmith", lifetime)


class CredentialIssuer:
    """Signs users of our account: one for each node, confined to its own subjects, and the control plane."""

    def __init__(self, account_seed: str) -> None:
        self._account = KeyPair.from_seed(account_seed)

    def node_credential(self, node_id: str, *, protocol: int, lifetime: timedelta) -> NatsCredential:
        """May hear its own commands, publish its own reports, and answer what it was asked."""
        permissions = {
            "pub": {"allow": subjects.node_publishes(node_id, protocol=protocol)},
            "sub": {"allow": subjects.node_subscribes(node_id)},
            "resp": {"max": REPLIES, "ttl": int(REPLY_WINDOW.total_seconds()) * _NANOSECONDS},
        }
        return self._user(f"node-{subjects.token(node_id)}", permissions, lifetime)

    def control_credential(self, lifetime: timedelta) -> NatsCredential:
        """May command every node and hear every report."""
        permissions = {
            "pub": {"allow": subjects.CONTROL_PUBLISHES},
            "sub": {"allow": subjects.CONTROL_SUBSCRIBES},
        }
        return self._user("control", permissions, lifetime)

    def unconfined(self, name: str, lifetime: timedelta) -> NatsCredential:
        return self._user(name, {}, lifetime)

    def _user(self, name: str, permissions: dict[str, Any], lifetime: timedelta) -> NatsCredential:
        user = KeyPair.create(Role.USER)
        expires_at = datetime.now(UTC).replace(microsecond=0) + lifetime
        claims = {"type": "user", **permissions, "subs": _UNLIMITED, "data": _UNLIMITED, "payload": _UNLIMITED}
        jwt = _mint(self._account, user.public, name, claims, expires=int(expires_at.timestamp()))
        return NatsCredential(jwt=jwt, seed=user.seed, expires_at=expires_at, user=user.public)


def _operator_jwt(operator: KeyPair, system_account: str) -> str:
    claims = {"type": "operator", "system_account": system_account}
    return _mint(operator, operator.public, "nodesmith", claims)


def _first_claims(account: str, name: str) -> dict[str, Any]:
    """Of long ago: a server that was told something newer keeps that."""
    unlimited = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    limits = {**dict.fromkeys(unlimited, _UNLIMITED), "wildcards": True}
    return _body(account, name, {"type": "account", "limits": limits}) | {"iat": 1}


def _mint(signer: KeyPair, subject: str, name: str, claims: dict[str, Any], expires: int | None = None) -> str:
    body = _body(subject, name, claims)
    if expires is not None:
        body["exp"] = expires
    return _sign(signer, body)


def _body(subject: str, name: str, claims: dict[str, Any]) -> dict[str, Any]:
    return {"iat": int(time.time()), "name": name, "sub": subject, "nats": {**claims, "version": 2}}


def _sign(signer: KeyPair, body: dict[str, Any]) -> str:
    claims = {**body, "jti": secrets.token_hex(16), "iss": signer.public}
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(claims)}"
    return f"{signed}.{_base64(signer.sign(signed.encode()))}"


def _read(jwt: str) -> dict[str, Any]:
    """The claims of a JWT that a server has checked."""
    body = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
