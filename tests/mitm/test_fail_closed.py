"""Fail closed, twice: whatever of ours raises, no client hangs and nothing goes upstream that was not released.

Parts are made to raise through the constructors' seams: a subclass with one method that does nothing else. The upstream counts.
"""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
from mitmproxy import http
from mitmproxy.proxy import layer

from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.request_stages import RequestDecider
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.errors import LLMProxyError
from llmproxy.mitm.client_layers import NextLayerChooser
from llmproxy.mitm.http1.fast_path import FastPathAsyncioProtocol
from llmproxy.mitm.http1.replay_layer import RecordReplayLayer
from llmproxy.mitm.interception import HttpConnectHandler
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.recorder import RecordingAddon
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import BAD, Received, body_of, chat, chunked, request
from tests.provider import Provider, Reply, Script, Step

PARTS: dict[str, type] = {
    "engine": Engine, "layer": RecordReplayLayer, "choice": NextLayerChooser, "recorder": RecordingAddon, "shell": ProxyContext,
    "front": FastPathAsyncioProtocol, "intercept": HttpConnectHandler,
}  # fmt: skip
INSIDE = {field.name for field in fields(Engine.parts)}
"""Parts of the engine."""
OF_THE_LAYER = {name for name, each in vars(RecordReplayLayer).items() if isinstance(each, type)}
PARTS |= {name: getattr(Engine.parts, name) for name in INSIDE}
PARTS |= {name: getattr(RecordReplayLayer, name) for name in OF_THE_LAYER}


def broken(part: str, method: str) -> dict[str, type]:
    """Return the part as a class whose `method` raises; for `Rig(**...)`."""

    def boom(*_args: object, **_more: object) -> object:
        raise RuntimeError(method)

    async def async_boom(*_args: object, **_more: object) -> object:
        raise RuntimeError(method)

    found = PARTS[part]
    assert callable(getattr(found, method)), f"{found.__name__}.{method} is gone: this table is out of date"
    is_async = getattr(found, method).__code__.co_flags & 0x80
    made = type(f"Broken{found.__name__}", (found,), {method: async_boom if is_async else boom})
    if part in OF_THE_LAYER:
        layer_ = type("BrokenInside", (RecordReplayLayer,), {part: made})
        return {"layer": layer_} | (
            {"front": type("BrokenFront", (FastPathAsyncioProtocol,), {part: made})} if part == "incoming" else {}
        )
    if part not in INSIDE:
        return {part: made}
    return {"engine": type("BrokenInside", (Engine,), {"parts": replace(Engine.parts, **{part: made})})}


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that knows the answer to "hi"."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    with connected(Provider(Script((Step(Reply("hello")),))), "record", store) as (_, c):
        assert c.ask(chat("hi")).status == 200
    return store


BEFORE = [
    ("dispatcher", "place_request"),
    *(("stages", name) for name in ("begin_exchange", "identify_and_decide")),
    *(("keying", name) for name in ("derive_key", "redact")),
    *(("layer", name) for name in ("_dispatch_event", "_receive_data", "serve_received_requests", "_on_head")),
    *(
        ("incoming", name)
        for name in ("set_exchange_or_refusal", "_check_origin_and_preflight", "begin_exchange", "decide_request")
    ),
    ("forwarding", "forward"),
    *(("recorder", name) for name in ("requestheaders", "_address_upstream")),
    *(("shell", name) for name in ("record_begin",)),
]
"""What raises before anything may be sent: then the upstream hears nothing at all."""

