"""Rules of the key for a request's head: header fields, query members, and the spelling of a path.

*Known operations*: a model's SDK adds about thirty fields for versions, retries and tracing, so a field counts only if
it is named here (or a word in its name shows that it selects something). *Unknown paths*: every field counts except
those that cannot affect an answer. Credentials never count (`--match-credential` adds the caller's fingerprint).
Source: WIRE.md 2.2, the headers of 790 real exchanges, and the references of providers and gateways as of 2026-11.
`docs/keys.md` holds these tables; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from llmproxy.core.providers.provider_table import SIGNED_QUERY, Provider
from llmproxy.core.secrets.secret_kinds import FINGERPRINTED, SECRET_HEADER
from llmproxy.core.traffic.interaction import Headers
from llmproxy.lazy_regex import late

# -- header fields that count ------------------------------------------------------------------------------------------

KEYED: dict[str, str] = {
    "anthropic-version": "contract of the answer's shape; kept as it is",
    "anthropic-beta": "switches features; a set, so in lower case and sorted",
    "openai-beta": "switches features; a set, so in lower case and sorted",
    "groq-beta": "switches features; a set, so in lower case and sorted",
    "x-llmproxy-caller": "fingerprint of the credential, put there by us where --match-credential asks for it",
    "x-llmproxy-said": "fingerprints of cookies and the like that count at another service, put there by us",
    "x-llmproxy-state": "digest of the changes that were made before to what the request names, put there by us",
    "accept": "chooses the form of the answer; JSON, anything, and a stream where one was asked for are the usual and "
    "one",
    "accept-language": "chooses the language of the answer; `*` is none",
    "content-type": "says how raw bytes are read; of JSON and forms the content says it, where the operation is known",
    "content-encoding": "one that the body does not have, or that nobody knows; any other is undone and gone before "
    "this is asked",
    "prefer": "chooses whether the answer is waited for (Replicate), and in which form it comes",
    "range": "chooses a part of the answer",
    "if-range": "chooses between a part and the whole",
    "if-match": "chooses between an answer and 412",
    "if-none-match": "chooses between an answer and 304",
    "if-modified-since": "chooses between an answer and 304",
    "if-unmodified-since": "chooses between an answer and 412",
    "x-http-method-override": "chooses the method",
    "x-method-override": "chooses the method",
    "extra-parameters": "Azure AI: whether unknown parameters are passed on, dropped or refused",
    "x-policy-id": "Azure OpenAI: the content filter of this request",
    "x-goog-fieldmask": "chooses the fields of the answer",
    "x-goog-field-mask": "chooses the fields of the answer",
    "x-use-cache": "Hugging Face: a cached answer or a new one",
    "x-wait-for-model": "Hugging Face: an answer or 503",
    "x-compute-type": "Hugging Face: where the model runs",
}
KEYED_PREFIXES: dict[str, str] = {
    "azureml-": "Azure ML: the deployment that answers",
    "x-amzn-bedrock-": "Bedrock: guardrail, trace, latency and tier of the answer",
    "x-amzn-sagemaker-": "SageMaker: the model, variant or component that answers",
    "x-goog-upload-": "Google: the step of an upload",
    "nvcf-": "NVIDIA: the assets that a request is about, and how long it waits",
    "x-portkey-": "Portkey: the provider, configuration and guardrails behind the gateway",
    "helicone-": "Helicone: the target, fallbacks, cache and moderation behind the gateway",
    "cf-aig-": "Cloudflare AI Gateway: cache and routing behind the gateway",
    "x-litellm-": "LiteLLM proxy: tags and routing behind the gateway",
    "x-kong-": "Kong: routing behind the gateway",
    "x-openrouter-": "OpenRouter: routing and plugins",
    "x-ai-eg-": "Envoy AI Gateway: the model behind the gateway",
    "x-gateway-": "routing behind a gateway",
    "ai-gateway-": "Vercel AI Gateway: routing behind the gateway",
}
WORDS = (
    "model", "models", "provider", "providers", "deployment", "route", "router", "routing", "target", "guardrail",
    "guardrails", "guardrailidentifier", "guardrailversion", "backend", "upstream", "variant", "engine", "fallback",
    "fallbacks", "virtual", "tenant", "persona", "locale", "language", "experiment", "override",
)  # fmt: skip
"""Words in a field's name that show what it selects; they also cover fields of unknown gateways."""
KEYED_WORDS = late(rf"(?:^|[-_])(?:{'|'.join(WORDS)})(?:$|[-_])")
SET_HEADERS = frozenset({"anthropic-beta", "openai-beta", "groq-beta"})

