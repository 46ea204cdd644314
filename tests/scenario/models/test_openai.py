"""Calls without litellm: what is made of every answer, and that a recording does not know who asked."""

# ruff: noqa: ANN401 (JSON)

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import LLMProxyError, MissError, SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.answer import Answer, Called
from llmproxy.scenario.models.direct import DirectRequest
from llmproxy.scenario.models.errors import CallFailed, ModelError
from llmproxy.scenario.models.loop import elsewhere
from llmproxy.scenario.models.models import RefusedChoice, complete
from llmproxy.scenario.models.openai import ask, read
from llmproxy.scenario.proxy.session import RunSession
from tests.provider import Answer as Sent, Piece, Provider, failed, json_answer, step
from tests.scenario.models.test_direct import CHOICE, FORM, HI, SEEDED, TOOL
from tests.scenario.parties import MODEL, model, raw, refusal, served
from tests.support import Listening, near
from tests.support.process import free_port

THROUGH_LITELLM = {"num_retries": 0}
"""In `ModelConfig.extra`: a keyword that changes nothing, and that only litellm knows."""
PAGE = Sent(502, (("content-type", "text/html"),), (Piece(b"<html><title>Bad Gateway</title></html>"),))


def call(config: ModelConfig, session: RunSession | None = None, **more: Any) -> Answer:
    """Ask a model something."""
    return asyncio.run(complete(**{"model": config, "messages": HI, "party": "judge", "session": session, **more}))


def message(**members: Any) -> bytes:
    """Return the body of an answer with this message."""
    return json.dumps({"choices": [{"index": 0, "message": members, "finish_reason": "stop"}]}).encode()


def wrong(config: ModelConfig, **more: Any) -> LLMProxyError:
    """Return the error that a call ends with."""
    with pytest.raises(LLMProxyError) as caught:
        call(config, **more)
    return caught.value


