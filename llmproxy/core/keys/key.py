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
    model = "" if canonical.model is None else "=" + canonical.model  # a missing one is not an empty one
    named = (canonical.provider, canonical.method, canonical.operation, canonical.variant, model)
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
    return Key(TAG + digest.hexdigest())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
