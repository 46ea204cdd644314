"""What a session remembers of each question for as long as it lives, in a few bytes: a proxy may record for days in one session.

Both are written by one thread each and read by any: what is moved is readable in its new place before it leaves the old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

RECENT = 8_192
"""Of the last so many the counts stand in a dictionary, some 300 bytes each."""
_MOVED = 256
"""So many at once leave it: one by one each would cost more, and all together somebody's answer would wait."""
_DIGEST, _COUNT = 16, 4
_ENTRY = _DIGEST + _COUNT
_MOST = (1 << 8 * _COUNT) - 1
_CHUNK = 6
"""Ids are noted 64 together: a session's recordings lie side by side, and a proxy may have thousands of sessions."""


class Counts:
    """How often each came. Of what came long ago a digest of 128 bits and its number are kept, 20 bytes, in place of some 300."""

    __slots__ = ("_most", "_old", "_recent")

    def __init__(self, recent: int = RECENT) -> None:
        """Count nothing yet; so many are kept as they came."""
        self._most = recent
        self._recent: dict[tuple[str, str], int] = {}
        self._old: dict[int, bytearray] = {}

    def of(self, walker: tuple[str, str]) -> int:
        """Return how often it came."""
        found = self._recent.get(walker)
        if found is not None or not self._old:
            return found or 0
        bucket, at = self._find(_digest(walker))
        return int.from_bytes(bucket[at + _DIGEST : at + _ENTRY]) if at >= 0 else 0

    def add(self, walker: tuple[str, str]) -> int:
        """Count one more, and return its number, from 1."""
        nth = (self._recent.get(walker) or self.of(walker)) + 1
        self._recent[walker] = nth
        if len(self._recent) > self._most:
            for each in list(islice(self._recent, _MOVED)):
                self._move(each)
        return nth

    def discard(self, walker: tuple[str, str]) -> None:
        """Count it as one that never came."""
        if self.of(walker):
            self._recent[walker] = 0

    def update(self, other: Counts) -> None:
        """Count all of the other's as often as there, at least."""
        for number, bucket in other._old.items():
            for at in range(0, len(bucket), _ENTRY):
                if self._find(bytes(bucket[at : at + _DIGEST]))[1] < 0:
                    self._old[number] += bucket[at : at + _ENTRY]
        for walker, nth in list(other._recent.items()):
            self._recent[walker] = max(nth, self.of(walker))

    def clear(self) -> None:
        self._recent, self._old = {}, {}

    def __contains__(self, walker: tuple[str, str]) -> bool:
        return self.of(walker) > 0

    def __bool__(self) -> bool:
        return bool(self._recent or self._old)

    def _move(self, walker: tuple[str, str]) -> None:
        digest, number = _digest(walker), min(self._recent[walker], _MOST).to_bytes(_COUNT)
        bucket, at = self._find(digest)
        if at >= 0:
            bucket[at + _DIGEST : at + _ENTRY] = number
        else:
            bucket += digest + number
        del self._recent[walker]

    def _find(self, digest: bytes) -> tuple[bytearray, int]:
        bucket = self._old.setdefault(digest[0] << 2 | digest[1] >> 6, bytearray())
        at = bucket.find(digest)
        while at >= 0 and at % _ENTRY:  # these bytes across two entries
            at = bucket.find(digest, at + 1)
        return bucket, at


def _digest(walker: tuple[str, str]) -> bytes:
    return hashlib.blake2b(repr(walker).encode("utf-8", "backslashreplace"), digest_size=_DIGEST).digest()


class Ids(Collection[int]):
    """A set of row ids, which are never taken out: a few bytes each where they lie side by side. Added to by any thread."""

    __slots__ = ("_chunks",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._chunks: dict[int, bytearray] = {}
        self.update(ids)

    def add(self, row: int) -> None:
        chunk = self._chunks.get(row >> _CHUNK)
        if chunk is None:
            chunk = self._chunks.setdefault(row >> _CHUNK, bytearray(1 << _CHUNK))
        chunk[row & (1 << _CHUNK) - 1] = 1  # a byte and not a bit: two threads may write

    def update(self, ids: Iterable[int]) -> None:
        for row in ids:
            self.add(row)

    def __contains__(self, row: object) -> bool:
        chunk = self._chunks.get(row >> _CHUNK) if isinstance(row, int) else None
        return chunk is not None and bool(chunk[row & (1 << _CHUNK) - 1])  # type: ignore[operator]

    def __iter__(self) -> Iterator[int]:
        """Go through them in order."""
        for number in sorted(self._chunks.copy()):
            base = number << _CHUNK
            yield from (base + at for at, there in enumerate(self._chunks[number]) if there)

    def __len__(self) -> int:
        return sum(map(sum, list(self._chunks.values())))

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and set(self) == set(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ids({list(self)})"
