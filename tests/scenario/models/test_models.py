"""Calls of models: what is sent, what is made of the answer, when it is asked again, and what is kept."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import MissError, SettingsError
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.models.model_calls import choose_model, complete
from llmproxy.scenario.models.transport import ModelAnswer
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.values.run_ids_and_options import context_scenario
from tests.provider import Provider, json_answer, step
from tests.scenario.parties import MODEL, bodies, model, refusal, run_session, served
from tests.scenario.people import executor
from tests.support import near
from tests.support.narrowing import known

pytestmark = pytest.mark.usefixtures("untouched", "no_pauses")

HI = [{"role": "user", "content": "hi"}]
NO_TEMPERATURE = "Unsupported value: 'temperature' does not support 0.0 with this model."


def ask(config: ModelConfig, session: RunSession | None = None, **more: Any) -> ModelAnswer:
    return asyncio.run(complete(**{"model": config, "messages": HI, "party": "judge", "session": session, **more}))


def test_no_tools_key_without_tools() -> None:
    """Some models refuse an empty list of tools; what was not chosen is not sent, the user's key is (row 19)."""
    with model(step(user="hi", say="hello")) as (config, provider):
        assert ask(config, tools=[], tool_choice="required").text == "hello"
        assert bodies(provider)[0] == {"model": "gpt-4.1-mini", "messages": HI, "temperature": 0.0}
        assert provider.requests[0].header("authorization") == "Bearer k"


def test_further_keywords_and_limits_are_sent() -> None:
    """`max_tokens` and `extra` are the user's business."""
    with Provider([step(say="hello")]) as provider:
        ask(served(provider, max_tokens=7, extra={"top_p": 0.5, "timeout": 30, "num_retries": 9}))
        assert (bodies(provider)[0]["max_tokens"], bodies(provider)[0]["top_p"]) == (7, 0.5)


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


def test_a_bad_moment_is_waited_out() -> None:
    """A provider that is overloaded for a moment does not break a run."""
    with model(refusal("overloaded", 503), refusal("slow down", 429), step(say="hello")) as (config, provider):
        assert ask(config).text == "hello"
        assert len(provider.requests) == 3


def test_calls_do_not_wait_for_each_other() -> None:
    """Row 20: four calls, none of which is answered before all have come."""
    come = threading.Event()
    come.set()
    choices = [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]
    slow = json_answer({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})
    slow = replace(slow, pieces=tuple(replace(piece, after=come) for piece in slow.pieces))

    async def four(config: ModelConfig, provider: Provider) -> None:
        await complete(model=config, messages=HI, party="user", session=None)  # imports litellm, connects
        come.clear()
        more = (complete(model=config, messages=HI, party="user", session=None) for _ in range(4))
        calls = asyncio.gather(*more)
        while len(provider.requests) < 1 + 4:
            await asyncio.sleep(0.01)
        come.set()
        await calls

    with model(step(answer=slow, times=None)) as (config, provider):
        asyncio.run(four(config, provider))


def test_a_call_can_be_cancelled() -> None:
    """A run that is stopped does not wait for a model."""
    never = json_answer({}).late(3600)

    async def impatient(config: ModelConfig) -> None:
        async with asyncio.timeout(0.3):
            await complete(model=config, messages=HI, party="user", session=None)

    with model(step(answer=never, times=None)) as (config, _), pytest.raises(TimeoutError):
        asyncio.run(impatient(config))


def test_what_an_agent_says_itself_wins() -> None:
    """Row 18: an explicit 0.0 is a choice, and not overridden by the default model's temperature."""
    default = ModelConfig(model=MODEL, temperature=0.7, max_tokens=9, api_key="k")
    ScenarioConfig.configure(default_model=default)
    own = known(choose_model("X", None, None, 0.0, None))
    assert (own.temperature, own.temperature_given, own.max_tokens, own.api_key) == (0.0, True, 9, "k")
    inherited = known(choose_model("X", None, None, default.temperature, None))
    assert inherited.temperature == 0.7


def test_a_key_goes_only_to_its_provider() -> None:
    """The default model's key is not sent to another company because a judge has another model."""
    ScenarioConfig.configure(default_model=ModelConfig(model=MODEL, api_key="openai-key", api_base="http://mine/v1"))
    other, same = (choose_model("X", name, None, 0.0, None) for name in ("anthropic/claude", "openai/gpt-4o"))
    assert other is not None
    assert same is not None
    assert (other.api_key, other.api_base) == (None, None)
    assert (same.api_key, same.api_base) == ("openai-key", None)


def test_no_model_anywhere() -> None:
    """Nothing configured is told to the caller, who knows what to write."""
    assert choose_model("X", None, None, 0.0, None) is None
    with pytest.raises(TypeError, match=r"X\(model=\.\.\.\)"):
        choose_model("X", 3, None, 0.0, None)  # type: ignore[arg-type]


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


def test_a_model_with_an_address_of_its_own_goes_there_through_the_proxy(tmp_path: Path) -> None:
    """`api_base` is the session's upstream: recorded under our headers, which the provider never sees."""
    from llmproxy.scenario.models.route_via_proxy import map_upstream_names_to_urls

    async def go(url: str, config: ModelConfig) -> tuple[ModelAnswer, Any]:
        async with run_session(url, cassette="a", upstreams=map_upstream_names_to_urls([config])) as session:
            return await complete(model=config, messages=HI, party="judge.2", session=session), await session.usage()

    with Provider([step(user="hi", say="hello")]) as provider:
        with near("record", tmp_path / "x.db") as px:
            answer, usage = asyncio.run(go(px.url, served(provider, "hosted_vllm/llama")))
        assert answer.text == "hello"
        assert usage["judge.2"].calls == 1
        assert provider.requests[0].path == "/v1/chat/completions"
        assert not [name for name in provider.header_names() if name.startswith("x-llmproxy")]
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=False, now=lambda: 0.0) as store:
        assert [each.party for each in store.iter_interactions("a")] == ["judge.2"]
    with near("replay", tmp_path / "x.db") as px:
        names = ("hosted_vllm/llama", "hosted_vllm/other")
        same, other = (ModelConfig(model=name, api_base="http://h:9/v1") for name in names)
        assert asyncio.run(go(px.url, same))[0] == answer
        with pytest.raises(MissError, match="no recorded response"):
            asyncio.run(go(px.url, other))


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
