"""No credential ever gets into what is stored, and nothing else is touched."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import struct
import time
import zlib
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.providers.routing import RoutedRequest
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Chunk, Headers, Request, Response

CANARY = "kx7-Canary-Gateway-0123456789"
SK = "sk-proj-abcDEF0123456789ghiJKL456mnoPQR"
SK2 = "sk-ant-api03-zzzDEF0123456789ghiJKL456mnoPQR"
AUTH: Headers = (("Authorization", f"Bearer {CANARY}"),)


def redacted(
    body: bytes | str, headers: Headers = (), target: str = "/v1/x", names: frozenset[str] = frozenset()
) -> Request:
    """Redact one request with a fresh redactor that saw its headers."""
    redactor = Redactor()
    redactor.learn_request(headers, target, names)
    out = redactor.request(Request("POST", target, headers, body.encode() if isinstance(body, str) else body), names)
    assert redactor.request(out, names) == out, "redacting twice changes nothing"
    return out


def answered(data: list[bytes], *, learn: Headers = AUTH, headers: Headers = ()) -> tuple[Response, bool]:
    redactor = Redactor()
    redactor.learn_request(learn, "/")
    chunks = tuple(Chunk(index * 10, piece) for index, piece in enumerate(data))
    out, flagged = redactor.redact_response(Response(200, "OK", headers, chunks))
    assert [(c.offset, len(c.data)) for c in out.chunks] == [(c.offset, len(c.data)) for c in chunks]
    return out, flagged


CARRIERS: dict[str, Callable[[str], str]] = {
    "plain": lambda s: f"say {s}!",
    "json": lambda s: json.dumps({"messages": [{"content": f"key: {s}\nend"}]}),
    "json line": lambda s: json.dumps({"a": 1}) + "\n" + json.dumps({"b": f"\n{s}"}),
    "after ascii-escaped text": lambda s: json.dumps({"a": "密钥" + s, "b": json.dumps({"c": "钥" + s})}),
    "json name": lambda s: json.dumps({s: 1}),
    "ascii escapes": lambda s: '{"a":"' + "".join(f"\\u{ord(char):04x}" for char in s) + '"}',
    "nested": lambda s: json.dumps({"arguments": json.dumps({"k": f"\n{s}", "deep": json.dumps({"k": f"\t{s}"})})}),
    "nested escapes": lambda s: json.dumps({"arguments": f'{{"k":"\\u{ord(s[0]):04x}{s[1:]}"}}'}),
    "broken json": lambda s: '{"a": "' + s,
    "text before json": lambda s: f'hello {s} {{"a": "{s}"}}',
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("secret", [CANARY, SK])
def test_a_secret_is_found_however_it_is_written(carrier: str, secret: str) -> None:
    """In text, JSON, escapes, JSON within JSON."""
    out = redacted(CARRIERS[carrier](secret), AUTH)
    assert secret.encode() not in out.body
    assert secret[8:].encode() not in out.body
    assert b"REDACTED-1" in out.body
    if carrier in ("json", "json name", "ascii escapes", "nested", "nested escapes"):
        assert json.loads(out.body), "it is JSON as before"


BASIC = base64.b64encode(b"user:correct-horse-battery").decode()
TWO_KEYS = json.dumps({"a": f"{SK} {SK2} {SK}"})
NUMBERED = b'{"a": "[REDACTED-1:openai-project] [REDACTED-2:anthropic] [REDACTED-1:openai-project]"}'
TIDY = '{"z":1.0, "a" : "\\u0041", "big":12345678901234567890.5,"k":"' + SK + '", "k":"dup"}'
PART, BINARY = b'--b\r\nContent-Disposition: form-data; name="', bytes(range(256)) * 4
PARTS = PART + b'client_secret"\r\n\r\nhush\r\n' + PART + b'a"\r\n\r\n' + SK.encode() + b"\r\n"
PARTS += PART + b'f"; filename="x"\r\n\r\n' + BINARY + b"\r\n--b--\r\n"


@pytest.mark.parametrize(("body", "headers", "stored"), [
    pytest.param(TWO_KEYS, (), NUMBERED, id="numbered by first appearance, and never merged"),
    pytest.param(TWO_KEYS, AUTH, NUMBERED, id="whatever key was used to send the request"),
    pytest.param('{"a": "[REDACTED-1] ' + SK + '"}', (), b'{"a": "[REDACTED-1] [REDACTED-2:openai-project]"}', id="a number is taken once"),
    pytest.param(TIDY, (), TIDY.replace(SK, "[REDACTED-1:openai-project]").encode(), id="numbers, order, white space and other strings stay"),
    pytest.param(f"{BASIC} correct-horse-battery user", (("authorization", f"Basic {BASIC}"),),
                 b"[REDACTED-1:credential] [REDACTED-2:credential] user", id="basic credentials as they are sent, and the password alone"),
    pytest.param("passw0rd passw0rds", (("api-key", "passw0rd"),), b"[REDACTED-1:credential] passw0rds", id="a short one only as a word"),
    pytest.param(f"x{CANARY}x", AUTH, b"x[REDACTED-1:credential]x", id="a long one within words"),
    *(pytest.param(f"about {dummy}", (("authorization", f"Bearer {dummy}"),), f"about {dummy}".encode(), id=f"a dummy nowhere: {dummy}")
      for dummy in ("test", "lm-studio", "not-needed")),
    pytest.param(b"\xff\xfe " + SK.encode() + b" \xff", (), b"\xff\xfe [REDACTED-1:openai-project] \xff", id="bytes of no charset"),
    pytest.param(f"a=%41+b&client_secret=hush&note={quote('x ' + SK)}", (("content-type", "application/x-www-form-urlencoded"),),
                 b"a=%41+b&client_secret=REDACTED-1:credential&note=x%20REDACTED-2:openai-project", id="a form, by name and shape"),
    pytest.param(PARTS, (("content-type", "multipart/form-data; boundary=b"),),
                 PARTS.replace(b"hush", b"[REDACTED-1:credential]").replace(SK.encode(), b"[REDACTED-2:openai-project]"),
                 id="a form in parts, by name and shape"),
])  # fmt: skip
def test_what_is_stored_of_a_body(body: bytes | str, headers: Headers, stored: bytes) -> None:
    """Keys and the credentials of the headers are out, and everything else stays as it is."""
    assert redacted(body, headers).body == stored


def test_a_header_seen_before_is_looked_at_again_when_more_is_known() -> None:
    """A value that held no secret, of a request or an answer, is remembered until the next credential is learned."""
    redactor, fields = Redactor(), (("x-trace", f"by {CANARY}"),)
    request, response = Request("POST", "/v1/x", fields, b""), Response(200, "OK", fields, ())
    for _ in range(2):
        assert redactor.request(request) is request
        assert redactor.redact_response(response)[1] is False
    redactor.learn_request(AUTH, "/")
    for _ in range(2):
        assert CANARY not in redactor.request(request).headers[0][1]
        seen, overwritten = redactor.redact_response(response)
        assert (CANARY in seen.headers[0][1], overwritten) == (False, True)


def test_what_holds_no_secret_is_the_same_object() -> None:
    """Bytes of a body are never rewritten for nothing."""
    body = b'{"b" :1.0, "a":"\\u0041\\/", "token":"next-page-0123456789"}'
    request = Request("POST", "/v1/x?a=%20b", (("accept", "x"),), body)
    assert Redactor().request(request) is request


def test_credentials_of_headers_and_of_the_providers_row_do_not_count() -> None:
    """A request recorded with one key equals one replayed with another, or with a dummy."""
    headers: Headers = (
        ("Authorization", "Bearer a"), ("x-api-key", "b"), ("Cookie", "c=d"), ("X-Amz-Security-Token", "e"),
        ("OpenAI-Organization", "org-f"), ("accept", f"x {SK}"), ("anthropic-version", "2023-06-01"),
    )  # fmt: skip
    out = redacted(b"", headers, f"/v1/x?key={SK}&a=%41&other=1", names=frozenset({"key"}))
    assert [value for _, value in out.headers] == [*["[REDACTED]"] * 5, "x [REDACTED:credential]", "2023-06-01"]
    assert out.target == "/v1/x?key=REDACTED&a=%41&other=1"


def test_what_looks_secret_elsewhere_in_a_url_says_which_it_is() -> None:
    """It may be what is asked for: never stored, never dropped, and two of them are never one."""
    for name in ("key", "token", "signature", "sig", "code", "password", "X-Amz-Signature", "api_key"):
        one, other = (redacted(b"", (), f"/v1/x?{name}=invoice-2026-{n:06}").target for n in (1, 2))
        assert "invoice" not in one
        assert one != other
    assert redacted(b"", (), "/v1/x?token=page2&code=404").target == "/v1/x?token=page2&code=404"
    one, other = (redacted(b"", (), f"/v1/{quote(key)}/x?q={quote(key)}").target for key in (SK, SK2))
    assert SK not in one
    assert one != other
    assert redacted(b"", (), f"/v1/{SK}/x").target == redacted(b"", (), f"/v1/{SK}/x").target


@pytest.mark.parametrize("query", ["{}", "{}=", "{}=1", "key={}", "a=1&{}&b=2", "note={}"])
def test_a_learned_credential_in_base64_is_redacted_wherever_it_stands_in_a_query(query: str) -> None:
    """Its padding is no sign of a member."""
    secret = base64.b64encode(CANARY[:19].encode()).decode()
    headers, form = (("x-api-key", secret),), (("content-type", "application/x-www-form-urlencoded"),)
    for written in (secret, quote(secret, safe="")):
        asked = query.format(written)
        if query[:3] != "{}=" or "%" in written:
            kept = redacted(asked, headers + form, f"/v1/x?{asked}")
            assert secret[:-4] not in kept.target + kept.body.decode()


@pytest.mark.parametrize("password", ['Xq7"Zp9\\Kd3vBw8L', 'Xq7"Zp9w', "Zürich-Xq7Zp9Kd3vBw8L", 'Ü"9\\Kd3vBw8LXq7Zp9'])
def test_a_learned_password_is_found_however_it_is_escaped(password: str) -> None:
    """With quotes, backslashes and letters outside ASCII, in JSON in JSON; in hexadecimal of either case."""
    redactor, said = Redactor(), f"is {password} now"
    redactor.learn_request((("authorization", f"Basic {base64.b64encode(f'bob:{password}'.encode()).decode()}"),), "/")
    for ascii_only in (True, False):
        write = partial(json.dumps, ensure_ascii=ascii_only)
        bodies = [write({"m": said}), write({"m": write({"n": said})}), write({"m": write({"n": write({"o": said})})})]
        if len(password) >= 16:
            bodies += [password.encode().hex(), password.encode().hex().upper()]
        for body in bodies:
            request = Request("POST", "/", (), body.encode())
            kept, answer = redactor.request(request), redactor.redact_answer_body(body.encode())
            assert redactor.request(kept) == kept
            assert len(answer) == len(body.encode())
            for text in (kept.body.decode(), answer.decode()):
                assert "REDACTED" in text or "REDACTE*" in text
                assert password[-4:] not in text
                assert not body.startswith("{") or json.loads(text)


def test_what_is_no_credential_is_not_looked_for_in_answers() -> None:
    """A page's token that comes back in the answer stays in it."""
    redactor = Redactor()
    redactor.learn_request((), "/v1/x?token=invoice-2026-000001&code=invoice-2026-000002&sig=invoice-2026-000003")
    assert redactor.epoch.count == 0
    for count, name in enumerate(("api_key", "auth_token", "secret", "password"), 1):
        redactor.learn_request((), f"/v1/x?{name}=abcdef0123456789abcdef{count}", frozenset())
        assert redactor.epoch.count == count


