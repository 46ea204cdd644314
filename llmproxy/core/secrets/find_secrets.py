"""Search for secrets in a text: by shape, by context, and by the credentials that this run has seen.

Most texts hold no secret, which most of this code decides quickly: it examines only runs of key characters. There may
be any number of *credentials*, because tokens rotate: of many, only eight characters each are searched in those runs.
*Epoch*: a value derived from a request may be stale once a new credential is known. A few characters of each of its
forms are compared with all runs searched before: if none occurs there, nothing has changed. A form that cannot be
compared counts as a change.
"""

from __future__ import annotations

import json
import re
import threading
from binascii import b2a_base64
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import batched
from typing import NamedTuple
from urllib.parse import quote

from llmproxy.core.secrets import entropy, secret_kinds
from llmproxy.core.secrets.entropy import is_random_value
from llmproxy.core.secrets.secret_kinds import NAMED_MEMBER, NAMED_VALUE, PATTERNS, SecretKind, SecretPattern
from llmproxy.lazy_regex import LazyRegex, late


class SecretSpan(NamedTuple):
    start: int
    end: int
    kind: str = ""
    """Kind of a secret with an unmistakable form, as in its placeholder; empty if only a name or label shows it."""


CREDENTIAL = "credential"  # kind of the credentials that this run sent

_KEY_CHARS = bytes(
    ord("k") if chr(code) in "_-+/=.~" or (code < 128 and chr(code).isalnum()) else ord(" ") for code in range(256)
)
"""Maps characters of keys to ``k``: a run of 16 is examined, and most text has few."""
_KEY_RUN = 16
_LONGEST_RUN = 50_000  # longer runs are images and audio

_BASE64_RUN = 120
"""With this much base64 around it, a key's shape is a coincidence: images and audio are megabytes of it."""
_BORDER = late(r"(?:\\[nrtbfv0]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|=3D|\[[0-9;]{0,12}m)$")
"""Borders that end in a letter or digit: an escape of JSON or a URL, a terminal's colour."""
_ESCAPES = late(rb"\\(?:[nrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|%[0-9a-fA-F]{2}")
_LABEL = 48  # characters before a value in which a service may be named
_SHORTEST = 12  # minimum characters of a text that is searched


_BASE64 = late(r"[A-Za-z0-9+/_\-]*")
_NOT_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"


def _build_pattern_prefilter(pattern: SecretPattern) -> str:
    return pattern.near or "|".join(re.sub(r"[^\w /:=@!\"]", r"\\\g<0>", each.decode()) for each in pattern.needles)


_PLACED = tuple((pattern, LazyRegex(_build_pattern_prefilter(pattern))) for pattern in PATTERNS)
_HOLDS_NAMED = LazyRegex(NAMED_VALUE)
_HOLDS_LABEL = LazyRegex(secret_kinds.NEAR_LABEL)
_HOLDS_MEMBER = LazyRegex(NAMED_MEMBER)
_LONGEST_BEGINNING = 256  # upper bound of the length that these expressions need
_WORTH_A_TEST = 1 << 12  # characters of a part; it is searched for names only if it may contain one
_IS_NEAR = LazyRegex(lambda: "|".join((*map(_build_pattern_prefilter, PATTERNS), f"(?:{NAMED_VALUE})", NAMED_MEMBER)))
"""One expression is as fast as each alone; with `NEAR_LABEL` it would have more states than Rust keeps."""
_MIXED = late(rb"[0-9][A-Za-z]|[A-Za-z][0-9]")
_SERVICE = late(secret_kinds.SERVICE.encode)  # matches lower case


class PossibleSecretCharacterRuns(NamedTuple):
    data: bytes  # text in ASCII; other characters become question marks, which are no key characters
    lean: bytes  # same text without images and audio
    spans: list[tuple[int, int]]  # spans with at least 16 key characters in a row
    near: bool  # whether the text has any context of a secret, such as a name


