"""Calls of models: what is sent, what is made of the answer, when it is asked again, and what is kept."""

# ruff: noqa: ANN401 (adapters as their users write them; JSON)

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.errors import MissError, SettingsError
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.models.answer import Answer
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.models.models import RefusedChoice, choose_model, complete
from llmproxy.scenario.session import RunSession
from llmproxy.scenario.values.run import context_scenario
from tests.provider import Provider, json_answer, step
from tests.scenario.parties import MODEL, bodies, model, raw, refusal, served
from tests.scenario.people import executor
from tests.support import near

HI = [{"role": "user", "content": "hi"}]
NO_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.0 with this model."


def ask(config: ModelConfig, session: RunSession | None = None, **more: Any) -> Answer:
    """Ask a model something."""
    return asyncio.run(complete(**{"model": config, "messages": HI, "party": "judge", "session": session, **more}))


@pytest.fixture
def default() -> Iterator[type[ScenarioConfig]]:
    """Give the configuration of the process, and put it back afterwards."""
    before = ScenarioConfig.default_config
    yield ScenarioConfig
    ScenarioConfig.default_config = before


# -- what is sent


def test_no_tools_key_without_tools() -> None:
    """Some models refuse an empty list of tools; what was not chosen is not sent."""
    with model(step(user="hi", say="hello")) as (config, provider):
        assert ask(config, tools=[], tool_choice="required").text == "hello"
        assert bodies(provider)[0] == {"model": "gpt-4.1-mini", "messages": HI, "temperature": 0.0}


def test_the_api_key_is_sent() -> None:
    """Row 19: the key that a user gave reaches the provider."""
    with model(step(say="hello")) as (config, provider):
        ask(config)
        assert provider.requests[0].header("authorization") == "Bearer k"


def test_further_keywords_and_limits_are_sent() -> None:
    """`max_tokens` and `extra` are the user's business."""
    with Provider([step(say="hello")]) as provider:
        ask(served(provider, max_tokens=7, extra={"top_p": 0.5, "timeout": 30, "num_retries": 9}))
        assert (bodies(provider)[0]["max_tokens"], bodies(provider)[0]["top_p"]) == (7, 0.5)


def test_a_temperature_that_nobody_chose_is_dropped() -> None:
    """A model that refuses 0.0 is asked again without it."""
    with model(refusal(NO_TEMPERATURE), step(say="hello")) as (config, provider):
        assert ask(config).text == "hello"
        assert ["temperature" in body for body in bodies(provider)] == [True, False]


def test_a_temperature_that_litellm_refuses_is_dropped_too() -> None:
    """For some models litellm refuses before anything is sent."""
    with Provider([step(say="hello")]) as provider:
        assert ask(served(provider, "openai/gpt-5")).text == "hello"
        assert ["temperature" in body for body in bodies(provider)] == [False]


def test_a_chosen_temperature_is_never_dropped() -> None:
    """What the user set is used, or an error: a run at another temperature is another test."""
    with Provider([refusal(NO_TEMPERATURE)]) as provider:
        with pytest.raises(SettingsError, match="refuses temperature=0:"):
            ask(served(provider, temperature=0.0))
        assert len(provider.requests) == 1


# -- what comes back


def test_reasoning_beside_the_text_is_left_out() -> None:
    """Row 32: providers that send reasoning in a member of its own are read without it."""
    with model(raw({"content": "hi there", "reasoning_content": "let me pretend"})) as (config, _):
        assert ask(config).text == "hi there"


def test_no_choices_is_an_error() -> None:
    """A provider that answers nothing gets its own words."""
    empty = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    with model(step(json=empty)) as (config, _), pytest.raises(ModelError, match="No response from LLM"):
        ask(config)


# -- when it is asked again


def test_a_bad_moment_is_waited_out() -> None:
    """A provider that is overloaded for a moment does not break a run."""
    with model(refusal("overloaded", 503), refusal("slow down", 429), step(say="hello")) as (config, provider):
        assert ask(config).text == "hello"
        assert len(provider.requests) == 3


def test_a_mistake_is_not_repeated() -> None:
    """A request that is wrong is wrong again."""
    with model(refusal("context length exceeded")) as (config, provider):
        with pytest.raises(ModelError, match="context length exceeded"):
            ask(config)
        assert len(provider.requests) == 1


def test_a_refused_choice_is_the_callers_business() -> None:
    """Whoever wanted a tool knows what to ask for instead."""
    with model(refusal("tool_choice is not supported")) as (config, _), pytest.raises(RefusedChoice):
        ask(config)


def test_calls_do_not_wait_for_each_other() -> None:
    """Row 20: four calls, none of which is answered before all have come."""
    come = threading.Event()
    come.set()
    slow = json_answer(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        }
    )
    slow = replace(slow, pieces=tuple(replace(piece, after=come) for piece in slow.pieces))

    async def four(config: ModelConfig, provider: Provider) -> None:
        await complete(model=config, messages=HI, party="user", session=None)  # imports litellm, connects
        come.clear()
        calls = [
            asyncio.ensure_future(complete(model=config, messages=HI, party="user", session=None)) for _ in range(4)
        ]
        while len(provider.requests) < 1 + len(calls):
            await asyncio.sleep(0.01)
        come.set()
        await asyncio.gather(*calls)

    with model(step(answer=slow, times=None)) as (config, provider):
        asyncio.run(four(config, provider))


