"""Where secrets stand in a text, and text with something else in their place. Pure functions below `core.redact`.

A span is (start, end) in characters. Lists of spans are in order and do not overlap. Most texts hold no secret, and most of what is
done here is to be sure of that quickly: only runs of key characters are looked at, and only for the literal beginnings of keys.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_plus

from llmproxy.core.secrets.fingerprint import DIGITS, fingerprint
from llmproxy.core.secrets.kinds import KINDS, SecretKind, any_of, expression
from llmproxy.core.secrets.looks import has_dozen, is_random
from llmproxy.core.secrets.names import MEMBERS
from llmproxy.core.secrets.patterns import LABEL, PATTERNS, SERVICE, Pattern
from llmproxy.late import late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Span = tuple[int, int]

_KEY_CHARS = bytes.maketrans(
    bytes(range(256)),
    bytes(
        ord("k") if chr(code) in "_-+/=.~" or (code < 128 and chr(code).isalnum()) else ord(" ") for code in range(256)
    ),
)
"""Maps the bytes that keys are made of to ``k``: a run of 16 is worth a look, and most text has few."""
_KEY_RUN = b"k" * 16
_RUN = late(_KEY_RUN + b"+")
_LONGEST_RUN = 50_000
"""Longer runs are pictures and audio."""

_BASE64_RUN = 120
"""A key's shape with so much more base64 around it is chance: images and audio are megabytes of it."""
_BORDER = late(r"(?:\\[nrtbfv0]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|=3D|\[[0-9;]{0,12}m)$")
"""What ends in a letter or a digit and is a border all the same: an escape of JSON, of an URL, the colour of a terminal."""
_LABEL = 48
"""Characters before a value in which a service may be named."""
_SHORTEST = 12
"""Characters of a text that is worth a look."""

_WHOLE = 4 << 20
"""Characters of a text that is searched at once; the search of one takes many times its size."""
_WINDOW = 1 << 20
_MARGIN = 1 << 18
"""More than the longest expression takes, than `_LONGEST_RUN`, and than a key takes that a stream deals out over its events."""

HIDDEN = late(r"\\u00[2-7]")
"""An ASCII character behind a JSON escape: how a key could hide."""
_ESCAPE = late(r"\\(?:u00([2-7][0-9a-fA-F])|(/)|.)", re.DOTALL)
_BASE64 = late(r"[A-Za-z0-9+/_\-]*")
_NOT_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"

# -- what may be there -------------------------------------------------------------------------------------------------------


_RARE = b"=%_JKHTAC/-b"
"""Characters that texts do without, the rarest first: looking for one costs a tenth of looking for a word."""


def _by_rarest() -> dict[int | None, list[tuple[bytes, tuple[Pattern, ...]]]]:
    """Return the needles of the patterns, with whose they are, by the rarest character in each."""
    found: dict[int | None, list[tuple[bytes, tuple[Pattern, ...]]]] = defaultdict(list)
    for needle in dict.fromkeys(needle for pattern in PATTERNS for needle in pattern.needles):
        rarest = next((code for code in _RARE if code in needle), None)
        found[rarest].append((needle, tuple(pattern for pattern in PATTERNS if needle in pattern.needles)))
    return found


_PATTERNS = tuple(_by_rarest().items())
_MIXED = late(rb"[0-9][A-Za-z]|[A-Za-z][0-9]")
_SERVICE = late(SERVICE.encode)
"""In lower case."""
_NEEDLE = late(lambda: any_of({kind.needle for kind in KINDS}).encode())
_BY_NEEDLE: dict[bytes, tuple[SecretKind, ...]] = {}


def _kinds_of(needle: bytes) -> tuple[SecretKind, ...]:
    """Return the kinds whose needle what was found begins with: the search stops at the longest."""
    if (found := _BY_NEEDLE.get(needle)) is None:
        text = needle.decode()
        found = _BY_NEEDLE[needle] = tuple(kind for kind in KINDS if text.startswith(kind.needle))
    return found


class Runs(NamedTuple):
    """What a text has of key characters."""

    data: bytes
    """The text in ASCII; other characters are question marks, which are no key characters."""
    lean: bytes
    """The same without pictures and audio."""
    spans: list[Span]
    """Where at least 16 key characters stand in a row."""


