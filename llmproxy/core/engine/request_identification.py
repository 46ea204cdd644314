"""Identification of requests: session, party, provider and upstream by the head, the key by the body.

With `--match-credential` the request's identity contains an HMAC of the client's credential with a secret file next to
the store (``<store>.secret``), so that a test with a wrong key does not get the right key's answer. The credential is
never stored; keep the file with the store when recordings are shared.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.keys import head_rules
from llmproxy.core.keys.normalize import (
    CachedKeyEntry,
    Canonical,
    IdOrigin,
    RequestKeyCache,
    build_key,
    canonicalize_request,
    find_model_in_body,
    list_provider_state_ids_in_body,
)
from llmproxy.core.keys.server_state_in_keys import STATE_HEADER, iter_texts_at_path, predict_request_effect_on_provider
from llmproxy.core.providers import stubs
from llmproxy.core.providers.provider_table import (
    HTTP_PREFIX,
    Family,
    build_http_provider_name_and_url,
    find_host_in_path,
    get_call_channel,
)
from llmproxy.core.providers.routing import (
    DEFAULT,
    REST,
    RoutedRequest,
    does_request_change_server_state,
    route,
    route_by_host,
    split_session_from_path,
)
from llmproxy.core.providers.upstreams_and_rate_limits import (
    check_aws_signature_host,
    get_port_or_default,
    provider_of_host,
)
from llmproxy.core.secrets.encoded_secret_redaction import SecretFingerprintCache
from llmproxy.core.secrets.redact import Redactor, find_placeholder_credential_name, has_placeholder_api_key
from llmproxy.core.sessions.exchange import EngineConfig, Exchange, RoutedRequestHead
from llmproxy.core.sessions.session import Session, Sessions, parse_party_header
from llmproxy.core.store.row_conversion import decode_sql_text, decode_stored_headers_json
from llmproxy.core.traffic.body_decoding import decode_body
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import (
    Headers,
    Request,
    get_content_encoding,
    header,
    overwrite_existing_header,
    read_retry_count_if_sent,
    remove_headers,
)
from llmproxy.core.traffic.response_plan import find_client_path_prefix
from llmproxy.errors import LLMProxyError, MachineError, RefusedError, SettingsError
from llmproxy.parsers import host_matches
from llmproxy.protocol import OFFLINE, OUR_HEADERS_PREFIX, PARTY_HEADER, SESSION_HEADER, Decision, Mode

NO_UPSTREAMS: Mapping[str, str] = {}
CALLER_HEADER = "x-llmproxy-caller"
"""Header of the fingerprint in stored requests; clients cannot send it: headers with our prefix are removed first."""

CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
CONNECTORS = ("tools.authorization", "mcp_servers.authorization_token")
"""Members of a body with the credential of a tool server."""
_SECRET_LENGTH = 32


class RequestRouteResolver:
    def __init__(self, config: EngineConfig, redactor: Redactor, sessions: Sessions) -> None:
        self._config, self._redactor, self._sessions = config, redactor, sessions
        self._secret: bytes | None = None
        self._stubs = stubs.list_builtin_and_user_stubs(config.stubs)

    def place_request(
        self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers, user: str | None = None
    ) -> RoutedRequestHead:
        """Return the destination of a request by its head, valid while `is_still_valid`. Raises as the engine's."""
        said = header(headers, PARTY_HEADER)
        named = split_session_from_path(target)[0] if host is None else None
        name = named or user or header(headers, SESSION_HEADER) or self._config.cassette
        speaker = self._sessions.get_party_of_name(name)
        mode = self.get_session_mode(name) if host is not None else Mode.REPLAY  # by base URL everything is in scope
        own = self._get_session_upstreams(name)
        where, in_scope = self._route_request(method, target, headers, host, {**self._config.upstreams, **own}, mode)
        self._redactor.learn_request(headers, where.target, where.provider.credentials)
        kept = self._strip_and_fingerprint_headers(headers, where)
        return RoutedRequestHead(
            party=speaker if said is None else parse_party_header(said), name=name, speaker=speaker, route=where,
            in_scope=in_scope, method=method, headers=kept,
            operation=where.operation if where.known else self._redactor.text(where.operation),
            counted=RequestKeyCache.encode_request_head(
                where.provider.name, method, where.target, kept, known=where.known
            ),
            learned=self._redactor.epoch.count, upstreams=own,
            channel=get_call_channel(where.provider.name, where.operation), attempt=read_retry_count_if_sent(kept),
            prefix=find_client_path_prefix(target, where.target) if host is None else "",
            changes=does_request_change_server_state(where, method),
            stubs=self._find_stubs_for_head(where, method, headers),
        )  # fmt: skip

    def is_still_valid(self, place: RoutedRequestHead) -> bool:
        if place.learned != self._redactor.epoch.count or place.upstreams != self._get_session_upstreams(place.name):
            return False
        return place.speaker == self._sessions.get_party_of_name(place.name)

    def _get_session_upstreams(self, name: str) -> Mapping[str, str]:
        session = self._sessions.find_open(name)
        return session.settings.upstreams if session is not None else NO_UPSTREAMS

    def find_family(self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers) -> Family:
        """Return the dialect of a request by its head, without opening a session, caching or learning."""
        try:
            return self._route_request(method, target, headers, host, self._config.upstreams, Mode.REPLAY)[0].family
        except LLMProxyError:
            return "openai"

    def is_host_in_scope(self, host: str, port: int) -> bool:
        named = (urlsplit(url) for url in self._config.upstreams.values())
        if any(parts.hostname == host and get_port_or_default(parts.scheme, parts.port) == port for parts in named):
            return True
        return host_matches(self._config.record_host, host) or provider_of_host(host, port) is not None

    def _find_stubs_for_head(self, where: RoutedRequest, method: str, headers: Headers) -> tuple[stubs.Stub, ...]:
        known = where.row.not_llm or where.operation in stubs.OPERATIONS
        may_be = known or method == "HEAD" or stubs.WELL_KNOWN in where.target
        if not (may_be or self._config.stubs or where.provider.name.startswith(HTTP_PREFIX)):
            return ()
        return stubs.find_stubs_matching_request(self._stubs, where, method, headers)

    def may_host_be_stubbed(self, host: str, *, offline: bool) -> bool:
        """Return whether a host that is out of scope may get auxiliary calls, which are intercepted."""
        return not host_matches(self._config.allow_host, host) and stubs.has_stubs_for_host(
            self._stubs, host, offline=offline
        )

    def get_session_mode(self, name: str | None) -> Mode:
        """Return the mode for a session's name, or for none, without opening a session. Raises RefusedError."""
        known = self._sessions.find_open(name) if name else None
        return known.settings.mode if known is not None else self._config.mode

    def _strip_and_fingerprint_headers(self, headers: Headers, where: RoutedRequest) -> Headers:
        kept = tuple((name, value) for name, value in headers if not name.lower().startswith(OUR_HEADERS_PREFIX))
        if not where.known and (said := head_rules.fingerprint_unstored_headers(kept, SecretFingerprintCache().digest)):
            kept = (*kept, (head_rules.SAID_HEADER, said))
        if not self._config.match_credential:
            return kept
        if self._secret is None:
            self._secret = load_credential_hash_secret(self._config.store)
        return (*kept, (CALLER_HEADER, fingerprint_credential(headers, where.target, self._secret, known=where.known)))

    def _route_request(
        self, method: str, target: str, headers: Headers, host: tuple[str, str, int] | None,
        upstreams: Mapping[str, str], mode: Mode,
    ) -> tuple[RoutedRequest, bool]:  # fmt: skip
        """Return the route of a request, and whether it is in scope: others are at most forwarded."""
        recorded = self._config.record_host
        if host is None:
            rest = split_session_from_path(target)[1]
            if recorded and (there := find_host_in_path(rest, recorded)) is not None:
                return route(f"/{there.provider}{there.rest}", headers, {there.provider: there.url}), True
            named = DEFAULT in upstreams or REST in upstreams  # requests without a provider go there
            if (
                there := stubs.find_host_of_auxiliary_call(self._stubs, method, rest, headers, named=named)
            ) is not None:
                stubbed = route(f"/{there.provider}{there.rest}", headers, {there.provider: there.url})
                if self._find_stubs_for_head(stubbed, method, headers):
                    return stubbed, False
            return route(target, headers, upstreams), True
        scheme, name, port = host
        if (found := route_by_host(*host, target, upstreams)) is not None:
            led = found.provider.name in self._config.redirected and found.provider.name != DEFAULT
            if led and provider_of_host(name, port):
                found = route(f"/{found.provider.name}{found.target}", headers, upstreams)
            return found, True
        if host_matches(recorded, name) or self.may_host_be_stubbed(name, offline=True):
            provider, url = build_http_provider_name_and_url(scheme, name, port)
            found, ours = route_by_host(*host, target, {provider: url}), host_matches(recorded, name)
            if found is not None and (ours or self._find_stubs_for_head(found, method, headers)):
                return found, ours
        if mode not in OFFLINE or host_matches(self._config.allow_host, name):
            found = route_by_host(*host, target, {name: f"{scheme}://{name}:{port}"})
            if found is not None:
                return found, False
        raise build_host_refused_error(f"{scheme}://{name}")


