"""`@scenario.cache`, against each finding about the original (SCENARIO.md section 2, rows 1 to 10), and its documented
examples.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import MissError
from llmproxy.scenario import AgentAdapter, AgentInput, ScenarioResult, cache
from llmproxy.scenario.cache import FunctionCacheWarning, get_cache, memory, scenario_cache
from llmproxy.scenario.cache_store import CacheCorrupt, CacheStore
from tests.provider import Provider, step
from tests.scenario.parties import finish
from tests.scenario.people import Agent, User, play
from tests.support.process import ROOT, clean_env

pytestmark = pytest.mark.usefixtures("untouched")

KEY = "sk-proj-verysecret0123456789abcdefghij"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(tmp_path))
    return tmp_path


def entries() -> int:
    store = CacheStore.from_environment()
    return 0 if store is None else len(store.list())


class Asks(AgentAdapter):
    """An agent whose model is a cached function of the conversation."""

    def __init__(self) -> None:
        self.calls = 0

        @cache()
        def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
            self.calls += 1
            return {"role": "assistant", "content": f"{self.calls}: {messages[-1]['content']}"}

        self.model = model

    async def call(self, input: AgentInput) -> Any:  # noqa: A002
        return self.model(input.messages)


class Whole(AgentAdapter):
    calls = 0

    @cache()
    async def call(self, input: AgentInput) -> str:  # noqa: A002
        type(self).calls += 1
        return f"answer {self.calls}"


def talk(agent: AgentAdapter, **given: Any) -> ScenarioResult:
    script = [scenario.user("hello"), scenario.agent(), scenario.user("bye"), scenario.agent(), scenario.succeed()]
    return play(agent, script=script, proxy=False, **given)


def test_row_1_a_second_run_calls_nothing() -> None:
    """A function of the messages, a method that takes the whole input: ids are in no key, and the run says so."""
    agents = Asks(), Asks()
    results = [talk(agent, cache_key="k") for agent in agents]
    assert [agent.calls for agent in agents] == [2, 0]
    assert results[0].messages == results[1].messages
    assert any("answered from cache.db" in label and "2 calls" in label for label in results[1].labels)

    Whole.calls = 0
    first, second = talk(Whole(), cache_key="k"), talk(Whole(), cache_key="k")
    assert Whole.calls == 2
    assert first.messages == second.messages
    assert first.thread_id != second.thread_id


def test_row_2_keywords_and_defaults_count() -> None:
    """f(x=2) is not f(x=1), f(1, y=5) is not f(1), and f(1) is f(x=1)."""
    scenario.configure(cache_key="k")

    @cache()
    def f(x: int, y: int = 2) -> list[int]:
        return [x, y]

    assert [f(x=1), f(x=2), f(1), f(1, y=5), f(1, 5)] == [[1, 2], [2, 2], [1, 2], [1, 5], [1, 5]]
    assert entries() == 3


def test_row_3_functions_are_told_apart() -> None:
    scenario.configure(cache_key="k")

    @cache()
    def f(x: int) -> str:
        return f"f{x}"

    @cache()
    def g(x: int) -> str:
        return f"g{x}"

    assert (f(1), g(1), cache()(lambda x: x + 1)(1), cache()(lambda x: x + 2)(1)) == ("f1", "g1", 2, 3)


class Weather:
    def __init__(self, api_key: str, model: str = "small") -> None:
        self.api_key = api_key
        self.model = model
        self.client = object()
        self.calls = 0

    @cache(ignore=["timestamp"])
    def get_weather(self, location: str, timestamp: object) -> str:
        self.calls += 1
        return f"{location}: sunny"

    @cache(state=["model"])
    def ask(self, question: str) -> str:
        return f"{self.model}: {question}"


class Cold(Weather):
    """A subclass is other code."""


def test_row_4_declared_state_counts() -> None:
    """Another object with another model gets its own answer; what is not declared, as documented, does not count."""
    scenario.configure(cache_key="k")
    models = ("small", "large", "small")
    assert [Weather("", model).ask("q") for model in models] == [f"{model}: q" for model in models]
    one, other = Weather("a"), Weather("b")
    assert one.get_weather("Oslo", object()) == other.get_weather("Oslo", time.time())
    assert (one.calls, other.calls) == (1, 0)
    cold = Cold("a")
    cold.get_weather("Oslo", 0)
    assert cold.calls == 1


@pytest.mark.parametrize("off", [None, ""])
def test_row_5_none_and_empty_switch_it_off(off: str | None) -> None:
    """For one run, whatever is configured; and `configure(cache_key="")` for all."""
    scenario.configure(cache_key="k")
    agents = [Asks(), Asks(), Asks()]
    for agent in agents[:2]:
        talk(agent, cache_key=off)
    assert [agent.calls for agent in agents[:2]] == [2, 2]
    scenario.configure(cache_key="")
    talk(agents[2])
    assert agents[2].calls == 2
    assert entries() == 0


def test_row_6_an_empty_folder_switches_it_off_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is read when a call is made, long after the import; nothing is written anywhere."""
    scenario.configure(cache_key="k")
    calls = []

    @cache()
    def f() -> int:
        calls.append(1)
        return len(calls)

    monkeypatch.chdir(folder)
    monkeypatch.setenv("SCENARIO_CACHE_DIR", "")
    assert (f(), f()) == (1, 2)
    assert list(folder.iterdir()) == []
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(folder / "later"))
    assert (f(), f()) == (3, 3)
    assert (folder / "later" / "cache.db").exists()