AFTER = [
    ("writer", "store_answer"),
    *(("accounting", name) for name in ("record_end", "record_sessionless_refusal")),
    *(("answering", name) for name in ("serve_recorded", "plan_playback_head")),
    ("misses", "record_miss"),
    *(
        ("forwarding", name)
        for name in (
            "on_event", "_filter_commands_to_client", "_end_forwarding", "_send_commands_held_for_store", "_find_failure_before_answer",
            "forward_body", "forward", "stream_request_upstream",
        )
    ),
    *(("sender", name) for name in ("send_recorded", "continue_sending", "drop_answer")),
    ("incoming", "plan_recorded_answer"),
    *(
        ("layer", name)
        for name in (
            "_on_whole_request", "_replay_answer", "_end_replay", "_send_due", "refuse", "send_whole_answer", "_answer_exception",
            "_on_client_left", "_reset_for_request",
        )
    ),
    *(
        ("recorder", name)
        for name in (
            "_find_exchange", "server_connect", "responseheaders", "_build_stream_recorder", "_get_offset", "response", "error",
            "_store_answer",
            "_build_unreachable_error",
        )
    ),
    *(("shell", name) for name in ("store_answer_and_wait", "_store_or_read_usage", "build_refusal")),
    *(("choice", name) for name in ("_set_chosen_layer",)),
]  # fmt: skip
"""What may raise when the request is on its way, or had been answered from the store."""


def refused(answer: Received) -> bool:
    """Return whether the client got a clear error, or the end of its connection."""
    return answer.status in (0, 500, 502) or not answer.whole


@pytest.mark.parametrize("mode", ["record", "auto", "passthrough"])
@pytest.mark.parametrize(("part", "method"), BEFORE)
def test_what_raises_before_the_release_keeps_the_request_here(
    tmp_path: Path, mode: str, part: str, method: str
) -> None:
    """500 or a closed connection in reasonable time, and not one connection upstream."""
    parts = broken(part, method)
    with Provider(check=False) as p, Rig(mode, tmp_path / "x.db", {"openai": p.url}, **parts, forward=True) as rig:
        for raw in (chat("new"), chunked(body_of("new"), 20), chat("new", "http://127.0.0.1:1/v1/chat/completions")):
            with rig.client(5) as c:
                answer = c.ask(raw)
                assert refused(answer) or answer.status == 400, answer
                if answer.status == 500:
                    assert answer.headers["x-should-retry"] == "false"
        assert p.connections == 0
        rig.wait_idle()


@pytest.mark.parametrize("mode", ["record", "auto", "replay"])
@pytest.mark.parametrize(("part", "method"), BEFORE + AFTER)
def test_no_client_hangs_whatever_raises(tape: Path, store: Path, mode: str, part: str, method: str) -> None:
    """Every request gets an answer or the end of its connection; in replay nothing goes upstream at all."""
    shutil.copy(tape, store)
    with Provider(Script((Step(Reply("live"), times=None),)), check=False) as p:
        with Rig(mode, store, {"openai": p.url}, **broken(part, method), speed=100) as rig:
            for raw in (chat("hi"), chat("new", stream=True), chunked(body_of("new"), 20), BAD, chat("x", "/nowhere")):
                with rig.client(8) as c:
                    c.ask(raw)
            for raw in (chat("hi")[:-5], chat("new", stream=True)):  # and who leaves is forgotten
                with rig.client(8) as c:
                    c.send(raw)
            rig.wait_idle()
        if mode == "replay":
            assert p.connections == 0


@pytest.mark.parametrize(
    "method", ["store_answer", "_store_or_read_usage", "store_answer_and_wait", "_store_answer", "response"]
)
def test_an_answer_that_could_not_be_stored_is_served_and_counted(tmp_path: Path, method: str) -> None:
    """The client's answer is its own; the loss is said."""
    part = next(name for name, found in PARTS.items() if hasattr(found, method))
    upstream = Provider(Script((Step(Reply("live"), times=None),)))
    with connected(upstream, "record", tmp_path / "x.db", **broken(part, method)) as (rig, c):
        assert c.ask(chat("new")).status == 200
        assert c.ask(chat("new", stream=True)).whole
        rig.wait_idle()
        assert [(outcome.lost, "NOT RECORDED" in outcome.note) for outcome in rig.outcomes] == [(True, True)] * 2
        assert rig.proxy.losses == 2
    assert recorded(tmp_path / "x.db") == []


# --- the last wall, alone -------------------------------------------------------------------------------------------------


class Bypass(NextLayerChooser):
    """Leaves every connection to mitmproxy's own layers."""

    def next_layer(self, nextlayer: layer.NextLayer) -> None:
        """Choose nothing."""


class OnlyTheWall(RecordingAddon):
    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Let it pass."""

    async def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Let it pass."""


