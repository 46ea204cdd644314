"""Everything of a request counts, but for what the tables say: every leaf of every dialect, every header field, every part of a URL.

The requests are made from the rules themselves: one object for each shape and each of its kinds, with every member that a rule names and
one that none does. So a rule that is added is tested by being there, and one that reaches further than it says is found.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from llmproxy.core.keys.built_in_body_rules import SHAPES, KeyMemberRule, KeyObjectRules, MemberAction
from llmproxy.core.keys.head_rules import (
    ELSEWHERE,
    ELSEWHERE_PREFIXES,
    IGNORED,
    IGNORED_PREFIXES,
    KEYED,
    KEYED_PREFIXES,
    WORDS,
    decide_if_header_affects_key,
)
from llmproxy.core.keys.normalize import build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import route
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Headers, Key, Request
from tests.core.keys.key_tables import BEGIN, END, PAGE, rules_of, tables

Path = tuple[str | int, ...]


def key(method: str, target: str, headers: Headers = (), body: bytes = b"") -> Key:
    """Derive the key of a request as the proxy does."""
    where = route(target, headers)
    request = Redactor().request(Request(method, where.target, headers, body), where.provider.credentials)
    return build_key(canonicalize_request(request, where, Rules(), lambda _: None))


class Maker:
    """Makes the body that has everything a shape has rules for, and notes where each rule stands."""

    def __init__(self) -> None:
        self.rules: dict[Path, KeyMemberRule] = {}
        self._numbers = itertools.count(1)

    def make(self, shape: KeyObjectRules, path: Path, seen: tuple[int, ...] = (), kind: str = "") -> dict[str, Any]:
        """Make one object of a shape (of one kind)."""
        chosen = shape.kinds.get(kind, shape) if kind else shape
        made: dict[str, Any] = {"type": kind} if kind else {}
        made["opaque"] = [f"free {next(self._numbers)}"]
        if not path:
            made["opaque"] = {
                "deep": [1.5, True, None, "free"], "id": "kept", "cache_control": "kept", "call_id": "kept",
            }  # fmt: skip
        for name, rule in chosen.members.items():
            self.rules[*path, name] = rule
            made[name] = self._value(rule, (*path, name), (*seen, id(shape)))
            for other in rule.own:
                made[other] = f"own {next(self._numbers)}"
            if rule.do is MemberAction.SIGNATURE:
                made["thinking"] = "hm"
        return made

    def _value(self, rule: KeyMemberRule, path: Path, seen: tuple[int, ...]) -> object:
        number = next(self._numbers)
        if rule.do is MemberAction.STREAM:
            return False
        if rule.do is MemberAction.JSON:
            return json.dumps({"b": number, "a": "x"})
        if rule.do is MemberAction.FILE_URI:
            return f"https://generativelanguage.googleapis.com/v1beta/files/f{number}"
        if rule.into is None or seen.count(id(rule.into)) > 0:
            return f"value {number}"
        if rule.do is MemberAction.REFER:
            return self.make(rule.into, path, seen)
        kinds = ["", *rule.into.kinds]
        return [self.make(rule.into, (*path, n), seen, kind) for n, kind in enumerate(kinds)]


OPERATIONS = {
    ("openai", "responses.compact"): "/v1/responses/compact", ("openai", "responses.input_tokens"): "/v1/responses/input_tokens",
    ("openai", "fim.completions"): "/v1/fim/completions", ("openai", "images.generations"): "/v1/images/generations",
    ("openai", "threads.runs"): "/v1/threads/runs", ("openai", "chat.completions"): "/v1/chat/completions",
    ("anthropic", "count_tokens"): "/anthropic/v1/messages/count_tokens",
    **{("gemini", name): f"/v1beta/models/g:{name}" for name in ("generateContent", "countTokens", "embedContent")},
    ("bedrock", "converse"): "/model/m/converse",
}  # fmt: skip


def target_of(family: str, operation: str) -> str:
    """Return a base URL's path of an operation."""
    if (known := OPERATIONS.get((family, operation))) is not None:
        return known
    tail = operation.replace(".", "/")
    version = {"ollama": "", "cohere": "", "gemini": "v1beta/"}.get(family, "v1/")
    return f"/{family}/{version}{tail}"