def test_json_members_named_like_credentials_are_hidden() -> None:
    """An MCP server's authorization in a request's tools; the rules of the key say where such a member counts."""
    tool = {"type": "mcp", "authorization": "abcdef-0123456789", "headers": {"X-Api-Key": "0123456789abcdefghij"}}
    body = redacted(json.dumps({"tools": [tool]})).body.decode()
    assert re.sub(r"x\w{12}", "x", body) == json.dumps(
        {"tools": [tool | {"authorization": "[REDACTED-1x]", "headers": {"X-Api-Key": "[REDACTED-2x]"}}]}
    )
    nested = json.dumps({"arguments": json.dumps({"api_key": "0123456789abcdefghij"})})
    assert b"0123456789abcdefghij" not in redacted(nested).body


def test_a_placeholder_of_an_answer_counts_like_the_secret() -> None:
    """In replay the client echoes the placeholder where it echoed the secret when recording."""
    out, flagged = answered([f'{{"x":"{SK}"}}'.encode()])
    assert flagged
    assert redacted(json.dumps({"x": json.loads(out.body)["x"]})).body == redacted(json.dumps({"x": SK})).body


LINKS = {
    "S3": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ASIAQWERTYUIOPASDFGH%2F20261123%2Feu%2Fs3%2Faws4_request"
    "&X-Amz-Date=20261123T000001Z&X-Amz-Security-Token=IQoJb3JpZ2luX2VjEJH0aCXVzLWVhc3Q&X-Amz-Signature="
    + hashlib.sha256(b"a").hexdigest(),
    "Azure": "se=2026-11-23T04%3A12%3A00Z&sp=r&sr=b&sig=Vv58mj4%2BATLREe6tSrTp5F15YCxM47W3Mp0dP6EzceY%3D",
    "Google": "X-Goog-Credential=a%40b.iam.gserviceaccount.com%2F20261123&X-Goog-Signature="
    + hashlib.sha512(b"b").hexdigest(),
    "CloudFront": "Expires=1795000000&"
    "Signature=EF3bIUyFg_xvrsK59g5P3nUax~qGvfALvgt-oExD9DA__&Key-Pair-Id=KC55C88D6CC97E",
    "a token": "file=7&token=7Eznv8_wBtF3kzRCUzgwMpsKSt1ibhaP4fONAzDLpQo",
    "a key that is known": f"page=2&of={CANARY}",
}
QUOTED: dict[str, Callable[[str], tuple[bytes, Headers]]] = {
    "JSON": lambda link: (json.dumps({"url": link}).encode(), ()),
    "JSON of Go": lambda link: (json.dumps({"url": link}).replace("&", "\\u0026").encode(), ()),
    "JSON with slashes": lambda link: (json.dumps({"url": link}).replace("/", "\\/").encode(), ()),
    "XML": lambda link: (f"<Url>{link.replace('&', '&amp;')}</Url>".encode(), ()),
    "text": lambda link: (f"It is at {link} today.".encode(), ()),
    "a redirect": lambda link: (b"", (("location", link),)),
}