@pytest.mark.parametrize("recorder", [RecordingAddon, OnlyTheWall])
@pytest.mark.parametrize("mode", ["record", "passthrough", "replay"])
def test_with_the_layer_bypassed_nothing_gets_out(
    tape: Path, store: Path, mode: str, recorder: type[RecordingAddon]
) -> None:
    """What was not released is denied its connection, in plain requests and in tunnels."""
    shutil.copy(tape, store)
    with (
        Provider(check=False) as p,
        Rig(mode, store, {"openai": p.url}, choice=Bypass, recorder=recorder, front=Behind) as rig,
    ):
        host = p.url.removeprefix("http://")
        for raw in (chat("hi", f"{p.url}/v1/chat/completions"), chat("hi", headers={"host": host})):
            with rig.client(5) as c:
                answer = c.ask(raw)
                assert answer.status in (0, 502), answer
        with rig.client(5) as c:
            c.send(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            if c.head()[0] == 200:
                c.send(chat("hi", headers={"host": host}))
                assert c.head()[0] in (0, 502)
        assert p.connections == 0


class Behind(FastPathAsyncioProtocol):
    def _serve_complete_requests(self, data: bytes) -> None:
        self._hand_over(data)


class Elsewhere(RecordingAddon):
    """A recorder that sends what was released to another place."""

    def _address_upstream(self, request: http.Request, exchange: Exchange) -> None:
        super()._address_upstream(request, exchange)
        request.port += 1


def test_a_release_is_for_one_place_only(tmp_path: Path) -> None:
    """A released request that would be sent elsewhere is stopped by the wall."""
    with Provider(check=False) as other:
        url = f"http://127.0.0.1:{other.port - 1}"
        with Rig("record", tmp_path / "x.db", {"openai": url}, recorder=Elsewhere) as rig, rig.client(5) as c:
            assert c.ask(chat("hi")).status == 502
        assert other.connections == 0


EVIL = {
    "a hit": chat("hi"),
    "a miss": chat("other"),
    "absolute form": chat("hi", "http://example.invalid/v1/chat/completions"),
    "an unknown host": request(b"", "http://127.0.0.1:9/x", "GET"),
    "CONNECT": b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n",
    "websocket": request(
        method="GET", target="/v1/realtime", upgrade="websocket", connection="Upgrade", content_length=""
    ),
    "garbage": BAD,
}


@pytest.mark.parametrize("raw", EVIL.values(), ids=EVIL.keys())
def test_replay_connects_to_nobody(tape: Path, raw: bytes) -> None:
    """Whatever is sent: not even a name is looked up."""
    with Provider(check=False) as p, Rig("replay", tape, {"openai": p.url, "x": "http://127.0.0.1:9"}) as rig:
        with rig.client(5) as c:
            status, _ = c.send(raw).head()
            if status == 200 and raw.startswith(b"CONNECT"):
                c.send(chat("hi")).head()
        assert p.connections == 0
        rig.wait_idle()


class Refusing(RequestDecider):
    def identify_and_decide(self, exchange: Exchange, body: bytes) -> None:
        raise StrangeError("llmproxy: this question cannot be decided.", hint="Ask another one.")


class RefusingEngine(Engine):
    parts = replace(Engine.parts, stages=Refusing)


class StrangeError(LLMProxyError):
    code = "llmproxy_strange"
    status = 507


@pytest.mark.parametrize("mode", ["replay", "auto", "record"])
def test_an_error_of_ours_is_answered_as_what_it_is(
    mode: str, tape: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Raised while a request is decided: its status and its text, no traceback, nothing upstream where nothing was sent before."""
    shutil.copy(tape, store)
    with Provider(check=False) as p, Rig(mode, store, {"openai": p.url}, engine=RefusingEngine) as rig:
        with rig.client() as c:
            got = c.ask(chat("one"))
        rig.wait_idle()
        assert (got.status, got.headers["x-llmproxy-error"]) == (507, "llmproxy_strange")
        assert got.message == "llmproxy: this question cannot be decided.\nAsk another one."
        assert p.requests == []
        assert [each.status for each in rig.outcomes] == [507]
    assert not [each for each in caplog.records if each.exc_info]