def leaves(node: object, path: Path = ()) -> Iterator[Path]:
    children: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if isinstance(child, dict | list) and child:
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name)


def at(tree: Any, path: Path) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def written(tree: dict[str, Any], path: Path, value: object) -> bytes:
    node = at(tree, path[:-1])
    old, node[path[-1]] = node[path[-1]], value
    try:
        return json.dumps(tree).encode()
    finally:
        node[path[-1]] = old


def others(old: object, rule: KeyMemberRule | None) -> list[object]:
    """Return values that are not `old`: another of its kind, and the likes of those that are easily mistaken for nothing or for ours."""
    if rule is None:
        return [f"{old}2"]
    if isinstance(old, str):
        return [f"{old}2", "call#1", {"made-by": "v2:0", "occurrence": 1, "ordinal": 0}, 7]
    return [7 if isinstance(old, bool) or old is None else 99, "yes", ["x"], {"x": 1}]


def expected(rule: KeyMemberRule | None, old: object, new: object) -> bool | None:
    """Return whether a change counts by the tables; None where that depends on the rest (a name that ties things together)."""
    if rule is None:
        return True
    match rule.do:
        case MemberAction.IGNORE | MemberAction.SIGNATURE:
            return False
        case MemberAction.STREAM:
            return not (isinstance(new, bool) and new == old)
        case MemberAction.DECLARE | MemberAction.OWN if isinstance(new, str):
            return None
        case _:
            return True


ONE_OF_EACH = {id(shape): named for named, shape in reversed(SHAPES.items())}
"""One operation of each shape; those that share one are tested once."""


@pytest.mark.parametrize(("family", "operation"), ONE_OF_EACH.values(), ids=lambda each: each)
def test_every_leaf_of_every_dialect_counts_or_stands_in_the_table(family: str, operation: str) -> None:
    """Whatever is changed anywhere in a body changes the key, but for what the rules say at that very place."""
    target = target_of(family, operation)
    where = route(target, ())
    assert (where.family, where.operation) == (family, operation), target
    maker = Maker()
    tree = maker.make(SHAPES[family, operation], ())

    def derived(body: bytes) -> Key:
        return build_key(canonicalize_request(Request("POST", where.target, (), body), where, Rules(), lambda _: None))

    plain, tried = derived(json.dumps(tree).encode()), 0
    seen: dict[Key, tuple[Path, object]] = {}
    for path in leaves(tree):
        rule = maker.rules.get(path)
        for value in others(at(tree, path), rule):
            if path[-1] == "type" or value is None:
                continue
            found = derived(written(tree, path, value))
            counts = expected(rule, at(tree, path), value)
            tried += 1
            assert counts is None or (found != plain) is counts, (path, value, rule)
            if counts:  # and two changes are two keys
                assert seen.setdefault(found, (path, value)) == (path, value), (path, value, seen[found])
    assert tried > 5
    assert {rule.do for _, rule in rules_of(SHAPES[family, operation])} >= {rule.do for rule in maker.rules.values()}


@pytest.mark.parametrize("value", ["yes", "true", "false", "", 0, 1, [], {}, 2.5])
def test_a_stream_flag_counts_as_it_is_unless_it_says_what_it_should(value: object) -> None:
    """Only true, false and null are the flag; a server may take anything else for either."""
    body = {"model": "m", "messages": []}
    keys = {key("POST", "/v1/chat/completions", (), json.dumps({**body, **more}).encode())
            for more in ({}, {"stream": True}, {"stream": value})}  # fmt: skip
    assert len(keys) == 3
    assert key("POST", "/v1/chat/completions", (), json.dumps({**body, "stream": False}).encode()) in keys


