"""Every kind of secret, in every place of a request and an answer: none is kept.

And what is no secret stays as it is.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import quote, unquote

import pytest

from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.body_decoding import decode_body
from llmproxy.core.traffic.interaction import Chunk, Request, Response

from .examples import CODE, NO_SECRETS, every_secret

SECRETS = every_secret()
MULTIPART = (("content-type", "multipart/form-data; boundary=xx"),)
FORM = (("content-type", "application/x-www-form-urlencoded"),)


def _json(value: object) -> Request:
    return Request("POST", "/v1/x", (), json.dumps(value).encode())


def _body(text: str) -> Request:
    return _json({"messages": [{"role": "user", "content": f"use {text} now"}]})


def _part(text: str) -> Request:
    head = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    return Request("POST", "/v1/x", MULTIPART, head + text.encode() + b"\r\n--xx--\r\n")


REQUESTS: dict[str, Callable[[str], Request]] = {
    "body": _body,
    "nested": lambda s: _json({"a": json.dumps({"b": json.dumps({"c": f"x\n{s}\n"})})}),
    "tool result": lambda s: _json({"messages": [{"role": "tool", "content": f"$ env\nHOME=/x\n{s}\n"}]}),
    "header": lambda s: Request("POST", "/", (("x-trace", f"by {s.replace(chr(10), ' ')}"),), b""),
    "query": lambda s: Request("GET", f"/v1/x?q={quote('a ' + s)}", (), b""),
    "query name": lambda s: Request("GET", f"/v1/x?a=1&{quote(s, safe='')}=2", (), b""),
    "bare query": lambda s: Request("GET", f"/v1/x?{quote(s, safe='')}", (), b""),
    "path": lambda s: Request("GET", f"/v1/x/{quote(s, safe='')}/y", (), b""),
    "form": lambda s: Request("POST", "/", FORM, f"a=1&note={quote('x ' + s)}".encode()),
    "form name": lambda s: Request("POST", "/", FORM, f"a=1&{quote(s, safe='')}=2".encode()),
    "multipart": _part,
    "gzip": lambda s: Request("POST", "/", (), decode_body(gzip.compress(_body(s).body), "gzip")),
    "base64": lambda s: _json({"file_data": base64.b64encode(f"HOME=/x\n{s}\nA=1\n".encode()).decode()}),
    "in quotes": lambda s: _json({"a": f"\u201c{s}\u201d", "b": json.dumps({"c": f"\u672c{s}"})}),
    "quotes in a query": lambda s: Request("GET", f"/v1/x?q=%e2%80%9c{quote(s)}", (), b""),
    "ascii escapes": lambda s: Request(
        "POST", "/", (), ('{"a":"' + "".join(f"\\u{ord(c):04x}" for c in s) + '"}').encode()
    ),
}


def written(request: Request) -> str:
    """Return all that is kept of a request, decoded in each way."""
    text = "\n".join((request.target, str(request.headers), request.body.decode("utf-8", "replace")))
    coded = (piece[: len(piece) // 4 * 4] for piece in re.findall(r"[A-Za-z0-9+/]{40,}", text))
    plain = "".join(base64.b64decode(piece).decode("utf-8", "replace") for piece in coded)
    return "\n".join((text, unquote(text), re.sub(r"\\+n", "\n", text), plain))


@pytest.mark.parametrize("place", REQUESTS)
def test_no_secret_of_any_kind_is_kept_of_a_request(place: str) -> None:
    """Each row of the tables, in each place."""
    kept = []
    for name, text, secret in SECRETS:
        out = Redactor().request(REQUESTS[place](text))
        if secret in written(out) or (len(secret) > 24 and secret[-16:] in written(out)):
            kept.append(name)
        assert Redactor().request(out) == out, f"{name}: redacting twice changes nothing"
    assert kept == [], kept


def _sse(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\ndata: [DONE]\n\n".encode()


def _deltas(text: str) -> bytes:
    pieces = ["Here: ", *(text[at : at + 5] for at in range(0, len(text), 5)), " that"]
    return b"".join(f"data: {json.dumps({'delta': {'content': piece}})}\n\n".encode() for piece in pieces)


KEY = "sk-proj-Zq8Jw3Lx7Vn2Rt5Yb9Kd4Mf6Hg1Pc0"
PIECES = ["The key is ", *(KEY[at : at + 5] for at in range(0, len(KEY), 5)), "."]


def _choice(index: int, piece: str) -> object:
    return {"choices": [{"index": index, "delta": {"content": piece}}]}


def _late_choice(index: int, piece: str) -> object:
    return {"choices": [{"delta": {"content": piece}, "index": index}]}


def _tool_call(index: int, piece: str) -> object:
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}}]}


def _item(index: int, piece: str) -> object:
    return {"item_id": f"fc_{index}", "output_index": index, "delta": piece}


def _coded(piece: str) -> object:
    inner = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    return {"bytes": base64.b64encode(json.dumps(inner).encode()).decode(), "p": "abc"}


def _token(piece: str) -> dict[str, object]:
    return {"token": piece, "logprob": -0.125, "bytes": list(piece.encode())}


def _with_logprobs(piece: str) -> object:
    listed = [{**_token(piece), "top_logprobs": [_token(piece), _token("x")]}]
    return {"choices": [{"index": 0, "delta": {"content": piece}, "logprobs": {"content": listed}}]}


def _join_strings(value: object, name: str = "") -> dict[str, str]:
    """Return the strings and the bytes of a tree, joined by the name of their member."""
    said: dict[str, str] = {}
    if isinstance(value, str):
        return {name: value}
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        return {name: bytes(value).decode("latin-1")}
    members = value.items() if isinstance(value, dict) else [(name, each) for each in cast("list[object]", value)]
    for inner, each in members:
        if isinstance(each, str | list | dict):
            for key, text in _join_strings(each, inner).items():
                said[key] = said.get(key, "") + text
    return said


STREAMS: dict[str, Callable[[str], list[object]]] = {
    **{
        name: lambda piece, name=name: [{"type": "x", name: piece, "stop_reason": None}]  # type: ignore[misc]
        for name in ("completion", "generation", "outputText", "stringValue", "textDelta", "answer")
    },
    "choices": lambda piece: [_choice(0, piece), _choice(1, "word ")],
    "late index": lambda piece: [_late_choice(0, piece), _late_choice(1, "word ")],
    "tool calls": lambda piece: [_tool_call(0, piece), _tool_call(1, "word ")],
    "items": lambda piece: [_item(0, piece), _item(1, "word ")],
    "coded": lambda piece: [_coded(piece)],
    "logprobs": lambda piece: [_with_logprobs(piece)],
}


@pytest.mark.parametrize(
    ("place", "depth"),
    [(place, depth) for place in STREAMS for depth in range(1 if place in ("coded", "logprobs") else 3)],
)
def test_a_secret_split_over_a_stream_is_overwritten(place: str, depth: int) -> None:
    """By name, by choice and by tool call, in base64, among the tokens of log probabilities, and in JSON strings, as
    WebSocket messages are stored.
    """

    def write(event: object) -> str:
        for _ in range(depth):
            event = {"t": 1, "from": "server", "text": json.dumps(event)}
        return f"data: {json.dumps(event)}\n\n"

    def read(line: str) -> dict[str, str]:
        event = json.loads(line.removeprefix("data: "))
        for _ in range(depth):
            event = json.loads(event["text"])
        return cast("dict[str, str]", event)

    body = "".join(write(each) for piece in PIECES for each in STREAMS[place](piece)).encode()
    out = Redactor().redact_answer_body(body, "text/event-stream", pieces=9)
    assert len(out) == len(body)
    assert Redactor().redact_answer_body(out, "text/event-stream", pieces=9) == out
    events = [read(line) for line in out.decode().splitlines() if line]
    said = "\n".join(_join_strings(events).values()).replace("word ", "")
    coded = (json.loads(base64.b64decode(each["bytes"])) for each in events if "bytes" in each)
    said += "".join(each["delta"]["text"] for each in coded)
    assert not any(piece in said for piece in PIECES[1:-1] if len(piece) > 3), said
    assert "The key is REDACTED" in said


@pytest.mark.parametrize(("lead", "between"), [("[", "\n,"), ("\n[", ","), ("data: ", "\n\ndata: "), ("", "\r\n")])
def test_a_short_stream_without_a_content_type_of_streams_is_one(lead: str, between: str) -> None:
    """Gemini streams a JSON array as ``application/json``, and gateways lines; a short one arrives in one chunk."""
    body = lead + between.join(json.dumps({"parts": [{"text": piece}]}) for piece in PIECES)
    out = Redactor().redact_answer_body(body.encode(), "application/json").decode()
    assert len(out) == len(body)
    assert not any(f'"{piece}"' in out for piece in PIECES[1:-1])


def test_a_secret_split_in_two_is_overwritten() -> None:
    body = b"".join(f"data: {json.dumps(_choice(0, piece))}\n\n".encode() for piece in (KEY[:20], KEY[20:]))
    out = Redactor().redact_answer_body(body, "text/event-stream", pieces=9).decode()
    assert KEY[8:20] not in out
    assert KEY[20:] not in out


def test_the_tokens_of_a_whole_answer_say_no_secret() -> None:
    """Of the chat's log probabilities, and of the text completions'; an answer without a secret keeps all of them."""
    listed = [{**_token(piece), "top_logprobs": [_token(piece)]} for piece in PIECES]
    chat = {"message": {"content": "".join(PIECES)}, "logprobs": {"content": listed}, "text": '{"token": "word"}'}
    text = {
        "text": "".join(PIECES),
        "logprobs": {"tokens": PIECES, "top_logprobs": [{each: -0.1234} for each in PIECES]},
    }
    for tree in (chat, text):
        body = json.dumps({"choices": [tree]}).encode()
        out = Redactor().redact_answer_body(body)
        assert len(out) == len(body)
        assert b'{\\"token\\": \\"word\\"}' in out or tree is text
        assert not any(piece in str(json.loads(out)) for piece in PIECES[1:-1])
        assert not any(str(list(piece.encode())) in str(json.loads(out)) for piece in PIECES)
        plain = body.replace(KEY.encode(), b"none")
        assert Redactor().redact_answer_body(plain) == plain


ANSWERS: dict[str, Callable[[str], bytes]] = {
    "answer": lambda s: json.dumps({"choices": [{"message": {"content": f"it is {s} you see"}}]}).encode(),
    "tool call": lambda s: json.dumps({"arguments": json.dumps({"command": f"export A\n{s}"})}).encode(),
    "quotes": lambda s: json.dumps(
        {"choices": [{"message": {"content": f"\u201c{s}\u201d", "args": json.dumps({"b": f"\u201c{s}"})}}]}
    ).encode(),
    "text": lambda s: f"first\n{s}\nlast".encode(),
    "stream": _sse,
    "deltas": _deltas,
}


def said(body: bytes) -> str:
    """Return an answer as it is and put together from its deltas."""
    text = body.decode()
    deltas = "".join(json.loads(f'"{piece}"') for piece in re.findall(r'"content": "((?:[^"\\]|\\.)*)"', text))
    return "\n".join((text, deltas, re.sub(r"\\+n", "\n", text)))


@pytest.mark.parametrize("place", ANSWERS)
@pytest.mark.parametrize("size", [7, 100_000])
def test_no_secret_of_any_kind_is_kept_of_an_answer(place: str, size: int) -> None:
    """Whole, in a stream, dealt out over its deltas, across chunks; every byte but the secret's stays where it is."""
    kept = []
    for name, text, secret in SECRETS:
        body = ANSWERS[place](text)
        chunks = tuple(Chunk(at, body[at : at + size]) for at in range(0, len(body), size))
        out, flagged = Redactor().redact_response(Response(200, "OK", (("content-type", "text/event-stream"),), chunks))
        assert [len(chunk.data) for chunk in out.chunks] == [len(chunk.data) for chunk in chunks]
        if secret in said(out.body) or (len(secret) > 24 and secret[-16:] in said(out.body)) or not flagged:
            kept.append(name)
    assert kept == [], kept


