"""Where secrets stand in a text, and text with something else in their place. Pure functions below `core.secrets.redact`.

A span is (start, end) in characters. Lists of spans are in order and do not overlap.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import TYPE_CHECKING

from llmproxy.core.secrets.patterns import AFTER_ESCAPE, KEY_CHARS, KEY_RUN, LONGEST_RUN, MEMBERS, PATTERNS, RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FREE = 16
"""From this length on a credential is found within words as well."""
_BASE64_RUN = 200
"""A key's shape inside a longer run of base64 is chance: images and audio are megabytes of it."""

HIDDEN = re.compile(r"\\u00[2-7]")
"""An ASCII character behind a JSON escape: how a key could hide."""
_ESCAPE = re.compile(r"\\(?:u00([2-7][0-9a-fA-F])|(/)|.)", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\-]*")


def _needles(*, apart: bool, strict: bool) -> tuple[tuple[bytes, int], ...]:
    return tuple(
        (needle.encode(), index)
        for index, pattern in enumerate(PATTERNS)
        if pattern.apart is apart and (pattern.strict or not strict)
        for needle in pattern.needles
    )


_NEEDLES = {
    strict: (_needles(apart=True, strict=strict), _needles(apart=False, strict=strict)) for strict in (False, True)
}


def active(text: str, *, strict: bool) -> list[int]:
    """Return the patterns of which a needle occurs; for nearly every text none."""
    data = text.encode("utf-8", "surrogatepass")
    apart, inside = _NEEDLES[strict]
    found = [index for needle, index in apart if needle in data]
    mapped = data.translate(KEY_CHARS)
    if KEY_RUN in mapped:
        spans = [match.span() for match in RUN.finditer(mapped)]
        runs = b"\n".join([data[start:end] for start, end in spans if end - start < LONGEST_RUN])
        found += [index for needle, index in inside if needle in runs]
    return found


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


def literals(secret: str) -> Iterator[str]:
    """Return a secret as it is and as it stands inside JSON, where that differs."""
    yield from dict.fromkeys((secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]))


def forms(secret: str) -> Iterator[str]:
    """Return expressions for the literals of a secret."""
    for literal in literals(secret):
        plain = re.escape(literal)
        yield (
            plain if len(secret) >= _FREE else rf"(?:(?<![A-Za-z0-9])|{AFTER_ESCAPE.format('')}){plain}(?![A-Za-z0-9])"
        )


def credentials(name: str, value: str) -> Iterator[str]:
    """Take a credential's header value apart into what may turn up on its own."""
    if name == "cookie":
        for pair in value.split(";"):
            secret = pair.partition("=")[2].strip()
            if len(secret) >= _FREE:
                yield secret
        return
    scheme, _, rest = value.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "basic" and rest:
        yield rest
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode("utf-8").partition(":")
        except ValueError:
            return
        yield password
        if len(user) >= _FREE:  # keys travel as user names too; short ones are names
            yield user
    elif scheme.upper().startswith("AWS4-"):
        yield from (match[1] for match in re.finditer(r"(?:Credential=([^/,]+)|Signature=(\w+))", rest) if match[1])
    elif rest:
        yield rest
    else:
        yield value


def disjoint(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that overlap; what is left is in order."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif end > start:
            out.append((start, end))
    return out


def in_base64(text: str, start: int, end: int) -> bool:
    """Tell whether a match stands inside a long run of base64 that is more than the match itself."""
    before = text[max(0, start - _BASE64_RUN) : start]
    left = len(before) - len(before.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"))
    match = _BASE64.match(text, end, end + _BASE64_RUN)
    right = match.end() - end if match else 0
    return left + right > 0 and left + right + end - start > _BASE64_RUN


def replaced(text: str, spans: list[tuple[int, int]], placeholder: Callable[[str], str]) -> str:
    """Return the text with something else at these spans."""
    out: list[str] = []
    at = 0
    for start, end in spans:
        out += (text[at:start], placeholder(text[start:end]))
        at = end
    return "".join((*out, text[at:]))


def overwritten(text: str, spans: list[tuple[int, int]]) -> str:
    """Overwrite spans, numbered by first appearance, with placeholders of their length; they end in an asterisk."""
    numbers: dict[str, int] = {}

    def placeholder(secret: str) -> str:
        number = numbers.setdefault(secret, len(numbers) + 1)
        return f"REDACTED-{number}"[: len(secret) - 1].ljust(len(secret), "*")

    return replaced(text, spans, placeholder)


def unescaped(text: str) -> tuple[str, Callable[[int], int]]:
    """Undo the JSON escapes of ASCII characters, in which a secret could hide; with a map from the view's offsets to the text's."""
    if "\\/" not in text and not HIDDEN.search(text):
        return text, lambda offset: offset
    out: list[str] = []
    origins: list[int] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        char = chr(int(match[1], 16)) if match[1] else match[2]
        if char is None:
            continue
        out += (text[at : match.start()], char)
        origins += range(at, match.start() + 1)
        at = match.end()
    out.append(text[at:])
    origins += range(at, len(text) + 1)
    return "".join(out), lambda offset: origins[offset]


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
