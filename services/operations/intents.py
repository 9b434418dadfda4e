"""Intents: turns a request into what a node will do. Resolves names, checks uris, pins tags; starts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from nodesmith.contracts.temporal.operations import Intent
from nodesmith.domain.access import Role
from nodesmith.domain.errors import InvalidRequest, UnknownBackend
from nodesmith.domain.identity import family_of, intent_digest
from nodesmith.domain.kinds import Kind
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.oci import NotOci, is_reference, read_reference
from nodesmith.services.operations.artifact_check import ArtifactCheck
from nodesmith.services.ports import Catalogue
from nodesmith.services.requested_work import RequestedBackend

OCI = "oci"
"""the scheme of every registry reference, with or without a prefix"""


OWN_ARTIFACTS = "/artifacts/"
"""begins the uri of a file that the API itself serves"""


class Tags(Protocol):
    """Resolves tags at registries; raises `RegistryDown` or a similar error when none of the uris gives a digest."""

    async def pin(self, uris: Sequence[str]) -> str: ...


@dataclass(frozen=True)
class UriRules:
    """Which uris a request may contain."""

    schemes: frozenset[str]
    without_digest: bool = False
    sources: SourcePolicy = field(default_factory=SourcePolicy)
    role: Role = Role.ADMIN
    """the least role that may give a uri"""


@dataclass(frozen=True)
class Intents:
    catalogue: Catalogue
    rules: UriRules
    tags: Tags
    artifacts: ArtifactCheck

    def wanted(self, kind: Kind, request: RequestedBackend, *, capability: str = "") -> Intent:
        """The intent for a node of that capability; raises when the request is invalid or matches no artifact."""
        if not kind.rules.requestable:
            known = ", ".join(each for each in Kind if each.rules.requestable)
            raise InvalidRequest(f"There is no such kind of operation; use one of {known}.", field="kind")
        if not kind.rules.needs_artifact:
            return self._by_family(kind, request)
        if not request.backend and not request.uri:
            raise InvalidRequest("backend name or uri required", field="backend")
        return self._by_uri(kind, request) if request.uri else self._by_name(kind, request, capability)

    def check_uri(self, uri: str) -> None:
        """Raise unless nodes may fetch a model's file from there; the control plane is always allowed."""
        if uri.startswith(OWN_ARTIFACTS):
            return
        if _scheme(uri, self.rules.schemes) == OCI:
            raise InvalidRequest("A file of a model cannot come from a registry.", field="files")
        self.rules.sources.check(uri)

    async def pinned(self, builds: Mapping[str, Intent]) -> dict[str, Intent]:
        """Replace tags by digests and verify; each tag is resolved once, so all nodes and retries use one build."""
        digests: dict[tuple[str, str], str] = {}
        for wanted in builds.values():
            named = (wanted.uri, wanted.sha256)
            if is_reference(wanted.uri) and named not in digests:
                digests[named] = await self._digest(wanted)
        pinned = {key: _pin(wanted, digests.get((wanted.uri, wanted.sha256), "")) for key, wanted in builds.items()}
        return await self.verified(pinned)

    async def verified(self, builds: Mapping[str, Intent]) -> dict[str, Intent]:
        """Check each artifact against the policy of its gallery; raises `NotSigned` when one does not meet it."""
        checked: dict[tuple[str, str], str] = {}
        for wanted in builds.values():
            named = (wanted.uri, wanted.sha256)
            if wanted.kind.rules.needs_artifact and named not in checked:
                checked[named] = await self.artifacts.verify(wanted, self.catalogue.trust(wanted.gallery))
        return {
            key: wanted.model_copy(update={"verified": checked.get((wanted.uri, wanted.sha256), "")})
            for key, wanted in builds.items()
        }

    async def _digest(self, wanted: Intent) -> str:
        """Use the digest of the gallery or the request if there is one, else ask the registry."""
        if wanted.sha256:
            return f"sha256:{wanted.sha256}"
        return await self.tags.pin([uri for uri in (wanted.uri, *wanted.mirrors) if is_reference(uri)])

    def _by_name(self, kind: Kind, request: RequestedBackend, capability: str) -> Intent:
        artifact = self.catalogue.resolve(request.backend, request.version, capability=capability)
        if artifact is None:
            asked = f"{request.backend} {request.version}".rstrip()
            field = "version" if request.version and self.catalogue.resolve(request.backend) else "backend"
            raise UnknownBackend(f"No gallery has the backend {asked}.", backend=request.backend, field=field)
        return Intent(
            kind=kind,
            backend=artifact.name,
            family=family_of(artifact.family or artifact.name, alias=request.alias),
            version=artifact.version,
            uri=artifact.uri,
            mirrors=artifact.mirrors,
            sha256=artifact.sha256 or _bare_digest(request.sha256),
            size=artifact.size,
            # A LocalAI worker installs from a registry only under a name.
            name=artifact.name if is_reference(artifact.uri) else "",
            alias=request.alias,
            force=request.force,
            start=request.start,
            upgrade_policy=request.upgrade_policy,
            gallery=artifact.gallery,
        )

    def _by_uri(self, kind: Kind, request: RequestedBackend) -> Intent:
        scheme = _scheme(request.uri, self.rules.schemes)
        self.rules.sources.check(read_reference(request.uri).base_url if scheme == OCI else request.uri)
        family = family_of(request.name or request.backend, alias=request.alias, uri=request.uri)
        if not family:
            raise InvalidRequest("The uri has no file name to call the backend by; send name.", field="name")
        if scheme != OCI and not request.sha256 and not self.rules.without_digest:
            raise InvalidRequest("An archive by uri needs its sha256: nothing else verifies it.", field="sha256")
        return Intent(
            kind=kind,
            backend=request.name or request.backend or family,
            family=family,
            version=request.version,
            uri=request.uri,
            sha256=_bare_digest(request.sha256),
            name=request.name or (request.backend or family if scheme == OCI else ""),
            alias=request.alias,
            force=request.force,
            start=request.start,
            upgrade_policy=request.upgrade_policy,
        )

    def _by_family(self, kind: Kind, request: RequestedBackend) -> Intent:
        """Rollback and removal act on what is installed; the gallery only maps the name to its family."""
        bare = (request.name or request.backend).rsplit("@", 1)[-1]
        family = family_of(self.catalogue.family(bare), alias=request.alias)
        if not family:
            raise InvalidRequest("backend name required", field="backend")
        return Intent(kind=kind, backend=bare or family, family=family, alias=request.alias, force=request.force)


