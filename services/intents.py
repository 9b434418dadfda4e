"""From what was asked to what a node is told: names resolved, uris checked, nothing started yet."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from contracts.operation_http import InstallRequest
from contracts.temporal import Wanted
from domain.errors import InvalidRequest, UnknownBackend
from domain.identity import family_of, intent_digest
from domain.operation import Kind
from services.ports import Catalogue

BRINGS_AN_ARTIFACT = frozenset({Kind.INSTALL, Kind.UPGRADE})


@dataclass(frozen=True)
class Intents:
    catalogue: Catalogue
    uri_schemes: frozenset[str]

    def wanted(self, kind: Kind, request: InstallRequest, *, capability: str = "") -> Wanted:
        """What a node of that capability will be told to do; raises when it cannot mean anything."""
        if kind not in BRINGS_AN_ARTIFACT:
            return self._by_family(kind, request)
        if not request.backend and not request.uri:
            raise InvalidRequest("backend name or uri required", field="backend")
        return self._by_uri(kind, request) if request.uri else self._by_name(kind, request, capability)

    def _by_name(self, kind: Kind, request: InstallRequest, capability: str) -> Wanted:
        artifact = self.catalogue.resolve(request.backend, request.version, capability=capability)
        if artifact is None:
            asked = f"{request.backend} {request.version}".rstrip()
            raise UnknownBackend(f"No gallery has the backend {asked}.", backend=request.backend)
        return Wanted(
            kind=kind,
            backend=artifact.name,
            family=family_of(artifact.family or artifact.name, alias=request.alias),
            version=artifact.version,
            uri=artifact.uri,
            mirrors=artifact.mirrors,
            sha256=artifact.sha256 or _bare_digest(request.sha256),
            size=artifact.size,
            alias=request.alias,
            force=request.force,
            start=request.start,
            upgrade_policy=request.upgrade_policy,
        )

    def _by_uri(self, kind: Kind, request: InstallRequest) -> Wanted:
        _check_uri(request.uri, self.uri_schemes)
        family = family_of(request.name or request.backend, alias=request.alias, uri=request.uri)
        if not family:
            raise InvalidRequest("The uri has no file name to call the backend by; send name.", field="name")
        return Wanted(
            kind=kind,
            backend=request.name or request.backend or family,
            family=family,
            version=request.version,
            uri=request.uri,
            sha256=_bare_digest(request.sha256),
            name=request.name,
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


def intent_of(wanted: Wanted) -> str:
    """Two requests with one digest are one operation."""
    return intent_digest(kind=wanted.kind, version=wanted.version, uri=wanted.uri, force=wanted.force)


def _check_uri(uri: str, schemes: frozenset[str]) -> None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise InvalidRequest("The uri is malformed.", field="uri") from None
    if parts.scheme not in schemes:
        allowed = ", ".join(sorted(schemes))
        raise InvalidRequest(f"The uri's scheme is not allowed; use one of {allowed}.", field="uri")
    if parts.scheme != "file" and not parts.hostname:
        raise InvalidRequest("The uri names no host.", field="uri")
    if parts.username or parts.password:
        raise InvalidRequest("The uri carries a password; it would be written to history and logs.", field="uri")


def _bare_digest(sha256: str) -> str:
    return sha256.lower().removeprefix("sha256:")