# -- header fields that never count ------------------------------------------------------------------------------------


def _map_names_to_reason(why: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, why)


_FRAMING = "describes the connection, not the request"
_TRACING = "tracing and correlation: random, without effect on the answer"
_CLIENT = "identifies the client and its version"
_RETRY = "retries and timeouts: the request is the same"
_ROUTE = "the network route of the request"
_LABELS = "labels for dashboards"
_DIGEST = "digest or date of the body; the body itself counts"
_BILLING = "billing and accounts"

IGNORED: dict[str, str] = {
    **_map_names_to_reason(
        _FRAMING, "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "http2-settings", "content-length", "accept-encoding", "accept-charset", "expect", "host", "priority",
        "upgrade-insecure-requests", "max-forwards", "alt-used", "early-data", "grpc-accept-encoding",
        "x-amz-decoded-content-length", "x-amz-trailer",
    ),
    **_map_names_to_reason(
        _TRACING, "traceparent", "tracestate", "baggage", "b3", "sentry-trace", "request-id", "correlation-id",
        "trace-id", "span-id", "x-request-id", "x-correlation-id", "x-trace-id", "x-span-id", "x-client-request-id",
        "x-client-trace-id", "x-ms-client-request-id", "x-ms-correlation-request-id", "x-amzn-trace-id",
        "x-cloud-trace-context", "x-amzn-requestid", "grpc-trace-bin", "grpc-tags-bin", "uber-trace-id", "newrelic",
        "elastic-apm-traceparent", "traceloop-request-id", "x-portkey-trace-id", "x-portkey-span-id",
        "x-portkey-parent-span-id", "x-portkey-span-name", "x-litellm-trace-id", "x-litellm-call-id",
        "x-litellm-session-id", "cf-aig-event-id", "helicone-request-id",
    ),
    **_map_names_to_reason(
        _CLIENT, "user-agent", "from", "referer", "http-referer", "origin", "dnt", "x-title", "x-requested-with",
        "x-client-name", "x-client-version", "x-goog-api-client", "x-goog-request-params", "x-amz-user-agent",
        "x-ms-useragent", "x-app", "originator", "version", "conversation_id", "session_id", "x-openai-subagent",
        "x-openai-client-user-agent", "x-together-client-user-agent", "openai-safety-identifier", "chatgpt-account-id",
        "x-grok-conv-id", "anthropic-dangerous-direct-browser-access", "anthropic-client-platform",
        "anthropic-client-version", "x-fireworks-session-affinity", "x-affinity", "x-user-id", "x-language",
        "ai-language-model-specification-version",
    ),
    **_map_names_to_reason(
        _RETRY, "idempotency-key", "x-idempotency-key", "x-retry-count", "retry-count", "x-should-retry",
        "amz-sdk-invocation-id", "amz-sdk-request", "amz-sdk-retry", "x-server-timeout", "x-request-timeout",
        "request-timeout", "x-timeout", "grpc-timeout", "grpc-previous-rpc-attempts", "x-litellm-timeout",
        "x-litellm-stream-timeout", "x-litellm-num-retries", "x-portkey-request-timeout", "cf-aig-request-timeout",
        "cf-aig-max-attempts", "cf-aig-retry-delay", "cf-aig-backoff",
    ),
    **_map_names_to_reason(_ROUTE, "via", "forwarded", "x-real-ip", "true-client-ip", "cdn-loop", "x-original-host",
        "x-scheme"),
    **_map_names_to_reason(
        _LABELS, "x-portkey-metadata", "x-litellm-spend-logs-metadata", "x-litellm-customer-id",
        "x-litellm-end-user-id", "cf-aig-metadata", "cf-aig-collect-log", "cf-aig-custom-cost", "helicone-user-id",
        "helicone-prompt-id",
    ),
    **_map_names_to_reason(_DIGEST, "date", "x-amz-date", "x-ms-date", "x-goog-date", "content-md5", "digest",
        "content-digest",
               "x-amz-content-sha256", "x-amz-sdk-checksum-algorithm", "x-timestamp"),
    **_map_names_to_reason(
        _BILLING, "x-hf-bill-to", "x-vertex-ai-llm-request-type", "x-vertex-ai-llm-shared-request-type",
        "x-ms-spillover-deployment",
    ),
    **_map_names_to_reason("controls caches on the way; in replay the recording answers", "cache-control", "pragma"),
}  # fmt: skip
IGNORED_PREFIXES: dict[str, str] = {
    "x-llmproxy-": "llmproxy's own; not sent to providers", "x-stainless-": _CLIENT,
    "x-fern-": _CLIENT, "x-codex-": _CLIENT, "x-datadog-": _TRACING, "x-b3-": _TRACING, "ot-tracer-": _TRACING,
    "x-sentry-": _TRACING, "x-forwarded-": _ROUTE, "x-envoy-": _ROUTE,
    "sec-": "set by browsers, or part of a WebSocket handshake", "proxy-": "meant for a proxy on the way",
    "helicone-session-": _LABELS, "helicone-property-": _LABELS, "x-amz-checksum-": _DIGEST,
    "access-control-": "set by browsers, or part of a WebSocket handshake",
}  # fmt: skip
CREDENTIAL = "a credential or account: replay works with any key; --match-credential distinguishes callers"
STRANGE = "llmproxy does not know this path, so all that may affect the answer counts"
UNNAMED = ""
"""Reason of a field in no table: at a known operation it does not count, and `llmproxy audit` reports it."""