def list_secret_character_runs(data: bytes, least: int) -> list[tuple[int, int]]:
    mapped, run, spans = data.translate(_KEY_CHARS), b"k" * least, list[tuple[int, int]]()
    start = mapped.find(run)
    while start >= 0:
        end = mapped.find(b" ", start)
        spans.append((start, end if end >= 0 else len(data)))
        start = mapped.find(run, spans[-1][1])
    return spans


@lru_cache(maxsize=2)
def find_key_character_runs(text: str) -> PossibleSecretCharacterRuns:
    """Return the runs of a text, without those of 50,000 characters or more, which are images and audio."""
    data = text.encode("ascii", "replace")
    spans, near = list_secret_character_runs(data, _KEY_RUN), _IS_NEAR.holds(data)
    lean, long = data, [(start, end) for start, end in spans if end - start >= _LONGEST_RUN]
    if long:
        spans = [(start, end) for start, end in spans if end - start < _LONGEST_RUN]
        starts, ends = [0, *(end for _, end in long)], [*(start for start, _ in long), len(data)]
        lean = b" ".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
    return PossibleSecretCharacterRuns(data, lean, spans, near)


def detect_secrets_by_pattern(text: str, *, named: bool = True) -> list[SecretSpan]:
    """Return the unordered spans of secrets recognised by shape or context; with `named` also by name."""
    if len(text) < _SHORTEST:
        return []
    data, lean, runs, near = find_key_character_runs(text)
    found = [
        SecretSpan(*span, pattern.label)
        for pattern, is_near in (_PLACED if near else ())
        if is_near.holds(lean) and any(lean.find(needle) >= 0 for needle in pattern.needles)
        for span in pattern.iter_spans(text)
    ]
    if near and named:
        found += _find_named(text, data)
    if runs and (kinds := _list_possible_kinds(text)):  # the last kind gives the name
        found += {span[:2]: span for kind in kinds for span in _find_keys_of_kind(kind, text)}.values()
    if runs and named and _HOLDS_LABEL.holds(b"\n".join([data[max(0, start - _LABEL) : end] for start, end in runs])):
        found += _find_behind_service_names(text, data, runs)
    return [span for span in found if not is_inside_base64(text, span.start, span.end)] if found else found


_SIGNS = (b":", b"=", b",", b">")
_LONGEST_NAME = 64
_ENV = late(rb"[A-Z][A-Z0-9_]*=")  # an environment variable and its sign, without a gap


def _find_keys_of_kind(kind: SecretKind, text: str) -> Iterator[SecretSpan]:
    shape, at = secret_kinds.compile_secret_template(kind.template), text.find(kind.needle)
    while at >= 0:
        start, after = at - kind.length_before_needle, at + len(kind.needle)
        if (
            start >= 0
            and is_possible_key_start(text, start)
            and (match := shape.match(text, start))
            and _is_key(kind, match[0])
        ):
            after = match.end()
            yield SecretSpan(*match.span(), kind.label)
        at = text.find(kind.needle, after)


_LONG_BASE64 = late(rb"([A-Za-z0-9+/_\-]{512})[A-Za-z0-9+/_\-]++")
"""First characters of long base64: matches after them are coincidences (`is_inside_base64`)."""


@cache
def _group_kinds() -> list[tuple[list[tuple[bytes, SecretKind]], LazyRegex]]:
    """Return groups of kinds, each with an expression for their runs: a single one has too many states for Rust."""
    needles = sorted(((kind.needle.encode(), kind) for kind in secret_kinds.KINDS), key=lambda row: row[0])
    groups = map(list, batched(needles, 32))
    return [(rows, LazyRegex("|".join(kind.expression_starting_at_needle for _, kind in rows))) for rows in groups]


@lru_cache(maxsize=2)
def _list_possible_kinds(text: str) -> list[SecretKind]:
    """Return the kinds of keys that may occur, the most specific last."""
    data, _, runs, _ = find_key_character_runs(text)
    pieces = (data[max(0, start - 1) : end] for start, end in runs)
    joined = b"\n".join([_LONG_BASE64.sub(rb"\1 ", each) if len(each) > 1024 else each for each in pieces])
    if b"\\" in joined or b"%" in joined:  # an escape's letters begin no key
        joined = _ESCAPES.sub(b" ", joined)
    found = [row for rows, has_run in _group_kinds() if has_run.holds(joined) for row in rows if row[0] in joined]
    return [kind for _, kind in sorted(found, key=lambda row: (len(row[0]), row[1].template))]


