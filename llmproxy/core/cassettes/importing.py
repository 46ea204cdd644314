"""Conversion of other programs' exchanges to interactions (`anonymized_export`: the other direction).

    [Recorded, ...] -> route by host -> redact -> normalize -> key -> [ImportedOrSkippedExchange]  `convert_exchanges`

The path is that of live traffic, so a later request finds its imported recording. A host that is in no table gets an
OpenAI-compatible provider named like the host, as ``--upstream localhost:8000=http://localhost:8000`` does. Of our own
files the member ``llmproxy`` is restored; parts of it that do not match the rest (a body edited by hand) are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from llmproxy.core.bindings import BadRunVariable, build_run_variable, dump_run_variables
from llmproxy.core.cassettes.formats import Recorded
from llmproxy.core.dialects.conversation import list_server_made_ids
from llmproxy.core.dialects.stream_events import classify_response_ending
from llmproxy.core.dialects.usage_and_cost import read_model_named_in_answer, read_usage
from llmproxy.core.keys.head_rules import SAID_HEADER, fingerprint_unstored_headers
from llmproxy.core.keys.normalize import Canonical, IdOrigin, build_key, canonicalize_request, list_ids_new_in_response
from llmproxy.core.keys.server_state_in_keys import (
    STATE_HEADER,
    ServerObjectChangeLog,
    is_success,
    predict_request_effect_on_provider,
)
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import RoutedRequest, asks_for_stream, route_by_host
from llmproxy.core.secrets.encoded_secret_redaction import SecretFingerprintCache
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.body_decoding import decode_body
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import (
    DEFAULT_PORTS,
    Chunk,
    Ending,
    Headers,
    Interaction,
    Key,
    Request,
    Response,
    format_host,
    get_content_encoding,
    header,
    remove_headers,
)
from llmproxy.errors import CassetteCorrupt, remove_program_prefix
from llmproxy.protocol import AGENT

_TIMES = {"head_offset", "body_offset"}  # members that HAR and flow files have too: with these alone a file is not ours


@dataclass(frozen=True, slots=True)
class ImportedOrSkippedExchange:
    recorded: Recorded
    host: str
    """Lower case, with its port if that is not the scheme's default; empty if the URI has none."""
    interaction: Interaction | None
    """None: it was skipped."""
    why: str = ""
    """Reason why it was skipped."""
    known: bool = False
    """Whether the host is in the provider table."""
    first: bool = False
    """Whether it is the first of its (sample, party, key) in this file: it replaces earlier recordings."""


class _RequestUrl(NamedTuple):
    scheme: str
    host: str
    port: int | None
    target: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        return format_host(self.scheme, self.host, self.port)


def convert_exchanges(
    recorded: Sequence[Recorded], cassette: str, *, rules: Rules, redactor: Redactor,
    upstreams: Mapping[str, str] | None = None,
) -> list[ImportedOrSkippedExchange]:  # fmt: skip
    """Return the result for each exchange of one file, in order. `redactor` is a new one, for this file alone."""
    places = [_split_uri(each.uri) for each in recorded]
    adopter = _ExchangeConverter(cassette, rules, redactor, upstreams or {})
    for each, place in zip(recorded, places, strict=True):
        if place is not None:  # first all credentials: an early answer may quote one that a later request carries
            route, _ = adopter.route_exchange(place, _LlmproxyMember(each.extra))
            redactor.learn_request(each.headers, place.target, route.provider.credentials)
    return [adopter.convert_exchange(each, place) for each, place in zip(recorded, places, strict=True)]


