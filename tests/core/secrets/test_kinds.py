"""Names are recognised by what they name; tables are whole."""

from __future__ import annotations

import base64
import json
import random
import re

import pytest

from llmproxy.core.secrets.encoded_secret_redaction import replace_spans
from llmproxy.core.secrets.entropy import (
    has_alphanumeric_run,
    is_high_entropy_text,
    is_made_of_words,
    is_real_password,
    measure_entropy,
)
from llmproxy.core.secrets.find_secrets import CREDENTIAL, detect_secrets_by_pattern, merge_spans
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.secrets.secret_kinds import (
    ANSWER_HEADER,
    CREDENTIAL_HEADER,
    KINDS,
    PATTERNS,
    SECRET_HEADER,
    compile_secret_template,
    is_credential_parameter,
    is_secret_member,
)
from llmproxy.core.traffic.interaction import Headers, Request

from .corpus import find_changes, list_files
from .examples import NAMED, STANDING, drawn, drawn_key, secret_of


def test_every_kind_is_found_wherever_it_stands() -> None:
    """In a sentence, in quotes, after an escape or a colour; not at the end of a word."""
    for kind in KINDS:
        key = drawn_key(kind)
        assert compile_secret_template(kind.template).match(key)
        for text in (key, f" {key} ", f'"{key}"', f"x\\n{key}\\n", f"\x1b[32m{key}\x1b[0m", f"key%3D{key}"):
            left = replace_spans(text, merge_spans(detect_secrets_by_pattern(text)), lambda _secret, _kind: "")
            assert key not in left, (kind, text)
        assert kind.length_before_needle or all(start > 4 for start, _, _ in detect_secrets_by_pattern(f"word{key}")), (
            kind
        )


@pytest.mark.parametrize("name", STANDING)
def test_what_stands_behind_a_sign_is_found(name: str) -> None:
    """And every row of the table has an example."""
    text = STANDING[name]
    assert secret_of(text) in "".join(text[start:end] for start, end, _ in detect_secrets_by_pattern(text))
    shown = {name.partition(",")[0] for name in (*STANDING, *NAMED, "private key", "url password")}
    assert {pattern.name for pattern in PATTERNS} <= shown | {"form field", "credential"}


def test_an_example_of_documentation_is_no_key() -> None:
    """The same letter all the way, as people write it."""
    for kind in KINDS:
        same = re.compile(r"<([a-z]+?)(\d+)\+?>")
        text = same.sub(lambda match: ("0" if match[1] in ("digit", "hex") else "x") * 40, kind.template)
        assert detect_secrets_by_pattern(text) == [], text


def test_words_and_lots_are_told_apart() -> None:
    """Names, models and files are words; what mixes letters and digits is not."""
    words = (
        "assistant tenant-acme-corp tenant42 myAssistant lm-studio correct-horse-battery 2024-10-21-preview README.md"
    )
    assert [word for word in words.split() if not is_made_of_words(word)] == []
    for lot in ("passw0rd", "hjkqwpzmxnvbhjkqwpzmxnvb", "0a1b2c3d4e5f", "Zq8T6VWM2BN5"):
        assert not is_made_of_words(lot)
    assert measure_entropy("aaaa") == 0
    assert measure_entropy("abcd") == 2
    assert is_high_entropy_text("aB3dE5fG7hJ9")
    assert not is_high_entropy_text("your-own-key-123")
    assert has_alphanumeric_run("x-0123456789abc-y")
    assert not has_alphanumeric_run("classification-report-for-2023")
    assert is_real_password("s3cr3t")
    assert not is_real_password("postgres", "postgres")
    dummies = ("password", "${DB_PASS}", "<pass>", "$PASS", "****", "xxx", "{{ password }}")
    assert not any(map(is_real_password, dummies))


@pytest.mark.parametrize(("name", "hidden"), [
    ("x-auth-token", True), ("x-amz-security-token", True), ("x-vault-token", True), ("authorization", True),
    ("x-api-key", True),
    ("x-refresh-token", True), ("x-csrf-token", True), ("set-cookie", True), ("x-secret", True), ("token", True),
    ("x-ratelimit-remaining-tokens", False), ("x-next-page-token", False), ("x-ms-continuation-token", False),
    ("surrogate-key", False),
    ("access-control-allow-credentials", False), ("www-authenticate", False), ("mcp-session-id", False),
    ("x-request-id", False), ("etag", False),
])  # fmt: skip
def test_fields_of_answers_by_name(name: str, hidden: object) -> None:
    """Credentials are hidden; counts, pages and ids stay."""
    assert bool(ANSWER_HEADER.search(name)) is hidden