def test_row_7_no_secret_reaches_the_file(folder: Path) -> None:
    """From arguments, state, the configuration, what is returned; and a new key finds the old answers."""
    scenario.configure(default_model=scenario.ModelConfig(model="m", api_key=KEY), cache_key="k")

    class Secretive(AgentAdapter):
        def __init__(self, api_key: str) -> None:
            self.api_key = api_key
            self.calls = 0

        @cache(state=["api_key"])
        async def call(self, input: AgentInput) -> str:  # noqa: A002
            self.calls += 1
            return await ask("hi", api_key=self.api_key, headers={"Authorization": f"Bearer {self.api_key}"})

    @cache()
    async def ask(text: str, api_key: str, headers: dict[str, str]) -> str:
        return f"{text} from {headers['Authorization'][:6]}"

    @cache()
    def leak() -> str:
        return f"my key is {KEY}"

    agents = Secretive(KEY), Secretive(KEY[::-1])
    for agent in agents:
        talk(agent)
    with pytest.warns(FunctionCacheWarning, match="credential"):
        assert leak() == f"my key is {KEY}"
    assert [agent.calls for agent in agents] == [2, 0]
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"hi from Bearer" in written
    assert KEY.encode() not in written
    assert KEY[::-1].encode() not in written


def test_row_7_a_hostile_file_runs_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class path to os.system, a pickle: the function is called instead, not in replay; or the file is called damaged."""
    scenario.configure(cache_key="k")

    @cache()
    def f() -> str:
        return "mine"

    f()
    hostile = json.dumps({"$type": "os:system", "is": {"command": "echo PWNED"}})
    _replace(folder, hostile)
    with pytest.warns(
        FunctionCacheWarning, match="cannot be used, and it is called: there is no class of values at os:system"
    ):
        assert f() == "mine"

    @cache()
    async def g() -> str:
        return "mine"

    async def call() -> str:
        return await g()

    asyncio.run(call())
    _replace(folder, hostile)
    with pytest.warns(FunctionCacheWarning, match="g cannot be used") as caught:
        assert asyncio.run(call()) == "mine"
    assert {each.filename for each in caught} == {__file__}, "the caller's line, of whatever thread"
    _replace(folder, hostile)
    monkeypatch.setenv("SCENARIO_CACHE_MODE", "replay")
    with pytest.raises(MissError, match="Its kept value cannot be used: there is no class of values at os:system"):
        f()
    _replace(folder, "cos\nsystem\n(S'echo PWNED'\ntR.")
    with pytest.raises(CacheCorrupt, match="cannot be read"):
        f()
    assert "PWNED" not in capfd.readouterr().out


def _replace(folder: Path, value: str) -> None:
    with closing(sqlite3.connect(folder / "cache.db")) as conn, conn:
        conn.execute("UPDATE entries SET value = ?", (value,))


def test_row_8_only_what_means_something_counts() -> None:
    """Not how verbose a run is, nor its limits or name; the conversation and the model do."""
    Whole.calls = 0
    for given in ({}, {"verbose": 0}, {"max_turns": 3}, {"name": "other"}, {"set_id": "s"}):
        talk(Whole(), cache_key="k", **given)
    assert Whole.calls == 2
    talk(Whole(), cache_key="k", description="other")
    assert Whole.calls == 4
    scenario.configure(default_model="other")
    talk(Whole(), cache_key="k")
    assert Whole.calls == 6


def test_row_9_outside_a_scenario_it_is_simply_called() -> None:
    """Also in a thread that an agent starts; with a configured key it is cached there too."""
    calls = []

    @cache
    def f(x: int) -> int:
        calls.append(x)
        return x

    assert [f(1), f(1)] == [1, 1]

    class Threaded(AgentAdapter):
        async def call(self, input: AgentInput) -> str:  # noqa: A002
            thread = threading.Thread(target=f, args=(1,))
            thread.start()
            thread.join()
            return "done"

    assert talk(Threaded(), cache_key="k").success
    assert len(calls) == 4
    scenario.configure(cache_key="k")
    assert [f(1), f(1)] == [1, 1]
    assert len(calls) == 5


def test_row_10_strict_replay_statistics_and_single_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A miss in replay is an error that explains itself; hits are counted; callers at the same time share one call."""
    scenario.configure(cache_key="k")
    calls = []

    @cache()
    def f(x: int) -> int:
        calls.append(x)
        time.sleep(0.1)
        return x

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(f, [1] * 8)) == [1] * 8
    assert calls == [1]
    monkeypatch.setenv("SCENARIO_CACHE_MODE", "replay")
    assert f(1) == 1
    store = CacheStore.from_environment()
    assert store is not None
    assert store.list()[0].hits >= 1
    with pytest.raises(MissError, match="kept for 1 other inputs"):
        f(2)
    monkeypatch.setenv("SCENARIO_CACHE_MODE", "record")
    assert f(1) == 1
    assert calls == [1, 1]