def find_api_key_start_positions(text: str) -> Iterator[int]:
    """Yield positions at which keys of a fixed length may begin, even if the next characters hide their end."""
    for kind in _list_possible_kinds(text):
        if kind.template.endswith("+>"):
            continue
        loose = secret_kinds.compile_secret_template(kind.template, loose=True)
        lead, at = kind.length_before_needle, text.find(kind.needle)
        while at >= 0:
            if at >= lead and loose.match(text, at - lead):
                yield at
            at = text.find(kind.needle, at + 1)


def _is_key(kind: SecretKind, found: str) -> bool:
    if kind.wordy and not entropy.has_alphanumeric_run(found):
        return False
    unknown = found if kind.length_before_needle else found[len(kind.needle) :]
    return entropy.is_high_entropy_text(unknown, kind.entropy, words=kind.alphabet_allows_words)


def is_possible_key_start(text: str, start: int) -> bool:
    """Return whether a key can begin at a position: not in the middle of a word."""
    if start == 0 or not (before := text[start - 1]).isascii() or not before.isalnum():
        return True
    return _BORDER.search(text[max(0, start - 16) : start]) is not None


def _find_behind_service_names(text: str, data: bytes, runs: list[tuple[int, int]]) -> Iterator[SecretSpan]:
    for start, end in runs:
        if not _HOLDS_LABEL.holds(data[max(0, start - _LABEL) : end]):
            continue
        if (equals := data.find(b"=", start, end)) < 0:
            label = data[max(0, start - _LABEL) : start].rstrip(b"\"'`\\ \t\r\n")
            if label[-1:] not in _SIGNS:
                continue
            label = label.rstrip(b"\"'`\\ \t:=,>")
        else:
            label = data[start:equals]
        if data[start:end].isalpha() or not _MIXED.search(data, start, end) or not _names_service(label[-_LABEL:]):
            continue
        for match in secret_kinds.LABELLED.finditer(text, max(0, start - _LABEL), end):
            value = match["value"]
            named = secret_kinds.SECRET_LABEL.search(match["label"]) is not None
            plausible = named or not secret_kinds.LABELLED_ID.fullmatch(value)
            if plausible and is_possible_key_start(text, match.start()) and is_random_value(value):
                yield SecretSpan(*match.span("value"))


def _find_named(text: str, data: bytes) -> Iterator[SecretSpan]:
    lowered = data.lower()
    for first in range(0, len(data), _WORTH_A_TEST):
        if not _HOLDS_NAMED.holds(data[max(0, first - _LONGEST_NAME) : first + _WORTH_A_TEST + _LONGEST_BEGINNING]):
            continue
        for word in secret_kinds.NAME_WORDS:
            last = first + _WORTH_A_TEST + len(word) - 1
            at = lowered.find(word, first, last)
            while at >= 0:
                match = secret_kinds.NAMED.match(lowered, at)
                # A gap counts only after an option, and prose has many: checked before the name is read.
                named = match and (not match["gap"] or b"--" in lowered[max(0, at - _LONGEST_NAME) : at])
                if match and named and (found := _find_announced_value(text, data, lowered, match)):
                    yield found
                at = lowered.find(word, at + len(word), last)


