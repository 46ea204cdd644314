"""Two logically different requests never share a key, and equal ones written differently do."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.keys.built_in_body_rules import OPENAI_ACCOUNTING
from llmproxy.core.keys.normalize import (
    REMEMBERED_KEYS,
    WORTH_A_SWITCH,
    CachedKeyEntry,
    Canonical,
    IdOrigin,
    MadeBy,
    RequestKeyCache,
    build_key,
    canonicalize_request,
)
from llmproxy.core.keys.user_rules import Rules, TextScrub
from llmproxy.core.providers.routing import RoutedRequest, route
from llmproxy.core.secrets.find_secrets import CredentialEpoch, choose_encoded_secret_substrings
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.canonical_json import LossyJsonError, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Headers, Key, Request
from tests.core.keys.test_every_leaf import leaves

ANTHROPIC = (("anthropic-version", "2023-06-01"),)


def canonical(
    target: str,
    body: object = b"",
    headers: Headers = (),
    *,
    method: str = "POST",
    rules: Rules = Rules(),  # noqa: B008 - a frozen value
    made_by: MadeBy = lambda _: None,
) -> Canonical:
    where = route(target, headers)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return canonicalize_request(Request(method, where.target, headers, data), where, rules, made_by)


def key(target: str, body: object = b"", headers: Headers = (), **more: Any) -> Key:
    return build_key(canonical(target, body, headers, **more))


CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CLAUDE: dict[str, Any] = {"model": "c", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"type": "text", "text": "S"}
BILLED = [
    TEXT | {"text": "x-anthropic-billing-header: cc_version=1; cch=ab1;"},
    TEXT | {"cache_control": {"type": "ephemeral"}},
]
GEMINI = "/v1beta/models/g:generateContent"
PARTS: dict[str, Any] = {"contents": [{"parts": [{"text": "hi"}]}]}
CONVERSE = "/model/m/converse"
BEDROCK: dict[str, Any] = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}


def form(
    boundary: str, filename: str, kind: str, data: bytes = b"RIFF\xff\x00\r\n--x", model: str = "whisper-1"
) -> bytes:
    mark, disposition = b"--" + boundary.encode(), b'\r\nContent-Disposition: form-data; name="'
    head = f'file"; filename="{filename}"\r\nContent-Type: {kind}\r\n\r\n'.encode()
    return (
        mark + disposition + b'model"\r\n\r\n' + model.encode() + b"\r\n"
        + mark + disposition + head + data + b"\r\n" + mark + b"--\r\n"
    )  # fmt: skip


def upload(boundary: str, *of: Any, **more: Any) -> tuple[Any, ...]:
    """Return an upload; boundary and temporary name are noise, field, type, content and extension are not."""
    kind = (("content-type", f"multipart/form-data; boundary={boundary}"),)
    return "/v1/audio/transcriptions", form(boundary, *of, **more), kind


OF_NO_MATTER = (
    "user-agent",
    "traceparent",
    "x-request-id",
    "idempotency-key",
    "accept-encoding",
    "content-length",
    "host",
)
URL_ENCODED = (("content-type", "application/x-www-form-urlencoded"),)
TRACED = Rules(("$.trace",), (TextScrub(r"run \d+", "run N"),))


SAME = [
    ((CHAT, HI), (CHAT, {**HI, "stream": False})),
    ((CHAT, HI), (CHAT, {**HI, "temperature": None, "tools": [], "user": "u", "metadata": {"a": "b"}})),
    ((CHAT, HI), (CHAT, {**HI, "store": True, "service_tier": "flex", "prompt_cache_key": "k"})),
    ((CHAT, HI), (CHAT + "/", HI)),
    ((CHAT, HI), (CHAT, HI, (("authorization", "Bearer x"), ("x-stainless-retry-count", "1")))),
    ((CHAT, HI, (("OpenAI-Beta", "b,a"),)), (CHAT, HI, (("openai-beta", " A"), ("openai-beta", "B,a")))),
    (("/v1/messages", CLAUDE, ANTHROPIC), ("/v1/messages?beta=true", {**CLAUDE, "metadata": {"user_id": "1"}}, ANTHROPIC)),
    (("/v1/messages", {**CLAUDE, "system": [TEXT]}, ANTHROPIC), ("/v1/messages", {**CLAUDE, "system": BILLED}, ANTHROPIC)),
    ((GEMINI, PARTS), ("/v1beta/models/g:generateContent?key=x", {**PARTS, "generationConfig": {}, "tools": []})),
    ((GEMINI, PARTS), ("/models/g%3AgenerateContent", {**PARTS, "labels": {"a": "b"}})),
    ((CONVERSE, BEDROCK), (CONVERSE, {**BEDROCK, "inferenceConfig": {}, "requestMetadata": {"a": "b"}})),
    (("/model/a%3A1/converse", BEDROCK), ("/model/a:1/converse", BEDROCK)),
    (("/api/chat", HI), ("/api/chat", {**HI, "stream": True, "options": {}, "tools": []})),
    *((("/v1/responses", {"tools": [{"type": "mcp", "headers": {"Authorization": "Bearer a", "x-team": "c"}}]}),
       ("/v1/responses", {"tools": [{"type": "mcp", "headers": {name: "Bearer b", "x-team": "c"}}]}))
      for name in ("Authorization", "authorization", "X-API-Key")),
    (("/v1/models?a=1&b=2", b""), ("/v1/models?b=2&a=1", b"")),
    ((CHAT, HI), (CHAT, HI, tuple((name, "1") for name in OF_NO_MATTER))),
    (upload("b1", "tmp1.WAV", "audio/x-wav"), upload("b2", "other.wav", "Audio/X-Wav")),
    (("/v1/x", b"a=%41&b=1", URL_ENCODED), ("/v1/x", b"a=A&b=1", URL_ENCODED)),
    (("/v1/x", {"a": "run 1", "trace": 1}, (), {"rules": TRACED}), ("/v1/x", {"a": "run 2"}, (), {"rules": TRACED})),
    ((CHAT, {**HI, "trace": 1}, (), {"rules": TRACED}), (CHAT, HI, (), {"rules": TRACED})),
]  # fmt: skip
"""What cannot change the answer does not count, and what the user's rules leave out."""
OTHERS = [
    ((CHAT, HI), (CHAT, {**HI, "stream": True})),
    ((CHAT, {**HI, "stream": True}), (CHAT, {**HI, "stream": True, "stream_options": {"include_usage": True}})),
    ((CHAT, HI), (CHAT, {**HI, "seed": 0})),
    ((CHAT, {**HI, "seed": 2**53}), (CHAT, {**HI, "seed": 2**53 + 1})),
    ((CHAT, {**HI, "logprobs": True}), (CHAT, {**HI, "logprobs": 1})),
    ((CHAT, HI), ("/v1/responses", HI)),
    ((CHAT, HI), ("/groq/openai/v1/chat/completions", HI)),
    ((CHAT, HI), (CHAT, HI, (("openai-beta", "x"),))),
    ((CHAT, HI), (CHAT, {**HI, "messages": [{"role": "user", "content": "hi", "name": "user"}]})),
    (("/v1/messages", CLAUDE, ANTHROPIC), ("/v1/messages", CLAUDE, (("anthropic-version", "2026-10-21"),))),
    ((GEMINI, PARTS), ("/v1beta/models/h:generateContent", PARTS)),
    ((GEMINI, PARTS), ("/v1beta/models/g:streamGenerateContent?alt=sse", PARTS)),
    ((GEMINI, {**PARTS, "tools": [{"googleSearch": {}}]}), (GEMINI, {**PARTS, "tools": [{"codeExecution": {}}]})),
    (
        (CONVERSE, {**BEDROCK, "toolConfig": {"toolChoice": {"auto": {}}}}),
        (CONVERSE, {**BEDROCK, "toolConfig": {"toolChoice": {"any": {}}}}),
    ),
    (("/openai/deployments/a/chat/completions", HI), ("/openai/deployments/b/chat/completions", HI)),
    (
        ("/openai/deployments/a/chat/completions?api-version=1", HI),
        ("/openai/deployments/a/chat/completions?api-version=2", HI),
    ),
    (("/v1/files/file-1", b"", (), {"method": "GET"}), ("/v1/files/file-2", b"", (), {"method": "GET"})),
    (("/v1/unknown", {"user": "a"}), ("/v1/unknown", {"user": "b"})),
    (("/v1/unknown", {"a": None}), ("/v1/unknown", {})),
    (("/v1/unknown?beta=1", b""), ("/v1/unknown?beta=2", b"")),
    (("/openai/v1/unknown?key=a", b""), ("/openai/v1/unknown?key=b", b"")),
    ((CHAT, b"{broken"), (CHAT, b"{broken ")),
    ((CHAT, b'{"n":1,"n":2}'), (CHAT, b'{"n":2}')),
    ((CHAT, b""), (CHAT, b"{}")),
    ((CHAT, b"null"), (CHAT, b"")),
    (("/v1/x", b"a=A&b=1", URL_ENCODED), ("/v1/x", b"b=1&a=A", URL_ENCODED)),
    *((upload("b1", "tmp1.WAV", "audio/x-wav"), other) for other in (
        upload("b2", "other.wav", "application/octet-stream"), upload("b1", "tmp1.mp3", "audio/x-wav"),
        upload("b1", "tmp1.wav", "audio/x-wav", b"RIFF"), upload("b1", "tmp1.wav", "audio/x-wav", model="whisper-2"))),
]  # fmt: skip
"""A false hit is worse than a miss."""


