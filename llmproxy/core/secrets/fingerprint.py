"""What stands for a value that may be secret and yet says what is asked: stretched and cut, so that it tells values apart and gives none away.

It is stored beside the request, so it must be the same on every machine: no salt of our own. 4096 rounds and 48 bits make guessing a
word dear and never sure; a random token cannot be guessed at all.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_ROUNDS = 4096
"""About a millisecond; only for what looks secret and is no credential of its provider's."""
_DIGITS = 12


@lru_cache(maxsize=1024)
def fingerprint(secret: str) -> str:
    """Return 12 hex digits."""
    data = secret.encode("utf-8", "surrogatepass")
    return hashlib.pbkdf2_hmac("sha256", data, b"llmproxy key v2", _ROUNDS).hex()[:_DIGITS]
