"""Redaction: removes secrets before anything is stored, hashed, printed or logged.

In a request a secret becomes a placeholder, numbered by first appearance, that says as much as the question needs:
``[REDACTED]`` in headers, ``[REDACTED-1:credential]`` for the caller's own, ``[REDACTED-1:github]`` for a recognisable
form, ``[REDACTED-1x02307ad9b0f2]``, a fingerprint, otherwise. In an answer it is overwritten with the same number of
bytes; a client that echoes that placeholder gets the number of one that echoed the secret. Redaction is a pure
function, given the learned credentials, and redacting twice changes nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from threading import get_ident
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

from llmproxy.core.secrets import find_secrets, secret_kinds
from llmproxy.core.secrets.encoded_secret_redaction import (
    HIDDEN,
    OURS,
    SecretFingerprintCache,
    build_redaction_placeholder_suffix,
    find_secrets_across_lines,
    iter_text_search_windows,
    may_hold_base64_text,
    may_hold_escaped_secret,
    overwrite_secret_spans,
    overwrite_secrets_in_base64,
    overwrite_secrets_in_utf16,
    overwrite_secrets_split_over_events,
    redact_logprob_tokens,
    renew_aws_frame_message_crcs,
    replace_spans,
    unescape_json_text,
)
from llmproxy.core.secrets.entropy import is_made_of_words, is_real_password, list_secret_env_values, split_words_to_set
from llmproxy.core.secrets.find_secrets import CREDENTIAL, FREE, CredentialEpoch, KnownSecrets, SecretSpan, merge_spans
from llmproxy.core.secrets.secret_kinds import DUMMIES, FINGERPRINTED, PLACEHOLDER, SHORTEST, is_credential_parameter
from llmproxy.core.traffic.body_decoding import read_multipart_boundary
from llmproxy.core.traffic.interaction import TRAILER, Headers, Interaction, Request, Response, TimedChunks, header
from llmproxy.lazy_regex import late
from llmproxy.protocol import DUMMY, PLACEHOLDER_KEY

_PLAIN_HEADERS = 1024  # maximum remembered header values without a secret; a client sends the same ones each time
_LONGEST_HEADER = 256
_SEEN_HEADERS = 256  # maximum remembered whole heads with their redacted form
_LONGEST_HEADERS = 4096

_STRING = late(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"(\s*:)?|\\?\Z)', re.DOTALL)
"""A JSON string, or a truncated one up to the end of the text; else each quote in it would be tried up to its end."""
_BARE_QUOTE = late(r'(?<!\\)(?:\\\\)*"')  # a quote that is not escaped
_HIDDEN = late(HIDDEN.encode())
_LINK = late(r"REDACTEDx([0-9a-f]{12})\*+")
"""Placeholder of a secret in a link of an answer; a client that follows the link sends it."""
_NUMBERED = late(r"\[REDACTED-(\d+)(?::[\w-]*|x\w+)?\]")
_MARKS = late(
    rb"\[REDACTED-\d+(?::[\w-]*|x\w+)?\]|REDACTEDx[0-9a-f]{12}|REDACTE(?:D(?:-\d*(?::[\w-]*)?)?)?\*|REDx\w{3,9}\*"
)
_WHO_ASKS = frozenset({"client_secret", "client_assertion"})
"""Members of a form at a token endpoint that identify the caller, not the question."""
_LONGEST_FORM = 65_536
NO_NAMES: frozenset[str] = frozenset()
_STREAM = 3  # minimum chunks of an answer that may split a secret over its pieces
_NESTED = 4  # maximum depth of JSON in strings of JSON


def is_redacted_request(request: Request) -> bool:
    return _MARKS.search(request.body) is not None or PLACEHOLDER.strip("[]") in request.target


def may_hold_redaction(data: bytes | bytearray) -> bool:
    """Return whether a part of a request may contain a placeholder: then the whole is checked before more is sent."""
    return DUMMY.encode() in data or _MARKS.search(data) is not None


STANDS_IN = late(
    r"\[REDACTED[\w:-]*\]|REDACTED(?:-\d+)?(?:[:x][\w-]*)?\*+|REDACTEDx[0-9a-f]{12}|REDx[0-9A-Za-z]{3,9}\*+|REDACTE\*"
)
"""A placeholder, in a request or in an answer."""
_SAID = split_words_to_set("messages input contents system systemInstruction system_instruction instructions prompt")
"""Members of a request that contain a conversation: quoted text is no credential of the request."""
_ONLY = late(r"(?i)(?:bearer |basic |token )?REDACTED(?:-\d+)?")


def has_placeholder_api_key(headers: Headers, target: str) -> bool:
    """Return whether the client's key is the one that it was given in replay."""
    return any(PLACEHOLDER_KEY in each for each in (target, *(value for _, value in headers)))