def _split_uri(uri: str) -> _RequestUrl | None:
    """Return the parts of a URI, without user info and fragment; None if it is not an HTTP one."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Some clients' stubs write readable URIs; on the wire there are neither blanks nor letters beyond ASCII.
    legal = re.sub(r"[^\x21-\x7e]+", lambda match: quote(match[0], errors="surrogatepass"), target)
    return _RequestUrl(parts.scheme, parts.hostname, port, legal)


class _ExchangeConverter:
    def __init__(self, cassette: str, rules: Rules, redactor: Redactor, upstreams: Mapping[str, str]) -> None:
        self.cassette, self.rules, self.redactor, self.upstreams = cassette, rules, redactor, upstreams
        self.occurrences: Counter[tuple[int, str, Key]] = Counter()
        self.made: dict[tuple[int, str], IdOrigin] = {}
        self.changes: dict[int, ServerObjectChangeLog] = {}
        """Changes by sample, for a file of another program: one session, from its start."""

    def convert_exchange(self, each: Recorded, place: _RequestUrl | None) -> ImportedOrSkippedExchange:
        if each.problem:
            return ImportedOrSkippedExchange(each, place.netloc if place else "", None, each.problem)
        if place is None:
            return ImportedOrSkippedExchange(each, "", None, f"its URI is not an http one: {each.uri[:80]}")
        extra = _LlmproxyMember(each.extra)
        route, known = self.route_exchange(place, extra)
        before = len(self.occurrences)
        interaction = self.build_interaction(each, place, route, extra)
        return ImportedOrSkippedExchange(
            each, place.netloc, interaction, known=known, first=len(self.occurrences) > before
        )

    def route_exchange(self, place: _RequestUrl, extra: _LlmproxyMember) -> tuple[RoutedRequest, bool]:
        if (provider := extra.text("provider")) and (ours := route_by_host(*place, {provider: place.origin})):
            return ours, provider in PROVIDERS
        if found := route_by_host(*place, self.upstreams):
            return found, True
        if (made_up := route_by_host(*place, {place.netloc: place.origin})) is None:
            raise AssertionError(f"{place.origin} was named as an upstream and not found")
        return made_up, False

    def canonical(self, request: Request, route: RoutedRequest, sample: int) -> Canonical:
        return canonicalize_request(request, route, self.rules, lambda name: self.made.get((sample, name)))

    def add_server_state(
        self, request: Request, route: RoutedRequest, each: Recorded, body: bytes, sample: int
    ) -> Request:
        """Add the state before a request, and record its own changes of the server's objects."""
        canonical = self.canonical(request, route, sample)
        changes = self.changes.setdefault(sample, ServerObjectChangeLog())
        tree = parse_json_or_none(body) if route.row.changes else None
        change = predict_request_effect_on_provider(route, each.method, build_key(canonical), canonical.refs, tree)
        if state := changes.digest_state_for_request(
            route, each.method, canonical.refs, change, lambda name: self.made.get((sample, name))
        ):
            request = replace(request, headers=(*request.headers, (STATE_HEADER, state)))
        if change is not None and is_success(each.status):
            changes.begin_change(change._replace(key=build_key(self.canonical(request, route, sample))))
        return request

    def build_interaction(
        self, each: Recorded, place: _RequestUrl, route: RoutedRequest, extra: _LlmproxyMember
    ) -> Interaction:
        headers, body = _undo_coding(each.headers, each.body, ours=extra.ours)
        sample, party = extra.get_number("sample", 1), extra.text("party") or AGENT
        if (
            not extra.ours
            and not route.known
            and (said := fingerprint_unstored_headers(headers, SecretFingerprintCache().digest))
        ):
            headers = (*headers, (SAID_HEADER, said))
        request = self.redactor.request(Request(each.method, route.target, headers, body), route.provider.credentials)
        if not extra.ours:
            request = self.add_server_state(request, route, each, body, sample)
        canonical = self.canonical(request, route, sample)
        key = build_key(canonical)
        stream = asks_for_stream(route, parse_json_or_none(body))
        made = _build_response(each, route, extra, stream=stream)
        response, replaced = self.redactor.redact_response(made, each.method)
        self.occurrences[sample, party, key] += 1
        if response.ending is Ending.LEFT and extra.get_number("occurrence", 1) > self.occurrences[sample, party, key]:
            self.occurrences[sample, party, key] += 1  # a gap before it marks that it was left again
        kind, answer, started = response.mime_type, response.body, extra.values.get("started_at")
        if isinstance(started, bool) or not isinstance(started, int | float):
            started = each.recorded_at
        interaction = Interaction(
            provider=route.provider.name, operation=route.operation if route.known else canonical.operation, key=key,
            request=request, response=response, started_at=float(started),
            cassette=self.cassette, sample=sample, party=party, occurrence=self.occurrences[sample, party, key],
            model=canonical.model or read_model_named_in_answer(header(headers, "content-type") or "", body),
            stream=canonical.stream,
            upstream=extra.text("upstream") or ("" if "upstream" in extra.values else place.origin),
            usage=read_usage(route.family, route.operation, kind, answer, response.headers),
            redacted=replaced or extra.values.get("redacted") is True, rules=self.rules.rules_digest,
            run_variables=extra.read_run_variables(),
            made_ids=list_ids_new_in_response(
                list_server_made_ids(route.family, route.operation, kind, answer), canonical.refs
            ),
        )  # fmt: skip
        for nth, name in enumerate(interaction.made_ids):
            self.made.setdefault((sample, name), IdOrigin(key, interaction.occurrence, nth))
        return interaction


