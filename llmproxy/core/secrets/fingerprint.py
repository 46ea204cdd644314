"""What stands for a value that may be secret and yet says what is asked: stretched and cut, so that it tells values apart and gives none away.

It is stored beside the request, so it must be the same on every machine: no salt of our own. 4096 rounds and 48 bits make guessing a
word dear and never sure; a random token cannot be guessed at all. A stranger may send thousands in one URL, and this stands in the way of
everybody's answers: so the first few of a request are stretched each for itself, and the others with all of these together.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_ROUNDS = 4096
"""About a millisecond; only for what looks secret and is no credential of its provider's."""
DIGITS = 12


_EACH = 16
"""Values of one request that are stretched each."""
_SALT = b"llmproxy key v2"


class Fingerprints:
    """The fingerprints of one request's values; the time that they take does not grow with their number."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._together = b""

    def of(self, secret: str) -> str:
        """Return 12 hex digits."""
        found = self._found.get(secret)
        if found is None:
            found = self._found[secret] = self._new(secret)
        return found

    def _new(self, secret: str) -> str:
        if len(self._found) < _EACH:
            return fingerprint(secret)
        # Who guesses this one has to guess all of the first ones with it.
        self._together = self._together or _stretch_secret("\0".join(self._found))
        return hashlib.sha256(self._together + secret.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def fingerprint(secret: str) -> str:
    """Return the 12 hex digits of one value, stretched for itself."""
    return _stretch_secret(secret).hex()[:DIGITS]


@lru_cache(maxsize=1024)
def _stretch_secret(secret: str) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", secret.encode("utf-8", "surrogatepass"), _SALT, _ROUNDS)
