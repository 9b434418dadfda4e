"""The control plane's keys: a folder with the root key, the order keys and the chain of trust lists, 0600 each.

Every API replica needs the same folder. A process that can read it can give orders to every node.
"""

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from nodesmith.contracts.nats.orders import Order, OrderKey, Request, TrustChain, TrustList
from nodesmith.contracts.nats.wire import Signed
from nodesmith.domain.errors import InvalidRequest, OrderNotSigned, ServiceUnavailable
from nodesmith.domain.trust_lists import Compared, TrustedKey, TrustedKeys
from nodesmith.runtime.signing import ORDER, REQUEST, BadSignature, SigningKey, VerifyKey
from nodesmith.runtime.trust_lists import NotTrusted, first_contact, read_list, relation, root_fingerprint, sign_list

ROOT = "root.key"
CHAIN = "trust.json"
KEY_LIFETIME = timedelta(days=400)
OVERLAP = timedelta(hours=48)
"""how long a replaced key stays valid: twice the lifetime of an order"""
REQUEST_LIFETIME = timedelta(minutes=1)
RENEW_BEFORE = timedelta(days=30)
_PRIVATE, _SHARED, _PUBLIC = 0o600, 0o640, 0o644
"""of a new folder; at most for a key, which replicas may share by a group; at most for the chain, which is public"""

Now = Callable[[], int]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create_keys(folder: Path, *, now: Now = now_ms) -> None:
    """Create root key, first order key and first trust list; does nothing if they exist."""
    if (folder / CHAIN).exists():
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    root, order = SigningKey.create(), SigningKey.create()
    first = TrustList(version=1, at=now(), root=root.public, keys=[_key_entry(order, now())])
    _write(folder / ROOT, root.text)
    _write(folder / _key_file_name(order.kid), order.text)
    _write(folder / CHAIN, TrustChain(lists=[sign_list(first, root=root)]).model_dump_json())


@dataclass(frozen=True)
class _Loaded:
    """The content of the folder: the signing key and the keys to verify with."""

    stamp: tuple[int, int]
    chain: TrustChain
    trusted: TrustList
    signing: SigningKey
    known: dict[str, tuple[VerifyKey, bool]]
    """kid -> key, and whether it was revoked"""