def build_host_refused_error(url: str) -> RefusedError:
    name = urlsplit(url).hostname or ""
    msg = f"llmproxy: {name} is not in the provider table, and in replay nothing leaves the machine."
    hint = f"Record it too with --record-host {name}, let it through with --allow-host {name}, "
    return RefusedError(msg, hint=f"{hint}or name it with --upstream NAME={url}")


_PLACEHOLDER_HINT = (
    "What gave the client its credential was replayed (a token endpoint, say), and recordings keep none. "
    "Record that anew together with this request, give the client a credential of its own, or clear its cache of them."
)


def refuse_if_unsendable(exchange: Exchange) -> None:
    """Refuse a request whose upstream is unknown (Azure without an endpoint), or that is signed for our own address, or
    that has a recording's or a replay's placeholder for a credential: the provider's 401 would be recorded.
    """
    if exchange.decision not in (Decision.RECORD, Decision.PASS):
        return
    name, upstream = exchange.route.provider.name, exchange.route.upstream
    try:
        if not upstream:
            msg = f"llmproxy: nobody said where {name} is."
            raise SettingsError(msg, hint=f"Start the proxy with --upstream {name}=https://...")
        check_aws_signature_host(exchange.request.headers, upstream)
        where = find_placeholder_credential_name(exchange.request.headers, exchange.route.target, exchange.request.data)
        if where is not None:
            msg = (
                f"llmproxy: {where} holds a placeholder of a recording, no credential, "
                f"so this request is not sent to {name}."
            )
            raise RefusedError(msg, hint=_PLACEHOLDER_HINT)
        if exchange.place.in_scope and has_placeholder_api_key(exchange.request.headers, exchange.route.target):
            names = " or ".join(field for key in exchange.route.provider.keys for field in key.list_header_fields())
            msg = f"llmproxy: {name} wants a key: set {names or 'its variable'}."
            raise RefusedError(msg, hint="The placeholder that a replay sets for a missing key is never sent.")
    except LLMProxyError as error:  # not raised: sent in the provider's envelope after the body was read
        exchange.mark_refused(error)