@pytest.mark.parametrize(("name", "secret", "learned"), [
    ("authorization", True, True), ("proxy-authorization", True, True), ("x-api-key", True, True),
    ("api-key", True, True), ("x-goog-api-key", True, True), ("x-amz-security-token", True, True),
    ("cookie", True, True), ("x-llmproxy-token", True, True), ("openai-organization", True, False),
    ("idempotency-key", True, False), ("session_id", True, False), ("anthropic-version", False, False),
    ("anthropic-beta", False, False), ("openai-beta", False, False), ("content-type", False, False),
    ("x-stainless-retry-count", False, False), ("user-agent", False, False), ("x-author", False, False),
    ("keep-alive", False, False),
    *((name, True, True) for name in (
        "ocp-apim-subscription-key", "api_key", "x-auth-key", "x-functions-key", "access-key", "x-auth", "x-key",
        "x-authorization", "key", "x-db-pwd", "x-pass", "pwd", "x-passphrase", "x-jwt", "x-pat", "x-bearer")),
    *((name, True, False) for name in (
        "x-tokenizer", "x-max-tokens", "x-auth-user", "x-cache-key", "sec-websocket-key", "x-partition-key")),
    ("x-path", False, False), ("x-compass", False, False), ("x-monkey", False, False),
])  # fmt: skip
def test_header_fields_by_name(name: str, secret: object, learned: object) -> None:
    """What is hidden, and what is worth knowing again elsewhere."""
    assert bool(SECRET_HEADER.search(name)) is secret
    assert bool(CREDENTIAL_HEADER.search(name)) is learned


def test_members_by_name() -> None:
    """A page token is content, a key is not; in JSON the value must look like a key as well."""
    assert is_credential_parameter("api_key", "short")
    assert is_credential_parameter("X-Amz-Signature", "a")
    assert is_credential_parameter("key", "x1" * 20)
    assert not is_credential_parameter("key", "name")
    assert not is_credential_parameter("key", "path/to/an/object-1.txt")
    assert not is_credential_parameter("page", "x" * 39)
    assert is_secret_member("Authorization", "Bearer abcdef0123456789")
    assert is_secret_member("x-api-key", "abcdef0123456789")
    assert not is_secret_member("authorization", "required for all users")
    assert not is_secret_member("api_key", "YOUR_API_KEY_HERE")
    assert not is_secret_member("cache_key", "abcdef0123456789")


LOGINS = [base64.b64encode(f"user:pa55word-{n}".encode()).decode() for n in (1, 2)]


@pytest.mark.parametrize("pair", [
    [f"eyJhbGciOiJIUzI1NiJ9.{drawn('<word30>', n)}.{drawn('<word43>', 3)}" for n in (1, 2)],
    *([form.format(drawn("<alnum32>", n)) for n in (1, 2)]
      for form in ("Bearer {}", "https://bot:{}@x.org/y", 'curl -H "x-api-key: {}" x.org', "curl -u bot:{} x.org")),
    [f"Authorization: Basic {each}" for each in LOGINS],
])  # fmt: skip
def test_what_only_its_place_shows_is_told_apart(pair: list[str]) -> None:
    """Only keys with the format of a service are one question with another's."""
    assert len({kept(text) for text in pair}) == 2


PAIRS = 600


def kept(text: str, headers: Headers = ()) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    redactor = Redactor()
    redactor.learn_request(headers, "/")
    return redactor.request(Request("POST", "/v1/chat/completions", headers, body)).body


def test_a_question_about_a_secret_is_not_answered_with_that_about_another() -> None:
    """Two kinds, a kind and a named value, two named values: 600 pairs drawn by lot, none is one question."""
    chance = random.Random(36)
    served = []
    named = [*NAMED]
    for number in range(PAIRS):
        one, other = chance.sample(KINDS, 2)
        name = chance.choice(named)
        text, secret = NAMED[name]
        another = text.replace(secret, drawn("<alnum32>", 1000 + number))
        kind = f"Who issued this key: {drawn_key(one)}?"
        pairs = {
            f"{one.name} and {other.name}": (
                kind, f"Who issued this key: {drawn_key(other)}?", one.label == other.label,
            ),
            f"{one.name} and {name}": (kind, f"Who issued this key: {text}?", False),
            f"{name}": (f"What is this: {text}", f"What is this: {another}", False),
        }  # fmt: skip
        served += [what for what, (first, second, same) in pairs.items() if not same and kept(first) == kept(second)]
    assert served == []