@lru_cache(maxsize=2)
def runs_of(text: str) -> Runs:
    """Return the runs of a text; longer ones than 50,000 are pictures and audio."""
    data = text.encode("ascii", "replace")
    mapped = data.translate(_KEY_CHARS)
    if mapped.find(_KEY_RUN) < 0:
        return Runs(data, data, [])
    spans = [match.span() for match in _RUN.finditer(mapped)]
    long = [(start, end) for start, end in spans if end - start >= _LONGEST_RUN]
    if not long:
        return Runs(data, data, spans)
    starts, ends = [0, *(end for _, end in long)], [*(start for start, _ in long), len(data)]
    lean = b" ".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
    return Runs(data, lean, [(start, end) for start, end in spans if end - start < _LONGEST_RUN])


def shapes(text: str) -> list[Span]:
    """Return the spans of all that is a secret by what it looks like, in no order."""
    if len(text) < _SHORTEST:
        return []
    data, lean, runs = runs_of(text)
    # Not `needle in lean`: bytes are asked first whether they are a number, which takes longer than the search.
    rare = [row for char, rows in _PATTERNS if char is None or char in lean for row in rows]
    patterns = {pattern for needle, patterns in rare if lean.find(needle) >= 0 for pattern in patterns}
    found = [span for pattern in patterns for span in pattern.spans(text)]
    if runs:
        joined = b"\n".join([data[max(0, start - 1) : end] for start, end in runs])
        for kind in {kind for needle in set(_NEEDLE.findall(joined)) for kind in _kinds_of(needle)}:
            found += _of_kind(kind, text)
        found += _find_labelled(text, data, runs)
    return [span for span in found if not in_base64(text, *span)] if found else found


@cache
def _prepare_kind(kind: SecretKind) -> tuple[str, int, re.Pattern[str]]:
    return kind.needle, kind.lead, expression(kind.template)


def _of_kind(kind: SecretKind, text: str) -> Iterator[Span]:
    needle, lead, shape = _prepare_kind(kind)
    at = text.find(needle)
    while at >= 0:
        start, after = at - lead, at + len(needle)
        if start >= 0 and has_border(text, start) and (match := shape.match(text, start)) and _is_key(kind, match[0]):
            after = match.end()
            yield match.span()
        at = text.find(needle, after)


def _is_key(kind: SecretKind, found: str) -> bool:
    if kind.wordy and not has_dozen(found):
        return False
    body = found if kind.lead else found[len(kind.needle) :]
    return is_random(body, kind.entropy, words=kind.mixed)


def has_border(text: str, start: int) -> bool:
    """Tell whether a key can begin there: not in the middle of a word."""
    if start == 0 or not (before := text[start - 1]).isascii() or not before.isalnum():
        return True
    return _BORDER.search(text[max(0, start - 16) : start]) is not None


def _find_labelled(text: str, data: bytes, runs: list[Span]) -> Iterator[Span]:
    """Yield the spans of values that mix letters and digits and stand behind the name of a service."""
    for start, end in runs:
        if data[start:end].isalpha() or not _MIXED.search(data, start, end):
            continue
        label, equals, _ = data[start:end].partition(b"=")
        if not equals:
            label = data[max(0, start - _LABEL) : start].rstrip(b"\"'`\\ \t:=,>")
        if not _names_service(label[-_LABEL:]):
            continue
        for match in LABEL.whole.finditer(text, max(0, start - _LABEL), end):
            value = match["value"]
            named = LABEL.named.search(match["label"]) is not None
            if (
                has_border(text, match.start())
                and (named or not LABEL.an_id.fullmatch(value))
                and is_random(value, 2.5)
            ):
                yield match.span("value")


@lru_cache(maxsize=4096)
def _names_service(label: bytes) -> bool:
    return _SERVICE.search(label.lower()) is not None


def in_base64(text: str, start: int, end: int) -> bool:
    """Tell whether a match stands inside a long run of base64 that is more than the match itself."""
    before = text[max(0, start - _BASE64_RUN) : start]
    left = len(before) - len(before.rstrip(_NOT_BASE64))
    match = _BASE64.match(text, end, end + _BASE64_RUN)
    right = match.end() - end if match else 0
    return left + right >= _BASE64_RUN


def hides(text: str) -> bool:
    """Tell whether an ASCII character stands behind a JSON escape, where a secret could hide."""
    return "\\" in text and ("\\/" in text or ("\\u00" in text and HIDDEN.search(text) is not None))


def names_secret(lowered: str) -> bool:
    """Tell whether a text in lower case has a JSON member with such a name, escaped or not, and a value worth a look."""
    return any(
        (f'{word}"' in lowered or f"{word}\\" in lowered) and pattern.search(lowered)
        for word, pattern in MEMBERS
        if word in lowered
    )


