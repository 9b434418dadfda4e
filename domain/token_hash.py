"""Secrets are stored as hashes and compared in constant time."""

import hashlib
import hmac


def hash_token(token: str) -> str:
    """Hash a token for storage; one round of SHA-256 is enough, because tokens are 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()


def same(shown: str, stored: str) -> bool:
    """Compare in constant time; an empty stored secret matches nothing."""
    return bool(stored) and hmac.compare_digest(shown.encode(), stored.encode())
