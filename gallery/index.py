"""Parses LocalAI's gallery index tolerantly: unusable entries are reported, the rest works."""

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nodesmith.contracts.names import PlainName
from nodesmith.domain.artifact import Artifact
from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust
from nodesmith.domain.identity import family_of
from nodesmith.gallery.entries import Entry, Index, Unusable
from nodesmith.gallery.metas import with_families, without_cycles
from nodesmith.gallery.oci import is_reference
from nodesmith.gallery.yaml_documents import Item, NotAnIndex, read_items

_ARCHIVES = (".tar.gz", ".tgz", ".tar.zst", ".tar")
_PLACES = frozenset({"http", "https", "file", ""})
_SCHEMES = frozenset({"http", "https", "file", "oci", "docker"})
_MOST_LISTED = 256
_NEEDS_DIGEST = ("http://", "https://", "file://")
_BY_DIGEST = GalleryTrust()


def _text(value: object) -> object:
    return "" if value is None else value


def _texts(value: object) -> object:
    if isinstance(value, str):
        return [value]
    _refuse_many(value)
    return [each for each in value if each is not None] if isinstance(value, list) else value or []


def _mapping(value: object) -> object:
    _refuse_many(value)
    return value or {}


def _refuse_many(value: object) -> None:
    """Limit a list; with an anchor, one list may occur in every entry and is counted each time."""
    if isinstance(value, list | dict) and len(value) > _MOST_LISTED:
        raise ValueError(f"the list has more than {_MOST_LISTED} items")


def _number(value: object) -> object:
    """Accept only a number as the size; a text like `1.2GB` is not exact."""
    return int(value) if isinstance(value, str) and value.isdecimal() else 0


Text = Annotated[str, BeforeValidator(_text), Field(max_length=4096)]
Texts = Annotated[list[Text], BeforeValidator(_texts)]


