"""Which calls need no litellm, and that what is sent for them is what litellm sends."""

# ruff: noqa: ANN401 (JSON; litellm has no types)

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy.scenario.models.direct import BASE, DirectRequest, is_openai, request_of
from llmproxy.scenario.models.late_litellm import import_litellm
from llmproxy.scenario.models.loop import elsewhere
from llmproxy.scenario.models.openai import ask
from tests.provider import Provider, step

MODEL = "openai/gpt-4.1-mini"
HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "strict": True, "parameters": PARAMETERS},
}
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
        "temperature": 0.7,
        "max_tokens": 7,
        "seed": 3,
        "top_p": 0.5,
        "n": 1,
        "presence_penalty": 0.1,
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
]


def given(**more: Any) -> dict[str, Any]:
    """Return keywords of a call."""
    return {"model": MODEL, "messages": HI, "api_key": "k", **more}


def direct(keywords: dict[str, Any], env: dict[str, str] | None = None, **more: Any) -> DirectRequest | None:
    """Decide about a call of a model whose address the user gave."""
    return request_of(keywords, env or {}, **{"served": True, **more})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Answer everybody."""
    with Provider([step(say="hello", times=None)]) as running:
        yield running


def _utf8(messages: list[dict[str, Any]]) -> bool:
    return all(str(each["content"]).isascii() or "\ud83d" not in str(each["content"]) for each in messages)


@pytest.mark.parametrize("more", CALLS, ids=[" ".join(call) or "plain" for call in CALLS])
def test_the_body_is_what_litellm_sends(more: dict[str, Any], provider: Provider) -> None:
    """So a recording made by one is found by the other; also the key and the user's headers are the same."""
    keywords = given(**more, api_base=f"{provider.url}/v1", extra_headers={"x-mine": "1"})
    request = direct(keywords)
    assert request is not None
    asyncio.run(elsewhere(ask(request)))
    ours = provider.requests[-1]

    async def translated() -> None:
        await import_litellm().acompletion(**keywords, num_retries=0, max_retries=0)

    if not _utf8(keywords["messages"]):
        with pytest.raises(Exception, match="surrogates not allowed"):  # litellm cannot write half a letter at all
            asyncio.run(elsewhere(translated()))
        return
    asyncio.run(elsewhere(translated()))
    theirs = provider.requests[-1]
    assert ours is not theirs
    assert ours.fields == theirs.fields
    for name in ("authorization", "content-type", "x-mine"):
        assert ours.header(name) == theirs.header(name)
    assert ours.path == theirs.path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "more",
    [
        {"model": "openai/gpt-5-mini"},
        {"model": "openai/o3"},
        {"model": "openai/o4-mini-2025-04-16"},
        {"model": "openai/ft:o4-mini-2025-04-16"},
        {"model": "openai/gpt-4o-audio-preview"},
        {"model": "openai/gpt-4o-search-preview"},
        {"model": "openai/gpt-4o-realtime-preview"},
        {"model": "openai/responses/gpt-4.1"},
        {"model": "openai/gpt-6-astra"},
        {"model": "openai/codex-mini-latest"},
        {"model": "openai/gpt-3.5-turbo-instruct"},
        {"model": "anthropic/claude-sonnet-4-5"},
        {"model": "azure/gpt-4o"},
        {"model": "hosted_vllm/llama"},
        {"model": "my-llama"},
        {"model": "qqq/gpt-4o"},
        {"model": None},
        {"api_version": "2024-10-21"},
        {"metadata": {"a": "b"}},
        {"num_retries": 0},
        {"parallel_tool_calls": True},
        {"user": "ann"},
        {"stream": True},
        {"response_format": type("Pydantic", (), {})},
        {"model": "openai/gpt-4", "response_format": FORM},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": {"type": "auto"}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"anyOf": []}}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": {"pattern": "(?<x>y)"}}}}]},
        {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "developer", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "index": 0}]}]},
        {"messages": [{"content": "hi"}]},
        {"messages": []},
        {"timeout": "30"},
        {"timeout": 0},
        {"extra_headers": {"a": 1}},
    ],
    ids=str,
)
def test_what_might_be_translated_is_litellms(more: dict[str, Any]) -> None:
    """What litellm rewrites, drops or refuses, and what is unknown here, is left to it."""
    assert direct(given(**more)) is None


