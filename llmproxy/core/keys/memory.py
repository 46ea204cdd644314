"""The memory of keys: a digest of what arrived -> the key that was derived from it.

Never to an answer: recordings are looked up every time. A request that names server state is not remembered, since what that means
depends on the store; and everything is forgotten when a new credential is learned, since what was derived before did not know it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from llmproxy.core.keys.fields import Counting
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.traffic.interaction import Headers, Key

REMEMBERED_KEYS = 20_000
"""Entries; about 400 bytes each."""
WORTH_A_SWITCH = 1 << 16
"""Bytes of a body that is not copied to be hashed."""
_COUNTING = {known: Counting(known=known, also="content-encoding") for known in (False, True)}
"""Request headers on which the key depends, by whether the operation is known: those that count, and the one that says how the body is read."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the memory keeps of a request that was seen before."""

    key: Key
    model: str | None
    stream: bool
    refs: tuple[str, ...] = ()
    """Ids of server state that the request names."""
    path: str = ""
    """Of an operation that nobody knows: its path, redacted."""


class Memory:
    """The last requests and their keys."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._entries: OrderedDict[bytes, Known] = OrderedDict()
        self._learned = 0

    @staticmethod
    def counted(provider: str, method: str, target: str, headers: Headers, *, known: bool) -> bytes:
        """Return what of a request's head counts, as one text: none of its parts can hold a NUL, framing refuses it."""
        counting = _COUNTING[known]
        kept = [f"{name}:{value}" for name, value in headers if counting[name]]
        return ("\0".join((provider, method, target, *kept)) + "\0\0").encode("utf-8", "surrogatepass")

    @staticmethod
    def digest(counted: bytes, body: bytes) -> bytes:
        """Return what stands for a request: equal only for requests with equal keys."""
        if len(body) < WORTH_A_SWITCH:
            return hashlib.sha256(counted + body).digest()  # in one call: copying costs less than a second one
        digest = hashlib.sha256(counted)
        digest.update(body)
        return digest.digest()

    def get(self, digest: bytes, learned: int) -> Known | None:
        """Return what is known; `learned` is how many credentials the redactor has learned."""
        if learned != self._learned:
            self._entries.clear()
            self._learned = learned
        if (known := self._entries.get(digest)) is not None:
            self._entries.move_to_end(digest)
        return known

    def put(self, digest: bytes, known: Known) -> None:
        """Remember, unless the request names server state."""
        if known.refs:
            return
        self._entries[digest] = known
        if len(self._entries) > REMEMBERED_KEYS:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._entries)


def named_model(canonical: Canonical) -> str | None:
    """Return the model that a request's body names."""
    tree = canonical.tree
    name = tree.get("model") if isinstance(tree, dict) else None
    return name if isinstance(name, str) else None