NO_EFFECT = frozenset({"family", "mirrors", "size", "gallery", "verified"})
"""fields of `Intent` without effect on the result: the lock key, alternative locations, descriptions"""
NO_EFFECT_ON_INSTALLED = frozenset({"backend", "name", "alias"})
"""further fields without effect on a rollback or removal, which go by the family"""
OF_A_REPLICA = frozenset({"model", "replica_index", "revision"})
"""fields of loads and unloads only"""


def intent_of(wanted: Intent) -> str:
    """Digest of an intent: requests with the same digest join one operation; a tag that has moved gives another one."""
    ignored = NO_EFFECT if wanted.kind.rules.needs_artifact else NO_EFFECT | NO_EFFECT_ON_INSTALLED
    if not wanted.kind.rules.locks_replica:
        ignored |= OF_A_REPLICA
    return intent_digest(wanted.model_dump(mode="json", exclude=set(ignored)))


def named_uri(wanted: Intent) -> str:
    """The uri that the caller gave; empty if a gallery supplied it."""
    return "" if wanted.gallery else wanted.uri


def _pin(wanted: Intent, digest: str) -> Intent:
    """Pin to `host/name:tag@sha256:...`: nodes pull by digest, and people still see the tag."""
    if not digest:
        return wanted
    given = read_reference(wanted.uri).digest
    if given and given != digest:
        raise InvalidRequest(f"The uri contains {given}, which differs from the sha256.", field="sha256")
    uri = wanted.uri if given else f"{wanted.uri}@{digest}"
    return wanted.model_copy(update={"uri": uri, "sha256": _bare_digest(digest)})


def _scheme(uri: str, schemes: frozenset[str]) -> str:
    """The scheme of the uri; raises when the rules do not allow the uri."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise InvalidRequest("The uri is malformed.", field="uri") from None
    scheme = parts.scheme if "://" in uri else OCI
    scheme = OCI if scheme == "docker" else scheme
    if scheme not in schemes:
        allowed = ", ".join(sorted(schemes))
        raise InvalidRequest(f"The uri's scheme is not allowed; use one of {allowed}.", field="uri")
    if _has_password(uri, scheme):
        raise InvalidRequest("The uri carries a password; it would be written to history and logs.", field="uri")
    if scheme == OCI:
        _check_reference(uri)
    elif scheme != "file" and not parts.hostname:
        raise InvalidRequest("The uri names no host.", field="uri")
    return scheme


def _has_password(uri: str, scheme: str) -> bool:
    """Look for an @ before the first slash; after it an @ starts a digest."""
    authority = uri.partition("://")[2] or uri
    return scheme != "file" and "@" in authority.partition("/")[0]


def _check_reference(uri: str) -> None:
    try:
        read_reference(uri)
    except NotOci:
        raise InvalidRequest(
            "The uri is not a valid registry reference; write host/name:tag or host/name@sha256:...", field="uri"
        ) from None


def _bare_digest(sha256: str) -> str:
    return sha256.lower().removeprefix("sha256:")