def test_a_call_can_be_cancelled() -> None:
    """A run that is stopped does not wait for a model."""
    never = json_answer({}).late(3600)

    async def impatient(config: ModelConfig) -> None:
        async with asyncio.timeout(1):
            await complete(model=config, messages=HI, party="user", session=None)

    with model(step(answer=never, times=None)) as (config, _), pytest.raises(TimeoutError):
        asyncio.run(impatient(config))


# -- which model


def test_what_an_agent_says_itself_wins(default: type[ScenarioConfig]) -> None:
    """Row 18: an explicit 0.0 is a choice, and not overridden by the default model's temperature."""
    default.configure(default_model=ModelConfig(model=MODEL, temperature=0.7, max_tokens=9, api_key="k"))
    own = choose_model("X", None, None, 0.0, None)
    assert own is not None
    assert (own.temperature, own.temperature_given, own.max_tokens, own.api_key) == (0.0, True, 9, "k")
    default_model = default.default_config and default.default_config.default_model
    assert isinstance(default_model, ModelConfig)
    inherited = choose_model("X", None, None, default_model.temperature, None)
    assert inherited is not None
    assert inherited.temperature == 0.7


def test_a_key_goes_only_to_its_provider(default: type[ScenarioConfig]) -> None:
    """The default model's key is not sent to another company because a judge has another model."""
    default.configure(default_model=ModelConfig(model=MODEL, api_key="openai-key", api_base="http://mine/v1"))
    other, same = (choose_model("X", name, None, 0.0, None) for name in ("anthropic/claude", "openai/gpt-4o"))
    assert other is not None
    assert same is not None
    assert (other.api_key, other.api_base) == (None, None)
    assert (same.api_key, same.api_base) == ("openai-key", None)


def test_no_model_anywhere(default: type[ScenarioConfig]) -> None:
    """Nothing configured is told to the caller, who knows what to write."""
    default.default_config = None
    assert choose_model("X", None, None, 0.0, None) is None
    with pytest.raises(TypeError, match=r"X\(model=\.\.\.\)"):
        choose_model("X", 3, None, 0.0, None)  # type: ignore[arg-type]


# -- what is kept


def test_without_a_proxy_answers_are_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache key in effect the second run makes no call; another key, party, attempt or request makes one."""
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(tmp_path))

    def within(cache_key: str | None, config: ModelConfig, **more: Any) -> str:
        token = context_scenario.set(executor(cache_key=cache_key))
        try:
            return ask(config, **more).text
        finally:
            context_scenario.reset(token)

    with Provider([step(say=str(number)) for number in range(7)]) as provider:
        config = served(provider)
        assert [within("k1", config) for _ in range(2)] == ["0", "0"]
        assert within("k2", config) == "1"
        assert within("k1", config, party="user") == "2"
        assert within("k1", config, attempt=1) == "3"
        assert within("k1", served(provider, temperature=0.5)) == "4"
        assert within(None, config) == "5"
        monkeypatch.setenv("SCENARIO_CACHE_DIR", "")
        assert within("k1", config) == "6"
    assert b"Bearer" not in (tmp_path / "cache.db").read_bytes()


# -- through the proxy


def test_a_model_with_an_address_of_its_own_goes_there_through_the_proxy(tmp_path: Path) -> None:
    """`api_base` is the session's upstream: recorded under our headers, which the provider never sees."""
    from llmproxy.scenario.models.route import upstreams_of_models

    async def go(url: str, config: ModelConfig) -> tuple[Answer, Any]:
        session = await RunSession.open(url, cassette="a", upstreams=upstreams_of_models([config]))
        try:
            return await complete(model=config, messages=HI, party="judge.2", session=session), await session.usage()
        finally:
            await session.close()

    with Provider([step(user="hi", say="hello")]) as provider:
        with near("record", tmp_path / "x.db") as px:
            answer, usage = asyncio.run(go(px.url, served(provider, "hosted_vllm/llama")))
        assert answer.text == "hello"
        assert usage["judge.2"].calls == 1
        assert provider.requests[0].path == "/v1/chat/completions"
        assert not [name for name in provider.header_names() if name.startswith("x-llmproxy")]
    with FileStore.open(tmp_path / "x.db", writable=False, now=lambda: 0.0) as store:
        assert [each.party for each in store.interactions("a")] == ["judge.2"]
    with near("replay", tmp_path / "x.db") as px:
        assert (
            asyncio.run(go(px.url, ModelConfig(model="hosted_vllm/llama", api_base="http://127.0.0.1:9/v1")))[0]
            == answer
        )
        with pytest.raises(MissError, match="no recorded response"):
            asyncio.run(go(px.url, ModelConfig(model="hosted_vllm/other", api_base="http://127.0.0.1:9/v1")))


@pytest.mark.parametrize("name", ["OpenAI", "AsyncOpenAI"])
def test_a_client_of_ones_own_is_used(name: str) -> None:
    """With its headers, be it one that can be awaited or one that blocks."""
    import httpx
    import openai

    with Provider([step(say="hello")]) as provider:
        http = {"OpenAI": httpx.Client, "AsyncOpenAI": httpx.AsyncClient}[name](headers={"connection": "close"})
        client = getattr(openai, name)(
            base_url=f"{provider.url}/v1", api_key="k", default_headers={"x-gateway": "g"}, http_client=http
        )
        assert ask(ModelConfig(model="gpt-4o-mini", extra={"client": client})).text == "hello"
        assert provider.requests[0].header("x-gateway") == "g"
