"""Replacement of secrets in any encoding (escapes, wrapped lines, base64, UTF-16, a stream), by as many characters.

*Fingerprint*: the replacement of a possible secret that may be part of the question. It is stored with the request and
must be the same on every machine, so there is no private salt: 4096 rounds and 48 bits make guessing a word expensive
and never certain. Only the first values of a request are stretched one by one, lest thousands delay all answers.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, pairwise, starmap
from string import ascii_letters, digits
from urllib.parse import unquote_plus

from llmproxy.core.secrets.entropy import is_high_entropy_text, is_made_of_words
from llmproxy.core.secrets.find_secrets import (
    CREDENTIAL,
    SecretSpan,
    find_api_key_start_positions,
    find_key_character_runs,
    list_secret_character_runs,
)
from llmproxy.core.secrets.secret_kinds import build_alternation
from llmproxy.lazy_regex import LazyRegex, late

Find = Callable[[str], list[SecretSpan]]

_ROUNDS = 4096
"""Takes about a millisecond; used only for values that look secret and are no credential of their provider."""
DIGITS = 12
_EACH = 16  # values of one request that are stretched individually
_SALT = b"llmproxy key v2"


class SecretFingerprintCache:
    """Fingerprints of one request's values; computing time is bounded for any number of values."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._together = b""

    def digest(self, secret: str) -> str:
        if (found := self._found.get(secret)) is not None:
            return found
        if len(self._found) < _EACH:
            made = fingerprint_secret(secret)
        else:  # guessing this value requires guessing all of the first ones too
            self._together = self._together or _derive_slow_hash("\0".join(self._found))
            made = hashlib.sha256(self._together + secret.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
        self._found[secret] = made
        return made


def fingerprint_secret(secret: str) -> str:
    """Return 12 hex digits of one value, stretched individually."""
    return _derive_slow_hash(secret).hex()[:DIGITS]


@lru_cache(maxsize=1024)
def _derive_slow_hash(secret: str) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", secret.encode("utf-8", "surrogatepass"), _SALT, _ROUNDS)


FOLLOWED = "REDACTEDx"  # prefix of the placeholder of a secret in a URL; a fingerprint follows
OURS = late(
    r"(?<![*\w])(?:REDACTE(?:D-?)?\*(?!\*)|REDACTED(?:-\d+(?::(?P<kind>[\w-]*))?|x(?P<digits>[0-9a-f]{12}))\*+"
    r"|REDx(?P<few>[0-9A-Za-z]{3,9})\*+)"
)
"""A placeholder in an answer."""
_ROOM = len("REDACTED-999:*")
"""Characters of an answer's placeholder without the kind; for shorter secrets the kind is truncated in requests too."""
_SHORTEST = 8
_LONGEST_NAME = 64
_MEMBER_OF_LINK = late(r"(?:[?&;]|\\u0026)[\w.\-\[\]%]+=\Z")
_IN_VALUE = late(r"[\w%.~+/=:@!$*-]")
_MOST_LINKS = 256  # maximum secrets in links of one answer: each takes a millisecond


def replace_spans(text: str, spans: list[SecretSpan], put: Callable[[str, str], str]) -> str:
    out: list[str] = []
    at = 0
    for start, end, kind in spans:
        out += (text[at:start], put(text[start:end], kind))
        at = end
    return "".join((*out, text[at:]))


def overwrite_secret_spans(text: str, spans: list[SecretSpan], numbers: dict[str, int] | None = None) -> str:
    """Overwrite spans with placeholders of equal length, numbered by first appearance; `numbers` is extended.

    A value in a link's query gets its fingerprint, which the recording of a request that follows the link has too.
    """
    known = {} if numbers is None else numbers
    links = {start for start, end, _ in spans if _is_link_query_value(text, start, end)}
    out: list[str] = []
    at, told = 0, len(spans) <= _MOST_LINKS
    for start, end, kind in spans:
        secret = text[start:end]
        if start in links and not OURS.fullmatch(secret) and len(links) <= _MOST_LINKS:
            put = f"{FOLLOWED}{fingerprint_secret(unquote_plus(secret))}".ljust(len(secret), "*")
        else:
            put = build_same_length_placeholder(known.setdefault(secret, len(known) + 1), secret, kind, told=told)
        out += (text[at:start], put)
        at = end
    return "".join((*out, text[at:]))


def _is_link_query_value(text: str, start: int, end: int) -> bool:
    return (
        text[start - 1 : start] == "="
        and end - start > len(FOLLOWED) + DIGITS
        and _MEMBER_OF_LINK.search(text, max(0, start - _LONGEST_NAME), start) is not None
        and _IN_VALUE.match(text, end) is None
        and "\\" not in text[start:end]
    )


def build_same_length_placeholder(number: int, secret: str, kind: str, *, told: bool = True) -> str:
    """Return a placeholder of a secret's length: kind or fingerprint if it fits; without `told` no fingerprint."""
    length = len(secret)
    if (ours := OURS.fullmatch(secret)) and (ours["digits"] or ours["few"]):
        return secret
    kind = (ours["kind"] or "") if ours else kind
    if kind or ours or length < _SHORTEST or not told:
        room = kind[: max(0, length - _ROOM)]
        return f"REDACTED-{number}{room and ':'}{room}"[: length - 1].ljust(length, "*")
    digits = fingerprint_secret(secret)
    if length > len(FOLLOWED) + DIGITS:
        return f"{FOLLOWED}{digits}".ljust(length, "*")
    return f"REDx{_encode_base62(int(digits, 16))}"[: length - 1].ljust(length, "*")


def _encode_base62(number: int) -> str:
    out = ""
    while number:
        number, digit = divmod(number, 62)
        out += (digits + ascii_letters)[digit]
    return out


def build_redaction_placeholder_suffix(secret: str, kind: str, fingerprint: Callable[[str], str]) -> str:
    """Return a placeholder's text after its number: ``:github``, ``x02307ad9b0f2``; an echo has the same label."""
    if ours := OURS.fullmatch(secret):
        tail = ours["digits"] or ours["few"]
        kind = ours["kind"] or ""
        if CREDENTIAL.startswith(kind) and not tail and (kind or len(secret) <= _ROOM):
            return f":{CREDENTIAL}"
        return f":{kind}" if kind else f"x{tail}" if tail else ""
    if not kind:
        return f"x{fingerprint(secret)}"
    if kind == CREDENTIAL:
        return f":{CREDENTIAL}"  # another caller's credential has another length
    room = kind[: max(0, len(secret) - _ROOM)]
    return f":{room}" if room else ""


HIDDEN = r"\\(?:/|u00[2-7])"
_HOLDS_HIDDEN = LazyRegex(HIDDEN)
_ESCAPE = late(r"\\(?:u00([2-7][0-9a-fA-F])|(/)|.)", re.DOTALL)


def may_hold_escaped_secret(text: str) -> bool:
    """Return whether a text has an ASCII character in a JSON escape, which could hide a secret."""
    return "\\" in text and _HOLDS_HIDDEN.holds(find_key_character_runs(text).data)


def unescape_json_text(text: str) -> tuple[str, Callable[[int], int]]:
    """Undo JSON escapes of ASCII, which could hide a secret; return the view and a map of its offsets to the text."""
    if not may_hold_escaped_secret(text):
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


_WHOLE = 4 << 20  # maximum characters that are searched at once; a search needs many times the size of its text
_WINDOW = 1 << 20
_MARGIN = 1 << 18  # larger than the longest expression, `_LONGEST_RUN`, and a key split over a stream's events


def iter_text_search_windows(size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the windows of a large text, (start, first, last, end): matches count only in `first:last`."""
    if size <= _WHOLE:
        yield 0, 0, size, size
        return
    for first in range(0, size, _WINDOW):
        last = min(first + _WINDOW, size)
        yield max(0, first - _MARGIN), first, last, min(last + _MARGIN, size)


def renew_aws_frame_message_crcs(body: bytes) -> bytes:
    """Renew the checksum of each frame of an AWS event stream; a truncated last frame stays unchanged."""
    out, at = bytearray(body), 0
    while at + 16 <= len(out):
        size = int.from_bytes(out[at : at + 4])
        if size < 16 or at + size > len(out):  # 16: prelude and checksum
            break
        out[at + size - 4 : at + size] = zlib.crc32(out[at : at + size - 4]).to_bytes(4)
        at += size
    return bytes(out)


_KEY = r"A-Za-z0-9_\-+/=.~"

_WRAPS = tuple(
    late(
        rf"{mark}(?:(?<=[{_KEY}]{{10}}{mark})(?=[ \t]{{0,40}}[{_KEY}]{{3}})"
        rf"|(?<=[{_KEY}]{{3}}{mark})(?=[ \t]{{0,40}}[{_KEY}]{{10}}))"
    )
    for mark in (r"\\n", r"\n", r"\\r\\n", r"\r\n")
)
"""A line break in a text, and in JSON, between key characters."""
_MARKS = ("\\n", "\n", "\\r\\n", "\r\n")
_MARK = late(r"(?:\\r)?\\n|\r?\n")
_LINE = late(rf"[ \t]{{0,40}}([{_KEY}]+)")
_KEY_CHARS = ascii_letters + digits + "_-+/=.~"
_DIGIT = late(r"\d")
_CONTEXT = 16  # characters before the key that show whether a key can begin there
_ENDS = 12  # maximum lines after which the key's end is tried; a longer key is found up to its last line
_LONGEST_LINE = 4096
_MOST_LINES = 400


def find_secrets_across_lines(text: str, find: Find) -> list[SecretSpan]:
    """Return spans of secrets broken over lines, with breaks and indents; all breaks are searched at once."""
    blocks: list[_JoinedLines] = []
    done = 0
    for expression, mark in zip(_WRAPS, _MARKS, strict=True):
        if mark[0] in text:
            for at in _find_breaks(text, expression, mark):
                if at >= done:
                    pieces = _list_key_parts_around_break(text, at)
                    done = max(done, pieces[-1][1] if pieces else 0)
                    block = _JoinedLines(text, pieces)
                    if len(pieces) > 1 and _DIGIT.search(block.joined, _CONTEXT):
                        blocks.append(block)
    if not blocks:
        return []
    whole = _SEPARATOR.join(block.joined for block in blocks)
    spans = [*find(whole), *_find_base64_secrets(whole, find)]
    found = list(_map_joined_spans_to_text(blocks, spans)) if spans else []
    begins = _list_joined_block_offsets(blocks)
    for index in {bisect_right(begins, at) - 1 for at in find_api_key_start_positions(whole)}:
        for count in range(2, min(len(blocks[index].pieces) - 1, _ENDS) + 1):
            begin = _JoinedLines(text, blocks[index].pieces[:count])
            found += _map_joined_spans_to_text([begin], find(begin.joined))
    return found


_SEPARATOR = "\n\0\n"  # text that no secret contains


class _JoinedLines:
    __slots__ = ("joined", "pieces", "starts")

    def __init__(self, text: str, pieces: list[tuple[int, int]]) -> None:
        self.pieces = pieces
        self.joined = "".join([text[start:end] for start, end in pieces])
        self.starts = [0, *accumulate(end - start for start, end in pieces)][:-1]

    def map_to_text(self, start: int, end: int, kind: str) -> SecretSpan | None:
        """Return the position in the text of a span of the joined text; None if it is in one line."""
        starts, pieces = self.starts, self.pieces
        first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
        if last > first:
            key, rest = self.joined[start : starts[last]], self.joined[starts[last] : end]
            if len(key) >= 20 and is_made_of_words(rest) and is_high_entropy_text(key):
                end, last = starts[last], last - 1  # the rest is a word of the next line
        if last <= first:
            return None
        return SecretSpan(pieces[first][0] + start - starts[first], pieces[last][0] + end - starts[last], kind)


def _list_joined_block_offsets(blocks: list[_JoinedLines]) -> list[int]:
    return [0, *accumulate(len(block.joined) + len(_SEPARATOR) for block in blocks)]


def _map_joined_spans_to_text(blocks: list[_JoinedLines], spans: list[SecretSpan]) -> Iterator[SecretSpan]:
    begins = _list_joined_block_offsets(blocks)
    for start, end, kind in spans:
        index = bisect_right(begins, start) - 1
        block, begin = blocks[index], begins[index]
        if end - begin <= len(block.joined) and (found := block.map_to_text(start - begin, end - begin, kind)):
            yield found


def _find_breaks(text: str, expression: re.Pattern[str], mark: str) -> Iterator[int]:
    """Yield positions of breaks within possible keys; for most breaks the character before is enough to decide."""
    at = text.find(mark)
    while at >= 0:
        if text[at - 1] in _KEY_CHARS and expression.match(text, at):
            yield at
        at = text.find(mark, at + len(mark))


def _list_key_parts_around_break(text: str, at: int) -> list[tuple[int, int]]:
    """Return the key characters around a line break, line by line; inner lines consist only of these."""
    before = text[max(0, at - _LONGEST_LINE) : at]
    first = at - len(before) + len(before.rstrip(_KEY_CHARS))
    pieces = [(max(0, first - _CONTEXT), at)]
    mark = _MARK.match(text, at)
    while mark and len(pieces) < _MOST_LINES and (line := _LINE.match(text, mark.end())):
        pieces.append(line.span(1))
        mark = _MARK.match(text, line.end(1))
    return pieces


_TEXTUAL = late(r"(?:[I-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_\-]){6}")
"""Six times three bytes of printable ASCII."""
_HOLDS_TEXT = LazyRegex(_TEXTUAL.pattern)
_CODED = late(r"[A-Za-z0-9+/_\-]+={0,2}")
_CODED_QUANTUM = late(r"[A-Za-z0-9+/_\-]{4}")
_QUANTUM = 4
_NO_BLANKS = dict.fromkeys(map(ord, "\t\n\r"))
_SAMPLE = 96  # characters needed to decide whether a run is text


def overwrite_secrets_in_base64(text: str, find: Find) -> str:
    """Return the text with secrets in base64-encoded text overwritten; length and base64 form are unchanged."""
    spans = list(_find_base64_text(text))
    # Wrapped base64 has many lines: one search decides whether any of them holds a secret.
    if not spans or (
        len(spans) > _ENDS
        and not find(_SEPARATOR.join(_decode_base64_as_latin1(text[start:end]) for start, end in spans))
    ):
        return text
    for start, end in spans:
        plain = _decode_base64_as_latin1(text[start:end])
        if inner := find(plain):
            coded = _encode_base64_like(text[start:end], overwrite_secret_spans(plain, inner))
            text = text[:start] + coded + text[end:]
    return text


def _encode_base64_like(old: str, plain: str) -> str:
    """Encode a Latin-1 text in the alphabet and the length of the base64 text that it replaces."""
    coded = base64.b64encode(plain.encode("latin-1")).decode()
    if set(old) & {"-", "_"}:
        coded = coded.replace("+", "-").replace("/", "_")
    return coded[: len(old)].ljust(len(old), "=")


def _find_base64_secrets(text: str, find: Find) -> Iterator[SecretSpan]:
    for start, end in _find_base64_text(text):
        for first, last, kind in find(_decode_base64_as_latin1(text[start:end])):
            yield SecretSpan(start + first // 3 * _QUANTUM, min(end, start + -(-last // 3) * _QUANTUM), kind)


def _find_base64_text(text: str) -> Iterator[tuple[int, int]]:
    data, _, found, _ = find_key_character_runs(text)
    runs = [(start, end) for start, end in found if end - start >= 6 * _QUANTUM]
    if not runs or not _HOLDS_TEXT.holds(b"\n".join([data[start:end] for start, end in runs])):
        return
    for start, end in runs:
        at, first = start, max(start, text.rfind("=", start, end - 2) + 1)
        coded = _CODED.match(text, first, end)
        if coded and _decodes_to_text(text[first : min(first + _SAMPLE, coded.end())]):
            yield coded.span()
            at = coded.end()
        while match := _TEXTUAL.search(text, at, end):
            coded = _CODED.match(text, match.start(), end)
            last = coded.end() if coded else match.end()
            first = match.start() - _QUANTUM  # a key may begin in bytes that are no text
            yield (first if first >= at and _CODED_QUANTUM.match(text, first) else match.start()), last
            at = last


def may_hold_base64_text(data: bytes) -> bool:
    runs = list_secret_character_runs(data, 6 * _QUANTUM)
    return bool(runs) and _HOLDS_TEXT.holds(b"\n".join([data[start:end] for start, end in runs]))


def _decodes_to_text(coded: str) -> bool:
    """Return whether base64 decodes to text from its first character, so that the start of its quanta is known."""
    plain = _decode_base64_as_latin1(coded[: len(coded) // _QUANTUM * _QUANTUM].rstrip("="))
    return len(plain) >= 12 and plain.isascii() and plain.translate(_NO_BLANKS).isprintable()


def _decode_base64_as_latin1(coded: str) -> str:
    bare = coded.rstrip("=").replace("-", "+").replace("_", "/")
    bare = bare[:-1] if len(bare) % _QUANTUM == 1 else bare
    return base64.b64decode(bare + "=" * (-len(bare) % _QUANTUM)).decode("latin-1")


_WIDE = late(r"(?:[\t\n\r\x20-\x7e]\x00){12,}")
_WIDE_CHARS = bytes(0 if code == 0 else 1 if 0x20 <= code < 0x7F or code in b"\t\n\r" else 2 for code in range(256))
_WIDE_RUN = b"\1\0" * 12  # a match of `_WIDE` in the classes of `_WIDE_CHARS`; most bytes with a NUL contain none


def overwrite_secrets_in_utf16(text: str, find: Find) -> str:
    """Return a text of bytes with secrets in UTF-16 overwritten, at any offset."""
    if "\x00" not in text or _WIDE_RUN not in text.encode("latin-1", "replace").translate(_WIDE_CHARS):
        return text
    return _WIDE.sub(lambda match: "\0".join(overwrite_secret_spans(plain := match[0][::2], find(plain))) + "\0", text)


_SAYS = (
    "text", "content", "delta", "partial_json", "arguments", "thinking", "reasoning", "reasoning_content", "refusal",
    "transcript", "response", "output", "input", "message", "code", "value", "summary", "completion", "generation",
    "outputText", "stringValue", "textDelta", "inputTextDelta", "argsTextDelta", "reasoning_text", "answer",
)  # fmt: skip
"""Members in which the dialects stream a model's output."""
_SAID = late(
    rf'"(?=({build_alternation(_SAYS)}(\\{{0,7}}))"\s{{0,4}}:\s{{0,4}}\2"((?:[^"\\]++|\2\2\\["\\]|(?!\2")\\)*+)\2")'
)
"""Such a member, at any depth of JSON in strings: a WebSocket message is one, so that a value may contain others."""
_INDEX = late(r'ndex\\{0,7}"\s{0,4}:\s{0,4}(\d{1,9})')
"""Number of a choice, of a tool call, of a block of content."""
_WHOLE_LINE = late(r"[^\n]+")
_CODED_EVENT = late(r'("bytes"\s{0,4}:\s{0,4}")(e[wy][A-Za-z0-9+/]{8,}={0,2})')


def _overwrite_split_secrets(text: str, find: Find, numbers: dict[str, int]) -> str:
    """Overwrite secrets that are split over several values of one name (``delta``), or of one choice or tool call."""
    for values in _list_streams(text):
        starts = [0, *accumulate(end - start for start, end in values)]
        if len(values) == 1 or starts[-1] < 16:
            continue
        joined = "".join([text[start:end] for start, end in values])
        split = [span for span in find(joined) if bisect_right(starts, span.start) != bisect_left(starts, span.end)]
        if split:
            changed = overwrite_secret_spans(joined, split, numbers)
            pieces = iter([changed[first:last] for first, last in pairwise(starts)])
            text = replace_spans(text, list(starmap(SecretSpan, values)), lambda *_, pieces=pieces: next(pieces))
    return text


def _list_streams(text: str) -> Iterator[list[tuple[int, int]]]:
    """Yield the spans of the values of each name, and of each name and the indexes beside it, if they alternate."""
    streams: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    numbers = list(map(int, _INDEX.findall(text)))
    alternate = numbers != sorted(numbers)
    for start, end in [line.span() for line in _WHOLE_LINE.finditer(text)] if alternate else [(0, len(text))]:
        indexes = ",".join(_INDEX.findall(text, start, end)) if alternate else ""
        for match in _SAID.finditer(text, start, end):
            streams[match[1]][indexes].append(match.span(3))
    for by_index in streams.values():
        yield sorted(chain.from_iterable(by_index.values()))
        if any(one[-1] > other[0] for one, other in pairwise(by_index.values())):
            yield from by_index.values()


def overwrite_secrets_split_over_events(text: str, find: Find, numbers: dict[str, int]) -> str:
    """Overwrite secrets split over a stream's events, also over those in base64."""
    text = _overwrite_split_secrets(text, find, numbers)
    joined = _SEPARATOR.join(_decode_base64_as_latin1(match[2]) for match in _CODED_EVENT.finditer(text))
    changed = _overwrite_split_secrets(joined, find, numbers)
    if changed == joined:
        return text
    events = iter(changed.split(_SEPARATOR))
    return _CODED_EVENT.sub(lambda match: match[1] + _encode_base64_like(match[2], next(events)), text)


_TEXT = r'"(?:[^"\\]|\\.)*"'
_TOKENS = late(
    rf'(?<!\\)"(?:token"\s*:\s*{_TEXT}|(?:bytes|tokens|top_logprobs)"\s*:\s*\[(?:[^\]"]|{_TEXT})*\])', re.DOTALL
)
_OF_TOKENS = late(rf'"(?P<name>tokens?|bytes|(?:top_)?logprobs?)"|{_TEXT}|(?<![\d.])\d{{1,3}}(?![\d.])', re.DOTALL)


def redact_logprob_tokens(text: str) -> str:
    """Overwrite the tokens listed with log probabilities, and their bytes: they spell an answer's secrets again."""
    return _TOKENS.sub(lambda row: _OF_TOKENS.sub(_overwrite_token, row[0]), text) if "logprob" in text else text


def _overwrite_token(match: re.Match[str]) -> str:
    token, size = match[0], len(match[0])
    return token if match["name"] else f'"{"*" * (size - 2)}"' if token[0] == '"' else "120"[-size:]