PASSWORD = "s3cret-PW9"
BARE = [
    "/user:{}@gw.example.com/v1/chat/completions", "/user:{}@gateway:4000/v1", "//user:{}@gateway/v1",
    "/:{}@gw.example.com/v1",
    "/https:/user:{}@gw.example.com/v1", "/nobody/knows/user:{}@localhost/v1", "/user%3A{}%40gw.example.com/v1",
    "/user:{}@[::1]:80/v1",
    "/user:{}@10.0.0.7", "/v1/x?proxy=user:{}@proxy.example.com:8080", "/v1/x?a=1&to=user%3A{}%40gw.example.com",
    "/a:b{}@gw.example.com/", "/nobody/knows/user:{}Zq8Lr3Xw@db:5432/v1",
]  # fmt: skip
"""A base URL that lost its scheme on the way into a path or a query."""


@pytest.mark.parametrize("target", BARE)
def test_a_password_before_a_host_without_a_scheme_is_not_kept(target: str) -> None:
    """Its fingerprint stays, so that two of them are two requests; the line that is printed holds neither."""
    one, other = (redacted("", target=target.format(quote(secret))).target for secret in (PASSWORD, "an-Other8"))
    printed = Redactor().text(f"llmproxy: no provider is known for the path {unquote(target.format(PASSWORD))}")
    assert PASSWORD not in one + Redactor().redact_target(target.format(PASSWORD))
    assert "?" in target or PASSWORD not in printed
    assert "REDACTED-1x" in one
    assert one != other