def _find_announced_value(text: str, data: bytes, lowered: bytes, match: re.Match[bytes]) -> SecretSpan | None:
    before = data[max(0, match.start() - _LONGEST_NAME) : match.start()]
    start = match.start() - len(before) + len(before.rstrip(secret_kinds.NAME_CHARS))
    if (escape := _ESCAPES.match(data, max(0, start - 1))) is not None:
        start, lead = escape.end(), b"\n"
    else:
        lead = data[max(0, start - 1) : start]
    name, at, sign = lowered[start : match.end("word")], match.end(), match["sign"]
    variable = sign == b"=" and _ENV.fullmatch(data, start, at) is not None
    if not (least := secret_kinds.get_minimum_secret_length(name, variable=variable)):
        return None
    if (match["gap"] and not name.startswith(b"--")) or (sign == b">" and lead != b"<") or (sign == lead == b":"):
        return None
    if variable and (not lead or lead in b" \t\n\r\"'`"):
        found = secret_kinds.ENV_VALUE.match(text, at)
        said = secret_kinds.get_minimum_secret_length(name, variable=False) > 0
        if found and (
            is_random_value(found["value"], least) or (said and entropy.is_real_value_of_password_name(found["value"]))
        ):
            return SecretSpan(*found.span("value"))
    quoted = secret_kinds.QUOTED_VALUE.match(text, at)
    if (found := quoted or secret_kinds.BARE_VALUE.match(text, at)) is None:
        return None
    value = found["value"]
    drawn = is_random_value(entropy.remove_brackets_for_entropy_test(value) if quoted else value, least)
    an_id = secret_kinds.AN_ID.fullmatch(value) and not secret_kinds.is_certain_secret_name(name)
    return SecretSpan(*found.span("value")) if drawn and not an_id else None


@lru_cache(maxsize=4096)
def _names_service(label: bytes) -> bool:
    return _SERVICE.search(label.lower()) is not None


def is_inside_base64(text: str, start: int, end: int) -> bool:
    """Return whether a match is part of a much longer run of base64."""
    before = text[max(0, start - _BASE64_RUN) : start]
    left = len(before) - len(before.rstrip(_NOT_BASE64))
    match = _BASE64.match(text, end, end + _BASE64_RUN)
    right = match.end() - end if match else 0
    return left + right >= _BASE64_RUN


def has_secret_member(text: str) -> bool:
    runs = find_key_character_runs(text)
    if not (runs.near and _HOLDS_MEMBER.holds(runs.data)):
        return False
    lowered = text.lower()
    return any(pattern.search(lowered) for _, pattern in secret_kinds.MEMBERS)


def merge_spans(spans: Iterable[SecretSpan]) -> list[SecretSpan]:
    """Join overlapping spans, in order. The longest determines the kind; of equal ones, one with a known kind."""
    out: list[SecretSpan] = []
    longest = 0
    for start, end, kind in sorted(spans):
        if out and start < out[-1].end:
            last = out[-1]
            known = (longest, last.kind not in ("", CREDENTIAL), bool(last.kind))
            knows = (end - start, kind not in ("", CREDENTIAL), bool(kind)) > known
            longest = max(longest, end - start)
            out[-1] = SecretSpan(last.start, max(end, last.end), kind if knows else last.kind)
        elif end > start:
            longest = end - start
            out.append(SecretSpan(start, end, kind))
    return out


FREE = 16  # minimum length of credentials that are found within words as well
_FEW = 28  # maximum forms that are searched one by one
_MOST = 100_000  # maximum forms that are remembered; the oldest are dropped then
_MOST_WAITING = 8_000  # maximum credentials waiting for the index; more would drop the first ones at once
_WITHOUT_SHAPE = 256  # number of known forms from which credentials that are recognised by shape get no forms
_ANCHOR = 8  # characters that identify one of many forms, and that are compared with searched texts
_PLAIN = re.compile(r"[A-Za-z0-9._~\-]{16,}")  # a credential that quoting does not change
_ENOUGH = 24  # characters at the end of a credential that determine the end of its base64
_URLSAFE = {43: 45, 47: 95}
_NO_LETTERS = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmopqstuvwxyz0123456789"))
"""Bytes other than letters and digits, and the letters of escaped line breaks, ``n`` and ``r``."""


