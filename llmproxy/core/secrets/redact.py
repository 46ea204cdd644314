"""Take secrets out before anything is stored, hashed, printed or logged.

    Request -> the same with numbered placeholders        Response -> the same with placeholders of the same length

*Requests*: credentials in headers, and those that the provider's row names in the query, become ``[REDACTED]``: they say who asks, not what.
In the body every secret becomes ``[REDACTED-n]``, numbered by first appearance, so that two secrets never merge within one request, and a
request recorded with one key is the same as one replayed with another. What looks like a secret elsewhere in the URL may say what is
asked: its fingerprint stays. Strings are scanned decoded, whatever their escapes, and only the string that holds a secret is written anew.
*Responses*: only credentials that this run has seen, and strict shapes of keys, are overwritten, each with as many bytes as it had, so
that chunk borders, lengths and offsets stay; the answer is flagged. A client that echoes such a placeholder later gets the same number
as one that echoed the secret. Redaction is pure given what was learned, and redacting twice changes nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

from llmproxy.core.secrets.find import (
    active,
    credentials,
    disjoint,
    forms,
    hides,
    in_base64,
    literals,
    names_secret,
    overwritten,
    replaced,
    unescaped,
    with_checksums,
)
from llmproxy.core.secrets.fingerprint import fingerprint
from llmproxy.core.secrets.patterns import (
    COMPILED,
    CREDENTIAL_HEADER,
    DROPPED_HEADERS,
    DROPPED_PREFIXES,
    DUMMIES,
    FINGERPRINTED,
    PLACEHOLDER,
    SECRET_HEADER,
    is_api_key_member,
    is_credential_member,
    is_secret_member,
)
from llmproxy.core.traffic.encoding import boundary_of
from llmproxy.core.traffic.interaction import Chunk, Headers, Request, Response, header

if TYPE_CHECKING:
    from collections.abc import Callable

SHORTEST = 8
"""Characters that a credential must have to be looked for elsewhere; shorter ones are words."""
_REMEMBERED = 256
"""Credentials kept; tokens rotate."""
_PLAIN_HEADERS = 1024
"""Header values without a secret that are remembered; a client sends the same ones each time."""
_LONGEST_HEADER = 256
_SEEN_HEADERS = 256
"""Whole heads that are remembered with what they become."""
_LONGEST_HEADERS = 4096

_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', re.DOTALL)
_OURS = re.compile(r"(REDACTE(?:D(?:-\d*)?)?\*+)")
_NUMBERED = re.compile(r"\[REDACTED-(\d+)\]")
NO_NAMES: frozenset[str] = frozenset()
_NESTED = 4
"""How deep JSON inside strings inside JSON is followed."""


class Redactor:
    """One per proxy run: remembers the credentials it saw."""

    def __init__(self) -> None:
        """Start without any credential known."""
        self._secrets: dict[str, None] = {}
        self._finder: re.Pattern[str] | None = None
        self._literals: tuple[str, ...] = ()
        """One of them is in every text in which the finder finds anything; looking for them is much quicker."""
        self._plain_headers: set[str] = set()
        self._seen_headers: dict[Headers, Headers] = {}
        self.learned = 0
        """Grows with every new credential: what was derived under another number may be stale."""

    # -- learning --------------------------------------------------------------------------------------------------------

    def learn(self, request_headers: Headers, target: str, names: frozenset[str] = NO_NAMES) -> None:
        """Note the credentials of a request, so that they are found wherever they turn up later; `names` as of `request`."""
        for name, value in request_headers:
            if CREDENTIAL_HEADER.search(name.lower()):
                for secret in credentials(name.lower(), value.strip()):
                    self._note(secret)
        if "=" in target:
            for name, value in parse_qsl(target.partition("?")[2]):
                if name.lower() in names or is_api_key_member(name, value):
                    self._note(value)

    def _note(self, secret: str) -> None:
        if len(secret) < SHORTEST or secret in self._secrets or secret.lower() in DUMMIES or "REDACT" in secret:
            return
        known = {**self._secrets, secret: None}
        while len(known) > _REMEMBERED:
            del known[next(iter(known))]
        longest_first = sorted(known, key=lambda text: (-len(text), text))
        self._literals = tuple(literal for text in longest_first for literal in literals(text))
        self._finder = re.compile("|".join(form for text in longest_first for form in forms(text)))
        self._seen_headers = {}
        self._plain_headers = set()  # after the finder: who looked with the old one adds to the old set
        self._secrets = known  # replaced, never changed: writers read it from their own threads
        self.learned += 1

    # -- finding ---------------------------------------------------------------------------------------------------------

    def _find(self, text: str, *, strict: bool) -> list[tuple[int, int]]:
        """Return the spans of secrets in a text, in order, none overlapping another."""
        spans: list[tuple[int, int]] = []
        if self._finder is not None and any(literal in text for literal in self._literals):
            spans += [match.span() for match in self._finder.finditer(text)]
        for index in dict.fromkeys(active(text, strict=strict)):
            found = [match.span(1) for match in COMPILED[index].finditer(text)]
            spans += [span for span in found if not in_base64(text, *span)]
        if not strict and "REDACTE" in text:
            spans += [match.span(1) for match in _OURS.finditer(text)]
        return disjoint(spans)

    # -- requests --------------------------------------------------------------------------------------------------------

    def request(self, request: Request, names: frozenset[str] = NO_NAMES) -> Request:
        """Return the request without its secrets; itself if it has none.

        `names` are the members of the query, in lower case, that are credentials of the provider that is asked.
        """
        numbers = _Numbers(request.body)
        target = self._target(request.target, numbers, names)
        headers = self._headers(request.headers)
        body = self._body(request.body, header(request.headers, "content-type") or "", numbers)
        if target == request.target and headers == request.headers and body == request.body:
            return request
        return replace(request, target=target, headers=headers, body=body)

    def text(self, text: str) -> str:
        """Return a text that may be printed or logged."""
        return replaced(text, self._find(text, strict=False), lambda _: PLACEHOLDER)

    def line(self, target: str) -> str:
        """Return path and query as they may be printed or logged."""
        return self.text(self._target(target, _Numbers(b""), NO_NAMES))

    def _headers(self, headers: Headers) -> Headers:
        """Redact header fields; a client sends the same ones with each request."""
        seen = self._seen_headers
        if (known := seen.get(headers)) is None:
            known = tuple((name, self._header(name, value)) for name, value in headers)
            if len(seen) < _SEEN_HEADERS and sum(len(value) for _, value in headers) < _LONGEST_HEADERS:
                seen[headers] = known
        return known

    def _header(self, name: str, value: str) -> str:
        if SECRET_HEADER.search(lower := name.lower()):
            if lower not in FINGERPRINTED or value.startswith("[REDACTED"):
                return value if lower in FINGERPRINTED else PLACEHOLDER
            return f"[REDACTEDx{fingerprint(value)}]"
        plain = self._plain_headers
        if len(value) < SHORTEST or value in plain:
            return value
        if (text := self.text(value)) == value and len(value) < _LONGEST_HEADER and len(plain) < _PLAIN_HEADERS:
            plain.add(value)
        return text

    def _target(self, target: str, numbers: _Numbers, names: frozenset[str]) -> str:
        path, mark, query = target.partition("?")
        path = self._quoted(path, unquote, numbers.marked)
        return path + mark + "&".join(self._member(each, numbers, names) for each in query.split("&")) if mark else path

    def _member(self, pair: str, numbers: _Numbers, names: frozenset[str]) -> str:
        """Redact one ``name=value`` of a query."""
        name, mark, value = pair.partition("=")
        plain, known = unquote_plus(value), unquote_plus(name)
        if not plain or plain.startswith("REDACTED"):
            return pair
        if known.lower() in names:
            return f"{name}=REDACTED" if is_credential_member(known, plain) else pair
        if is_credential_member(known, plain):
            return f"{name}=REDACTEDx{fingerprint(plain)}"
        return name + mark + self._quoted(value, unquote_plus, numbers.marked)

    def _field(self, pair: str, numbers: _Numbers) -> str:
        """Redact one ``name=value`` of a form."""
        name, mark, value = pair.partition("=")
        plain = unquote_plus(value)
        if mark and plain and is_credential_member(unquote_plus(name), plain):
            return pair if plain.startswith("REDACTED") else f"{name}=REDACTED-{numbers.of(plain)}"
        return name + mark + self._quoted(value, unquote_plus, lambda secret: f"REDACTED-{numbers.of(secret)}")

    def _quoted(self, text: str, decode: Callable[[str], str], put: Callable[[str], str]) -> str:
        """Redact percent-encoded text; it is written anew only if it holds a secret, with what `put` makes of each."""
        plain = decode(text)
        if not (spans := self._find(plain, strict=False)):
            return text
        return quote(replaced(plain, spans, put), safe="/:@,~")

    def _body(self, body: bytes, content_type: str, numbers: _Numbers) -> bytes:
        if not body:
            return body
        boundary = boundary_of(content_type)
        if boundary is not None:
            mark = b"--" + boundary
            return mark.join(self._document(piece, numbers) for piece in body.split(mark))
        if content_type.lower().startswith("application/x-www-form-urlencoded") and body.lstrip()[:1] not in (
            b"{",
            b"[",
        ):
            text = body.decode("latin-1")
            pairs = "&".join(self._field(pair, numbers) for pair in text.split("&"))
            return pairs.encode("latin-1")
        return self._document(body, numbers)

    def _document(self, data: bytes, numbers: _Numbers) -> bytes:
        """Redact JSON, lines of JSON, text, or bytes of no charset; what changes is only the strings that hold a secret."""
        try:
            text, charset = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            text, charset = data.decode("latin-1"), "latin-1"
        start = text.lstrip()[:1] if charset == "utf-8" else ""
        if not start:
            changed = self._plain(text, numbers)
        elif start in '{["' or '{"' in text:
            changed = self._json(text, numbers, _NESTED)
        else:
            changed = self._plain(text, numbers)
        return data if changed is text else changed.encode(charset)

    def _plain(self, text: str, numbers: _Numbers) -> str:
        spans = self._find(text, strict=False)
        return replaced(text, spans, numbers.placeholder) if spans else text

    def _json(self, text: str, numbers: _Numbers, depth: int) -> str:
        """Redact text in which JSON strings stand. They are decoded only if an escape or a member's name may hide something."""
        if hides(text) or names_secret(text.lower()):
            text = self._strings(text, numbers, depth)
        spans = [span for span in self._find(text, strict=False) if '"' not in text[span[0] : span[1]]]
        return replaced(text, spans, numbers.placeholder) if spans else text

    def _strings(self, text: str, numbers: _Numbers, depth: int) -> str:
        """Redact each JSON string in a text as what it stands for."""
        out: list[str] = []
        at, name, value_at = 0, "", -1
        for match in _STRING.finditer(text):
            inner = match[1]
            member = name if value_at >= 0 and not text[value_at : match.start()].strip() else ""
            value = self._string(inner, member, numbers, depth)
            if value is not None:
                out += (text[at : match.start(1)], value)
                at = match.end(1)
            name, value_at = (inner, match.end()) if match[2] else ("", -1)
        return "".join((*out, text[at:])) if out else text

    def _string(self, inner: str, member: str, numbers: _Numbers, depth: int) -> str | None:
        """Return what to write between the quotes instead, or None if there is no secret in this string."""
        plain = inner
        if "\\" in inner:
            try:
                plain = json.loads(f'"{inner}"', strict=False)
            except ValueError:
                plain = inner
        if member and is_secret_member(member, plain):
            return numbers.placeholder(plain)
        if depth and plain[:1] in ("{", "[") and '"' in plain:
            changed = self._json(plain, numbers, depth - 1)
        else:
            changed = self._plain(plain, numbers)
        return None if changed == plain else json.dumps(changed)[1:-1]

    # -- responses -------------------------------------------------------------------------------------------------------

    def response(self, response: Response) -> tuple[Response, bool]:
        """Return the response as it may be stored, and whether a secret in it was overwritten (with as many bytes)."""
        headers = []
        flagged = False
        for name, value in response.headers:
            lower = name.lower()
            if lower in DROPPED_HEADERS or lower.startswith(DROPPED_PREFIXES):
                continue
            spans = self._find(value, strict=True)
            flagged = flagged or bool(spans)
            headers.append((name, overwritten(value, spans)))
        chunks = self._chunks(response.chunks, (header(response.headers, "content-type") or "").lower())
        return (
            replace(response, headers=tuple(headers), chunks=chunks or response.chunks),
            flagged or chunks is not None,
        )

    def _chunks(self, chunks: tuple[Chunk, ...], content_type: str) -> tuple[Chunk, ...] | None:
        """Overwrite the secrets in a body, across the borders of its chunks; None if there are none."""
        body = b"".join(chunk.data for chunk in chunks)
        text = body.decode("latin-1")  # one character a byte: spans are offsets
        if content_type.startswith(("image/", "audio/", "video/")):
            spans = disjoint([match.span() for match in self._finder.finditer(text)]) if self._finder else []
        else:
            view, offset = unescaped(text)
            spans = [(offset(start), offset(end)) for start, end in self._find(view, strict=True)]
        if not spans:
            return None
        body = overwritten(text, spans).encode("latin-1")
        if content_type.startswith("application/vnd.amazon.eventstream"):
            body = with_checksums(body)
        out: list[Chunk] = []
        at = 0
        for chunk in chunks:
            out.append(Chunk(chunk.offset, body[at : at + len(chunk.data)]))
            at += len(chunk.data)
        return tuple(out)


class _Numbers:
    """The numbers of one request's secrets, by first appearance; those that it brought along are left out."""

    def __init__(self, body: bytes) -> None:
        self._numbers: dict[str, int] = {}
        self._next = 1
        if b"REDACTED-" in body:
            found = _NUMBERED.findall(body.decode("latin-1"))
            self._next += max((int(number) for number in found if len(number) < SHORTEST), default=0)

    def of(self, secret: str) -> int:
        """Return the number of a secret, the same for the same one."""
        if secret not in self._numbers:
            self._numbers[secret] = self._next
            self._next += 1
        return self._numbers[secret]

    def marked(self, secret: str) -> str:
        """Return what stands for a secret in a URL, where it may say what is asked."""
        return f"REDACTED-{self.of(secret)}x{fingerprint(secret)}"

    def placeholder(self, secret: str) -> str:
        """Return what stands for a secret in a body."""
        return f"[REDACTED-{self.of(secret)}]"
