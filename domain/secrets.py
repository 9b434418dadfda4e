"""Secrets: kept as hashes, compared in constant time."""

import hashlib
import hmac


def hash_token(token: str) -> str:
    """Tokens are 256 random bits, so one round of SHA-256 is enough to keep them out of the table."""
    return hashlib.sha256(token.encode()).hexdigest()


def same(shown: str, kept: str) -> bool:
    """Compare in constant time; a secret that is not set matches nothing."""
    return bool(kept) and hmac.compare_digest(shown.encode(), kept.encode())