def list_encoded_secret_forms(secret: str) -> Iterator[str]:
    """Yield a secret itself, in JSON (also in its strings), a URL or HTML, and within longer base64 and hexadecimal."""
    data = secret.encode("utf-8", "surrogatepass")
    for ascii_only in (True, False):
        form = secret
        for _ in range(4):  # up to JSON in JSON in JSON
            yield form
            yield form.encode("utf-8", "surrogatepass").decode("latin-1")  # answers are searched in this form
            form = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
    if len(secret) < FREE:
        return
    import html  # its table of entities takes 2 ms, not needed before the first secret

    yield quote(secret, safe="", errors="replace")
    yield html.escape(secret)
    for lead in range(3):
        inner = _encode_base64_core(data, lead)
        if len(inner) >= 12:
            yield inner
            yield inner.translate(_URLSAFE)
    yield data.hex()
    yield data.hex().upper()


def choose_encoded_secret_substrings(secret: str) -> Sequence[str | None]:
    """Return characters that each form of a credential contains; None for a form that is short or has no run."""
    if not _PLAIN.fullmatch(secret):
        return [_choose_form_anchor(form) if len(form) >= FREE else None for form in list_encoded_secret_forms(secret)]
    data = secret[-_ENOUGH:].encode()  # the same result for usual credentials, in a tenth of the time
    coded = "".join([_encode_base64_core(data, lead)[-_ANCHOR:] for lead in range(3)])
    tail = data[-(_ANCHOR // 2) :].hex()
    found = [secret[-_ANCHOR:], tail, tail.upper(), coded[:8], coded[8:16], coded[16:]]
    if "+" in coded or "/" in coded:
        safe = coded.translate(_URLSAFE)
        found += [safe[:8], safe[8:16], safe[16:]]
    return found


def _encode_base64_core(data: bytes, lead: int) -> str:
    """Return the part of a secret's base64 that is independent of its context, `lead` bytes after a border of three."""
    return b2a_base64(bytes(lead) + data, newline=False).decode()[(0, 2, 3)[lead] : (lead + len(data)) * 8 // 6]


class KnownSecrets:
    """An index of credentials, written by one thread, read by several; updated at the next search."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, None] = OrderedDict()
        self._few: tuple[str, ...] = ()
        self._anchors: dict[str, tuple[str, ...]] = {}
        self._holds_anchor = LazyRegex("")
        self._short: tuple[str, ...] = ()  # forms without a run of key characters
        self._waiting: OrderedDict[str, None] = OrderedDict()  # credentials that are not in the index yet
        self._lettered: set[bytes] = set()  # letters and digits of each form; empty for a form outside ASCII
        self._lettered_of = 0
        self._lock = threading.Lock()
        self.on_text: Callable[[str], None] | None = None  # called with each text that is searched

    def __contains__(self, secret: str) -> bool:
        return secret in self._all or secret in self._waiting

    def add_secret(self, secret: str) -> None:
        self._waiting[secret] = None
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def may_occur_in(self, body: bytes) -> bool:
        """Return whether UTF-8 bytes may contain a form of any, even broken by lines and escapes; False is certain."""
        if self._waiting:
            self._index_waiting_secrets()
        if self._lettered_of != (count := len(self._all)):
            forms = (form.encode() if form.isascii() else b"" for form in self._all)
            self._lettered_of, self._lettered = count, {form.translate(None, _NO_LETTERS) for form in forms}
        letters = body.translate(None, _NO_LETTERS)
        return any(form in letters for form in self._lettered)

    def _index_waiting_secrets(self) -> None:
        with self._lock:  # other threads wait until all of it can be found
            for secret in list(self._waiting):
                self._index_secret(secret)
                self._waiting.pop(secret, None)

    def _index_secret(self, secret: str) -> None:
        whole = [(0, len(secret))]
        if len(self._all) > _WITHOUT_SHAPE and [span[:2] for span in detect_secrets_by_pattern(secret)] == whole:
            self._all[secret] = None  # it is found by its shape
            return
        new = [form for form in dict.fromkeys(list_encoded_secret_forms(secret)) if form not in self._all]
        self._all.update(dict.fromkeys(new))
        for form in new:
            if len(self._few) < _FEW:
                self._few = (*self._few, form)
            elif len(form) < FREE or (anchor := _choose_form_anchor(form)) is None:
                self._short = (*self._short[-4 * 256 :], form)
            else:
                self._anchors[anchor] = (*self._anchors.get(anchor, ()), form)
        self._holds_anchor = LazyRegex(lambda: "|".join(map(re.escape, list(self._anchors))))
        while len(self._all) > _MOST:
            form, _ = self._all.popitem(last=False)
            anchor = _choose_form_anchor(form) or ""
            if form in self._anchors.get(anchor, ()):
                self._anchors[anchor] = tuple(other for other in self._anchors[anchor] if other != form)
                if not self._anchors[anchor]:
                    del self._anchors[anchor]

    def find_spans(self, text: str) -> list[SecretSpan]:
        """Return the unordered spans of all known credentials; short ones only as separate words."""
        if self._waiting:
            self._index_waiting_secrets()
        if self.on_text is not None:
            self.on_text(text)
        forms = [form for form in (*self._few, *self._short) if form in text]
        if self._anchors:
            forms += self._find_anchored_forms(text)
        return [span for form in forms for span in _find_secret_form_spans(form, text)]

    def _find_anchored_forms(self, text: str) -> set[str]:
        anchors, found = self._anchors, set[str]()
        data, lean, spans, _ = find_key_character_runs(text)
        if data is not lean and self._holds_anchor.holds(data):
            spans = list_secret_character_runs(data, _KEY_RUN)  # also images; slow, so only if one holds an anchor
        for start, end in spans:
            run = text[start:end]
            for at in range(len(run) - _ANCHOR + 1):
                if run[at : at + _ANCHOR] in anchors:
                    found.update(form for form in anchors.get(run[at : at + _ANCHOR], ()) if form in text)
        return found


def _choose_form_anchor(form: str) -> str | None:
    """Return the last characters of the first long run in a form: the beginnings of keys are not distinctive."""
    runs = find_key_character_runs(form).spans
    return form[runs[0][1] - _ANCHOR : runs[0][1]] if runs else None


def _find_secret_form_spans(form: str, text: str) -> Iterator[SecretSpan]:
    at = text.find(form)
    while at >= 0:
        end = at + len(form)
        if len(form) >= FREE or (is_possible_key_start(text, at) and not text[end : end + 1].isalnum()):
            yield SecretSpan(at, end, CREDENTIAL)
        at = text.find(form, end if len(form) >= FREE else at + 1)


_MOST_OF_A_TEXT = 100_000
"""Maximum distinct pieces remembered of a text, as in 500 KB of code; beyond, each new credential changes it."""
_LONGEST = 2_000_000  # maximum characters in a text's runs
_MOST_PIECES = 400_000  # maximum pieces in total, about 40 MB; beyond, everything counts as changed once


class CredentialEpoch:
    def __init__(self) -> None:
        self.count = 0
        self._changed = 0  # number of the last credential that may have changed something
        self._searched: set[str] = set()

    def count_new_credential(self, common_endings: Collection[str | None]) -> None:
        """Count a credential, by a piece of each of its forms; None for a form without one."""
        self.count += 1
        if None in common_endings or not self._searched.isdisjoint(common_endings):
            self._changed = self.count

    def record_searched_text(self, text: str) -> bool:
        """Record a searched text; return False if it is too long, so that any credential may change it."""
        data, lean, spans, _ = find_key_character_runs(text)
        if len(data) != len(lean) or sum(end - start for start, end in spans) > _LONGEST:
            return False
        pieces = {text[at : at + _ANCHOR] for start, end in spans for at in range(start, end - _ANCHOR + 1)}
        if len(pieces) > _MOST_OF_A_TEXT:
            return False
        self._searched |= pieces
        if len(self._searched) > _MOST_PIECES:
            self._searched = set()
            self.count += 1
            self._changed = self.count
        return True

    def is_still_valid(self, since: int, *, noted: bool) -> bool:
        """Return whether a value derived at count `since` is valid; `noted`: from texts that were recorded only."""
        return since == self.count or (noted and since >= self._changed)
