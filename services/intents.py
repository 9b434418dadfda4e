"""From what was asked to what a node is told: names resolved, uris checked, tags pinned, nothing started yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from contracts.operation_http import InstallRequest
from contracts.temporal import Wanted
from domain.errors import InvalidRequest, UnknownBackend
from domain.identity import family_of, intent_digest
from domain.operation import Kind
from gallery.oci import NotOci, is_reference, read_reference
from services.ports import Catalogue

BRINGS_AN_ARTIFACT = frozenset({Kind.INSTALL, Kind.UPGRADE})
OCI = "oci"
"""the scheme of everything that is in a registry, however it is written"""


class Tags(Protocol):
    """Registries, asked what a tag stands for now; `RegistryDown` and its like when none of the places says it."""

    async def pin(self, uris: Sequence[str]) -> str: ...


@dataclass(frozen=True)
class UriRules:
    """What an install by uri may name."""

    schemes: frozenset[str]
    without_digest: bool = False


@dataclass(frozen=True)
class Intents:
    catalogue: Catalogue
    rules: UriRules
    tags: Tags

    def wanted(self, kind: Kind, request: InstallRequest, *, capability: str = "") -> Wanted:
        """What a node of that capability will be told to do; raises when it cannot mean anything."""
        if kind not in BRINGS_AN_ARTIFACT:
            return self._by_family(kind, request)
        if not request.backend and not request.uri:
            raise InvalidRequest("backend name or uri required", field="backend")
        return self._by_uri(kind, request) if request.uri else self._by_name(kind, request, capability)

    async def pinned(self, builds: Mapping[str, Wanted]) -> dict[str, Wanted]:
        """The same by digest: each tag is asked for once, and means the same to every node and every retry."""
        digests: dict[tuple[str, str], str] = {}
        for wanted in builds.values():
            named = (wanted.uri, wanted.sha256)
            if is_reference(wanted.uri) and named not in digests:
                digests[named] = await self._digest(wanted)
        return {key: _at(wanted, digests.get((wanted.uri, wanted.sha256), "")) for key, wanted in builds.items()}

    async def _digest(self, wanted: Wanted) -> str:
        """A digest that the gallery or the request gives is the pin: nobody has to be asked."""
        if wanted.sha256:
            return f"sha256:{wanted.sha256}"
        return await self.tags.pin([uri for uri in (wanted.uri, *wanted.mirrors) if is_reference(uri)])

    def _by_name(self, kind: Kind, request: InstallRequest, capability: str) -> Wanted:
        artifact = self.catalogue.resolve(request.backend, request.version, capability=capability)
        if artifact is None:
            asked = f"{request.backend} {request.version}".rstrip()
            field = "version" if request.version and self.catalogue.resolve(request.backend) else "backend"
            raise UnknownBackend(f"No gallery has the backend {asked}.", backend=request.backend, field=field)
        return Wanted(
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
        )

    def _by_uri(self, kind: Kind, request: InstallRequest) -> Wanted:
        scheme = _scheme(request.uri, self.rules.schemes)
        family = family_of(request.name or request.backend, alias=request.alias, uri=request.uri)
        if not family:
            raise InvalidRequest("The uri has no file name to call the backend by; send name.", field="name")
        if scheme != OCI and not request.sha256 and not self.rules.without_digest:
            raise InvalidRequest("An archive by uri needs its sha256: nobody else vouches for it.", field="sha256")
        return Wanted(
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

    def _by_family(self, kind: Kind, request: InstallRequest) -> Wanted:
        """Rollback and removal concern what is on the node; a gallery only says which family a name is of."""
        bare = (request.name or request.backend).rsplit("@", 1)[-1]
        family = family_of(self.catalogue.family(bare), alias=request.alias)
        if not family:
            raise InvalidRequest("backend name required", field="backend")
        return Wanted(kind=kind, backend=bare or family, family=family, alias=request.alias, force=request.force)


SAME_RESULT = frozenset({"family", "mirrors", "size"})
"""fields of `Wanted` that change nothing on the node: the lock itself, other places of the same artifact, its length"""
LEFT_TO_NODE = frozenset({"backend", "name", "alias"})
"""and these neither, when what is on the node is rolled back or removed: the family says which"""


def intent_of(wanted: Wanted) -> str:
    """Two requests with one digest are one operation; a tag that was pinned is another version when it has moved."""
    ignored = SAME_RESULT if wanted.kind in BRINGS_AN_ARTIFACT else SAME_RESULT | LEFT_TO_NODE
    return intent_digest(wanted.model_dump(mode="json", exclude=set(ignored)))


def _at(wanted: Wanted, digest: str) -> Wanted:
    """`host/name:tag@sha256:...`: pulled by digest, and people still see the tag."""
    if not digest:
        return wanted
    told = read_reference(wanted.uri).digest
    if told and told != digest:
        raise InvalidRequest(f"The uri names {told}, and the sha256 is another one.", field="sha256")
    uri = wanted.uri if told else f"{wanted.uri}@{digest}"
    return wanted.model_copy(update={"uri": uri, "sha256": _bare_digest(digest)})


def _scheme(uri: str, schemes: frozenset[str]) -> str:
    """What kind of address it is; raises when it is none that may be named."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise InvalidRequest("The uri is malformed.", field="uri") from None
    scheme = parts.scheme if "://" in uri else OCI
    scheme = OCI if scheme == "docker" else scheme
    if scheme not in schemes:
        allowed = ", ".join(sorted(schemes))
        raise InvalidRequest(f"The uri's scheme is not allowed; use one of {allowed}.", field="uri")
    if _carries_a_password(uri, scheme):
        raise InvalidRequest("The uri carries a password; it would be written to history and logs.", field="uri")
    if scheme == OCI:
        _check_reference(uri)
    elif scheme != "file" and not parts.hostname:
        raise InvalidRequest("The uri names no host.", field="uri")
    return scheme


def _carries_a_password(uri: str, scheme: str) -> bool:
    """In front of the host; behind the first slash an @ begins a digest."""
    authority = uri.partition("://")[2] or uri
    return scheme != "file" and "@" in authority.partition("/")[0]


def _check_reference(uri: str) -> None:
    try:
        read_reference(uri)
    except NotOci:
        raise InvalidRequest(
            "The uri is no reference to a registry; write host/name:tag or host/name@sha256:...", field="uri"
        ) from None


def _bare_digest(sha256: str) -> str:
    return sha256.lower().removeprefix("sha256:")