def find_placeholder_credential_name(headers: Headers, target: str, body: bytes = b"") -> str | None:
    """Return the name of a credential that is a placeholder from a recorded answer or a file; else None."""
    if (name := _find_placeholder_header(headers)) is not None:
        return name
    if b"RED" not in body and DUMMY.encode() not in body:
        body = b""
    with suppress(ValueError, RecursionError):
        tree = json.loads(body) if body else None
        said = {name: value for name, value in tree.items() if name not in _SAID} if isinstance(tree, dict) else {}
        for name in _find_placeholder_credentials(said):
            return name
    short = len(body) < _LONGEST_FORM or DUMMY.encode() in body
    form = body.decode("latin-1") if b"{" not in body[:1] and short else ""
    for pair in (*target.partition("?")[2].split("&"), *(form.strip().split("&") if "=" in form else ())):
        name, _, value = pair.partition("=")
        credential = DUMMY in value or is_credential_parameter(unquote_plus(name), "REDACTED")
        if credential and _is_placeholder(unquote_plus(value)):
            return unquote_plus(name)
    return None


@lru_cache(64)
def _find_placeholder_header(headers: Headers) -> str | None:
    """Return a field with a placeholder, whatever its name: header fields quote nothing."""
    return next((name for name, value in headers if _is_placeholder(value)), None)


def _find_placeholder_credentials(tree: object) -> Iterator[str]:
    members = [("", each) for each in tree] if isinstance(tree, list) else []
    for name, value in tree.items() if isinstance(tree, dict) else members:
        if not isinstance(value, str):
            yield from _find_placeholder_credentials(value)
        elif DUMMY in value or (secret_kinds.is_credential_name(str(name)) and _is_placeholder(value)):
            yield str(name)


def _is_placeholder(value: str) -> bool:
    if "RED" not in value:
        scheme, _, coded = value.partition(" ")
        try:
            value = base64.b64decode(coded, validate=True).decode("latin-1") if scheme.lower() == "basic" else value
        except ValueError:
            return False
    return DUMMY in value or STANDS_IN.search(value) is not None or _ONLY.fullmatch(value.strip()) is not None