@pytest.mark.parametrize(
    "text", ["suite:create@v2-ab12cd34", "a/create:openai@v2.ab12", "see contact:me@example.com", "create:0f3a9c@x.db"]
)
def test_a_name_that_looks_like_a_password_before_a_host_is_printed(text: str) -> None:
    """Reports name recordings so, and a name that was hidden is found no more."""
    assert Redactor().text(text) == text


@pytest.mark.parametrize("target", [
    "/mailto:bob@example.com", "/v1/x?resource=acct:bob@example.com", "/models/claude-3@20240620:rawPredict",
    "/v2/llama3:8bit@sha256:abc", "/v2/app:3fa85f645717x9@sha256:abc", "/v1/x/npm:@scope/x", "/v1/name:v1.2-rc4@stage",
    "/v2/name:tag@digest/x", "/user:password@localhost/x", "/v1/x?at=12:30@noon", "/a@b.org/c:d",
])  # fmt: skip
def test_what_is_no_password_before_a_host_stays(target: str) -> None:
    """Addresses, versions and digests of models, and what documentation writes."""
    assert redacted("", target=target).target == target


def link_in(answer: Response) -> str:
    text = answer.headers[0][1] if answer.headers else answer.body.decode()
    text = text.replace("\\u0026", "&").replace("&amp;", "&").replace("\\/", "/")
    return re.search(r"https:[^\s\"<]+", text)[0]  # type: ignore[index]