@pytest.mark.parametrize(
    ("same", "one", "other"),
    [(same, *each) for same, table in ((True, SAME), (False, OTHERS)) for each in table],
    ids=str,
)
def test_a_key_counts_what_can_change_the_answer(same: bool, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Equal requests that are written differently share a key, different requests never do."""
    keys = [key(*case[:3], **(case[3] if len(case) > 3 else {})) for case in (one, other)]
    assert (keys[0] == keys[1]) is same


@given(
    st.binary(max_size=200),
    st.sampled_from(["", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]),
)
def test_no_body_is_an_error(body: bytes, content_type: str) -> None:
    """Whatever arrives gets a key, the same each time."""
    rules = Rules(("$..a",), (TextScrub("a", "b"),))
    one, again = (canonical(CHAT, body, (("content-type", content_type),), rules=rules) for _ in "12")
    assert one == again


def test_state_follows_the_interaction_that_made_it() -> None:
    """The same conversation recorded again has other ids and the same keys; another conversation has other keys."""

    def turn(made: str, name: str) -> Key:
        body = {"model": "m", "previous_response_id": name, "input": "and then?"}
        return key("/v1/responses", body, made_by=lambda asked: IdOrigin(Key(made), 1, 0) if asked == name else None)

    assert turn("v1:a", "resp_1") == turn("v1:a", "resp_2")
    assert turn("v1:a", "resp_1") != turn("v1:b", "resp_1")
    one, other = (key("/v1/responses", {"previous_response_id": f"resp_{n}"}) for n in (1, 2))
    assert one != other


def test_ids_in_the_path_follow_it_as_well() -> None:
    """And everything met is listed, so that nobody memoises what depends on the store."""

    def made_by(name: str) -> IdOrigin | None:
        return IdOrigin(Key("v1:a"), 1, int(name[-1])) if name.startswith("file-") else None

    one = canonical("/v1/files/file-1/content", method="GET", made_by=made_by)
    assert one.operation == "files/<v1:a 1 1>/content"
    assert one.refs == ("file-1",)
    assert one.operation != canonical("/v1/files/file-2/content", method="GET", made_by=made_by).operation
    assert canonical("/v1/files/file-1/content", method="GET").operation == "files/file-1/content"


def test_a_secret_in_an_unknown_path_is_not_in_the_operation() -> None:
    """The route is made before redaction; what is derived from it must not bring the secret back."""
    secret = "sk-proj-abcDEF0123456789ghiJKL456mnoPQR"
    where = route(f"/v1/own%20thing/{secret}", ())
    request = Redactor().request(Request("GET", where.target, (), b""))
    assert canonicalize_request(request, where, Rules(), lambda _: None).operation.startswith(
        "/v1/own thing/REDACTED-1x"
    )


def test_curls_default_header_makes_no_form_of_json() -> None:
    """It says that a body is a form, whatever it is."""
    assert canonical("/v1/chat/completions", HI, URL_ENCODED).kind == "json"


def test_canonicalising_twice_is_canonicalising_once() -> None:
    """The canonical body of a request has the key of the request."""
    once = canonical(CHAT, {**HI, "temperature": 1.0, "user": "u"})
    assert canonical(CHAT, once.body).body == once.body


Case = tuple[Request, RoutedRequest, dict[str, Any]]


@pytest.fixture(scope="module")
def real_bodies(real_requests: list[tuple[Request, RoutedRequest]]) -> list[Case]:
    """Return the real requests whose bodies are JSON objects, of operations that we know."""
    cases = []
    for request, where in real_requests:
        try:
            tree = parse_json_or_raise_if_lossy(request.body)
        except LossyJsonError:
            continue
        if where.known and isinstance(tree, dict):
            cases.append((request, where, tree))
    return cases


def derive(case: Case, tree: object, **style: Any) -> Key:
    request, where, _ = case
    data = json.dumps(tree, **style).encode("utf-8", "surrogatepass")
    sent = Request(request.method, where.target, request.headers, data)
    return build_key(canonicalize_request(sent, where, Rules(), lambda _: None))


def changed(tree: Any, path: tuple[Any, ...]) -> Any:
    copied = copy.deepcopy(tree)
    node = copied
    for step in path[:-1]:
        node = node[step]
    old = node[path[-1]]
    if isinstance(old, bool) or old is None:
        node[path[-1]] = 7
    elif isinstance(old, str):
        node[path[-1]] = old + " (changed)"
    else:
        node[path[-1]] = old + 1 if isinstance(old, (int, float)) else ["changed"]
    return copied


IGNORED = {*OPENAI_ACCOUNTING, "stream", "signature", "cache_control", "requestMetadata"}
NAMES = {"id", "call_id", "tool_call_id", "tool_use_id", "toolUseId"}


def test_any_other_leaf_is_another_key(real_bodies: list[Case]) -> None:
    """Every value of every real request counts, but for the table of what does not."""
    tried = 0
    for case in real_bodies:
        plain = derive(case, case[2])
        paths = [path for path in leaves(case[2]) if not (IGNORED & set(path)) and path[-1] not in NAMES]
        random.Random(0).shuffle(paths)
        for path in paths[:60]:
            assert derive(case, changed(case[2], path)) != plain, (case[1].operation, path)
            tried += 1
    assert tried > 1000


def turns(tree: dict[str, Any]) -> list[Any]:
    return next((tree[name] for name in ("messages", "input", "contents") if isinstance(tree.get(name), list)), [])


def test_another_conversation_is_another_key(real_bodies: list[Case]) -> None:
    """Drop a turn, swap two that differ, rename a tool, change the temperature."""
    count: Counter[str] = Counter()
    for case in real_bodies:
        plain = derive(case, case[2])
        for index in range(len(turns(case[2]))):
            tree = copy.deepcopy(case[2])
            del turns(tree)[index]
            assert derive(case, tree) != plain
            count["turns dropped"] += 1
        for index in range(len(turns(case[2])) - 1):
            tree = copy.deepcopy(case[2])
            pair = turns(tree)
            pair[index : index + 2] = pair[index + 1], pair[index]
            if pair[index] != pair[index + 1]:
                assert derive(case, tree) != plain
                count["turns swapped"] += 1
        for tool in range(len(case[2].get("tools") or ())):
            entry = (tree := copy.deepcopy(case[2]))["tools"][tool]
            named = entry.get("function", entry)
            if isinstance(named, dict) and "name" in named:
                named["name"] += "_"
                assert derive(case, tree) != plain
                count["tools renamed"] += 1
        assert derive(case, {**case[2], "temperature": 0.123}) != plain
        count["temperatures changed"] += 1
    assert min(count.values()) > 10


def reordered(node: Any, chance: random.Random) -> Any:
    """Return the value with the members of every object in another order and integers as floats."""
    if isinstance(node, dict):
        names = list(node)
        chance.shuffle(names)
        return {name: reordered(node[name], chance) for name in names}
    if isinstance(node, list):
        return [reordered(child, chance) for child in node]
    return float(node) if isinstance(node, int) and not isinstance(node, bool) and abs(node) < 2**53 else node


def renumbered(node: Any, names: dict[str, str]) -> Any:
    """Return the value with every id of a call renamed consistently."""
    if isinstance(node, dict):
        return {
            name: names.get(child, child) if name in NAMES and isinstance(child, str) else renumbered(child, names)
            for name, child in node.items()
        }
    return [renumbered(child, names) for child in node] if isinstance(node, list) else node


def declared(tree: dict[str, Any]) -> dict[str, str]:
    """Return new names for the calls that a request declares."""
    found: dict[str, str] = {}
    for turn in turns(tree):
        if not isinstance(turn, dict):
            continue
        content = turn.get("content")
        for call in (*(turn.get("tool_calls") or ()), *(content if isinstance(content, list) else ()), turn):
            if call.get("type") in ("function", "tool_use", "function_call"):
                name = call.get("call_id") or call.get("id")
                if isinstance(name, str):
                    found[name] = f"renamed_{len(found)}_{name[::-1]}"
    return found


def test_the_same_written_differently_is_the_same_key(real_bodies: list[Case]) -> None:
    """Order of members, white space, escapes, 1.0 for 1, other ids of calls; and normalising twice."""
    count: Counter[str] = Counter()
    chance = random.Random(1)
    for case in real_bodies:
        request, where, tree = case
        plain = build_key(canonicalize_request(request, where, Rules(), lambda _: None))
        assert derive(case, reordered(tree, chance), indent=1) == plain
        assert derive(case, tree, ensure_ascii=False, separators=(",", ":")) == plain
        names = declared(tree)
        assert derive(case, renumbered(tree, names)) == plain, where.operation
        count["ids of calls renamed"] += len(names)
        count["requests"] += 1
        once = canonicalize_request(request, where, Rules(), lambda _: None)
        if not once.stream:  # the flag went into a part of its own
            again = Request(request.method, where.target, (), once.body)
            assert canonicalize_request(again, where, Rules(), lambda _: None).body == once.body
            count["normalised twice"] += 1
    assert min(count.values()) > 10


NONE = CredentialEpoch()
KNOWN = CachedKeyEntry(Key("v1:1"), "gpt-4o", stream=False)
PLAIN = ("openai", "POST", "/v1/chat/completions", (("content-type", "application/json"),), b"{}")


def test_everything_that_the_key_depends_on_is_in_the_digest() -> None:
    """Another provider, method, target, counted header or body is another digest; any other header is not."""
    memory = RequestKeyCache()
    provider, method, target, headers, body = PLAIN

    def digest(provider: str, method: str, target: str, headers: Headers, body: bytes) -> bytes:
        return memory.digest_unnormalized_request(
            memory.encode_request_head(provider, method, target, headers, known=True), body
        )

    plain = digest(*PLAIN)
    changed = [
        ("groq", method, target, headers, body),
        (provider, "GET", target, headers, body),
        (provider, method, "/v1/other", headers, body),
        (provider, method, target, (("content-type", "text/plain"),), body),
        (provider, method, target, (*headers, ("content-encoding", "gzip")), body),
        (provider, method, target, (*headers, ("OpenAI-Beta", "x")), body),
        (provider, method, target, headers, b"{ }"),
    ]
    digests = {digest(*each) for each in changed}
    assert len(digests) == len(changed)
    assert plain not in digests
    assert digest(provider, method, target, (*headers, ("user-agent", "x")), body) == plain


@pytest.mark.parametrize("size", [0, 1, 5_000, WORTH_A_SWITCH - 1, WORTH_A_SWITCH, WORTH_A_SWITCH + 1])
def test_a_body_counts_to_its_last_byte(size: int) -> None:
    """However it is fed to the hash, the digest is that of the whole."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert RequestKeyCache.digest_unnormalized_request(b"head", body) == hashlib.sha256(b"head" + body).digest()


def test_a_new_credential_forgets_what_it_may_change() -> None:
    """What was derived before did not know that this is a secret; where it is known to stand nowhere in it nothing changed."""
    memory, learned = RequestKeyCache(), CredentialEpoch()
    learned.record_searched_text("a text with token0123456789abcdef in it")
    noted = replace(KNOWN, noted=True)
    memory.remember(b"1", KNOWN, learned)
    memory.remember(b"2", noted, learned)
    assert memory.get_known(b"1", learned) is KNOWN
    learned.count_new_credential(choose_encoded_secret_substrings("another0123456789fedcba"))
    assert memory.get_known(b"1", learned) is None
    assert memory.get_known(b"2", learned) is noted
    learned.count_new_credential(choose_encoded_secret_substrings("token0123456789abcdef"))
    assert memory.get_known(b"2", learned) is None
    assert len(memory) == 0


def test_requests_that_name_server_state_are_not_remembered() -> None:
    """What they mean depends on what the store holds by then."""
    memory = RequestKeyCache()
    memory.remember(b"1", CachedKeyEntry(Key("v1:1"), None, stream=False, refs=("resp_1",)), NONE)
    assert memory.get_known(b"1", NONE) is None


def test_the_memory_is_bounded_and_keeps_what_is_used() -> None:
    """A long run does not grow for ever; what was asked for lately stays."""
    memory = RequestKeyCache()
    for n in range(REMEMBERED_KEYS):
        memory.remember(n.to_bytes(4), KNOWN, NONE)
    assert memory.get_known((0).to_bytes(4), NONE) is KNOWN
    memory.remember(b"one more", KNOWN, NONE)
    assert len(memory) == REMEMBERED_KEYS
    assert memory.get_known((0).to_bytes(4), NONE) is KNOWN
    assert memory.get_known((1).to_bytes(4), NONE) is None
