"""The key: a tagged digest of a canonical request.

    Canonical -> ``v2:`` + sha256 over its parts, each preceded by its length

Lengths make sure that no two lists of parts run into the same bytes. A change of what is hashed, or of the canonical form under
it, changes every key: it needs a new tag, and the golden keys of the tests keep watch.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from llmproxy.core.traffic.interaction import Key

if TYPE_CHECKING:
    from llmproxy.core.keys.normalize import Canonical

TAG = "v2:"


def key_of(canonical: Canonical) -> Key:
    """Return the key of a canonical request."""
    named = (canonical.provider, canonical.method, canonical.operation, canonical.variant, optional(canonical.model))
    return digest_of(TAG, named, canonical)


def digest_of(tag: str, named: tuple[str, ...], canonical: Canonical) -> Key:
    """Return the tagged digest of some parts, and of what every version of the key has hashed after them."""
    parts: list[bytes] = [_bytes(part) for part in named]
    parts.append(b"\1" if canonical.stream else b"\0")
    for pairs in (canonical.headers, canonical.query):
        parts.append(len(pairs).to_bytes(4))
        parts += [_bytes(text) for pair in pairs for text in pair]
    parts.append(_bytes(canonical.kind))
    body = canonical.body  # may be large: not copied
    told = [piece for part in parts for piece in (len(part).to_bytes(8), part)]
    digest = hashlib.sha256(b"".join([*told, len(body).to_bytes(8)]))
    digest.update(body)
    return Key(tag + digest.hexdigest())


def optional(text: str | None) -> str:
    """Tell a missing model from an empty one."""
    return "" if text is None else "=" + text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