@pytest.mark.parametrize("place", ["arguments", "input", "member", "query", "base64"])
def test_named_values_are_told_apart_wherever_they_stand(place: str) -> None:
    """In a tool's arguments, in a member of the body, in the query, in a file's data."""

    def asked(secret: str) -> tuple[str, bytes]:
        line = f"SMTP_PASSWORD={secret}"
        bodies = {
            "arguments": json.dumps({"arguments": json.dumps({"api_key": secret})}),
            "input": json.dumps({"input": dict.fromkeys(("authorization", "bearer_token", "x-api-key"), secret)}),
            "member": json.dumps({"client_secret": secret, "password": secret}),
            "query": "",
            "base64": json.dumps({"file_data": base64.b64encode(f"HOST=mail\n{line}\nPORT=25\n".encode()).decode()}),
        }
        target = f"/v1/x?pwd={secret}" if place == "query" else "/v1/x"
        out = Redactor().request(Request("POST", target, (), bodies[place].encode()))
        assert secret.encode() not in out.target.encode() + out.body
        return out.target, out.body

    asked_before = [asked(drawn("<alnum20>", seed)) for seed in range(60)]
    assert len(set(asked_before)) == len(asked_before)


def test_who_asks_does_not_count() -> None:
    """The caller's own credential in the body, and two keys of one kind, are one question with another's."""
    keys = [drawn("sk-proj-<word40>", seed) for seed in (1, 2)] + ["my-dummy-key-99x"]
    own = {kept(f"I am {key}", (("authorization", f"Bearer {key}"),)) for key in keys}
    assert len(own) == 1, own
    assert CREDENTIAL.encode()[:2] in own.pop()
    assert len({kept(f"use {key}") for key in keys[:2]}) == 1


def test_what_an_answer_had_is_asked_as_the_secret_itself() -> None:
    """Kind or fingerprint stand in the answer's placeholder: whoever echoes it gets the recorded answer."""
    redactor = Redactor()
    for text in (drawn_key(KINDS[0]), f"db_password: {drawn('<alnum32>')}", f"token={drawn('<hex40>')}"):
        answer = redactor.redact_answer_body(json.dumps({"content": text}).encode())
        assert kept(json.loads(answer)["content"]) == kept(text), answer


KEY_LINE = drawn("<base6464>")
ENCRYPTED = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF0123456789ABCDEF\n\n"


@pytest.mark.parametrize("key", [
    "", f"{KEY_LINE}\n{KEY_LINE}", f"{KEY_LINE}\n{KEY_LINE[:30]}", f"{ENCRYPTED}{KEY_LINE}\n{KEY_LINE}",
    json.dumps(f"{KEY_LINE}\n{KEY_LINE}\n")[1:-1], f"> {KEY_LINE}\n> {KEY_LINE}",
    f"{KEY_LINE}\n{KEY_LINE[:30]}\n-----END PRIVATE KEY-----",
])  # fmt: skip
@pytest.mark.parametrize(
    "behind", ["\nWhy is the sky blue: one line, please, and then tell me more about it.", '"}\nExplain']
)
def test_prose_behind_a_private_key_stays(key: str, behind: str) -> None:
    """The key need not have its last line; and without a key, the first line says nothing."""
    text = json.loads(kept(f"-----BEGIN PRIVATE KEY-----\n{key}{behind}"))["messages"][0]["content"]
    assert text.endswith(behind)
    assert KEY_LINE[:30] not in text


SAMPLE = 400
"""Files, by a hash of their names: some seconds."""


def test_files_of_others_are_not_damaged() -> None:
    """Of the standard library, of installed packages and recorded traffic only keys change that are named."""
    files = list_files()
    assert [(str(path), found) for path in files[:SAMPLE] for found in find_changes(path)] == []
    assert len(files) > 2 * SAMPLE