def test_no_secret_of_any_kind_is_kept_of_a_status_line() -> None:
    """A gateway may say in its reason phrase which key it refused."""
    kept = []
    for name, text, secret in SECRETS:
        reason = f"Unauthorized {text.replace(chr(10), ' ')}"
        out, flagged = Redactor().redact_response(Response(401, reason, (), ()))
        if secret.replace("\n", " ") in out.reason or not flagged or len(out.reason) != len(reason):
            kept.append(name)
    assert kept == [], kept


@pytest.mark.parametrize("text", [*NO_SECRETS, *CODE])
def test_what_is_no_secret_stays(text: str) -> None:
    """In requests and answers, in running text and in a stream's deltas."""
    redactor = Redactor()
    for place in ("body", "nested", "query", "query name", "form", "form name"):
        request = REQUESTS[place](text)
        assert redactor.request(request) is request, place
    for place, answer in ANSWERS.items():
        body = answer(text)
        assert redactor.redact_answer_body(body, "text/event-stream", pieces=9) == body, place
    assert redactor.text(text) == text


def test_real_answers_are_changed_only_where_a_link_is_signed(traffic: Path) -> None:
    """Over all real answers nothing is taken for a secret but the signatures of presigned links, which are secrets."""
    yaml = pytest.importorskip("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    redactor, seen = Redactor(), 0
    for path in sorted(traffic.rglob("*.yaml")):
        for entry in yaml.load(path.read_text(encoding="utf-8"), loader).get("interactions") or []:
            got = entry["response"]["body"]
            got = got.get("string", "") if isinstance(got, dict) else got
            body = got.encode() if isinstance(got, str) else bytes(got or b"")
            body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            seen += 1
            out = redactor.redact_answer_body(body, "text/event-stream", pieces=9)
            if out != body:
                unsigned = re.sub(rb"((?:sig|X-Amz-[A-Za-z-]+)=)[^&\"\\]*", rb"\1", body)
                assert re.sub(rb"((?:sig|X-Amz-[A-Za-z-]+)=)[^&\"\\]*", rb"\1", out) == unsigned, path.name
            value = entry["response"]["headers"]
            headers = tuple(
                (name, str(one)) for name, many in value.items() for one in (many if isinstance(many, list) else [many])
            )
            assert not redactor.redact_response(Response(200, "OK", headers, ()))[1], path.name
    assert seen > 700


KEYS = {
    "openai": "sk-proj-" + "aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xY" * 5,
    "long": "sk-ant-api03-" + "Qw7eRt5yUi3oPa1sDf9gHj0kLz8xCv6b" * 8,
    "github": "ghp_aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xYz1Q9",
    "aws": "AKIAQ7ZD3KX5NB2MWV6T",
    "gitlab": "glpat-aB3dE5fG7hJ9kL1mN0pQ",
}


def wrap(text: str, width: int, indent: str = "") -> str:
    """Break a text as ``fold -w`` does."""
    return "\n".join(indent + text[at : at + width] for at in range(0, len(text), width))


DISGUISES: dict[str, Callable[[str], str]] = {
    "colour": lambda s: f"\x1b[1;32m{s}\x1b[0m",
    "percent": lambda s: f"https://x.org/?next=a%3Fkey%3D{s}%26b",
    "underscore": lambda s: f"MY_KEY_{s}",
    "hyphen": lambda s: f"--key-{s}",
    "wrapped": lambda s: f"Authorization:\n{wrap(s, 40)}\n\nThat was it.",
    "wrapped at 12, indented": lambda s: f"key: |\n{wrap(s, 12, '    ')}\nnext: 1",
    "wrapped with the text": lambda s: wrap(f'export THE_KEY="{s}"', 25),
    "base64": lambda s: base64.b64encode(f"user:{s}".encode()).decode(),
    "base64 url": lambda s: base64.urlsafe_b64encode(f"password?={s}".encode()).decode(),
    "base64, wrapped": lambda s: base64.encodebytes(f"apiVersion: v1\npassword: {s}\nuser: me\n".encode() * 2).decode(),
    "html": lambda s: f"<b>key=&quot;{s}&quot;</b>",
    "quoted printable": lambda s: f"key=3D{s}",
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seen", [False, True])
def test_a_key_is_found_in_every_disguise(disguise: str, key: str, *, seen: bool) -> None:
    """Of a known kind, or seen before in a header; in a request as in an answer."""
    secret = KEYS[key] if not seen else "Zq8" + KEYS[key][3:][::-1]
    text = DISGUISES[disguise](secret)
    redactor = Redactor()
    if seen:
        redactor.learn_request((("authorization", f"Bearer {secret}"),), "/")
    for body in (json.dumps({"content": f"so: {text} ."}).encode(), f"so: {text} .".encode()):
        for out in (redactor.request(Request("POST", "/", (), body)).body, redactor.redact_answer_body(body)):
            bare = re.sub(r"\\n|[\s]", "", out.decode())
            assert secret not in bare
            assert secret[8:20] not in bare, out
            for coded in re.findall(r"[A-Za-z0-9+/_-]{24,}={0,2}", bare):
                bare64 = coded.rstrip("=").replace("-", "+").replace("_", "/")
                plain = base64.b64decode(bare64[: len(bare64) // 4 * 4])
                assert secret[8:].encode() not in plain


@pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("lead", [b"", b"\x01", b"\x00\x02\x03"])
def test_a_key_in_utf_16_is_found(charset: str, lead: bytes) -> None:
    """In a body or a binary message, wherever it begins; the answer stays as long as it was."""
    body = lead + f"the key is {KEYS['github']}, keep it".encode(charset)
    redactor = Redactor()
    for out in (redactor.request(Request("POST", "/", (), body)).body, redactor.redact_answer_body(body)):
        assert KEYS["github"][6:].encode("utf-16-le") not in out
        assert len(out) == len(body)
        assert "keep it".encode("utf-16-le")[:-1] in out


@pytest.mark.parametrize("lead", [b"", b"\x00", b"\xff\x0a", b"\x80\x90\xa0\x01"])
@pytest.mark.parametrize("key", KEYS)
def test_a_key_in_a_binary_message_is_found(lead: bytes, key: str) -> None:
    """As the client sent it, and in base64, as a server's message is kept; its bytes stay as many."""
    data = lead + KEYS[key].encode() + b"\x00\xfe"
    redactor = Redactor()
    assert KEYS[key].encode() not in redactor.request(Request("POST", "/", (), data)).body
    kept = redactor.redact_answer_body(json.dumps({"from": "server", "data": base64.b64encode(data).decode()}).encode())
    got = base64.b64decode(json.loads(kept)["data"])
    assert KEYS[key].encode() not in got
    assert (len(got), got[: len(lead)]) == (len(data), lead)