KNOWN = [
    ("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}'),
    ("POST", "/anthropic/v1/messages", b'{"model":"m","messages":[]}'),
    ("POST", "/v1beta/models/g:generateContent", b'{"contents":[]}'),
    ("POST", "/model/m/converse", b'{"messages":[]}'),
    ("POST", "/model/m/invoke", b'{"prompt":"x"}'),
    ("POST", "/api/chat", b'{"model":"m"}'),
    ("POST", "/v2/chat", b'{"model":"m"}'),
    ("GET", "/v1/files/file-1/content", b""),
    ("GET", "/v1/models", b""),
    ("POST", "/v1/audio/transcriptions", b"RIFF\xff"),
]
STRANGE = ("POST", "/openai/v1/nobody/knows", b'{"a":1}')
VALUE = "one-of-a-kind"
GATEWAYS = [
    "azureml-model-deployment", "x-amz-target", "x-portkey-provider", "x-portkey-config", "x-portkey-virtual-key",
    "x-amzn-bedrock-guardrailidentifier", "x-amzn-bedrock-guardrailversion", "x-amzn-sagemaker-target-model",
    "helicone-target-url", "cf-aig-skip-cache", "x-litellm-tags", "x-model-route", "x-target-provider",
    "x-upstream-model", "nvcf-input-asset-references", "groq-model-version", "x-ai-eg-model",
]  # fmt: skip
TRACING = [
    "traceparent", "tracestate", "baggage", "x-request-id", "sentry-trace", "idempotency-key", "user-agent",
    "x-stainless-retry-count", "date", "x-client-request-id", "amz-sdk-invocation-id", "amz-sdk-request",
    "x-b3-traceid", "x-datadog-trace-id", "x-amzn-trace-id", "via", "x-forwarded-for", "accept-encoding",
    "content-length", "host", "connection", "authorization", "x-api-key", "cookie", "x-amz-security-token",
    "x-goog-api-client", "x-amz-date", "openai-organization", "helicone-session-id", "x-portkey-trace-id",
    "sec-websocket-key",
]  # fmt: skip


@pytest.mark.parametrize(("method", "target", "body"), [*KNOWN, STRANGE], ids=lambda each: str(each)[:40])
def test_every_header_that_chooses_counts_and_no_other(method: str, target: str, body: bytes) -> None:
    """By name, whatever its case; and two values of it are two keys."""
    plain = key(method, target, (), body)
    names = {*KEYED, *GATEWAYS, *(f"{prefix}z" for prefix in KEYED_PREFIXES), *(f"x-{word}" for word in WORDS)}
    strange = (method, target, body) == STRANGE
    for name in sorted(names - IGNORED.keys() - {"content-type"}):
        one, other = (key(method, target, ((name.title(), value),), body) for value in (VALUE, f"{VALUE}-2"))
        assert len({plain, one, other}) == 3, name
        assert key(method, target, ((name, VALUE),), body) == one, name
    ignored, prefixes = (ELSEWHERE, ELSEWHERE_PREFIXES) if strange else (IGNORED, IGNORED_PREFIXES)
    for name in sorted({*ignored, *(() if strange else TRACING), *(f"{prefix}z" for prefix in prefixes)}):
        if not name.startswith("x-llmproxy-"):
            assert key(method, target, ((name, VALUE),), body) == plain, name


def test_a_path_that_nobody_knows_counts_what_nobody_thought_of() -> None:
    """At a known operation an unnamed field does not count, so that SDKs may add to theirs; elsewhere it does."""
    for name in ("x-anything", "shape", "x-9"):
        assert decide_if_header_affects_key(name, known=False).counts
        assert not decide_if_header_affects_key(name, known=True).counts
        assert len({key(*STRANGE[:2], ((name, value),), STRANGE[2]) for value in "ab"}) == 2


@pytest.mark.parametrize(("headers", "others"), [
    ({"accept": "*/*"}, {"accept": "application/json"}),
    ({}, {"accept": "application/json, */*;q=0.1"}),
    ({"openai-beta": "b, A"}, {"OpenAI-Beta": "a,b"}),
    ({}, {"accept-language": "*"}),
    ({"content-type": "application/json"}, {"content-type": "application/json; charset=utf-8"}),
])  # fmt: skip
def test_headers_that_say_the_same_are_one(headers: dict[str, str], others: dict[str, str]) -> None:
    """The usual forms of asking for JSON, a set in another order."""
    one, other = (key("POST", "/v1/chat/completions", tuple(each.items()), b"{}") for each in (headers, others))
    assert one == other


def test_an_accept_counts_where_it_chooses() -> None:
    """A version in a parameter, and at a path that nobody knows whatever is not "anything"."""
    asked = ("application/json;version=2", "application/json", "text/csv", "text/csv;q=0.5, application/json")
    known, strange = ({key("GET", target, (("accept", each),)) for each in (*asked, "*/*")}
                      for target in ("/v1/files/f/content", "/openai/v1/x"))  # fmt: skip
    assert (len(known), len(strange)) == (4, 5)


def test_what_raw_bytes_are_counts() -> None:
    """The same bytes as another kind of audio; but not which boundary a form has."""
    kinds = ("audio/wav", "audio/mpeg", "text/plain; charset=utf-8", "text/plain")
    assert len({key("POST", "/v1/audio/transcriptions", (("content-type", kind),), b"\xff") for kind in kinds}) == 4


def test_an_event_stream_counts_where_none_was_asked_for() -> None:
    """Beside the stream flag it says nothing new."""
    sse = (("accept", "text/event-stream"),)
    for stream, same in (("true", True), ("false", False)):
        body = f'{{"stream":{stream}}}'.encode()
        assert (key("POST", "/v1/chat/completions", sse, body) == key("POST", "/v1/chat/completions", (), body)) is same


def part(target: str, *lines: str, data: str = "x") -> Key:
    """Return the key of a form of one part with these head lines."""
    head = "\r\n".join(filter(None, lines))
    body = f"--b\r\n{head}\r\n\r\n{data}\r\n--b--\r\n".encode()
    return key("POST", target, (("content-type", "multipart/form-data; boundary=b"),), body)


def upload(target: str, filename: str, kind: str = "text/plain", data: str = "x") -> Key:
    disposition = f'Content-Disposition: form-data; name="file"; filename="{filename}"'
    return part(target, disposition, f"Content-Type: {kind}", data=data)


@pytest.mark.parametrize(
    "target", ["/v1/files", "/v1/batches", "/v1/uploads/u/parts", "/anthropic/v1/files", "/openai/v1/x"]
)
def test_names_of_files_that_the_server_keeps_count(target: str) -> None:
    """A list of them shows the name again."""
    assert len({upload(target, name) for name in ("a.jsonl", "b.jsonl", "a.txt", "a")}) == 4
    assert upload(target, "a.jsonl") != upload(target, "a.jsonl", data="y")


@pytest.mark.parametrize("target", ["/v1/audio/transcriptions", "/v1/images/edits", "/v1/videos"])
def test_names_of_files_that_are_looked_at_and_forgotten_do_not(target: str) -> None:
    """SDKs and frameworks make up temporary ones; but the extension says what it is."""
    assert upload(target, "tmp1.wav", "audio/x-wav") == upload(target, "tmp2.WAV", "audio/x-wav")
    assert upload(target, "tmp1.wav") != upload(target, "tmp1.mp3")


UPLOADS = ["/v1/audio/transcriptions", "/v1/images/edits", "/v1/videos", "/v1/files", "/v1/uploads/u/parts", "/anthropic/v1/files",
           "/openai/v1/x"]  # fmt: skip
FILE = 'Content-Disposition: form-data; name="file"; filename="a.wav"'
FIELD = 'Content-Disposition: form-data; name="prompt"'
OF_PARTS = [
    "", "Content-Type: audio/wav", "Content-Type: audio/x-wav", "Content-Type: application/octet-stream",
    "Content-Type: application/json", "Content-Type: text/plain; charset=latin-1", "Content-Type: audio/wav\r\nContent-Language: de",
    "Content-Language: de", "Content-Language: fr", "Content-ID: <1>", "X-Anything: 1", "Content-Encoding: gzip",
    "Content-Transfer-Encoding: base64", "Content-Transfer-Encoding: quoted-printable",
]  # fmt: skip
"""What a server may read out of a part's head: a wrong type is a 400, which must not answer the right one."""
OF_FRAMING = [
    "Content-Transfer-Encoding: binary", "Content-Transfer-Encoding: 8bit", "content-length: 1", "MIME-Version: 1.0",
]  # fmt: skip


@pytest.mark.parametrize("target", UPLOADS)
@pytest.mark.parametrize("disposition", [FILE, FIELD])
def test_every_line_of_a_parts_head_counts(target: str, disposition: str) -> None:
    """Type, language, coding and what nobody thought of; but not the framing of older libraries."""
    found: dict[Key, str] = {}
    for line in OF_PARTS:
        assert found.setdefault(part(target, disposition, line), line) == line
    for line in OF_FRAMING:
        assert part(target, disposition, line) == part(target, disposition), line
    for more in ("size=1", "size=2", 'filename="b.wav"', "filename*=utf-8''%D0%B0.wav", "filename*=utf-8''%D0%B1.wav"):
        assert found.setdefault(part(target, f"{FILE}; {more}"), more) == more
    assert part(target, disposition, f"Content-Disposition : {disposition[21:]}; x=1") != part(target, disposition)
    if target != "/openai/v1/x":  # of which nobody knows what it reads
        assert part(target, FIELD, "content-type: Text/Plain; charset=UTF-8") == part(target, FIELD)
    assert part(target, OF_PARTS[1], disposition) == part(target, disposition, OF_PARTS[1])


METHODS = ["POST", "post", "Post", "GET", "get", "HEAD", "head", "DELETE", "delete", "QUERY"]


@pytest.mark.parametrize(
    "target", ["/v1/chat/completions", "/v1/files/f", "/openai/v1/mcp", "/openai/v1/x", "/v1/embeddings"]
)
def test_a_method_counts_as_it_is_written(target: str) -> None:
    """RFC 9110 9.1: methods are case-sensitive, so servers refuse `post`."""
    keys = {key(method, target, (("content-type", "application/json"),), b"{}") for method in METHODS}
    assert len(keys) == len(METHODS)


DIFFERENT = [
    *(f"/openai/v1/x?{name}={value}" for name in ("key", "token", "signature", "sig", "code", "password", "page")
      for value in ("", "invoice-1", "invoice-2", "invoice-2026-000001", "invoice-2026-000002")),
    "/openai/v1/x", "/openai/v1/x/", "/openai/v1/x/a%2Fb", "/openai/v1/x/a/b", "/openai/v1/x/%ff", "/openai/v1/x/%fe",
    "/openai/v1/x/a%252Fb", "/openai/v1/x/%3Fkey=1", "/openai/v1/x?%ff", "/openai/v1/x?%3F=%25ff", "/openai/v1/x?%fe",
    "/v1/files/a%2Fb", "/v1/files/a/b", "/v1/files/%ff", "/v1/files/%fe", "/openai/v1/files?key=1", "/openai/v1/files?key=2", "/v1/files?beta=2",
    "/v1beta/models/g:countTokens", "/v1/models/g:countTokens", "/v1alpha/models/g:countTokens", "/v1beta/tunedModels/g:countTokens",
    "/gemini/v1beta/models", "/gemini/v1beta/openai/models", "/gemini/v1/models", "/gemini/v1beta/files/x", "/gemini/v1/files/x",
    "/v1/projects/p/locations/us/publishers/google/models/g:predict", "/v1/projects/p/locations/eu/publishers/google/models/g:predict",
    "/v1/projects/p/locations/us/publishers/meta/models/g:predict", "/v1beta1/projects/p/locations/us/publishers/google/models/g:predict",
    "/v1/projects/p/locations/us/endpoints/g:predict", "/v1/projects/q/locations/us/endpoints/g:predict",
    "/v1/projects/p/locations/us/endpoints/g/chat/completions", "/v1/projects/q/locations/us/endpoints/g/chat/completions",
    "/v1/projects/p/locations/us/endpoints/openapi/chat/completions", "/v1/projects/p/locations/eu/endpoints/openapi/chat/completions",
    "/deepseek/chat/completions", "/deepseek/beta/chat/completions", "/deepseek/v1/messages", "/deepseek/anthropic/v1/messages",
    "/azure/openai/v1/chat/completions", "/azure/openai/chat/completions", "/azure/models/chat/completions",
    "/openai/deployments/d/chat/completions", "/openai/deployments/d/extensions/chat/completions",
    "/bedrock/openai/v1/chat/completions", "/bedrock/v1/chat/completions",
]  # fmt: skip


def test_different_urls_are_different_requests() -> None:
    """Versions, locations, tenants, spellings that decode to the same: none of them is another."""
    found: dict[Key, str] = {}
    for target in DIFFERENT:
        assert found.setdefault(key("GET", target), target) == target


@pytest.mark.parametrize(("one", "other"), [
    ("/v1/projects/p/locations/us/publishers/google/models/g:predict", "/v1/projects/q/locations/us/publishers/google/models/g:predict"),
    ("/models/g:countTokens?key=a-key", "/v1beta/models/g:countTokens?key=another"),
    ("/deepseek/chat/completions", "/deepseek/v1/chat/completions"),
    ("/openai/v1/x?a=%41", "/openai/v1/x?a=A"),
    ("/openai/v1/x%3Aa", "/openai/v1/x:a"),
    ("/model/a%2Fb%3A1/converse", "/model/a/b:1/converse"),
    ("/v1/messages?beta=true", "/anthropic/v1/messages"),
])  # fmt: skip
def test_urls_that_mean_the_same_are_one(one: str, other: str) -> None:
    """A project of Vertex, a provider's own key, another spelling."""
    assert key("GET", one) == key("GET", other)


def test_credentials_of_the_query_are_in_the_providers_row() -> None:
    """And nowhere else does a member of the query vanish, however it is called."""
    names = ("key", "token", "sig", "signature", "code", "password", "api_key", "access_token", "x-amz-signature")
    for provider in PROVIDERS.values():
        for name in names:
            values = ("abcdefgh-12345678", "abcdefgh-87654321", "short")
            keys = {key("GET", f"/{provider.name}/nobody/knows?{name}={value}") for value in values}
            assert len(keys) == (1 if name in provider.credentials else 3), (provider.name, name)


@pytest.mark.parametrize(("one", "other", "said", "asked"), [
    ("assistant", "assistant", "an assistant", "an xssistant"),
    ("tenant-acme", "tenant-bravo", "I am tenant-acme", "I am tenant-bravo"),
    ("acme-corporation", "globex-corporation", "acme-corporation?", "globex-corporation?"),
    ("k", "k", '{"cookie": "chocolate-chip-recipe-1234567"}', '{"cookie": "oatmeal-raisin-recipe-7654321"}'),
    ("k", "k", "[REDACTED-1]", "[REDACTED-2]"),
])  # fmt: skip
def test_words_that_look_like_secrets_are_words(one: str, other: str, said: str, asked: str) -> None:
    """Keys that are words, tenants named by their keys, a recipe: what is said with them is not one question."""
    keys = set()
    for credential, text in ((one, said), (other, asked)):
        headers = (("authorization", f"Bearer {credential}"),)
        redactor = Redactor()
        redactor.learn_request(headers, "/v1/chat/completions")
        where = route("/v1/chat/completions", headers)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
        request = redactor.request(Request("POST", where.target, headers, body))
        keys.add(build_key(canonicalize_request(request, where, Rules(), lambda _: None)))
    assert len(keys) == 2


def test_the_tables_are_in_the_docs() -> None:
    """What does not count is written down, with its reason, where users look."""
    text = PAGE.read_text("utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == tables(), "uv run python -m tests.core.keys.key_tables"