def test_a_name_that_nobody_knows_needs_an_address() -> None:
    """A future model of OpenAI's may be one whose parameters are rewritten; a server of one's own takes what it is sent."""
    keywords = given(model="openai/my-llama")
    assert direct(keywords, served=True) is not None
    assert direct(keywords, served=False) is None
    assert direct(given(), served=False) is not None


def test_whatever_litellm_treats_differently_is_left_to_it() -> None:
    """Of all models that litellm lists, only those are taken whose parameters its plainest configuration leaves alone."""
    litellm = import_litellm()
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


@pytest.mark.parametrize(
    "name", ["gpt-4.1-mini", "gpt-4o", "gpt-3.5-turbo-0125", "chatgpt-4o-latest", "gpt-4-1106-preview"]
)
def test_a_bare_name_of_openai_is_known(name: str) -> None:
    """For these nobody has to be asked whose they are; litellm says the same."""
    assert is_openai(name)
    assert import_litellm().get_llm_provider(name, api_key="none")[1] == "openai"


@pytest.mark.parametrize(
    "name", ["gpt-5", "gpt-4o-audio-preview", "o3", "gpt-4x", "gpt-4o:mine", "", "gemini-2.5-flash"]
)
def test_other_bare_names_are_not(name: str) -> None:
    """A name that only looks like one of theirs is asked about."""
    assert not is_openai(name)


@pytest.mark.parametrize(
    ("keywords", "env", "base"),
    [
        ({}, {}, BASE),
        ({}, {"OPENAI_API_BASE": "http://b/v1"}, "http://b/v1"),
        ({}, {"OPENAI_API_BASE": "http://b/v1", "OPENAI_BASE_URL": "http://a/v1"}, "http://a/v1"),
        ({"api_base": "http://c/v1"}, {"OPENAI_BASE_URL": "http://a/v1"}, "http://c/v1"),
    ],
)
def test_where_it_goes(keywords: dict[str, Any], env: dict[str, str], base: str) -> None:
    """The user's word, then the variables in litellm's order, then OpenAI."""
    request = direct(given(**keywords), env, served=False)
    assert request is not None
    assert request.base == base


def test_whose_key_it_is() -> None:
    """The user's, then what was set in litellm, then the variable; without any there is none."""
    env = {"OPENAI_API_KEY": "env"}
    module = SimpleNamespace(openai_key="module")
    found = [
        direct(given(), env, litellm=module),
        direct(given(api_key=None), env, litellm=module),
        direct(given(api_key=None), env),
        direct(given(api_key=None)),
    ]
    assert [each.key if each else "?" for each in found] == ["k", "module", "env", None]


def test_the_account_goes_along() -> None:
    """Organization and project of the variables are sent as OpenAI's client sends them; the user's headers win."""
    env = {"OPENAI_ORG_ID": "org", "OPENAI_PROJECT_ID": "project"}
    request = direct(given(extra_headers={"a": "b"}), env)
    assert request is not None
    assert request.headers == {"OpenAI-Organization": "org", "OpenAI-Project": "project", "a": "b"}


@pytest.mark.parametrize("name", ["SSL_VERIFY", "USE_LITELLM_PROXY", "OPENAI_CUSTOM_HEADERS"])
def test_variables_of_litellm_are_litellms(name: str) -> None:
    """What they do is done there."""
    assert direct(given(), {name: "1"}) is None


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(success_callback=["langfuse"]),
        SimpleNamespace(callbacks=[object()]),
        SimpleNamespace(success_callback=["cache", "langfuse"]),
        SimpleNamespace(success_callback=["cache"], cache=object()),
        SimpleNamespace(headers={"a": "b"}),
        SimpleNamespace(ssl_verify=False),
        SimpleNamespace(model_alias_map={"a": "b"}),
        SimpleNamespace(OpenAIConfig=SimpleNamespace(get_config=lambda: {"top_p": 1})),
    ],
    ids=lambda module: next(iter(vars(module))),
)
def test_a_litellm_that_was_set_up_keeps_its_calls(module: Any) -> None:
    """Whoever logs or changes calls in litellm, sees them all."""
    assert direct(given(), litellm=module) is None


def test_litellm_as_it_is_imported_changes_nothing() -> None:
    """That another model goes through litellm makes the others no slower."""
    assert direct(given(), litellm=import_litellm()) is not None
    asked_gemini = SimpleNamespace(input_callback=["cache"], success_callback=["cache"], cache=None)
    assert direct(given(), litellm=asked_gemini) is not None
