"""Every kind of secret, in every place, through a running proxy: it stands in no file and in nothing that any command prints."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from llmproxy.cli import main
from llmproxy.core.secrets.secret_kinds import SHORTEST
from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.core.secrets.examples import LOT, every_secret
from tests.mitm.wire import Wire, body_of, request
from tests.provider import Provider, Reply, Script, Step, throttled
from tests.support.chats import run
from tests.support.proxy import proxy

SECRETS = every_secret()
TEXT = "\n".join(f"{text} ;" for _, text, _ in SECRETS)
KEY = "sk-canary-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
CHAT = "/v1/chat/completions"
FIELDS = ("password", "client_secret", "access_token", "refresh_token", "api_key", "TOKEN", "secret")
PARTS = "--xx\r\n"
PARTS += "".join(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{LOT}\r\n--xx\r\n' for name in FIELDS)
EXPORTS = ("vcr", "review", "har", "jsonl", "spans", "otlp")


def sent() -> list[bytes]:
    one_line, nested = TEXT.replace("\n", " "), json.dumps({"env": json.dumps({"out": TEXT})})
    form, parts = (
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "multipart/form-data; boundary=xx"},
    )
    pieces = {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}], "model": "gpt-4o"}
    part = PARTS.encode() + f'Content-Disposition: form-data; name="a"\r\n\r\n{TEXT}\r\n--xx--\r\n'.encode()
    packed = gzip.compress(body_of(f"packed: {TEXT}"))
    return [
        request(body_of(f"body: {TEXT}"), CHAT),
        request(body_of(f"nested: {nested}"), CHAT),
        request(json.dumps(pieces).encode(), CHAT),
        request(body_of("header"), CHAT, x_trace=one_line[-20_000:]),
        request(body_of("query"), f"{CHAT}?note={quote(one_line[:4000])}"),
        request(f"a=1&note={quote(TEXT)}".encode(), "/v1/form", **form),
        request(part, "/v1/files", **parts),
        request(packed, CHAT, content_encoding="gzip"),
        request(
            body_of(f"my key is {KEY}"), f"/openai{CHAT}?key={KEY}", authorization=f"Bearer {KEY}", cookie=f"s={KEY}"
        ),
        request(body_of(f"my key is {KEY}"), "/openai/v1/completions", x_api_key=KEY, x_goog_api_key=KEY),
    ]


def leaked(said: bytes) -> list[str]:
    """Return the kinds of which a secret stands in some bytes."""
    return [
        name
        for name, _, secret in (*SECRETS, ("a caller's key", "", KEY))
        if len(secret) >= SHORTEST and secret.encode() in said
    ]


def test_no_secret_stands_in_any_file_nor_in_what_any_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store, write-ahead log while it runs, journal, log; ls, show, diff, why, textconv, all exports; a miss, an error that echoes a key."""
    store, places = tmp_path / "x.db", sent()
    echoes = Step(throttled(1, f"Incorrect API key provided: {KEY}."), user=f"my key is {KEY}", times=None)
    script = Script((echoes, Step(Reply(f"I found: {TEXT}{PARTS}"), times=None)), ordered=False)
    with Provider(script) as p, proxy("record", store, upstreams={"openai": p.url}, options=("--verbose",)) as px:
        for each in places:
            with Wire(px.port) as c:
                c.ask(each)
        with Wire(px.port) as c:
            c.ask(request(b"", f"/nowhere?key={KEY}"))
        assert "a caller's key" in leaked(str(p.requests[-2].headers).encode()), "the provider gets it"
        assert leaked(b"".join(repr(one).encode() for one in p.requests)), "the provider gets them"
        for file in px.files():
            assert leaked(file.read_bytes()) == [], file
    with proxy("replay", store, options=("--verbose",)) as rx:
        for each in places:
            with Wire(rx.port) as c:
                assert leaked(c.ask(each).body) == []
        with Wire(rx.port) as c:
            got = c.ask(request(body_of(f"never recorded: {TEXT}"), CHAT))
            assert (got.status >= 400, leaked(got.body)) == (True, [])
    for file in {*px.files(), *rx.files()}:
        assert leaked(file.read_bytes()) == [], file
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as opened:
        ids = [row.id for row in opened.list_summaries()]
        for one in ids:
            assert leaked(repr(opened.load(one)).encode()) == []
    assert len(ids) == len(places)
    commands = [("ls",), ("why",), ("diff", str(ids[0]), str(ids[1]))]
    commands += [("show", str(one)) for one in ids]
    commands += [("export", str(tmp_path / form), "--format", form, "--cassette", "default") for form in EXPORTS]
    for typed in commands:
        said = run(capsys, store, *typed)[1]
        assert leaked(said.encode()) == [], typed
    main(["textconv", str(store)])
    assert leaked(capsys.readouterr().out.encode()) == []
    for form in EXPORTS:
        if (tmp_path / form).exists():
            assert leaked((tmp_path / form).read_bytes()) == [], form
    code, said = run(capsys, store, "scan")
    assert code == 0, said[:1000].replace(str(tmp_path), "")