class Redactor:
    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._known = KnownSecrets()
        self._plain_headers: set[str] = set()
        self._plain_fields: set[str] = set()
        self._seen_headers: dict[Headers, Headers] = {}
        self.epoch = CredentialEpoch()
        """Values derived at a smaller count may be stale; the epoch decides which are still valid."""
        self.learn_request(tuple(("api-key", value) for value in list_secret_env_values(env or {})), "")

    def learn_request(self, request_headers: Headers, target: str, names: frozenset[str] = NO_NAMES) -> None:
        """Learn a request's credentials, to find them everywhere later; `names` as in `request`."""
        for secret in find_request_head_credentials(request_headers, target, names):
            self.learn_declared_secret(secret)

    def learn_bearer(self, token: str) -> None:
        if not is_made_of_words(token):
            self.learn_declared_secret(token)

    def learn_declared_secret(self, secret: str) -> None:
        """Learn a value that is declared to be secret, whatever it looks like, even words."""
        if len(secret) < SHORTEST or secret in self._known or secret.lower() in DUMMIES or "REDACT" in secret:
            return
        self._known.add_secret(secret)
        self._seen_headers = {}
        self._plain_fields = set()
        self._plain_headers = set()  # after the index: a search with the old index adds to the old set
        self.epoch.count_new_credential(find_secrets.choose_encoded_secret_substrings(secret))

    def run_and_record_searches[T](self, derive: Callable[[], T], head: bytes) -> tuple[T, bool]:
        """Return the result of `derive`, and whether all searched text and `head` were recorded (`CredentialEpoch`)."""
        before, here = head.decode("latin-1"), get_ident()
        all_noted = self.epoch.record_searched_text(before)

        def record_text(text: str) -> None:
            nonlocal all_noted, before
            if text is not before and get_ident() == here:  # one text is searched several times in a row
                before = text
                all_noted = self.epoch.record_searched_text(text) and all_noted

        self._known.on_text = record_text
        try:
            made = derive()
        finally:
            self._known.on_text = None
        return made, all_noted

    def _find_plain(self, text: str, *, named: bool = True) -> list[SecretSpan]:
        return merge_spans(self._known.find_spans(text) + find_secrets.detect_secrets_by_pattern(text, named=named))

    def _find_all(self, text: str, *, ours: bool = True) -> list[SecretSpan]:
        """Return the ordered, disjoint spans of secrets in a text. `ours`: placeholders of answers count too."""
        spans = self._known.find_spans(text) + find_secrets.detect_secrets_by_pattern(text)
        if 0 <= text.find("\n") < len(text) - 1 or "\\n" in text:  # a line break at the end splits nothing
            # Joined lines make up names.
            spans += find_secrets_across_lines(text, partial(self._find_plain, named=False))
        if ours and ("REDACTE" in text or "REDx" in text):
            spans += [SecretSpan(*match.span()) for match in OURS.finditer(text)]
        return merge_spans(spans)

    def _replace_in(self, text: str, spans: list[SecretSpan], put: Callable[[str, str], str]) -> str:
        return overwrite_secrets_in_base64(replace_spans(text, spans, put), self._find_all)

    def find_places(self, text: str) -> list[SecretSpan]:
        """Return the ordered spans of secrets in a text; for those in base64 the first changed character."""
        spans = self._find_all(text, ours=False)
        plain = overwrite_secret_spans(text, spans)
        coded = overwrite_secrets_in_base64(plain, self._find_plain)
        changed = (at for at, (one, other) in enumerate(zip(plain, coded, strict=True)) if one != other)
        return merge_spans([*spans, *(SecretSpan(at, at + 1) for at in islice(changed, 1))])

    def request(self, request: Request, names: frozenset[str] = NO_NAMES, *, clean: bool = False) -> Request:
        """Return the request without secrets; `names`: lower-case query credentials; `clean`: the body has none."""
        numbers = SecretPlaceholderBuilder(request, names)
        target = self._redact_target(request.target, numbers, names)
        headers, body = self._redact_headers(request.headers, numbers), request.body
        if not clean:
            body = self._redact_body_by_content_type(body, header(request.headers, "content-type") or "", numbers)
        if target == request.target and headers == request.headers and body == request.body:
            return request
        return replace(request, target=target, headers=headers, body=body)

    def may_need_redaction_again(self, body: bytes) -> bool:
        """Return whether a redacted JSON body might change if it were redacted again: it may contain a credential that
        was unknown then, or a placeholder, whose number depends on the rest of the request.
        """
        if body[:1] != b"{" or b"REDACTE" in body or b"REDx" in body or _HIDDEN.search(body) is not None:
            return True
        return b"\0" in body or self._known.may_occur_in(body) or may_hold_base64_text(body)

    def text(self, text: str) -> str:
        """Return a text that is safe to print or log; it may quote a path."""
        spans = self._find_with_url_passwords(text, quoted=True)
        return self._replace_in(text, spans, lambda _secret, _kind: PLACEHOLDER)

    def _find_with_url_passwords(self, text: str, *, quoted: bool = False) -> list[SecretSpan]:
        """Return the spans of secrets in a path or a query; `quoted` as in `find_schemeless_url_passwords`."""
        found = secret_kinds.find_schemeless_url_passwords(text, quoted=quoted) if "@" in text else ()
        return merge_spans([*self._find_all(text), *(SecretSpan(*span) for span in found)])

    def redact_target(self, target: str) -> str:
        """Return path and query in a form that is safe to print or log."""
        numbers = SecretPlaceholderBuilder(Request("", "", (), b""), NO_NAMES)
        return self.text(self._redact_target(target, numbers, NO_NAMES))

    def _redact_headers(self, headers: Headers, marks: SecretPlaceholderBuilder) -> Headers:
        seen = self._seen_headers
        if (known := seen.get(headers)) is None:
            known = tuple((name, self._redact_header(name, value, marks)) for name, value in headers)
            if len(seen) < _SEEN_HEADERS and sum(len(value) for _, value in headers) < _LONGEST_HEADERS:
                seen[headers] = known
        return known

    def _redact_header(self, name: str, value: str, marks: SecretPlaceholderBuilder) -> str:
        if secret_kinds.SECRET_HEADER.search(lower := name.lower()):
            if lower not in FINGERPRINTED or value.startswith("[REDACTED"):
                return value if lower in FINGERPRINTED else PLACEHOLDER
            return f"[REDACTEDx{marks.fingerprint(value)}]"
        return self._redact_header_or_path(value, marks.build_header_placeholder)

    def _redact_header_or_path(self, value: str, put: Callable[[str, str], str]) -> str:
        """Redact the value of a field, or a path; values without a secret are remembered."""
        plain = self._plain_headers
        if len(value) < SHORTEST or value in plain:
            return value
        text = self._replace_in(value, self._find_all(value), put)
        if text == value and len(value) < _LONGEST_HEADER and len(plain) < _PLAIN_HEADERS:
            plain.add(value)
        return text

    def _redact_target(self, target: str, numbers: SecretPlaceholderBuilder, names: frozenset[str]) -> str:
        path, mark, query = target.partition("?")
        if "%" in path or "@" in path or self._redact_header_or_path(path, numbers.build_url_placeholder) != path:
            path = self._redact_percent_encoded(path, unquote, numbers.build_url_placeholder)
        if not mark:
            return path
        return f"{path}?{'&'.join(self._redact_query_parameter(each, numbers, names) for each in query.split('&'))}"

    def _redact_query_parameter(self, pair: str, numbers: SecretPlaceholderBuilder, names: frozenset[str]) -> str:
        name, _, value = pair.partition("=")
        plain, known = unquote_plus(value), unquote_plus(name)
        if (followed := _LINK.fullmatch(plain)) and is_credential_parameter(known, "REDACTED"):
            return f"{name}=REDACTEDx{followed[1]}"
        if plain.startswith("REDACTED") and not followed:
            return f"{self._redact_percent_encoded(name, unquote_plus, numbers.build_url_placeholder)}={value}"
        if plain and known.lower() in names:
            return f"{name}=REDACTED" if is_credential_parameter(known, plain) else pair
        if plain and is_credential_parameter(known, plain):
            return f"{name}=REDACTEDx{numbers.fingerprint(plain)}"
        return self._redact_pair(pair, numbers.build_url_placeholder)

    def _find_member_kind(self, value: str) -> str:
        """Return the kind of a member's value; none by its name, which a tool's argument may have as well."""
        found = find_secrets.detect_secrets_by_pattern(value, named=False)
        return next((kind for start, end, kind in found if kind and end - start > len(value) // 2), "")

    def _redact_form_field(self, pair: str, numbers: SecretPlaceholderBuilder) -> str:
        name, mark, value = pair.partition("=")
        plain, known = unquote_plus(value), unquote_plus(name)
        if mark and plain and is_credential_parameter(known, plain):
            ours = plain.startswith("REDACTED") and not OURS.fullmatch(plain)
            kind = CREDENTIAL if known.lower() in _WHO_ASKS else self._find_member_kind(plain)
            return pair if ours else f"{name}={numbers.build_bare_placeholder(plain, kind)}"
        return self._redact_pair(pair, numbers.build_bare_placeholder)

    def _redact_pair(self, pair: str, put: Callable[[str, str], str]) -> str:
        """Redact name and value of a member of a query or a form; a key without a name may end in padding."""
        pieces = pair.split("=", 1) if pair.partition("=")[2].strip("=") else [pair]
        return "=".join(self._redact_percent_encoded(each, unquote_plus, put) for each in pieces)

    def _redact_percent_encoded(self, text: str, decode: Callable[[str], str], put: Callable[[str, str], str]) -> str:
        """Redact percent-encoded text; rewritten only if it contains a secret, with the result of `put` for each."""
        plain = decode(text)
        changed = self._replace_in(plain, self._find_with_url_passwords(plain), put)
        return text if changed == plain else quote(changed, safe="/:@,~")

    def _redact_body_by_content_type(self, body: bytes, content_type: str, numbers: SecretPlaceholderBuilder) -> bytes:
        if not body:
            return body
        boundary = read_multipart_boundary(content_type) if "multipart" in content_type.lower() else None
        if boundary is not None:
            mark = b"--" + boundary
            return mark.join(self._redact_json_or_text(piece, numbers) for piece in body.split(mark))
        form = content_type.lower().startswith("application/x-www-form-urlencoded")
        if form and not body.lstrip().startswith((b"{", b"[")):
            text = body.decode("latin-1")
            return "&".join(self._redact_form_field(pair, numbers) for pair in text.split("&")).encode("latin-1")
        return self._redact_json_or_text(body, numbers)

    def _redact_json_or_text(self, data: bytes, numbers: SecretPlaceholderBuilder) -> bytes:
        """Redact JSON, lines of JSON, text, or bytes of no charset; only strings with a secret change."""
        if b"\0" in data:
            data = overwrite_secrets_in_utf16(data.decode("latin-1"), self._find_all).encode("latin-1")
        try:
            text, charset = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            text, charset = data.decode("latin-1"), "latin-1"
        start = text.lstrip()[:1] if charset == "utf-8" else ""
        if start and (start in '{["' or '{"' in text):
            changed = self._redact_json_text(text, numbers, _NESTED)
        else:
            changed = self._redact_plain(text, numbers)
        return data if changed is text else changed.encode(charset)

    def _redact_plain(self, text: str, numbers: SecretPlaceholderBuilder) -> str:
        return self._replace_in(text, self._find_all(text), numbers.build_body_placeholder)

    def _redact_json_text(self, text: str, numbers: SecretPlaceholderBuilder, depth: int) -> str:
        """Redact text with JSON strings, decoded only if an escape or a member's name may hide a secret."""
        if may_hold_escaped_secret(text) or find_secrets.has_secret_member(text):
            text = self._redact_json_strings(text, numbers, depth)
        spans = [span for span in self._find_all(text) if not _BARE_QUOTE.search(text[span.start : span.end])]
        return self._replace_in(text, spans, numbers.build_body_placeholder)

    def _redact_json_strings(self, text: str, numbers: SecretPlaceholderBuilder, depth: int) -> str:
        out: list[str] = []
        at, name, value_at = 0, "", -1
        for match in _STRING.finditer(text):
            inner = match[1]
            member = name if value_at >= 0 and not text[value_at : match.start()].strip() else ""
            if (value := self._redact_json_string(inner, member, numbers, depth)) is not None:
                out += (text[at : match.start(1)], value)
                at = match.end(1)
            name, value_at = (inner, match.end()) if match[2] else ("", -1)
        return "".join((*out, text[at:])) if out else text

    def _redact_json_string(self, inner: str, member: str, numbers: SecretPlaceholderBuilder, depth: int) -> str | None:
        """Return the new text between the quotes, or None if this string has no secret."""
        plain = inner
        if "\\" in inner:
            with suppress(ValueError):
                plain = json.loads(f'"{inner}"', strict=False)
        if member and secret_kinds.is_secret_member(member, plain, said=depth == _NESTED):
            return numbers.build_body_placeholder(plain, self._find_member_kind(plain))
        if depth and plain[:1] in ("{", "[") and '"' in plain:
            changed = self._redact_json_text(plain, numbers, depth - 1)
        else:
            changed = self._redact_plain(plain, numbers)
        return None if changed == plain else json.dumps(changed)[1:-1]

    def interaction(self, recorded: Interaction) -> Interaction:
        response, _ = self.redact_response(recorded.response, recorded.request.method)
        return replace(recorded, request=self.request(recorded.request), response=response)

    def redact_response(self, response: Response, method: str = "POST") -> tuple[Response, bool]:
        """Return the response for storage, and whether a secret in it was overwritten (with as many bytes)."""
        headers = []
        kept = "content-length" if method == "HEAD" or response.status == 304 else ""  # no framing: what a GET gets
        flagged = False
        for name, value in response.headers:
            lower = name.lower().removeprefix(TRAILER)
            dropped = lower in secret_kinds.DROPPED_HEADERS and lower != kept
            if dropped or lower.startswith(secret_kinds.DROPPED_PREFIXES):
                continue
            named = value.strip() and secret_kinds.ANSWER_HEADER.search(lower)
            spans = [SecretSpan(0, len(value), CREDENTIAL)] if named else self._find_in_header(value)
            flagged = flagged or bool(spans)
            headers.append((name, overwrite_secret_spans(value, spans)))
        body = response.body
        changed = self.redact_answer_body(body, response.mime_type.lower(), pieces=len(response.chunks))
        if changed is not body:
            flagged, chunks = True, response.chunks
            if not isinstance(chunks, TimedChunks):
                chunks = TimedChunks(body, ((each.offset, len(each.data)) for each in chunks))
            response = replace(response, chunks=chunks.replace_body(changed))
        spans = self._find_all(response.reason, ours=False)
        reason = overwrite_secret_spans(response.reason, spans)
        return replace(response, headers=tuple(headers), reason=reason), flagged or bool(spans)

    def _find_in_header(self, value: str) -> list[SecretSpan]:
        """Return the spans of secrets in an answer's header value; cached, because most answers have the same few."""
        plain = self._plain_fields
        if value in plain:
            return []
        spans = self._find_all(value, ours=False)
        if not spans and len(value) < _LONGEST_HEADER and len(plain) < _PLAIN_HEADERS:
            plain.add(value)
        return spans

    def redact_answer_body(self, body: bytes, content_type: str = "", *, pieces: int = 1) -> bytes:
        """Return an answer's body with secrets overwritten, length unchanged; `pieces`: number of chunks."""
        dealt_out = pieces >= _STREAM or "stream" in content_type or "ndjson" in content_type
        dealt_out = dealt_out or not body.startswith(b"{") or b"\n{" in body  # an array; lines, whatever the type
        media = content_type.startswith(("image/", "audio/", "video/"))
        numbers: dict[str, int] = {}
        made: bytearray | None = None
        for start, first, last, end in iter_text_search_windows(len(body)):
            text = body[start:end].decode("latin-1")  # one character a byte: spans are offsets
            if media:  # images, audio and video may hold known credentials only
                changed = overwrite_secret_spans(text, merge_spans(self._known.find_spans(text)), numbers)
            else:
                changed = self._redact_answer_text(text, numbers, dealt_out=dealt_out)
            if changed != text:
                made = bytearray(body) if made is None else made
                made[first:last] = changed[first - start : last - start].encode("latin-1")
        if made is None or made == body:
            return body
        framed = content_type.startswith("application/vnd.amazon.eventstream")
        return renew_aws_frame_message_crcs(bytes(made)) if framed else bytes(made)

    def _redact_answer_text(self, text: str, numbers: dict[str, int], *, dealt_out: bool) -> str:
        changed = overwrite_secrets_in_utf16(text, self._find_plain)
        view, offset = unescape_json_text(changed)
        spans = self._find_all(view, ours=False)
        if find_secrets.has_secret_member(view):
            spans = merge_spans([*spans, *self._find_secret_members(view)])
        spans = [SecretSpan(offset(start), offset(end), kind) for start, end, kind in spans]
        changed = overwrite_secrets_in_base64(overwrite_secret_spans(changed, spans, numbers), self._find_plain)
        if dealt_out:
            changed = overwrite_secrets_split_over_events(changed, self._find_plain, numbers)
        return changed if changed == text else redact_logprob_tokens(changed)

    def _find_secret_members(self, text: str) -> Iterator[SecretSpan]:
        for match in secret_kinds.MEMBER.finditer(text):
            name, value, said = match["name"], match["value"], not match["escape"]
            if secret_kinds.is_secret_member(name, value, said=said):
                yield SecretSpan(*match.span("value"), self._find_member_kind(value))


def find_request_head_credentials(headers: Headers, target: str, names: frozenset[str]) -> Iterator[str]:
    """Yield the credentials in a request's header fields and query; `names` as in `Redactor.request`."""
    for name, value in headers:
        if secret_kinds.CREDENTIAL_HEADER.search(name.lower()):
            yield from extract_header_secrets(name.lower(), value.strip())
    if "=" in target:
        for name, value in parse_qsl(target.partition("?")[2]):
            is_key = name.lower() in names or secret_kinds.is_api_key_query_parameter(name, value)
            if is_key and not is_made_of_words(value):
                yield value


def extract_header_secrets(name: str, value: str) -> Iterator[str]:
    """Return the parts of a credential's header that may occur alone, without names and words."""
    if name == "cookie":
        pairs = (pair.partition("=")[2].strip() for pair in value.split(";"))
        yield from (secret for secret in pairs if len(secret) >= FREE and not is_made_of_words(secret))
        return
    scheme, _, rest = value.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "basic" and rest:
        yield rest
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode("utf-8").partition(":")
        except ValueError:
            return
        if is_real_password(password, user) and (len(password) >= FREE or not is_made_of_words(password)):
            yield password
        if len(user) >= FREE and not is_made_of_words(user):  # keys travel as user names too
            yield user
    elif scheme.upper().startswith("AWS4-"):
        yield from (match[1] for match in re.finditer(r"(?:Credential=([^/,]+)|Signature=(\w+))", rest) if match[1])
    elif not is_made_of_words(rest or value):
        yield rest or value


class SecretPlaceholderBuilder:
    """Placeholders of one request's secrets: numbers by first appearance, without those already in the request."""

    def __init__(self, request: Request, names: frozenset[str]) -> None:
        self._request, self._names = request, names
        self._numbers: dict[str, int] = {}
        self._first = 1
        self.fingerprint = SecretFingerprintCache().digest
        if b"REDACTED-" in request.body:
            found = _NUMBERED.findall(request.body.decode("latin-1"))
            self._first += max((int(number) for number in found if len(number) < SHORTEST), default=0)

    @cached_property
    def _request_credentials(self) -> frozenset[str]:
        """Credentials sent with the request: in its body they are the caller's credential, whatever their form."""
        return frozenset(find_request_head_credentials(self._request.headers, self._request.target, self._names))

    def _get_number(self, secret: str) -> int:
        return self._numbers.setdefault(secret, self._first + len(self._numbers))

    def _build_kind_or_fingerprint(self, secret: str, kind: str) -> str:
        kind = CREDENTIAL if secret in self._request_credentials else kind
        return build_redaction_placeholder_suffix(secret, kind, self.fingerprint)

    def build_url_placeholder(self, secret: str, _kind: str) -> str:
        """Return the placeholder of a secret in a URL, where it may be part of the question."""
        followed = _LINK.fullmatch(secret)
        return f"REDACTED-{self._get_number(secret)}x{followed[1] if followed else self.fingerprint(secret)}"

    def build_bare_placeholder(self, secret: str, kind: str) -> str:
        return f"REDACTED-{self._get_number(secret)}{self._build_kind_or_fingerprint(secret, kind)}"

    def build_body_placeholder(self, secret: str, kind: str) -> str:
        return f"[{self.build_bare_placeholder(secret, kind)}]"

    def build_header_placeholder(self, secret: str, kind: str) -> str:
        return f"[REDACTED{self._build_kind_or_fingerprint(secret, kind)}]"


SHAPED = frozenset(kind.label for kind in secret_kinds.KINDS)  # kinds with a recognisable form


def find_secret_line_numbers(text: str, redactor: Redactor) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for start, _, kind in redactor.find_places(text):
        found[kind or CREDENTIAL].append(text.count("\n", 0, start) + 1)
    return dict(found)


def count_secrets_by_part(interaction: Interaction, redactor: Redactor) -> dict[str, dict[str, int]]:
    request, response = interaction.request, interaction.response
    parts = {
        "request": "\n".join((request.target, *(f"{name}: {value}" for name, value in request.headers))),
        "request body": request.body.decode("utf-8", "surrogateescape"),
        "answer": "\n".join(value for _, value in response.headers),
        "answer body": response.body.decode("utf-8", "surrogateescape"),
        "upstream": interaction.upstream,
    }
    lines = {part: find_secret_line_numbers(text, redactor) for part, text in parts.items()}
    found = {part: {name: len(at) for name, at in kinds.items()} for part, kinds in lines.items()}
    asked, answer = redactor.request(request), redactor.redact_response(response, request.method)[0]
    bodies = {"request body": asked.body != request.body, "answer body": answer.body != response.body}
    found |= {part: {CREDENTIAL: 1} for part, changed in bodies.items() if changed and not found[part]}
    if answer.headers != response.headers and not found["answer"]:
        changed = [old for old, new in zip(response.headers, answer.headers, strict=False) if old != new]
        found["answer"] = {CREDENTIAL: 1} if any("REDACTE" not in value for _, value in changed) else {}
    return {part: names for part, names in found.items() if names}