# -- what stands there instead -----------------------------------------------------------------------------------------------

FOLLOWED = "REDACTEDx"
"""How the placeholder of a secret begins that stands in a URL; a fingerprint follows."""
_LONGEST_NAME = 64
_MEMBER_OF_LINK = late(r"(?:[?&;]|\\u0026)[\w.\-\[\]%]+=\Z")
_IN_VALUE = late(r"[\w%.~+/=:@!$*-]")
_MOST_LINKS = 256
"""Secrets in links of one answer: each takes a millisecond."""


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """Join spans that overlap; what is left is in order."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif end > start:
            out.append((start, end))
    return out


def replace_spans(text: str, spans: list[Span], placeholder: Callable[[str], str]) -> str:
    """Return the text with something else at these spans."""
    out: list[str] = []
    at = 0
    for start, end in spans:
        out += (text[at:start], placeholder(text[start:end]))
        at = end
    return "".join((*out, text[at:]))


def overwrite_spans(text: str, spans: list[Span], numbers: dict[str, int] | None = None) -> str:
    """Overwrite spans, numbered by first appearance, with placeholders of their length; they end in an asterisk. `numbers` is added to.

    In the query of a link it is the fingerprint that stands there: who follows the link asks with it, and what was recorded of the
    link has it as well.
    """
    known = {} if numbers is None else numbers
    links = {start: end for start, end in spans if "=" in text[start - 1 : start] and _in_link(text, start, end)}
    out: list[str] = []
    at = 0
    for start, end in spans:
        secret = text[start:end]
        if start in links and len(links) <= _MOST_LINKS:
            put = f"{FOLLOWED}{fingerprint(unquote_plus(secret))}".ljust(len(secret), "*")
        else:
            put = filler(known.setdefault(secret, len(known) + 1), len(secret))
        out += (text[at:start], put)
        at = end
    return "".join((*out, text[at:]))


def _in_link(text: str, start: int, end: int) -> bool:
    """Tell whether a span is the whole value of a member of a link's query, and long enough for a fingerprint."""
    return (
        end - start > len(FOLLOWED) + DIGITS
        and _MEMBER_OF_LINK.search(text, max(0, start - _LONGEST_NAME), start) is not None
        and _IN_VALUE.match(text, end) is None
        and "\\" not in text[start:end]
    )


def filler(number: int, length: int) -> str:
    """Return a placeholder of a given length."""
    return f"REDACTED-{number}"[: length - 1].ljust(length, "*")


def unescape_text(text: str) -> tuple[str, Callable[[int], int]]:
    """Undo the JSON escapes of ASCII characters, in which a secret could hide; with a map from the view's offsets to the text's."""
    if "\\/" not in text and not HIDDEN.search(text):
        return text, lambda offset: offset
    out: list[str] = []
    starts, origins = [0], [0]  # from each start in the view on, offsets count from its origin in the text
    at, length = 0, 0
    for match in _ESCAPE.finditer(text):
        char = chr(int(match[1], 16)) if match[1] else match[2]
        if char is None:
            continue
        out += (text[at : match.start()], char)
        length += match.start() - at + 1
        at = match.end()
        starts.append(length)
        origins.append(at)
    out.append(text[at:])

    def offset(place: int) -> int:
        piece = bisect_right(starts, place) - 1
        return origins[piece] + place - starts[piece]

    return "".join(out), offset


def windows(size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield how a text is searched that is too large to be searched at once: (start, first, last, end).

    What is found in `start:end` counts in `first:last`. Nothing that is a secret, nor what tells that it is one, is as long as the margins.
    """
    if size <= _WHOLE:
        yield 0, 0, size, size
        return
    for first in range(0, size, _WINDOW):
        last = min(first + _WINDOW, size)
        yield max(0, first - _MARGIN), first, last, min(last + _MARGIN, size)


def with_checksums(body: bytes) -> bytes:
    """Write the checksum of each frame of an AWS event stream anew; a stream that was cut keeps its rest as it is."""
    out, at = bytearray(body), 0
    while at + 16 <= len(out):
        size = int.from_bytes(out[at : at + 4])
        if size < 16 or at + size > len(out):  # 16: prelude and checksum
            break
        out[at + size - 4 : at + size] = zlib.crc32(out[at : at + size - 4]).to_bytes(4)
        at += size
    return bytes(out)