@pytest.mark.parametrize("quoted", QUOTED)
@pytest.mark.parametrize("link", LINKS)
def test_a_link_of_an_answer_is_asked_for_as_it_was_recorded(link: str, quoted: str) -> None:
    """A client that follows the link without its secrets asks as recorded; another link's does not."""

    def asked(target: str) -> str:
        return redacted("", AUTH, target.removeprefix("https://b.example")).target

    whole = f"https://b.example/k?{LINKS[link]}"
    body, headers = QUOTED[quoted](whole)
    out, flagged = answered([body], headers=headers)
    assert flagged
    assert answered([out.body], headers=out.headers)[0] == out
    followed = link_in(out)
    assert len(followed) == len(whole)
    assert asked(followed) == asked(whole)
    for secret in re.findall(r"(?:oken|ignature|sig|redential|of)=([^&]+)", whole):
        assert secret not in followed
        other = whole.replace(secret, secret[:4] + ("a" if secret[4] != "a" else "b") + secret[5:])
        body, headers = QUOTED[quoted](other)
        if link != "a key that is known":
            assert asked(link_in(answered([body], headers=headers)[0])) != asked(whole)


def test_an_answer_of_a_thousand_links_costs_a_moment() -> None:
    """Where an answer has more than 256 they are numbered, as they are in texts: a fingerprint takes a millisecond."""
    links = [b"https://b.example/?sig=%04dPFA5F15YCxM47W3Mp0dP6EzceYA3" % number for number in range(1000)]
    assert answered([b"\n".join(links)])[0].body.count(b"REDACTED-") == 1000
    assert b"REDACTEDx" in answered(links[:1])[0].body


def test_a_form_that_echoes_an_answers_token_is_the_recorded_one() -> None:
    """`refresh_token` of an answer stands in the next form: in replay as the placeholder that the answer had."""
    token = "1//0gAbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
    said = json.loads(answered([json.dumps({"refresh_token": token}).encode()])[0].body)["refresh_token"]
    kind = (("content-type", "application/x-www-form-urlencoded"),)
    forms = {redacted(f"grant_type=x&refresh_token={quote(each, safe='')}", kind).body for each in (token, said)}
    assert token not in said
    assert len(forms) == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_answers_keep_their_borders(sizes: list[int]) -> None:
    """A secret is found across chunks; lengths and offsets stay."""
    body = f'data: {{"a":"{CANARY} and {SK}"}}\n\n'.encode()
    pieces, at = [], 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    out, flagged = answered([*pieces, body[at:]])
    assert flagged
    assert CANARY.encode() not in out.body
    assert SK.encode() not in out.body
    assert json.loads(out.body[6:])["a"].startswith("REDACTED-1:credential*")


def test_escaped_secrets_of_answers_are_found() -> None:
    r"""Behind ``\u`` escapes and ``\/``."""
    out, flagged = answered([b'{"a":"abc\\/def\\u002b0123456789"}'], learn=(("x-api-key", "abc/def+0123456789"),))
    assert flagged
    assert json.loads(out.body)["a"] == "REDACTED-1:credential".ljust(24, "*")