class Keyring:
    """Signs with the newest order key in the folder; reads the folder again when its chain has changed."""

    def __init__(self, folder: Path, *, now: Now = now_ms) -> None:
        self._folder = folder
        self._now = now
        self._loaded: _Loaded | None = None

    @classmethod
    def opened(cls, folder: Path | None, *, now: Now = now_ms) -> Self:
        """Open the folder; raise at once, with the remedy, if it has no keys."""
        if folder is None or not (folder / CHAIN).is_file():
            raise InvalidRequest(
                "NODESMITH_ORDER_KEYS must name a folder with the keys that sign orders. "
                "`nodesmith keys init FOLDER` creates one; every API replica needs the same."
            )
        keyring = cls(folder, now=now)
        keyring.chain()
        return keyring

    def sign(self, order: Order) -> Signed:
        return self._load().signing.seal(ORDER, order.encode().decode())

    def seal_request(self, node_id: str, action: str, question: str) -> Signed:
        """Sign a stop, unload or delete request; it is valid for a minute and for one use."""
        iat, nonce = self._now(), secrets.token_hex(16)
        exp = iat + REQUEST_LIFETIME // timedelta(milliseconds=1)
        request = Request(node=node_id, action=action, question=question, nonce=nonce, iat=iat, exp=exp)
        return self._load().signing.seal(REQUEST, request.encode().decode())

    def read(self, signed: Signed) -> Order:
        """Return the order; raise `OrderNotSigned` unless one of our keys signed it that was not revoked since."""
        key, is_revoked = self._load().known.get(signed.kid, (None, False))
        if key is None or is_revoked:
            raise OrderNotSigned(f"The order was signed by the key {signed.kid}, which is no longer trusted.")
        try:
            key.verify(ORDER, signed.payload, signed.signature)
            return Order.model_validate_json(signed.payload)
        except (BadSignature, ValueError) as error:
            raise OrderNotSigned from error

    def chain(self) -> TrustChain:
        return self._load().chain

    def trusted(self) -> TrustList:
        return self._load().trusted

    @property
    def version(self) -> int:
        return self._load().trusted.version

    @property
    def signing_kid(self) -> str:
        return self._load().signing.kid

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the root key, as in invites."""
        return root_fingerprint(self._load().chain.newest)

    def keys(self) -> TrustedKeys:
        trusted, signing = self.trusted(), self.signing_kid
        keys = [
            TrustedKey(kid=key.kid, until=datetime.fromtimestamp(key.until / 1000, UTC), signs=key.kid == signing)
            for key in trusted.keys
        ]
        return TrustedKeys(version=trusted.version, trust=self.fingerprint, keys=keys)

    def compared(self, recorded: TrustChain) -> Compared:
        """Compare our trust lists with the recorded ones of the installation."""
        own, theirs = self.trusted(), read_list(recorded.newest)
        return Compared(
            relation=relation(self.chain(), recorded),
            version=own.version,
            root=self.fingerprint,
            recorded_version=theirs.version,
            recorded_root=root_fingerprint(recorded.newest),
        )

    def is_due(self) -> bool:
        """Whether the signing key expires soon; nodes refuse its orders afterwards."""
        left = self._expiry_of(self.signing_kid) - self._now()
        return left < RENEW_BEFORE // timedelta(milliseconds=1)

    def rotate(self, *, revoke: bool = False, root: bool = False) -> TrustList:
        """Replace the order key. `revoke`: nodes refuse the old keys at once. `root`: replace the root key too."""
        with self._locked():
            chain, loaded, before = self.chain(), self.trusted(), self._root()
            after = SigningKey.create() if root else before
            fresh = SigningKey.create()
            kept = [] if revoke else [_with_overlap(key, self._now()) for key in loaded.keys if self._is_valid(key)]
            keys = [_key_entry(fresh, self._now()), *kept]
            trusted = TrustList(version=loaded.version + 1, at=self._now(), root=after.public, keys=keys)
            signed = sign_list(trusted, root=after, before=before)
            self._save(fresh, (before, after) if root else None, chain.followed_by(signed))
        return self._load().trusted

    def _save(self, fresh: SigningKey, roots: tuple[SigningKey, SigningKey] | None, chain: TrustChain) -> None:
        """Write the files, the chain last: until then, the old keys stay in force. `roots`: the old and the new one."""
        try:
            _write(self._folder / _key_file_name(fresh.kid), fresh.text)
            if roots is not None:
                before, after = roots
                _write(self._folder / ROOT, before.text)  # an interrupted replacement left it in the other file only
                _write(self._folder / f"{ROOT}.next", after.text)
            _write(self._folder / CHAIN, chain.model_dump_json())
            if roots is not None:
                (self._folder / f"{ROOT}.next").replace(self._folder / ROOT)
        except OSError as error:
            raise ServiceUnavailable(
                f"The keys could not be written to {self._folder}: {error.strerror}. Rotate them where that folder "
                "can be written: `nodesmith keys rotate --folder FOLDER`."
            ) from error

    def _root(self) -> SigningKey:
        """Return the root key that the newest list names, also after a crash in the middle of its replacement."""
        wanted = self._load().trusted.root
        for name in (ROOT, f"{ROOT}.next"):
            try:
                key = SigningKey.from_text((self._folder / name).read_text())
            except FileNotFoundError:
                continue
            if key.public == wanted:
                return key
        raise InvalidRequest(
            f"The root key, which signs trust lists, is not in {self._folder}. Put {ROOT} there, or see "
            "docs/explanation/security.md for a lost root key."
        )

    def _load(self) -> _Loaded:
        file = (self._folder / CHAIN).stat()
        stamp = (file.st_mtime_ns, file.st_ino)
        if self._loaded is None or self._loaded.stamp != stamp:
            self._loaded = self._read_folder(stamp)
        return self._loaded

    def _read_folder(self, stamp: tuple[int, int]) -> _Loaded:
        try:
            chain = TrustChain.model_validate_json((self._folder / CHAIN).read_text())
            trusted = read_list(first_contact(chain))
        except (NotTrusted, ValueError) as error:
            raise InvalidRequest(f"{self._folder / CHAIN} is damaged: {error}") from error
        return _Loaded(stamp, chain, trusted, self._newest_key(trusted), _known(chain))

    def _newest_key(self, trusted: TrustList) -> SigningKey:
        """Return the newest key of the list whose file is in the folder."""
        for key in trusted.keys:
            if (path := self._folder / _key_file_name(key.kid)).is_file():
                return SigningKey.from_text(path.read_text())
        raise InvalidRequest(f"None of the order keys of the trust list is in {self._folder}.")

    def _expiry_of(self, kid: str) -> int:
        return next((key.until for key in self._load().trusted.keys if key.kid == kid), 0)

    def _is_valid(self, key: OrderKey) -> bool:
        return key.until > self._now()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one rotation at a time among all processes that share the folder."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _known(chain: TrustChain) -> dict[str, tuple[VerifyKey, bool]]:
    """Return every key that was ever listed; a key that left the list before its expiry was revoked."""
    listed: dict[str, OrderKey] = {}
    revoked: set[str] = set()
    for trusted in map(read_list, chain.lists):
        present = {key.kid: key for key in trusted.keys}
        revoked |= {kid for kid, key in listed.items() if kid not in present and key.until > trusted.at}
        listed |= present
    return {kid: (VerifyKey.from_text(key.key), kid in revoked) for kid, key in listed.items()}


def _key_entry(key: SigningKey, now: int) -> OrderKey:
    return OrderKey(kid=key.kid, key=key.public, until=now + KEY_LIFETIME // timedelta(milliseconds=1))


def _with_overlap(key: OrderKey, now: int) -> OrderKey:
    return key.model_copy(update={"until": min(key.until, now + OVERLAP // timedelta(milliseconds=1))})


def _key_file_name(kid: str) -> str:
    return f"order-{kid}.key"


def _write(path: Path, text: str) -> None:
    """Write atomically: sync to disk before the rename, with the file mode of the chain; keys are never for others."""
    fresh, chain = path.with_name(f"{path.name}.new"), path.with_name(CHAIN)
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(descriptor, "w") as file:
        if chain.exists():
            os.fchmod(descriptor, stat.S_IMODE(chain.stat().st_mode) & (_PUBLIC if path == chain else _SHARED))
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