class Holder:
    @cache
    @staticmethod
    def fixed(x: int) -> int:
        return x

    @classmethod
    @cache()
    def named(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


class Heir(Holder):
    pass


def test_both_ways_of_writing_it_keep_the_function() -> None:
    """With and without parentheses; name, docstring and kind stay; classmethods and staticmethods too."""

    @cache
    def f() -> int:
        """Say what it does."""
        return 1

    @scenario_cache()
    async def g() -> int:
        return 1

    scenario.configure(cache_key="k")
    assert (f.__name__, f.__doc__, asyncio.iscoroutinefunction(f)) == ("f", "Say what it does.", False)
    assert asyncio.iscoroutinefunction(g)
    assert (f(), asyncio.run(g()), asyncio.run(g()), Holder.fixed(2), Holder().fixed(2)) == (1, 1, 1, 2, 2)
    assert (Holder.named(1), Heir.named(1)) == ("Holder1", "Heir1")


def test_the_first_call_returns_what_the_second_does() -> None:
    """The value takes the way through the file, so nobody shares an object with anybody."""
    scenario.configure(cache_key="k")
    kept: list[int] = [1]

    @cache()
    def f() -> list[int]:
        return kept

    first, second = f(), f()
    assert first == second == kept
    assert first is not kept
    first.append(2)
    assert f() == [1]


def test_what_cannot_be_kept_is_returned_with_one_warning() -> None:
    """Values and arguments alike; and it is called each time."""
    scenario.configure(cache_key="k")
    calls = []

    @cache()
    def f(x: object) -> object:
        calls.append(1)
        return {1, 2} if x else object()

    with pytest.warns(FunctionCacheWarning, match="what .*f returned is not cached: set") as caught:
        assert (f(1), f(1)) == ({1, 2}, {1, 2})
    assert len(caught) == 1
    with pytest.warns(FunctionCacheWarning, match=r"argument 'x' is a object.*ignore=") as caught:
        assert f(object()) is not f(object())
    assert len(caught) == 1
    assert len(calls) == 4
    assert entries() == 0


def test_generators_pass_through() -> None:
    """Sync and async ones: they are called, and say that they are not cached."""
    scenario.configure(cache_key="k")

    @cache()
    def words() -> Iterator[str]:
        yield "a"

    with pytest.warns(FunctionCacheWarning, match="generator"):
        assert list(words()) == ["a"]


def test_an_error_is_not_kept() -> None:
    scenario.configure(cache_key="k")
    calls = []

    @cache()
    def f() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("down")
        return "up"

    with pytest.raises(RuntimeError, match="down"):
        f()
    assert f() == "up"


def test_samples_are_kept_apart() -> None:
    """Run i of several gets what run i got, so that N runs stay N different conversations."""
    agent = Asks()
    script = [scenario.user("hello"), scenario.agent(), scenario.succeed()]
    given: dict[str, Any] = {"name": "n", "description": "d", "agents": [agent], "script": script, "verbose": False}
    given |= {"runs": 3, "cache_key": "k", "proxy": False}
    first = asyncio.run(scenario.run(**given))
    assert entries() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = asyncio.run(scenario.run(**given))
    texts = [[sample.result.messages for sample in result.samples] for result in (first, again)]
    assert texts[0] == texts[1]
    assert len({json.dumps(each) for each in texts[0]}) == 3


@pytest.mark.parametrize("wrong", [{"ignore": "timestamp"}, {"state": "model"}, {"ignore": ["nowhere"]}])
def test_a_wrong_use_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"scenario\.cache"):

        @cache(**wrong)
        def f(x: int) -> int:
            return x


