"""One call of a model: which need no litellm, that what is sent is what litellm sends, and what a
failed call comes to.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy.errors import LLMProxyError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.errors import HttpModelCallFailed, ModelError, find_proxy_error_code
from llmproxy.scenario.models.model_calls import ToolChoiceRefused, complete
from llmproxy.scenario.models.transport import (
    BASE,
    ModelAnswer,
    ModelHttpRequest,
    ModelToolCall,
    build_request_litellm_would_send,
    import_litellm,
    is_known_openai_model_name,
    parse_openai_chat_response,
    request_chat_answer,
    run_in_model_loop,
    strip_reasoning,
)
from llmproxy.scenario.run_session import RunSession
from tests.provider import Answer as Sent, Piece, Provider, failed, json_answer, step
from tests.scenario.parties import MODEL, model, refusal, run_session, served
from tests.support import Listening, near
from tests.support.narrowing import known
from tests.support.process import free_port

pytestmark = pytest.mark.usefixtures("no_pauses")

HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": PARAMETERS}}
CHOICE = {"type": "function", "function": {"name": "f"}}
FORM = {"type": "json_schema", "json_schema": {"name": "v", "strict": True, "schema": PARAMETERS}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "größe"}'}}
SEEDED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "where?", "name": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "over there"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "thanks", "name": "Ann"},
]
CALLS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0},
    {
        "temperature": 0.7, "max_tokens": 7, "seed": 3, "top_p": 0.5, "n": 1, "presence_penalty": 0.1,
        "frequency_penalty": 0,
    },
    {"stop": "END"},
    {"stop": ["a", "b", "c", "d"]},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": CHOICE, "temperature": 0.0},
    {"tools": [TOOL]},
    {"response_format": FORM},
    {"response_format": {"type": "json_object"}},
    {"messages": SEEDED},
    {"messages": [{"role": "user", "content": "订单在哪里? 😀 \u2028"}]},
    {"messages": [{"role": "user", "content": "half a letter: \ud83d"}]},
    {"max_tokens": None, "tools": None, "tool_choice": None},
    {"timeout": 30},
    {"model": "openai/My Llama:8b", "temperature": 0.0, "max_tokens": 5},
    {"model": "openai/Qwen/Qwen2.5-7B-Instruct", "tools": [TOOL], "response_format": FORM},
    {"model": "openai/gpt-oss-20b", "temperature": 0.0, "max_tokens": 5, "seed": 1, "tools": [TOOL]},
    {"model": "openai/gpt-4", "temperature": 0.0, "tools": [TOOL], "tool_choice": "required"},
    {"model": "openai/ft:gpt-4o-mini-2024-07-18:org::id", "temperature": 0.0, "max_tokens": 5},
    {"model": "openai/chatgpt-4o-latest", "temperature": 0.0},
]  # fmt: skip


def given(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, "api_key": "k", **more}


def direct(keywords: dict[str, Any], env: dict[str, str] | None = None, **more: Any) -> ModelHttpRequest | None:
    """Decide about a call of a model whose address the user gave."""
    return build_request_litellm_would_send(keywords, env or {}, **{"served": True, **more})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider([step(say="hello", times=None)]) as running:
        yield running


REASONING = ["gpt-5-mini", "o3", "o4-mini-2025-04-16", "ft:o4-mini-2025-04-16", "gpt-6-astra", "codex-mini-latest"]
NO_PLAIN_CHAT = ["gpt-4o-audio-preview", "gpt-4o-search-preview", "gpt-4o-realtime-preview", "gpt-3.5-turbo-instruct"]
NOT_OPENAIS = ["anthropic/claude-sonnet-4-5", "azure/gpt-4o", "hosted_vllm/llama", "my-llama", "qqq/gpt-4o", None]


@pytest.mark.parametrize("more", CALLS, ids=[" ".join(call) or "plain" for call in CALLS])
def test_the_body_is_what_litellm_sends(more: dict[str, Any], provider: Provider) -> None:
    """So a recording made by one is found by the other; also the key and the user's headers are the same."""
    keywords = given(**more, api_base=f"{provider.url}/v1", extra_headers={"x-mine": "1"})
    request = known(direct(keywords))
    asyncio.run(run_in_model_loop(request_chat_answer(request)))
    ours = provider.requests[-1]

    async def translated() -> None:
        await import_litellm().acompletion(**keywords, num_retries=0, max_retries=0)

    if "half a letter" in str(keywords["messages"]):
        with pytest.raises(Exception, match="surrogates not allowed"):  # litellm cannot write half a letter at all
            asyncio.run(run_in_model_loop(translated()))
        return
    asyncio.run(run_in_model_loop(translated()))
    theirs = provider.requests[-1]
    assert ours is not theirs
    assert ours.fields == theirs.fields
    for name in ("authorization", "content-type", "x-mine"):
        assert ours.header(name) == theirs.header(name)
    assert ours.path == theirs.path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "more",
    [
        *({"model": f"openai/{name}"} for name in [*REASONING, *NO_PLAIN_CHAT, "responses/gpt-4.1"]),
        *({"model": name} for name in NOT_OPENAIS),
        {"api_version": "2024-10-21"},
        {"metadata": {"a": "b"}},
        {"num_retries": 0},
        {"parallel_tool_calls": True},
        {"user": "ann"},
        {"stream": True},
        {"response_format": type("Pydantic", (), {})},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "developer", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"content": "hi"}]},
        {"timeout": "30"},
        {"extra_headers": {"a": 1}},
    ],
    ids=str,
)
def test_what_might_be_translated_is_litellms(more: dict[str, Any]) -> None:
    """What litellm rewrites, drops or refuses, and what is unknown here, is left to it."""
    assert direct(given(**more)) is None