class _Listed(BaseModel):
    """The keys of an item that we use; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[
        PlainName, BeforeValidator(_text), Field(min_length=1, max_length=255, pattern=r"^[^\s@][^@\x00]*$")
    ]
    uri: Text = ""
    alias: Annotated[PlainName, BeforeValidator(_text), Field(max_length=255)] = ""
    version: Annotated[PlainName, BeforeValidator(_text), Field(max_length=128)] = ""
    sha256: Annotated[str, BeforeValidator(_text), Field(pattern=r"^(sha256:)?[0-9a-fA-F]{64}$|^$")] = ""
    size: Annotated[int, BeforeValidator(_number), Field(ge=0)] = 0
    capabilities: Annotated[dict[str, Text], BeforeValidator(_mapping)] = Field(default_factory=dict)
    mirrors: Texts = Field(default_factory=list)
    tags: Texts = Field(default_factory=list)
    urls: Texts = Field(default_factory=list)
    platforms: Texts = Field(default_factory=list)
    description: Text = ""
    license: Text = ""
    icon: Text = ""
    notes: Text = ""


def read_index(text: str, gallery: str, base: str = "", trust: GalleryTrust = _BY_DIGEST) -> Index:
    """Parse an index found at `base`; raise `NotAnIndex` if no entry is usable.

    An entry without a digest is usable only if the gallery's policy allows it.
    """
    entries: list[Entry] = []
    unusable: list[Unusable] = []
    seen: dict[tuple[str, str], int] = {}
    for item in read_items(text):
        try:
            entry = _entry(item, gallery, base, trust)
            _refuse_second(entry, seen, item.line)
            entries.append(entry)
        except _Refused as refused:
            unusable.append(Unusable(gallery, refused.name, refused.reason, item.line))
    sound, cyclic = without_cycles(entries)
    if not sound:
        first = next(iter([*unusable, *cyclic]), None)
        raise NotAnIndex(f"No entry can be used: {first.name}: {first.reason}" if first else "It is empty.")
    return Index(with_families(sound), [*unusable, *cyclic])


class _Refused(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name or "(no name)"
        self.reason = reason
        super().__init__(reason)


def _entry(item: Item, gallery: str, base: str, trust: GalleryTrust) -> Entry:
    if item.reason:
        raise _Refused(item.name, item.reason)
    listed = _listed(item.value)
    if not listed.uri and not listed.capabilities:
        raise _Refused(listed.name, "It has neither a uri nor capabilities, so there is nothing to install.")
    artifact = Artifact(
        name=listed.name,
        version=listed.version,
        uri=_address(listed.name, listed.uri, base),
        sha256=listed.sha256.lower().removeprefix("sha256:"),
        size=listed.size,
        description=listed.description,
        mirrors=tuple(_address(listed.name, mirror, base) for mirror in listed.mirrors if listed.uri),
        gallery=gallery,
        platforms=tuple(listed.platforms),
    )
    for uri in (artifact.uri, *artifact.mirrors):
        _refuse_unreachable(listed.name, uri)
    _refuse_undigested(artifact, trust)
    return Entry(
        gallery=gallery,
        artifact=artifact,
        tags=frozenset(listed.tags),
        capabilities={key: name for key, name in listed.capabilities.items() if name},
        alias=listed.alias,
        license=listed.license,
        icon=listed.icon,
        urls=tuple(listed.urls),
        notes=listed.notes,
    )


def _listed(value: Any) -> _Listed:
    if not isinstance(value, dict):
        raise _Refused("", "It is not an object with keys and values.")
    try:
        return _Listed.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Refused(str(value.get("name") or ""), f"{where}: {first['msg']}.") from None


def _address(name: str, uri: str, base: str) -> str:
    """Resolve a bare file name relative to the index; refuse passwords in addresses."""
    try:
        parts = urlsplit(uri)
        if parts.username or parts.password:
            raise _Refused(name, "Its uri contains a password.")
    except ValueError:
        raise _Refused(name, "Its uri is malformed.") from None
    if "://" in uri and parts.scheme not in _SCHEMES:
        raise _Refused(name, f"Nothing can be fetched from {parts.scheme}:// addresses.")
    beside = uri.startswith(("/", "./", "../")) or ("/" not in uri and uri.endswith(_ARCHIVES))
    return urljoin(base, uri) if beside and base else uri


def _refuse_unreachable(name: str, uri: str) -> None:
    """Refuse a uri that is neither an address nor a registry reference; a path is served by the API itself."""
    parts = urlsplit(uri)
    is_place = bool(parts.hostname if parts.scheme in ("http", "https") else parts.path)
    if uri and not is_reference(uri) and not (is_place and parts.scheme in _PLACES):
        raise _Refused(name, f"Nothing can be fetched from {uri!r}.")


def _refuse_undigested(artifact: Artifact, trust: GalleryTrust) -> None:
    if artifact.sha256 or trust.policy is GalleryPolicy.NONE:
        return
    if artifact.uri.startswith(_NEEDS_DIGEST):
        raise _Refused(artifact.name, "Its archive has no sha256, and the policy of the gallery is not `none`.")
    if artifact.uri and trust.needs_signed_index and not trust.keys and "@sha256:" not in artifact.uri:
        # The signature covers the index, but the index does not say which image the tag resolves to.
        raise _Refused(artifact.name, "The gallery is signed, but its image is named by tag; name the digest instead.")


def _refuse_second(entry: Entry, seen: dict[tuple[str, str], int], line: int) -> None:
    name, version = entry.artifact.name, entry.artifact.version
    first = seen.setdefault((family_of(name), version), line)
    if first != line:
        raise _Refused(name, f"The name{' and version are' if version else ' is'} taken by the entry in line {first}.")


def merged(indexes: Iterable[Index]) -> Index:
    """Merge several galleries; earlier ones take precedence."""
    read = list(indexes)
    return Index([entry for each in read for entry in each.entries], [bad for each in read for bad in each.unusable])