def fingerprint_credential(headers: Headers, target: str, secret: bytes, *, known: bool = True) -> str:
    """Return 16 hex digits for a credential, ``none`` without; for other services, of declared fields and cookies."""
    if not known:
        found = sorted(
            f"{name.lower()}={_extract_key_from_authorization(value)}"
            for name, value in headers
            if head_rules.DECLARED.search(name.lower())
        ) + sorted(
            f"cookie {each}={text}"
            for name, value in headers
            if name.lower() == "cookie"
            for each, text in head_rules.read_cookies(value)
            if head_rules.find_cookie_ignore_reason(each) == head_rules.CREDENTIAL
        )
        if found:
            return _digest_secret("\n".join(found), secret)
    sent = (_extract_key_from_authorization(value) for name in CREDENTIALS if (value := header(headers, name)))
    keys = (value for name, value in parse_qsl(target.partition("?")[2]) if name == "key")
    found_key = next(chain(sent, keys), None)
    return "none" if found_key is None else _digest_secret(found_key, secret)


def compute_body_credential_hash(body: bytes, store: Path) -> str:
    if b"authorization" not in body:
        return ""
    tree = parse_json_or_none(body)
    found = [text for path in CONNECTORS for text in iter_texts_at_path(tree, path.split("."))]
    return "connectors " + _digest_secret("\n".join(found), load_credential_hash_secret(store)) if found else ""