# -- other services and unknown paths ----------------------------------------------------------------------------------

ELSEWHERE: dict[str, str] = {
    **{
        name: why
        for name, why in IGNORED.items()
        if why in (_FRAMING, _TRACING, _DIGEST)
        and name not in ("accept-charset", "upgrade-insecure-requests", "max-forwards")
    },
    **_map_names_to_reason(
        _RETRY, "idempotency-key", "x-idempotency-key", "x-retry-count", "retry-count", "amz-sdk-invocation-id",
        "amz-sdk-request", "amz-sdk-retry", "x-envoy-attempt-count", "grpc-timeout", "grpc-previous-rpc-attempts",
    ),
    **_map_names_to_reason(
        "names the client library and its version", "user-agent", "x-goog-api-client", "x-amz-user-agent",
        "x-ms-useragent",
    ),
}  # fmt: skip
"""Fields that do not count on unknown paths: framing, transport, tracing. None that identify the caller."""
ELSEWHERE_PREFIXES: dict[str, str] = {
    "x-llmproxy-": IGNORED_PREFIXES["x-llmproxy-"],
    "x-stainless-": "names the client library and the retry number",
    "x-fern-": "names the client library",
    "xai-sdk-": _CLIENT,
    **{name: why for name, why in IGNORED_PREFIXES.items() if why in (_TRACING, _DIGEST)},
    "sec-websocket-": "part of a WebSocket handshake",
    "proxy-": IGNORED_PREFIXES["proxy-"],
}
DECLARED = late(
    r"^authorization$|(?:^|[-_])(?:api|access|secret|private|subscription|functions?|master|account|auth)[-_]?key$"
    r"|^(?:api[-_]?)?key$|(?:^|[-_])signature(?:$|[-_])|^x-auth$"
    r"|(?<!page)(?<!continuation)(?<!next)(?<!sync)(?<!cursor)(?<!feature)(?:^|[-_])token$"
    r"|(?:secret|password|passwd|passphrase|credential|jwt|(?:access|auth|security)[-_]?token)s?(?:$|[-_\d])"
)
"""Lower-case names that declare a credential; fields that only resemble one (a session's id, a tenant) count."""
_SESSION_COOKIE = late(
    r"aspsessionid|(?:^|[-_.])(?:sid|(?:api|auth|access|private|secret|session)?key)$|\.identity"
    r"|(?:(?<!ob|os|as)sess(?:ion)?(?:data)?|auth(?:n|z|orization|enticat(?:ion|ed))?|token|jwt|[cx]srf|remember(?:me)?"
    r"|login|secret|password|passwd|passphrase|credential)s?(?:id)?(?:$|[-_.\d])"
)
"""Words at the end of a part of a name; before them may stand another word (``phpsessid``, ``csrftoken``)."""
_CAMEL = late(r"(?<=[a-z\d])(?=[A-Z])")
_CHANCE_COOKIE = late(r"^(?:_ga|_gid|_gat|_cf|__cf|cf_|awsalb|_hj|_fbp|_gcl)|^incap_|^bigip")
"""Cookies of analytics and load balancers: random, without effect on the answer."""
SAID_HEADER = "x-llmproxy-said"
"""Header field of a stored request with fingerprints of the counted fields whose values are never stored."""


def find_cookie_ignore_reason(name: str) -> str:
    if _SESSION_COOKIE.search(_CAMEL.sub("-", name).lower()):
        return CREDENTIAL
    return _TRACING if _CHANCE_COOKIE.search(name.lower()) else ""


def read_cookies(value: str) -> list[tuple[str, str]]:
    pairs = (each.strip().partition("=") for each in value.split(";") if each.strip())
    return [(name.strip(), text.strip()) for name, _, text in pairs]


