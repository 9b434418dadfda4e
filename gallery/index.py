"""LocalAI's index of a gallery, read as it is in the wild: what cannot be used is told, the rest works."""

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from domain.artifact import Artifact
from domain.identity import family_of
from gallery.documents import Item, NotAnIndex, read_items
from gallery.entries import Entry, Index, Unusable
from gallery.metas import families, without_endless_metas
from gallery.oci import is_reference

_ARCHIVES = (".tar.gz", ".tgz", ".tar.zst", ".tar")
_PLACES = frozenset({"http", "https", "file", ""})
_SCHEMES = frozenset({"http", "https", "file", "oci", "docker"})
_MOST_LISTED = 256
_NEEDS_DIGEST = ("http://", "https://", "file://")


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
    """One list may stand in every entry, by an anchor: it is looked at each time."""
    if isinstance(value, list | dict) and len(value) > _MOST_LISTED:
        raise ValueError(f"there are more than {_MOST_LISTED}")


def _number(value: object) -> object:
    """A size in words (`1.2GB`) is for people; only a number is a promise."""
    return int(value) if isinstance(value, str) and value.isdecimal() else 0


Text = Annotated[str, BeforeValidator(_text), Field(max_length=4096)]
Texts = Annotated[list[Text], BeforeValidator(_texts)]


class _Listed(BaseModel):
    """The keys of one item that mean something to us; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=255, pattern=r"^[^\s@][^@\x00]*$")]
    uri: Text = ""
    alias: Annotated[str, BeforeValidator(_text), Field(max_length=255)] = ""
    version: Annotated[str, BeforeValidator(_text), Field(max_length=128)] = ""
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


def read_index(text: str, *, gallery: str, base: str = "", insecure: bool = False) -> Index:
    """Read an index that was found at `base`; `NotAnIndex` when no entry of it can be used.

    An archive without a digest can be used only from a gallery that an admin called insecure.
    """
    entries: list[Entry] = []
    unusable: list[Unusable] = []
    seen: dict[tuple[str, str], int] = {}
    for item in read_items(text):
        try:
            entry = _entry(item, gallery, base, insecure=insecure)
            _refuse_second(entry, seen, item.line)
            entries.append(entry)
        except _Refused as refused:
            unusable.append(Unusable(gallery, refused.name, refused.reason, item.line))
    sound, endless = without_endless_metas(entries)
    if not sound:
        first = next(iter([*unusable, *endless]), None)
        raise NotAnIndex(f"No entry can be used: {first.name}: {first.reason}" if first else "It is empty.")
    return Index(families(sound), [*unusable, *endless])


class _Refused(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name or "(no name)"
        self.reason = reason
        super().__init__(reason)


def _entry(item: Item, gallery: str, base: str, *, insecure: bool) -> Entry:
    if item.reason:
        raise _Refused(item.name, item.reason)
    listed = _listed(item.value)
    if not listed.uri and not listed.capabilities:
        raise _Refused(listed.name, "It has neither a uri nor capabilities: there is nothing to install.")
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
    if artifact.uri.startswith(_NEEDS_DIGEST) and not artifact.sha256 and not insecure:
        raise _Refused(listed.name, "Its archive has no sha256, and the gallery is not marked insecure.")
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
    """A file beside the index is named by its name alone; nobody's password belongs into a list."""
    try:
        parts = urlsplit(uri)
        if parts.username or parts.password:
            raise _Refused(name, "Its uri carries a password.")
    except ValueError:
        raise _Refused(name, "Its uri is malformed.") from None
    if "://" in uri and parts.scheme not in _SCHEMES:
        raise _Refused(name, f"Nothing can be fetched from {parts.scheme}:// addresses.")
    beside = uri.startswith(("/", "./", "../")) or ("/" not in uri and uri.endswith(_ARCHIVES))
    return urljoin(base, uri) if beside and base else uri


def _refuse_unreachable(name: str, uri: str) -> None:
    """What names neither a place nor something in a registry; a path is one at the API itself."""
    parts = urlsplit(uri)
    is_place = bool(parts.hostname if parts.scheme in ("http", "https") else parts.path)
    if uri and not is_reference(uri) and not (is_place and parts.scheme in _PLACES):
        raise _Refused(name, f"Nothing can be fetched from {uri!r}.")


def _refuse_second(entry: Entry, seen: dict[tuple[str, str], int], line: int) -> None:
    name, version = entry.artifact.name, entry.artifact.version
    first = seen.setdefault((family_of(name), version), line)
    if first != line:
        raise _Refused(name, f"The name{' and version are' if version else ' is'} taken by the entry in line {first}.")


def merged(indexes: Iterable[Index]) -> Index:
    """Several galleries as one; those named first win."""
    read = list(indexes)
    return Index([entry for each in read for entry in each.entries], [bad for each in read for bad in each.unusable])
