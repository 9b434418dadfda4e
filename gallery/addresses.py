"""Addresses of galleries: which there are, and where they lead. Knows no network."""

from collections.abc import Mapping
from urllib.parse import urlsplit

_SCHEMES = frozenset({"http", "https", "file", "github"})


class SourceFailed(Exception):
    """Every address of a gallery failed; `cooling` says until when each is left alone."""

    def __init__(self, message: str, cooling: Mapping[str, float]) -> None:
        self.cooling = cooling
        super().__init__(message)


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