def test_answers_without_secrets_are_not_touched() -> None:
    """A base64 picture may contain anything; a documentation's example key of no real shape may stay."""
    picture = base64.b64encode(bytes(range(256)) * 20) + b"/AKIAABCDEFGHIJKLMNOP/" + base64.b64encode(bytes(300))
    for body in (picture, b'{"text":"use sk-... and Bearer YOUR_TOKEN"}', b"\xff\x00"):
        out, flagged = answered([body])
        assert not flagged
        assert out.body == body


def test_event_stream_frames_stay_valid() -> None:
    """AWS clients check the checksum of every frame."""
    payload = json.dumps({"text": SK}).encode()
    head = struct.pack(">II", len(payload) + 16, 0)
    frame = head + struct.pack(">I", zlib.crc32(head)) + payload
    frame += struct.pack(">I", zlib.crc32(frame))
    out, flagged = answered([frame[:9], frame[9:]], headers=(("content-type", "application/vnd.amazon.eventstream"),))
    assert flagged
    assert SK.encode() not in out.body
    assert int.from_bytes(out.body[-4:]) == zlib.crc32(out.body[:-4])


def test_volatile_and_private_fields_of_answers_are_dropped() -> None:
    """What a replay needs stays; a secret in a field is overwritten."""
    stays: Headers = (("x-request-id", "req_1"), ("retry-after", "3"), ("x-ratelimit-remaining-tokens", "5"))
    dropped: Headers = (
        ("Set-Cookie", "a=b"), ("CF-RAY", "1"), ("cf-cache-status", "x"), ("openai-organization", "org"),
        ("openai-project", "proj"), ("Content-Length", "3"), ("Transfer-Encoding", "chunked"), ("alt-svc", "h3"),
        ("Date", "x"), ("strict-transport-security", "x"),
    )  # fmt: skip
    kind: Headers = (("Content-Type", "text/event-stream"),)
    out, flagged = answered([b"{}"], headers=(*kind, *dropped, *stays, ("x-echo", SK)))
    assert flagged
    assert out.headers == (*kind, *stays, ("x-echo", "REDACTED-1:openai-project".ljust(len(SK), "*")))


def test_text_for_people_is_redacted() -> None:
    redactor = Redactor()
    redactor.learn_request((), f"/v1/x?key={CANARY}", frozenset({"key"}))
    assert redactor.epoch.count == 1
    redactor.learn_request(AUTH, "/")
    assert redactor.epoch.count == 1
    assert redactor.text(f"{CANARY} {SK} ok") == "[REDACTED] [REDACTED] ok"
    assert "hunter2-hunter2" not in redactor.redact_target("/v1/x?password=hunter2-hunter2")


def test_every_token_that_rotated_is_known() -> None:
    """A thousand in one run, however long ago, whole and within words; a text costs no more for them."""
    redactor = Redactor()
    tokens = [hashlib.sha256(str(number).encode()).hexdigest()[:30] for number in range(1000)]
    for token in tokens:
        redactor.learn_request((("authorization", f"Bearer {token}"),), "/")
    for token in (tokens[0], tokens[500], tokens[999]):
        assert redactor.text(f"x{token}x and {token}") == "x[REDACTED]x and [REDACTED]"
        body = json.dumps({"a": base64.b64encode(f"\x00\xff{token}".encode("latin-1")).decode()}).encode()
        assert redactor.request(Request("POST", "/", (), body)).body != body, "in base64 of bytes"


def test_every_credential_is_known_within_a_picture() -> None:
    """Also in so many letters and digits in a row that unknown keys are not searched there, and beyond the first few."""
    redactor = Redactor()
    for number in range(30):
        token = hashlib.sha256(str(number).encode()).hexdigest()[:32]
        redactor.learn_request((("authorization", f"Bearer {token}"),), "/")
        body = b"aB3" * 17_000 + token.encode() + b"x"
        assert token.encode() not in redactor.redact_answer_body(body)
        assert token.encode() not in redactor.request(Request("POST", "/", (), body)).body


