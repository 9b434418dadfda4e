"""NATS permissions: operator, accounts and users as signed JWTs, and the server configuration."""

import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nodesmith.bus.nkeys import BadKey, KeyPair, Role, user_key
from nodesmith.contracts.nats import subjects
from nodesmith.domain.node import NatsCredential

_UNLIMITED = -1


@dataclass(frozen=True)
class Trust:
    """The seeds behind all credentials: operator, our account, and the server's system account."""

    operator_seed: str
    account_seed: str
    system_seed: str


def new_trust() -> Trust:
    """Create keys for the first start of a server."""
    return Trust(
        operator_seed=KeyPair.create(Role.OPERATOR).seed,
        account_seed=KeyPair.create(Role.ACCOUNT).seed,
        system_seed=KeyPair.create(Role.ACCOUNT).seed,
    )


def tls_config(certificate: str, key: str) -> str:
    """Return the TLS part of a nats-server configuration; `auto`, because LocalAI's client waits for a greeting."""
    return f'tls: {{ cert_file: "{certificate}", key_file: "{key}", handshake_first: auto, timeout: 5 }}'


def server_config(trust: Trust, *, host: str, port: int, accounts: str = "", extra: str = "") -> str:
    """Return a nats-server configuration that trusts exactly these keys; it holds no secret.

    `accounts` is a folder where the server stores account updates, so that revocations survive its restart. Without
    it, the control plane sends them again when it reconnects.
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
    """Signs new versions of our account with its revoked users."""

    def __init__(self, trust: Trust) -> None:
        self._operator = KeyPair.from_seed(trust.operator_seed)
        self._system = trust.system_seed
        self.account = KeyPair.from_seed(trust.account_seed).public

    def sign_with_revocations(self, users: Mapping[str, int], known: str = "") -> str:
        """Sign the account with exactly these revocations; `known` is the server's version, whose limits are kept."""
        claims = _read(known) if known else _first_claims(self.account, "nodesmith")
        nats = {**claims["nats"], "revocations": dict(users)}
        return _sign(self._operator, {**claims, "nats": nats, "iat": int(time.time())})

    def system_credential(self, lifetime: timedelta) -> NatsCredential:
        """Issue a credential that may update accounts on the server."""
        return CredentialIssuer(self._system).unconfined("nodesmith", lifetime)


class CredentialIssuer:
    """Signs users of our account: one per node, limited to its own subjects, and one for the control plane."""

    def __init__(self, account_seed: str) -> None:
        self._account = KeyPair.from_seed(account_seed)

    def node_credential(self, node_id: str, *, lifetime: timedelta, user: str = "") -> NatsCredential:
        """Issue a credential to receive the node's commands, publish its reports and answer the control plane.

        `user` is the public key that the node created; without one (a LocalAI worker) a key is created here, and its
        seed is in the credential. No `allow_responses`: the server would grant the reply subject of every message that
        the node receives, even of one that it sent to itself.
        """
        permissions = {
            "pub": {"allow": subjects.node_publishes(node_id)},
            "sub": {"allow": subjects.node_subscribes(node_id)},
        }
        return self._user(f"node-{subjects.token(node_id)}", permissions, lifetime, user)

    def is_user_key(self, public: str) -> bool:
        """Whether a credential can be issued for that key."""
        try:
            user_key(public)
        except BadKey:
            return False
        return True

    def control_credential(self, lifetime: timedelta) -> NatsCredential:
        """Issue a credential to command every node and receive every report."""
        permissions = {
            "pub": {"allow": subjects.CONTROL_PUBLISHES},
            "sub": {"allow": subjects.CONTROL_SUBSCRIBES},
        }
        return self._user("control", permissions, lifetime)

    def unconfined(self, name: str, lifetime: timedelta) -> NatsCredential:
        return self._user(name, {}, lifetime)

    def _user(self, name: str, permissions: dict[str, Any], lifetime: timedelta, user: str = "") -> NatsCredential:
        made = None if user else KeyPair.create(Role.USER)
        public, seed = (made.public, made.seed) if made else (user, "")
        expires_at = datetime.now(UTC).replace(microsecond=0) + lifetime
        claims = {"type": "user", **permissions, "subs": _UNLIMITED, "data": _UNLIMITED, "payload": _UNLIMITED}
        jwt = _mint(self._account, public, name, claims, expires=int(expires_at.timestamp()))
        return NatsCredential(jwt=jwt, seed=seed, expires_at=expires_at, user=public)


def _operator_jwt(operator: KeyPair, system_account: str) -> str:
    claims = {"type": "operator", "system_account": system_account}
    return _mint(operator, operator.public, "nodesmith", claims)


def _first_claims(account: str, name: str) -> dict[str, Any]:
    """Claims with a very old issue time, so that a server keeps any newer version."""
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
    """Read the claims of a JWT that a server has verified."""
    body = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
