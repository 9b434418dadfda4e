"""Addresses of galleries: validation and resolution, without network access."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_SCHEMES = frozenset({"http", "https", "file", "github"})


class SourceFailed(Exception):
    """Every address of a gallery failed; `cooling` says until when each is skipped."""

    def __init__(self, message: str, cooling: Mapping[str, float]) -> None:
        self.cooling = cooling
        super().__init__(message)


class NoName(Exception):
    """A `.ref` file that does not name a file beside it."""


def is_ref(url: str) -> bool:
    """Return whether this is LocalAI's pointer: a small file with the name of the real one beside it."""
    return urlsplit(url).path.endswith(".ref")


def named_beside(content: str) -> str:
    """Return the name in a `.ref`; a path to another folder is refused."""
    name = content.strip()
    if _FILE_NAME.fullmatch(name) is None or is_ref(name):
        raise NoName(f"is a .ref that does not name a file beside it: {name[:100]!r}")
    return name


def complaint(url: str) -> str:
    """Return what is wrong with a gallery's address; empty if it is valid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "The address is malformed."
    if parts.scheme not in _SCHEMES:
        return f"An address must begin with {', '.join(sorted(_SCHEMES))}."
    if parts.username or parts.password:
        return "The address contains a password; set it with `nodesmith sources add` instead."
    if parts.scheme in ("http", "https") and not parts.hostname:
        return "The address has no host."
    return ""


def address(url: str) -> str:
    """Resolve github:owner/repository/path@branch to its URL."""
    if not url.startswith("github:"):
        return url
    path, _, branch = url.removeprefix("github:").partition("@")
    owner, _, rest = path.partition("/")
    repository, _, file = rest.partition("/")
    return f"https://raw.githubusercontent.com/{owner}/{repository}/{branch or 'main'}/{file}"