def test_words_are_no_credentials() -> None:
    """A key `assistant`, tenants' names as keys: texts that say these words stay."""
    redactor = Redactor()
    for name in ("assistant", "tenant-acme", "tenant-umbrella-2", "myAssistant", "customer42", "lm-studio"):
        headers = (("authorization", f"Bearer {name}"), ("api-key", name), ("cookie", f"a={name}-{name}"))
        redactor.learn_request(headers, f"/?key={name}")
        body = json.dumps({"messages": [{"role": "assistant", "content": f"for {name}"}]}).encode()
        assert redactor.request(Request("POST", "/", (), body)).body == body
        assert redactor.redact_answer_body(body) == body
    sent = Request("POST", "/", (("authorization", "Bearer assistant"),), b"")
    assert redactor.request(sent).headers == (("authorization", "[REDACTED]"),)


def test_fields_and_members_of_answers_that_are_credentials_by_name_are_hidden() -> None:
    """Header fields and what OAuth defines always, whatever it looks like; counts of tokens and pages stay."""
    link = "<https://x/y?X-Amz-Signature={}&a=1>; rel=next"
    fields = (
        ("X-Auth-Token", "word", "RED*"),
        ("x-amz-security-token", "abc", "RE*"),
        ("x-csrf-token", "abcdef", "REDAC*"),
        ("link", link.format("0123456789abcdef" * 2), link.format("REDACTEDx4b101a31eb2e***********")),
        ("x-ratelimit-remaining-tokens", "5", "5"),
        ("x-next-page-token", "page2", "page2"),
        ("www-authenticate", "Bearer realm=x", "Bearer realm=x"),
    )
    body = {"access_token": "hush-hush", "refresh_token": "a b", "token_type": "bearer", "usage": {"token": "word"}}
    out, flagged = answered([json.dumps(body).encode()], headers=tuple((name, value) for name, value, _ in fields))
    assert flagged
    assert [value for _, value in out.headers] == [hidden for _, _, hidden in fields]
    assert json.loads(out.body) == {**body, "access_token": "REDxGg81*"}
    form, _ = answered([b"access_token=hush-99-hush&token_type=bearer"])
    assert form.body == b"access_token=REDxC8YBwX3*&token_type=bearer"


@given(
    st.binary(max_size=300),
    st.sampled_from(["", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]),
)
def test_no_body_is_an_error(body: bytes, content_type: str) -> None:
    redacted(body, (("content-type", content_type), *AUTH))


def test_real_traffic_has_no_false_alarm(real_requests: list[tuple[Request, RoutedRequest]]) -> None:
    """The secrets of the recordings were blanked, so nothing in a body may be taken for one; planted ones are found."""
    redactor = Redactor()
    for request, _ in real_requests:
        assert redactor.request(request).body == request.body
        if request.body.startswith(b"{"):
            planted = request.body.replace(b'"model"', b'"canary":"' + SK.encode() + b'","model"')
            out = redactor.request(Request("POST", "/", (), planted)).body
            assert out == planted.replace(SK.encode(), b"[REDACTED-1:openai-project]")


def _seconds(texts: dict[str, str]) -> dict[str, float]:
    """Return the least processor time of each in seven rounds: a machine that is slow for a while is slow for all."""
    least = dict.fromkeys(texts, 9e9)
    for _, (name, text) in product(range(7), texts.items()):
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        began = time.process_time()
        Redactor().request(Request("POST", "/v1/x", (), body))
        least[name] = min(least[name], time.process_time() - began)
    return least


def test_wrapped_base64_and_cut_json_take_a_few_times_as_long_as_plain_text() -> None:
    """Five times, and JSON in JSON fourteen, as each depth is searched; here 25, for machines that are busy."""
    plain = ((Path(__file__).parents[3] / "docs" / "replay.md").read_text() * 12)[:50_000]
    coded = base64.b64encode(random.Random(1).randbytes(40_000)).decode()
    lines = "\n".join(coded[at : at + 64] for at in range(0, len(coded), 64))
    certificates = f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----"
    cut = json.dumps({"a": json.dumps({"b": json.dumps({"secret": plain})})})[:50_000]
    signs = "token=key=password:secret=auth_" * 1_600
    took = _seconds({"plain": plain, "base64": lines, "certificates": certificates, "cut": cut, "signs": signs})
    assert max(took[name] for name in ("base64", "certificates", "cut")) < 25 * took["plain"], took
    assert took["signs"] < 60 * took["base64"], took
