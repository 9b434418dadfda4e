"""Addresses of galleries: which there are, and where they lead. Knows no network."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_SCHEMES = frozenset({"http", "https", "file", "github"})


class SourceFailed(Exception):
    """Every address of a gallery failed; `cooling` says until when each is left alone."""

    def __init__(self, message: str, cooling: Mapping[str, float]) -> None:
        self.cooling = cooling
        super().__init__(message)


class NoName(Exception):
    """A `.ref` that names no file beside it."""


def is_ref(url: str) -> bool:
    """LocalAI's pointer: a small file that holds the name of the real one, which lies beside it."""
    return urlsplit(url).path.endswith(".ref")


def named_beside(content: str) -> str:
    """The name in a `.ref`; one that leads elsewhere is none."""
    name = content.strip()
    if _FILE_NAME.fullmatch(name) is None or is_ref(name):
        raise NoName(f"is a .ref that names no file beside it: {name[:100]!r}")
    return name


def complaint(url: str) -> str:
    """What is wrong with an address of a gallery; empty when nothing is."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "The address is malformed."
    if parts.scheme not in _SCHEMES:
        return f"An address begins with {', '.join(sorted(_SCHEMES))}."
    if parts.username or parts.password:
        return "The address carries a password; set it with `nodesmith sources add` instead."
    if parts.scheme in ("http", "https") and not parts.hostname:
        return "The address names no host."
    return ""


def address(url: str) -> str:
    """Where a file of a repository lies: github:owner/repository/path@branch."""
    if not url.startswith("github:"):
        return url
    path, _, branch = url.removeprefix("github:").partition("@")
    owner, _, rest = path.partition("/")
    repository, _, file = rest.partition("/")
    return f"https://raw.githubusercontent.com/{owner}/{repository}/{branch or 'main'}/{file}"