def fingerprint_unstored_headers(headers: Headers, fingerprint: Callable[[str], str]) -> str:
    """Return names and fingerprints of fields that count on unknown paths but whose values are never stored."""
    said = []
    for name, value in headers:
        lower = name.lower()
        if lower == "cookie":
            said += [
                f"cookie {each}={fingerprint(text)}"
                for each, text in read_cookies(value)
                if not find_cookie_ignore_reason(each)
            ]
        elif (
            SECRET_HEADER.search(lower) and not lower.startswith("mcp-") and is_header_in_request_key(name, known=False)
        ):
            said.append(f"{lower}={fingerprint(value)}")
    return "; ".join(sorted(said))


class HeaderKeyRelevance(NamedTuple):
    counts: bool
    why: str


_REMEMBERED = 4096


@lru_cache(maxsize=_REMEMBERED)
def decide_if_header_affects_key(name: str, *, known: bool) -> HeaderKeyRelevance:
    """Decide whether a header field counts, by its lower-case name. `known`: the operation is in the table."""
    if (why := KEYED.get(name)) is not None:
        return HeaderKeyRelevance(counts=True, why=why)
    if name in FINGERPRINTED:
        return HeaderKeyRelevance(counts=True, why="selects who answers; counts as a fingerprint")
    if not known:  # another service or path: all fields count but framing, transport, tracing, credentials
        if why := ELSEWHERE.get(name) or _find_prefix_reason(name, ELSEWHERE_PREFIXES):
            return HeaderKeyRelevance(counts=False, why=why)
        if name == "cookie":
            return HeaderKeyRelevance(counts=False, why=f"each by its name: {STRANGE}; a session's is a credential")
        declared = DECLARED.search(name) is not None
        return HeaderKeyRelevance(counts=not declared, why=CREDENTIAL if declared else STRANGE)
    if why := IGNORED.get(name) or _find_prefix_reason(name, IGNORED_PREFIXES):
        return HeaderKeyRelevance(counts=False, why=why)
    if SECRET_HEADER.search(name):
        return HeaderKeyRelevance(counts=False, why=CREDENTIAL)
    if why := _find_prefix_reason(name, KEYED_PREFIXES):
        return HeaderKeyRelevance(counts=True, why=why)
    if KEYED_WORDS.search(name):
        return HeaderKeyRelevance(counts=True, why="its name suggests that it selects who or what answers")
    return HeaderKeyRelevance(counts=False, why=UNNAMED)


@lru_cache(maxsize=_REMEMBERED)
def is_header_in_request_key(name: str, *, known: bool) -> bool:
    """Return whether a header field counts, by its name in any case. Cached: a client repeats the same names."""
    return decide_if_header_affects_key(name.lower(), known=known).counts


def _find_prefix_reason(name: str, table: dict[str, str]) -> str:
    return next((why for prefix, why in table.items() if name.startswith(prefix)), "")


_USUAL = frozenset({"*/*", "application/*", "application/json"})
_ANY = frozenset({"*/*"})
_WEIGHT = late(r"\s*;\s*(?:q|charset)=[^;]*")
_STREAMS = frozenset(
    {"text/event-stream", "application/vnd.amazon.eventstream", "application/x-ndjson", "application/stream+json"}
)


