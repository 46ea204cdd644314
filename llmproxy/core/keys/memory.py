"""The memory of keys: a digest of what arrived -> the key that was derived from it.

Never to an answer: recordings are looked up every time. A request that names server state is not remembered, since what
that means depends on the store; and what was derived before a credential was learned is forgotten, unless that cannot
stand in the request.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from llmproxy.core.keys.fields import COUNTING
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.secrets.find import CredentialEpoch
from llmproxy.core.traffic.interaction import Headers, Key

REMEMBERED_KEYS = 20_000
"""Entries; about 400 bytes each."""
WORTH_A_SWITCH = 1 << 16
"""Bytes of a body that is not copied to be hashed."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """What the memory keeps of a request that was seen before."""

    key: Key
    model: str | None
    stream: bool
    refs: tuple[str, ...] = ()
    """Ids of server state that the request names."""
    path: str = ""
    """Of an operation that nobody knows: its path, redacted."""
    noted: bool = False
    """Whether it can be told which new credentials change nothing of this; see `CredentialEpoch`."""


class _Entry:
    """What is known of a request, and how many credentials were learned when that was last true."""

    __slots__ = ("known", "learned")

    def __init__(self, known: KnownRequest, learned: int) -> None:
        self.known, self.learned = known, learned


class Memory:
    """The last requests and their keys."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    @staticmethod
    def read_head(provider: str, method: str, target: str, headers: Headers, *, known: bool) -> bytes:
        """Return what of a request's head counts, as one text: none of its parts can hold a NUL, framing refuses it."""
        counting = COUNTING[known]
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

    def get(self, digest: bytes, learned: CredentialEpoch) -> KnownRequest | None:
        """Return what is known and still true after all that was learned."""
        if (entry := self._entries.get(digest)) is None:
            return None
        if entry.learned != learned.count:
            if not learned.changes_nothing(entry.learned, noted=entry.known.noted):
                del self._entries[digest]
                return None
            entry.learned = learned.count
        self._entries.move_to_end(digest)
        return entry.known

    def put(self, digest: bytes, known: KnownRequest, learned: CredentialEpoch) -> None:
        """Remember, unless the request names server state."""
        if known.refs:
            return
        self._entries[digest] = _Entry(known, learned.count)
        if len(self._entries) > REMEMBERED_KEYS:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


def named_model(canonical: Canonical) -> str | None:
    """Return the model that a request's body names."""
    tree = canonical.tree
    name = tree.get("model") if isinstance(tree, dict) else None
    return name if isinstance(name, str) else None