# -- an answer


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (message(content=" hi "), Answer("hi", (), "stop")),
        (message(content=None), Answer("", (), "stop")),
        (message(content="<think>x</think>hi", reasoning_content="let me pretend"), Answer("hi", (), "stop")),
        (message(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), Answer("ab", (), "stop")),
        (message(content=None, refusal="no"), Answer("", (), "stop")),
        (
            message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{odd"}}]),
            Answer("", (Called("f", "{odd"),), "tool_calls"),
        ),
        (
            message(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"arguments": None}}]),
            Answer("", (Called("f", '{"a": 1}'), Called("", "")), "tool_calls"),
        ),
        (message(tool_calls=[{"type": "custom", "custom": {}}, None, 3]), Answer("", (), "stop")),
        (message(content="x", tool_calls=None), Answer("x", (), "stop")),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}', Answer("x", (), "length")),
        (b'{"choices": [{"message": {}, "finish_reason": "content_filter"}]}', Answer("", (), "content_filter")),
        (b'{"error": null, "choices": [{"message": {"content": "x"}}]}', Answer("x", (), "stop")),
        (
            b'{"error": {"message": "", "code": null}, "choices": [{"message": {"content": "x"}}]}',
            Answer("x", (), "stop"),
        ),
        (
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": null, "total_tokens": true}}',
            Answer("x", (), "stop", {"prompt": 3}),
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_an_answer_is_read(body: bytes, answer: Answer) -> None:
    """What was said aloud, what was called, why it ended, and the tokens that were told."""
    assert read(200, {}, body) == answer


@pytest.mark.parametrize(
    "body",
    [
        message(content="größe"),
        message(
            content=None, tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{odd"}}]
        ),
    ],
)
def test_litellm_makes_the_same_of_it(body: bytes) -> None:
    """Who reads an answer makes no difference to the run."""
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", **json.loads(body)}
    whole["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    with Provider([step(json=whole, times=None)]) as provider:
        one, other = (call(served(provider, extra=extra)) for extra in ({}, THROUGH_LITELLM))
    assert one == other


# -- what is no answer


@pytest.mark.parametrize(
    ("status", "body", "meant", "said"),
    [
        (400, b'{"error": {"message": "too long", "code": "context"}}', 400, "too long"),
        (400, b'{"error": "just words"}', 400, "just words"),
        (404, b'[{"error": {"message": "in a list"}}]', 404, "in a list"),
        (422, b'{"detail": "not this"}', 422, """HTTP 422: '{"detail": "not this"}'"""),
        (502, b"<html><title>Bad Gateway</title></html>", 502, "HTTP 502: a web page ('Bad Gateway')"),
        (500, b"", 500, "HTTP 500: nothing"),
        (307, b"", 307, "HTTP 307, a redirection to 'http://b/', which is not followed"),
        (200, b"<html></html>", 500, "Received: a web page"),
        (200, b"hello", 500, "Received: 'hello'"),
        (200, b"", 500, "Received: nothing"),
        (200, b"[]", 500, "Received: '[]'"),
        (200, b'{"id": "x"}', 500, "there is no message in it"),
        (200, b'{"choices": {}}', 500, "there is no message in it"),
        (200, b'{"choices": [null]}', 500, "there is no message in it"),
        (200, b'{"choices": [{"delta": {}}]}', 500, "there is no message in it"),
        (200, b'{"error": {"message": "slow down", "code": 429}}', 429, "slow down"),
        (200, b'{"error": {"message": "slow down", "code": "rate"}}', 500, "slow down"),
        (200, b'{"error": {"message": "no", "code": "%b"}}' % (b"9" * 5000), 500, "no"),
        (200, b'{"error": "no"}', 422, "no"),
    ],
)
def test_what_is_no_answer_says_so(status: int, body: bytes, meant: int, said: str) -> None:
    """Every other answer is an error, with the words that were in it, and a status that says whether to ask again."""
    with pytest.raises(CallFailed) as caught:
        read(status, {"location": "http://b/"}, body)
    assert (caught.value.status_code, caught.value.body) == (meant, body)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "asked", "kind", "said"),
    [
        (failed(500, "oops"), 3, ModelError, "could not be called: InternalServerError: oops"),
        (json_answer({"error": {"message": "slow down"}}, 429), 3, ModelError, "RateLimitError: slow down"),
        (
            json_answer({"error": {"message": "bad key"}}, 401),
            1,
            ModelError,
            "cannot be called without a valid key: bad key",
        ),
        (json_answer({"error": {"message": "no such model"}}, 404), 1, ModelError, "NotFoundError: no such model"),
        (
            json_answer({"error": {"message": "filtered", "code": "content_filter"}}, 400),
            1,
            ModelError,
            "BadRequestError: filtered",
        ),
        (
            json_answer({"error": {"message": "tool_choice is not supported"}}, 400),
            1,
            RefusedChoice,
            "refuses this request",
        ),
        (json_answer({"error": {"message": "response_format: no"}}, 400), 1, RefusedChoice, "refuses this request"),
        (PAGE, 3, ModelError, "HTTP 502: a web page ('Bad Gateway')"),
        (Sent(pieces=(Piece(b"hello"),)), 3, ModelError, "invalid response from LLM endpoint. Received: 'hello'"),
        (json_answer({"id": "x"}), 3, ModelError, "there is no message in it"),
        (json_answer({"choices": []}), 1, ModelError, "No response from LLM"),
        (Sent(307, (("location", "http://127.0.0.1:9/"),)), 1, ModelError, "a redirection to 'http://127.0.0.1:9/'"),
        (
            Sent(pieces=(Piece(b'{"choices'), Piece(b'": 1}'))).cut(1, "reset"),
            3,
            ModelError,
            "APIConnectionError: Connection error",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_failed_call_comes_to(answer: Sent, asked: int, kind: type, said: str) -> None:
    """What may be a bad moment is asked again, what is a mistake is not; and the error says what the provider said."""
    with Provider([step(answer=answer, times=None)]) as provider:
        error = wrong(served(provider))
        assert type(error) is kind
        assert said in str(error)
        assert len(provider.requests) == asked


def test_a_refused_temperature_is_left_out() -> None:
    """One that nobody chose; one that was chosen is the user's mistake."""
    no = "Unsupported value: 'temperature' does not support 0.0 with this model."
    with model(refusal(no), step(say="hello")) as (config, provider):
        assert call(config).text == "hello"
        assert ["temperature" in seen.fields for seen in provider.requests] == [True, False]
    with Provider([refusal(no)]) as provider:
        assert isinstance(wrong(served(provider, temperature=0.0)), SettingsError)


def test_nobody_there() -> None:
    """A port on which nobody listens is asked three times, and the error says where that was; of a password it says nothing."""
    place = f"127.0.0.1:{free_port()}"
    said = str(wrong(ModelConfig(model=MODEL, api_key="k", api_base=f"http://user:pass@{place}/v1")))
    assert f"APIConnectionError: Connection error: {place}: " in said
    assert "pass" not in said


def test_an_answer_that_takes_too_long() -> None:
    """`timeout` limits the whole of it, in `extra` or of the call."""
    slow = json_answer({}).late(3600)
    with model(step(answer=slow, times=None)) as (config, _):
        assert "Timeout: Request timed out: no answer within 0.2 s" in str(wrong(config, timeout=0.2))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "The api_key must be passed"),
        ("key\nx: y", "characters that no key has"),
        ("schlüssel", "characters"),
        ("sesame ", "a blank at its end"),
    ],
)
def test_a_key_that_is_none(key: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked without one, and the error says where it is taken from; it does not show it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Provider([step(say="x")]) as provider:
        error = wrong(ModelConfig(model=MODEL, api_key=key or None, api_base=f"{provider.url}/v1"))
        assert said in str(error)
        assert "cannot be called without a valid key" in str(error)
        assert not key or key not in str(error)
        assert provider.requests == []


def test_an_address_that_is_none() -> None:
    """The error says so, and nothing is asked again."""
    error = wrong(ModelConfig(model=MODEL, api_key="k", api_base="nowhere"))
    assert "the request cannot be written" in str(error)


def test_whoever_stops_waiting_ends_the_request() -> None:
    """The provider sees its connection close."""

    async def impatient(url: str) -> None:
        request = DirectRequest(f"{url}/v1", "k", {}, {"model": "m", "messages": HI}, 60)
        async with asyncio.timeout(0.3):
            await elsewhere(ask(request))

    with Provider([step(answer=json_answer({}).late(3600), times=None)]) as provider, pytest.raises(TimeoutError):
        asyncio.run(impatient(provider.url))


def test_no_litellm_is_imported(tmp_path: Path) -> None:
    """The first call of such a model does not wait for it."""
    code = (
        "import asyncio, sys; from llmproxy.scenario.config import ModelConfig; from llmproxy.scenario.models.models import complete;"
        "config = ModelConfig(model='openai/gpt-4.1-mini', api_key='k', api_base=sys.argv[1] + '/v1');"
        "print(asyncio.run(complete(model=config, messages=[{'role': 'user', 'content': 'hi'}], party='user', session=None)).text);"
        "sys.exit('litellm' in sys.modules or 'openai' in sys.modules)"
    )
    with Provider([step(say="hello")]) as provider:
        done = subprocess.run(
            [sys.executable, "-c", code, provider.url],
            check=False,
            timeout=60,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


# -- through the proxy

ASKED: list[dict[str, Any]] = [
    {},
    {"messages": [{"role": "user", "content": "订单在哪里? 😀"}]},
    {"messages": SEEDED},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": CHOICE},
    {"response_format": FORM},
]
LIMITED = ModelConfig(model=MODEL, api_key="k", temperature=0.3, max_tokens=9)


async def played(px: Listening, extra: Mapping[str, Any]) -> list[Answer]:
    """Ask everything in one session."""
    session = await RunSession.open(px.url, cassette="a")
    try:
        plain = ModelConfig(model=MODEL, api_key="k", extra=extra)
        found = [
            await complete(**{"model": plain, "messages": HI, "party": "judge", "session": session, **more})
            for more in ASKED
        ]
        limited = ModelConfig(model=MODEL, api_key="k", temperature=0.3, max_tokens=9, extra=extra)
        found.append(await complete(model=limited, messages=HI, party="user", session=session))
        assert await session.misses() == ()
        return found
    finally:
        await session.close()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [({}, THROUGH_LITELLM), (THROUGH_LITELLM, {})], ids=["ours", "litellm's"])
def test_a_recording_does_not_know_who_asked(
    first: Mapping[str, Any], second: Mapping[str, Any], tmp_path: Path
) -> None:
    """What one recorded, the other finds, without a miss: plain, tools, formats, a transcript with calls, other letters."""
    steps = [step(say=f"answer {number}") for number in range(len(ASKED) + 1)]
    with Provider(steps) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": f"{provider.url}/v1"}) as px:
            recorded = asyncio.run(played(px, first))
        assert not [name for name in provider.header_names() if name.startswith("x-llmproxy")]
    assert [each.text for each in recorded] == [f"answer {number}" for number in range(len(ASKED) + 1)]
    with near("replay", tmp_path / "x.db") as px:
        assert asyncio.run(played(px, second)) == recorded


def test_a_miss_explains_itself(tmp_path: Path) -> None:
    """As it does for everybody who asks the proxy: the whole text, and an error of its own kind."""

    async def run(px: Listening, text: str) -> Answer:
        session = await RunSession.open(px.url, cassette="a")
        try:
            asked = [{"role": "user", "content": text}]
            config = ModelConfig(model=MODEL, api_key="k")
            return await complete(model=config, messages=asked, party="judge", session=session)
        finally:
            await session.close()

    with (
        Provider([raw({"content": "hello"})]) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": f"{provider.url}/v1"}) as px,
    ):
        assert asyncio.run(run(px, "where is my lamp?")).text == "hello"
    with near("replay", tmp_path / "x.db") as px, pytest.raises(MissError) as caught:
        asyncio.run(run(px, "where is my chair?"))
    assert str(caught.value).startswith("llmproxy: no recorded response")
    assert "chair" in str(caught.value)