def test_the_names_of_the_original_are_there(folder: Path) -> None:
    """`cache` is a function and a module; memory decorates, says where it is, and can be cleared."""
    from llmproxy.scenario.values.run_ids_and_options import context_scenario

    module: Any = sys.modules["llmproxy.scenario.cache"]
    assert scenario.cache is module.cache is module.scenario_cache
    assert module.context_scenario is context_scenario
    assert get_cache() is memory
    assert memory.location == str(folder)
    scenario.configure(cache_key="k")
    assert memory.cache(lambda x: x + 1, ignore=[])(1) == 2
    assert entries() == 1
    memory.clear()
    assert entries() == 0


EXAMPLES = """
import asyncio, datetime, json, os
import litellm
from llmproxy import scenario

BASE = os.environ["UPSTREAM"] + "/v1"
scenario.configure(default_model=scenario.ModelConfig(model="openai/gpt-4o-mini", api_base=BASE, api_key="k"),
                   cache_key="test-suite-v1", verbose=False)

@scenario.cache()
def my_agent_function(messages) -> scenario.AgentReturnTypes:
    response = litellm.completion(model="openai/gpt-4o-mini", messages=messages, api_base=BASE, api_key="k")
    return response.choices[0].message

class MyAgent(scenario.AgentAdapter):
    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:
        return my_agent_function(input.messages)

class WeatherClient:
    def __init__(self, api_key): self.api_key = api_key
    def get_current_weather(self, location):
        return litellm.completion(model="openai/gpt-4o-mini", messages=[{"role": "user", "content": location}],
                                  api_base=BASE, api_key=self.api_key).choices[0].message.content

class WeatherAgent:
    def __init__(self, api_key: str):
        self.api_key = api_key
        self.client = WeatherClient(api_key)

    @scenario.cache(ignore=["timestamp"])
    def get_weather(self, location: str, timestamp: datetime.datetime) -> str:
        return self.client.get_current_weather(location)

def agents():
    return [MyAgent(), scenario.UserSimulatorAgent(), scenario.JudgeAgent(criteria=["Agent responds helpfully"])]

async def main():
    told = []
    for key in ("happy-path-v1", "edge-cases-v1", "error-handling-v1"):
        result = await scenario.run(
            name="test scenario", description="User asks for help", agents=agents(), cache_key=key)
        assert result.success, result.reasoning
        told.append(result.messages)
    result = await scenario.run(name="of the suite", description="User asks for help", agents=agents())
    told.append(result.messages)
    told.append(WeatherAgent("key " + str(os.getpid())).get_weather("Oslo", datetime.datetime.now()))
    print(json.dumps(told))

asyncio.run(main())
"""


FORKING = """
import litellm, os, runpy, sys
for _ in sys.stdin:
    if not os.fork():
        try:
            runpy.run_path(sys.argv[1], run_name="__main__")
        except BaseException:
            sys.excepthook(*sys.exc_info())
            print("it failed")
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
"""A process for each line, forked from one that has imported litellm, which takes longer than all the rest."""


@pytest.mark.slow
def test_the_documented_examples_call_nothing_the_second_time(folder: Path) -> None:
    """Agent, simulator and judge, in two processes: the second makes no call and tells the same."""
    program = folder / "examples.py"
    program.write_text(EXAMPLES)
    judged = finish("passed", evidence=["Sure"], contains="finish_test", times=None)
    with Provider([judged, step(say="Sure, hello there", times=None)], ordered=False) as upstream:
        env = {"UPSTREAM": upstream.url, "SCENARIO_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
        env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it tries to fetch one
        forking = subprocess.Popen(
            [sys.executable, "-c", FORKING, str(program)], env=clean_env(env), cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

        def run() -> tuple[str, int]:
            before = len(upstream.requests)
            assert forking.stdin
            assert forking.stdout
            forking.stdin.write("\n")
            forking.stdin.flush()
            told = forking.stdout.readline()
            return told, len(upstream.requests) - before

        (first, calls), again = run(), run()
        _, complained = forking.communicate(timeout=300)
    assert (first[:1], calls) == ("[", 4 * 3 + 1), complained[-3000:]
    assert again == (first, 0), complained[-3000:]


def test_simulator_and_agent_of_a_script_are_unchanged_by_the_cache() -> None:
    """With a key in effect and nothing decorated, a run is what it is without."""
    given: tuple[dict[str, Any], ...] = ({"cache_key": "k"}, {})
    with_key, without = (play(User("u"), Agent("a"), max_turns=1, proxy=False, **each).messages for each in given)
    assert with_key == without