def _undo_coding(headers: Headers, body: bytes, *, ours: bool) -> tuple[Headers, bytes]:
    """Undo the content-encoding; one that the body lacks is dropped, except for `ours`, where it is kept."""
    if ours or not (coding := get_content_encoding(headers)):
        return headers, body
    with suppress(ValueError):  # not encoded: recorded decoded, with the field kept
        body = decode_body(body, coding)
    return remove_headers(headers, "content-encoding"), body


def _build_response(each: Recorded, route: RoutedRequest, extra: _LlmproxyMember, *, stream: bool) -> Response:
    headers, body = _undo_coding(each.response_headers, each.response_body, ours=extra.ours)
    chunked = header(headers, "content-length") is None  # the field itself is framing and not kept
    kind = header(headers, "content-type") or ""
    said = extra.text("ending")
    ending = Ending(said) if said in list(Ending) else None
    return Response(
        status=each.status,
        reason=each.reason,
        headers=headers,
        chunks=extra.cut_chunks(body),
        ending=ending or classify_response_ending(route.operation, stream, each.status, kind, body, http_ended=True),
        head_offset=extra.get_number("head_offset", 0),
        chunked=bool(extra.values.get("chunked", chunked)),
    )


class _LlmproxyMember:
    """The member ``llmproxy`` of an interaction; invalid parts are ignored."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.ours = bool(values.keys() - _TIMES)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def get_number(self, name: str, default: int) -> int:
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    def read_run_variables(self) -> str:
        """Return the file's run variables. Raises CassetteCorrupt: a wrong one would silently bind nothing."""
        found = self.values.get("run_variables") or []
        try:
            return dump_run_variables(build_run_variable(**each) for each in found)  # type: ignore[attr-defined]
        except (BadRunVariable, TypeError) as error:
            raise CassetteCorrupt(
                f"`run_variables` of a recording cannot be {str(found)[:200]}: {remove_program_prefix(error)}"
            ) from error

    def cut_chunks(self, body: bytes) -> tuple[Chunk, ...]:
        """Cut the body at its recorded borders; one chunk if there are none, or they do not match this body."""
        chunks: list[Chunk] = []
        at = 0
        for part in self.text("chunks").split():
            offset, _, length = part.partition(":")
            if not (offset.isdecimal() and length.isdecimal()):
                break
            chunks.append(Chunk(int(offset), body[at : at + int(length)]))
            at += int(length)
        if at == len(body) and (chunks or not body):
            return tuple(chunks)
        # Other programs record at most when the whole body had arrived.
        return (Chunk(self.get_number("body_offset", 0), body),) if body else ()