def test_a_name_that_nobody_knows_needs_an_address() -> None:
    """A future model of OpenAI's may have its parameters rewritten; a server of one's own takes what it is sent."""
    keywords = given(model="openai/my-llama")
    assert direct(keywords, served=True) is not None
    assert direct(keywords, served=False) is None
    assert direct(given(), served=False) is not None


def test_whatever_litellm_treats_differently_is_left_to_it() -> None:
    """Of its models, those are taken whose parameters its plainest configuration leaves alone; its import changes nothing."""
    litellm = import_litellm()
    assert direct(given(), litellm=litellm) is not None
    listed = {
        name.removeprefix("openai/"): about.get("mode")
        for name, about in litellm.model_cost.items()
        if "openai" in str(about.get("litellm_provider"))
    }
    taken = {name for name in listed if direct(given(model=f"openai/{name}")) is not None and "/" not in name}
    config = litellm.OpenAIConfig()
    for name in taken - {name for name, mode in listed.items() if mode not in ("chat", None)}:
        supported = set(config.get_supported_openai_params(name))
        assert {"temperature", "max_tokens", "seed", "stop", "tools"} <= supported, name
        asked = {"temperature": 0.0, "max_tokens": 5, "top_p": 1, "seed": 1}
        assert config.map_openai_params(dict(asked), {}, name, drop_params=False) == asked, name
    assert {name for name in taken if listed[name] not in ("chat", None)} == set()
    assert {"gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "gpt-4o-2024-08-06", "gpt-4-turbo"} <= taken


@pytest.mark.parametrize(("known", "names"), [
    (True, ["gpt-4.1-mini", "gpt-4o", "gpt-3.5-turbo-0125", "chatgpt-4o-latest", "gpt-4-1106-preview"]),
    (False, ["gpt-5", "gpt-4o-audio-preview", "o3", "gpt-4x", "gpt-4o:mine", "", "gemini-2.5-flash"]),
])  # fmt: skip
def test_a_bare_name_of_openai_is_known(known: bool, names: list[str]) -> None:
    """For these nobody has to be asked whose they are, as litellm says; one that only looks like them is asked about."""
    for name in names:
        assert is_known_openai_model_name(name) is known, name
        assert not known or import_litellm().get_llm_provider(name, api_key="none")[1] == "openai"


@pytest.mark.parametrize(("keywords", "env", "base"), [
    ({}, {}, BASE),
    ({}, {"OPENAI_API_BASE": "http://b/v1"}, "http://b/v1"),
    ({}, {"OPENAI_API_BASE": "http://b/v1", "OPENAI_BASE_URL": "http://a/v1"}, "http://a/v1"),
    ({"api_base": "http://c/v1"}, {"OPENAI_BASE_URL": "http://a/v1"}, "http://c/v1"),
])  # fmt: skip
def test_where_it_goes(keywords: dict[str, Any], env: dict[str, str], base: str) -> None:
    """The user's word, then the variables in litellm's order, then OpenAI."""
    request = known(direct(given(**keywords), env, served=False))
    assert request.url == f"{base}/chat/completions"


def test_whose_key_it_is() -> None:
    """The user's, then the variable; without any there is none."""
    env = {"OPENAI_API_KEY": "env"}
    found = [direct(given(), env), direct(given(api_key=None), env), direct(given(api_key=None))]
    assert [each.key if each else "?" for each in found] == ["k", "env", None]


def test_the_account_goes_along() -> None:
    """Organization and project of the variables are sent as OpenAI's client sends them; the user's headers win."""
    env = {"OPENAI_ORG_ID": "org", "OPENAI_PROJECT_ID": "project"}
    request = known(direct(given(extra_headers={"a": "b"}), env))
    assert request.headers == {"OpenAI-Organization": "org", "OpenAI-Project": "project", "a": "b"}


@pytest.mark.parametrize("name", ["SSL_VERIFY", "USE_LITELLM_PROXY", "OPENAI_CUSTOM_HEADERS"])
def test_variables_of_litellm_are_litellms(name: str) -> None:
    assert direct(given(), {name: "1"}) is None


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(success_callback=["langfuse"]),
        SimpleNamespace(callbacks=[object()]),
        SimpleNamespace(openai_key="k"),
        SimpleNamespace(api_base="http://gateway/v1"),
        SimpleNamespace(headers={"a": "b"}),
        SimpleNamespace(model_alias_map={"a": "b"}),
    ],
    ids=lambda module: next(iter(vars(module))),
)
def test_a_litellm_that_was_set_up_keeps_its_calls(module: Any) -> None:
    """Whoever logs or changes calls in litellm, sees them all."""
    assert direct(given(), litellm=module) is None