def _extract_key_from_authorization(value: str) -> str:
    """Return the key in an authorization header: the same key in `x-api-key` is the same caller."""
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.startswith("AWS4-"):  # signed anew each time; the access key's id says who
        return rest.partition("Credential=")[2].partition("/")[0] or rest
    return value.strip()


def _digest_secret(value: str, secret: bytes) -> str:
    return hmac.new(secret, value.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:16]


def load_credential_hash_secret(store: Path) -> bytes:
    """Return a store's secret, created at first use, readable by its owner. Raises MachineError if that fails."""
    path = Path(f"{store}.secret")
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_SECRET_LENGTH))
        found = path.read_bytes()
    except FileExistsError:  # another process was quicker
        return load_credential_hash_secret(store)
    except OSError as error:
        msg = f"cannot read or make {path}, which --match-credential needs: {error.strerror or error}"
        raise MachineError(msg) from error
    if len(found) != _SECRET_LENGTH:
        msg = f"{path} is damaged: it has {len(found)} bytes, not {_SECRET_LENGTH}."
        raise MachineError(msg, hint="Restore it, or record anew without it.")
    return found


WORTH_A_THREAD = 1 << 14
"""Bytes from which a request is redacted on a thread: the worst of that size takes 30 ms, and blocks the others."""
ROTATING = 8
"""Number of credentials above which it pays to find out which requests new ones cannot change."""