def list_header_values_in_key(headers: Headers, *, known: bool, kind: str, stream: bool) -> tuple[tuple[str, str], ...]:
    """Return the fields that count, (lower-case name, canonical value), sorted; `kind`: the body's."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        if is_header_in_request_key(name, known=known):
            found.setdefault(name.lower(), []).append(value.strip())
    kept = []
    for name, values in sorted(found.items()):
        text = ",".join(values)
        if name in SET_HEADERS:
            text = ",".join(sorted({flag for part in text.lower().split(",") if (flag := part.strip())}))
        elif name == "accept":
            text = _drop_usual_accept(text, known=known, stream=stream)
        elif name == "accept-language":
            text = "" if text == "*" else text
        elif name == "content-encoding":
            text = "" if text.lower() == "identity" else text.lower()
        elif name == "content-type":
            text = _drop_implied_content_type(text, known=known, kind=kind)
        if text or not (known or any(values)):  # an empty one is a field, unless a rule emptied it
            kept.append((name, text))
    return tuple(kept)


@lru_cache(256)
def _drop_usual_accept(text: str, *, known: bool, stream: bool) -> str:
    """Return an Accept value that is not the usual one, with its parameters; empty for the usual one."""
    ranges = {_WEIGHT.sub("", part.strip().lower()) for part in text.split(",") if part.strip()}
    usual = (_USUAL | _STREAMS if stream else _USUAL) if known else _ANY
    return "" if ranges <= usual else ",".join(sorted(part.strip().lower() for part in text.split(",") if part.strip()))


def _drop_implied_content_type(text: str, *, known: bool, kind: str) -> str:
    """Return a content type that says more than the body; for JSON and plain forms only on unknown paths."""
    media, _, rest = text.partition(";")
    media = media.strip().lower()
    if kind == "empty" or (known and (kind in ("json", "form") or media == "multipart/form-data")):
        return ""
    more = sorted(part.strip() for part in rest.split(";") if part.strip())
    return ";".join([media, *(each for each in more if not each.lower().startswith("boundary="))])


# -- the query ---------------------------------------------------------------------------------------------------------

ID_QUERY = frozenset({"after", "before", "run_id", "thread_id"})
"""Query members of known operations that name objects created by an earlier answer."""


_GOOGLE_SIGNED = ("algorithm", "credential", "date", "expires", "signedheaders", "signature", "security-token")
_SIGNED = (
    (SIGNED_QUERY, "x-amz-signature"), (frozenset(f"x-goog-{name}" for name in _GOOGLE_SIGNED), "x-goog-signature"),
    (
        frozenset({"sv", "st", "se", "sr", "sp", "sig", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks", "skv"}),
        "sig",
    ),
    (frozenset({"expires", "signature", "key-pair-id", "policy", "googleaccessid", "awsaccesskeyid"}), "signature"),
)  # fmt: skip
"""Members of a presigned URL of AWS, Google, Azure, CloudFront, and the name of the signature."""
_SIGNERS = {
    "x-amz-signature": {"x-amz-credential"}, "x-goog-signature": {"x-goog-credential"}, "sig": {"sv"},
    "signature": {"key-pair-id", "googleaccessid", "awsaccesskeyid"},
}  # fmt: skip
"""Members that accompany a signature: without one of them, the member is an ordinary one."""


def find_url_signature_members(query: str) -> frozenset[str]:
    """Return the lower-case query members that sign a URL; empty if it is not signed."""
    if "sig" not in query.lower():
        return frozenset()
    names = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True, errors="surrogateescape")}
    for members, signature in _SIGNED:
        if signature in names and names & _SIGNERS[signature]:
            return members
    return frozenset()


def explain_query_member_not_in_key(
    provider: Provider, name: str, value: str, *, known: bool, signed: frozenset[str] = frozenset()
) -> str:
    """Describe why a query member does not count; empty if it counts. `signed` is from `find_url_signature_members`."""
    if name.lower() in signed:
        return "signature of a presigned URL: a new signature is the same request"
    if name.lower() in provider.credentials:
        return "the provider's own credential"
    if known and name == "beta" and value == "true" and provider.family in ("openai", "anthropic"):
        return "marks the SDK's beta client; the header anthropic-beta or openai-beta names the beta"
    return ""


def list_query_members_in_key(
    target: str, provider: Provider, named: Callable[[str], str], *, known: bool
) -> tuple[tuple[str, str], ...]:
    """Return the query members that count, decoded, sorted by name; `named` replaces ids of server state."""
    _, mark, query = target.partition("?")
    if not mark or not query:
        return ()
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")  # lossless: queries stay distinct
    signed = frozenset() if known else find_url_signature_members(query)
    kept = [
        (name, named(value) if known and name in ID_QUERY else value)
        for name, value in pairs
        if not explain_query_member_not_in_key(provider, name, value, known=known, signed=signed)
    ]
    return tuple(sorted(kept, key=lambda pair: pair[0]))


_ESCAPED = late(r"%([0-9A-Fa-f]{2})")
_STAYS = frozenset("/?#%")


def recode_path_if_decoding_is_lossy(target: str, *, slashes: bool) -> str:
    """Return a path's canonical spelling if decoding loses information, else "": ``/x/a%2Fb`` is not ``/x/a/b``."""
    if "%" not in target or "%" not in (path := target.partition("?")[0]):
        return ""
    try:
        plain = unquote(path, errors="strict")
    except UnicodeDecodeError:
        plain = None
    kept = _STAYS & {chr(int(match[1], 16)) for match in _ESCAPED.finditer(path)} - {"/"}
    if plain is not None and (not slashes or plain.count("/") == path.count("/")) and not kept:
        return ""
    return _ESCAPED.sub(_normalize_escape, path)


def _normalize_escape(match: re.Match[str]) -> str:
    letter = chr(int(match[1], 16))
    return letter if 0x20 < ord(letter) < 0x7F and letter not in _STAYS else f"%{match[1].upper()}"