THROUGH_LITELLM = {"num_retries": 0}
"""In `ModelConfig.extra_parameters`: a keyword that changes nothing, and that only litellm knows."""
PAGE = Sent(502, (("content-type", "text/html"),), (Piece(b"<html><title>Bad Gateway</title></html>"),))


def call(config: ModelConfig, session: RunSession | None = None, **more: Any) -> ModelAnswer:
    return asyncio.run(complete(**{"model": config, "messages": HI, "party": "judge", "session": session, **more}))


def wrong(config: ModelConfig, **more: Any) -> LLMProxyError:
    with pytest.raises(LLMProxyError) as caught:
        call(config, **more)
    return caught.value


@pytest.mark.parametrize(
    "message",
    [{"content": "größe"}, {"content": None, "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{odd"}}]}],
)
def test_litellm_makes_the_same_of_it(message: dict[str, Any]) -> None:
    """Who reads an answer makes no difference to the run."""
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    whole: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    whole["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    with Provider([step(json=whole, times=None)]) as provider:
        one, other = (call(served(provider, extra=extra)) for extra in ({}, THROUGH_LITELLM))
    assert one == other


@pytest.mark.parametrize(
    ("answer", "asked", "kind", "said"),
    [
        (failed(500, "oops"), 3, ModelError, "failed: HTTP 500: oops"),
        (json_answer({"error": {"message": "slow down"}}, 429), 3, ModelError, "HTTP 429: slow down"),
        (json_answer({"error": {"message": "bad key"}}, 401), 1, ModelError,
         "cannot be called without a valid key: HTTP 401: bad key"),
        (json_answer({"error": {"message": "no such model"}}, 404), 1, ModelError, "HTTP 404: no such model"),
        (json_answer({"error": {"message": "filtered", "code": "content_filter"}}, 400), 1, ModelError,
         "HTTP 400: filtered"),
        (json_answer({"error": {"message": "tool_choice is not supported"}}, 400), 1, ToolChoiceRefused,
         "refuses this request"),
        (json_answer({"error": {"message": "response_format: no"}}, 400), 1, ToolChoiceRefused, "refuses this request"),
        (PAGE, 3, ModelError, "HTTP 502: a web page ('Bad Gateway')"),
        (Sent(pieces=(Piece(b"hello"),)), 3, ModelError, "there is no message in it: 'hello'"),
        (json_answer({"id": "x"}), 3, ModelError, "there is no message in it"),
        (json_answer({"choices": []}), 1, ModelError, "No response from LLM"),
        (Sent(307, (("location", "http://127.0.0.1:9/"),)), 1, ModelError, "a redirection to 'http://127.0.0.1:9/'"),
        (Sent(pieces=(Piece(b'{"choices'), Piece(b'": 1}'))).cut(1, "reset"), 3, ModelError, "Connection error"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_a_failed_call_comes_to(answer: Sent, asked: int, kind: type, said: str) -> None:
    """What may be a bad moment is asked again, what is a mistake is not; and the error says what the provider said."""
    with Provider([step(answer=answer, times=None)]) as provider:
        error = wrong(served(provider))
        assert type(error) is kind
        assert said in str(error)
        assert len(provider.requests) == asked


def test_a_refused_temperature_is_left_out() -> None:
    no = "Unsupported value: 'temperature' does not support 0.0 with this model."
    with model(refusal(no), step(say="hello")) as (config, provider):
        assert call(config).text == "hello"
        assert ["temperature" in seen.fields for seen in provider.requests] == [True, False]


def test_nobody_there() -> None:
    """A port on which nobody listens is asked, and the error says where that was, not the password; what is no address is said."""
    place = f"127.0.0.1:{free_port()}"
    said = str(wrong(ModelConfig(model=MODEL, api_key="k", api_base=f"http://user:pass@{place}/v1")))
    assert f"Connection error: {place}: " in said
    assert "pass" not in said
    error = wrong(ModelConfig(model=MODEL, api_key="k", api_base="nowhere"))
    assert "the request cannot be written" in str(error)


def test_an_answer_that_takes_too_long() -> None:
    """`timeout`, a keyword of the model, limits the whole of it."""
    slow = json_answer({}).late(3600)
    with model(step(answer=slow, times=None)) as (config, _):
        assert "Request timed out: no answer within 0.1 s" in str(wrong(config.model_copy(update={"timeout": 0.1})))


@pytest.mark.parametrize(("key", "said"), [
    ("", "The api_key must be passed"),
    ("key\nx: y", "characters that no key has"),
    ("schlüssel", "characters"),
    ("sesame ", "a blank at its end"),
])  # fmt: skip
def test_a_key_that_is_none(key: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked without one, and the error says where it is taken from; it does not show it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Provider([step(say="x")]) as provider:
        error = wrong(ModelConfig(model=MODEL, api_key=key or None, api_base=f"{provider.url}/v1"))
        assert said in str(error)
        assert "cannot be called without a valid key" in str(error)
        assert not key or key not in str(error)
        assert provider.requests == []


def test_no_litellm_is_imported(tmp_path: Path) -> None:
    """The first call of such a model does not wait for it, nor does the route of a provider in the table."""
    code = (
        "import asyncio, sys; from llmproxy.scenario.config import ModelConfig; from llmproxy.scenario.models.model_calls "
        "import complete; from llmproxy.scenario.models.route_via_proxy import build_litellm_proxy_kwargs;"
        "build_litellm_proxy_kwargs('openai/x', 'http://h'); build_litellm_proxy_kwargs('gpt-4.1-mini', 'http://h');"
        "config = ModelConfig(model='openai/gpt-4.1-mini', api_key='k', api_base=sys.argv[1] + '/v1');"
        "print(asyncio.run(complete(model=config, messages=[{'role': 'user', 'content': 'hi'}], party='user', "
        "session=None)).text);"
        "sys.exit('litellm' in sys.modules or 'openai' in sys.modules)"
    )
    with Provider([step(say="hello")]) as provider:
        command = [sys.executable, "-c", code, provider.url]
        done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


ASKED: list[dict[str, Any]] = [
    {},
    {"messages": [{"role": "user", "content": "订单在哪里? 😀"}]},
    {"messages": SEEDED},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": CHOICE},
    {"response_format": FORM},
]


async def played(px: Listening, extra: Mapping[str, Any]) -> list[ModelAnswer]:
    async with run_session(px.url, cassette="a") as session:
        plain = ModelConfig(model=MODEL, api_key="k", extra=extra)
        judging: dict[str, Any] = {"model": plain, "messages": HI, "party": "judge", "session": session}
        found = [await complete(**judging | more) for more in ASKED]
        limited = ModelConfig(model=MODEL, api_key="k", temperature=0.3, max_tokens=9, extra=extra)
        found.append(await complete(model=limited, messages=HI, party="user", session=session))
        assert await session.misses() == ()
        return found


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [({}, THROUGH_LITELLM), (THROUGH_LITELLM, {})], ids=["ours", "litellm's"])
def test_a_recording_does_not_know_who_asked(
    first: Mapping[str, Any], second: Mapping[str, Any], tmp_path: Path
) -> None:
    """What one recorded, the other finds: plain, tools, formats, a transcript with calls, other letters."""
    steps = [step(say=f"answer {number}") for number in range(len(ASKED) + 1)]
    with Provider(steps) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": f"{provider.url}/v1"}) as px:
            recorded = asyncio.run(played(px, first))
        assert not [name for name in provider.header_names() if name.startswith("x-llmproxy")]
    assert [each.text for each in recorded] == [f"answer {number}" for number in range(len(ASKED) + 1)]
    with near("replay", tmp_path / "x.db") as px:
        assert asyncio.run(played(px, second)) == recorded


async def where() -> tuple[str, int]:
    return threading.current_thread().name, id(asyncio.get_running_loop())


def test_all_loops_share_one() -> None:
    """Runs in other loops and threads do their work in the same one, so that one pool of connections serves all."""
    first = asyncio.run(run_in_model_loop(where()))
    second: list[object] = []
    thread = threading.Thread(target=lambda: second.append(asyncio.run(run_in_model_loop(where()))))
    thread.start()
    thread.join(10)
    assert first == second[0]
    assert first[0] == "llmproxy-models"


async def test_whoever_stops_waiting_stops_the_work() -> None:
    """Cancelling a run cancels its call of a model."""
    stopped = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await run_in_model_loop(work())
    assert stopped.wait(5)


def message(**members: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": members, "finish_reason": "stop"}]}).encode()


@pytest.mark.parametrize(("said", "heard"), [
    ("hello", "hello"),
    ("<think>he wants a refund</think>\n\nI want a refund", "I want a refund"),
    ("<Thinking>a</Thinking>b<think>c</think>d", "bd"),
    ("he wants a refund</think>I want a refund", "I want a refund"),
    ("<think>never ends", ""),
    ("i think <b>so</b>", "i think <b>so</b>"),
    (None, ""),
    (7, ""),
    ([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}], "a"),
    ([{"type": "text", "text": None}, "x", {"type": "text", "text": "c"}], "c"),
])  # fmt: skip
def test_reasoning_is_stripped(said: object, heard: str) -> None:
    """Row 32: what a model thought aloud is not what it said."""
    assert strip_reasoning(said) == heard


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (message(content=" hi "), ModelAnswer("hi")),
        (message(content=None), ModelAnswer("")),
        (message(content="<think>x</think>hi", reasoning_content="let me pretend"), ModelAnswer("hi")),
        (message(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), ModelAnswer("ab")),
        (message(content=None, refusal="no"), ModelAnswer("")),
        (
            message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{odd"}}]),
            ModelAnswer("", (ModelToolCall("f", "{odd"),)),
        ),
        (
            message(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"arguments": None}}]),
            ModelAnswer("", (ModelToolCall("f", '{"a": 1}'), ModelToolCall("", ""))),
        ),
        (message(tool_calls=[{"type": "custom", "custom": {}}, None, 3]), ModelAnswer("")),
        (message(content="x", tool_calls=None), ModelAnswer("x")),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}', ModelAnswer("x")),
        (b'{"choices": [{"message": {}, "finish_reason": "content_filter"}]}', ModelAnswer("")),
        (b'{"error": null, "choices": [{"message": {"content": "x"}}]}', ModelAnswer("x")),
        (b'{"error": {"message": "", "code": null}, "choices": [{"message": {"content": "x"}}]}', ModelAnswer("x")),
    ],
    ids=lambda value: str(value)[:70],
)
def test_an_answer_is_read(body: bytes, answer: ModelAnswer) -> None:
    """What was said aloud, and what was called."""
    assert parse_openai_chat_response(200, {}, body) == answer


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
        (200, b"<html></html>", 500, "no message in it: a web page"),
        (200, b"hello", 500, "no message in it: 'hello'"),
        (200, b"", 500, "no message in it: nothing"),
        (200, b"[]", 500, "no message in it: '[]'"),
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
    with pytest.raises(HttpModelCallFailed) as caught:
        parse_openai_chat_response(status, {"location": "http://b/"}, body)
    assert caught.value.status_code == meant
    assert said in str(caught.value)


def test_what_the_proxy_says_has_its_code() -> None:
    """In a header, whatever the text says; what is kept in cache.db comes back as it was."""
    body = b'{"error": {"message": "llmproxy: no"}}'
    with pytest.raises(HttpModelCallFailed, match=r"^llmproxy: no$") as caught:
        parse_openai_chat_response(404, {"x-llmproxy-error": "llmproxy_cache_miss"}, body)
    assert find_proxy_error_code(caught.value) == "llmproxy_cache_miss"
    with pytest.raises(HttpModelCallFailed) as caught:
        parse_openai_chat_response(404, {}, body)
    assert find_proxy_error_code(caught.value) == ""
    answer = ModelAnswer("größe", (ModelToolCall("f", '{"a": 1}'),))
    assert ModelAnswer.from_json_text(answer.to_text()) == answer
    assert ModelAnswer.from_json_text('{"text": "x", "tool_calls": [], "finish_reason": "stop"}') == ModelAnswer("x")