class KeyDeriver:
    def __init__(self, state: EngineState) -> None:
        self._state = state

    def derive_key(self, exchange: Exchange, body: bytes) -> tuple[CachedKeyEntry, Canonical | None]:
        config = self._state.config
        if config.match_credential and (said := compute_body_credential_hash(body, config.store)):
            exchange.request.add_key_header(CALLER_HEADER, said)
        digest = self._state.memory.digest_unnormalized_request(exchange.place.counted, body)
        learned = self._state.redactor.epoch
        if (known := self._state.memory.get_known(digest, learned)) is not None:
            return known, None
        if (known := self._find_key_by_recorded_body(exchange, body)) is not None:
            self._state.memory.remember(digest, known, learned)
            return known, None
        if learned.count > ROTATING and exchange.request.redacted is None:
            derive = partial(self.build_canonical, exchange, body)
            canonical, noted = self._state.redactor.run_and_record_searches(derive, exchange.place.counted)
        else:
            canonical, noted = self.build_canonical(exchange, body), False
        key, model = build_key(canonical), canonical.model or find_model_in_body(canonical)
        known = CachedKeyEntry(key, model, canonical.stream, canonical.refs, canonical.operation, noted)
        self._state.memory.remember(digest, known, learned)
        return known, canonical

    def _find_key_by_recorded_body(self, exchange: Exchange, body: bytes) -> CachedKeyEntry | None:
        """Return the identity of a request whose bytes equal a recording in all that counts; None for any other.

        Stored bytes that contain no current credential need no redaction, and their key is the recording's. If the key
        depends on more than the request, or is to be stored, it is derived.
        """
        place, session, state, received = exchange.place, exchange.session, self._state, exchange.request
        where, store, at = place.route, state.stores.opened, (session.cassette, session.sample)
        stateful = where.ids or where.keeps or where.row.changes or "?" in where.target or not where.known
        special = session.policy.on_miss is not Decision.REFUSE or not session.is_plain_replay(place.channel)
        if stateful or special or state.config.match_credential or state.redactor.epoch.count > ROTATING:
            return None
        if store is None or store.derived.get(at, True) or received.redacted is not None or body is not received.body:
            return None
        row = store.find_same_request_bytes(*at, place.party, hashlib.sha256(body).digest(), f'"{len(body)}"')
        if row is None or row[:2] != (state.config.rules.rules_digest, where.operation):
            return None
        key, model, stream, *head = row[2:]
        if _encode_head_of_recording(*head) != place.counted or state.redactor.may_need_redaction_again(body):
            return None
        if list_provider_state_ids_in_body(body, where, state.config.rules):
            return None
        if state.journal.asks > 0:
            request = Request(place.method, where.target, place.headers, body)
            request = state.redactor.request(request, where.provider.credentials, clean=True)
            headers = _set_content_length(request.headers, len(body))
            received.redacted = state.redactor.epoch.count, replace(request, headers=headers)
        named = decode_sql_text(model) if model is not None and b'"model"' in body else None
        return CachedKeyEntry(key, where.model or named, bool(stream))

    def add_server_state(
        self, exchange: Exchange, body: bytes, known: CachedKeyEntry, seen: Canonical | None
    ) -> tuple[CachedKeyEntry, Canonical | None]:
        where, changes = exchange.route, exchange.session.position.changes
        tree = parse_json_or_none(exchange.request.data) if where.row.changes and known.refs else None
        change = None
        if exchange.place.changes or where.row.changes:
            change = predict_request_effect_on_provider(where, exchange.method, known.key, known.refs, tree)
        if changes.made:
            made_by = self.build_id_origin_finder(exchange.session)
            if state := changes.digest_state_for_request(where, exchange.method, known.refs, change, made_by):
                exchange.request.add_key_header(STATE_HEADER, state)
                seen = self.build_canonical(exchange, body)
                known = replace(known, key=build_key(seen))
        exchange.change = change and change._replace(key=known.key)
        return known, seen

    def is_slow_to_prepare(self, exchange: Exchange, body: bytes) -> bool:
        let_through = exchange.decision is Decision.PASS and exchange.route.row.not_llm
        if len(exchange.place.counted) + len(body) < WORTH_A_THREAD or exchange.error is not None or let_through:
            return False
        memory = self._state.memory
        digest = memory.digest_unnormalized_request(exchange.place.counted, body)
        return memory.get_known(digest, self._state.redactor.epoch) is None

    def redact_in_advance(self, exchange: Exchange, body: bytes) -> None:
        """Redact a body before `identify_and_decide` needs it. Thread-safe, as a megabyte takes long."""
        learned, headers = self._state.redactor.epoch.count, _set_content_length(exchange.request.headers, len(body))
        exchange.request.redacted = (learned, self._decode_and_redact_request(exchange, body, headers))

    def redact(self, exchange: Exchange, body: bytes) -> Request:
        """Return the request as stored: content-encoding undone, redacted. Cached until a credential is learned."""
        learned, received = self._state.redactor.epoch.count, exchange.request
        if received.redacted is not None and received.redacted[0] == learned and body is received.body:
            return received.redacted[1]
        headers = _set_content_length(received.headers, len(received.data))
        request = self._decode_and_redact_request(exchange, body, headers)
        received.redacted = (learned, request)
        return request

    def _decode_and_redact_request(self, exchange: Exchange, body: bytes, headers: Headers) -> Request:
        if coding := get_content_encoding(headers):
            try:
                body = decode_body(body, coding, self._state.config.max_request)
                headers = remove_headers(headers, "content-encoding")
            except ValueError as why:
                exchange.note = f"request body is not {coding}: {why}"
        request = Request(exchange.method, exchange.route.target, headers, body)
        return self._state.redactor.request(request, exchange.route.provider.credentials)

    def build_canonical(self, exchange: Exchange, body: bytes) -> Canonical:
        request, made_by = self.redact(exchange, body), self.build_id_origin_finder(exchange.session)
        return canonicalize_request(request, exchange.route, self._state.config.rules, made_by)

    def build_id_origin_finder(self, session: Session) -> Callable[[str], IdOrigin | None]:
        store = self._state.stores.current

        def find_origins(name: str) -> IdOrigin | None:
            place = session.id_source
            places = dict.fromkeys((place, session.save_target)) if store else ()
            found = next((known for each in places if store and (known := store.find_id_origin(*each, name))), None)
            return found or self._state.pending.find_pending_id_origin(place, name)

        return find_origins


@lru_cache(256)
def _encode_head_of_recording(provider: str, method: str, target: str, headers: str) -> bytes:
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        return RequestKeyCache.encode_request_head(
            provider, method, target, decode_stored_headers_json(headers), known=True
        )
    return b""


def _set_content_length(headers: Headers, length: int) -> Headers:
    """Return headers with a request's own content-length: requests that differ only in it share a cached head."""
    return overwrite_existing_header(headers, "content-length", str(length))
