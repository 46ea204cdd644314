"""What a run is recorded as: by its test's place, by its own name, or by its number among scenarios of one name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.client.host import HOST, Host
from llmproxy.scenario.running.recording_name import Namesakes, recorded_as
from llmproxy.scenario.values.run import RunOptions
from tests.provider import Provider, step
from tests.support import near


class Program:
    """A plain program, which has run nothing yet."""

    def __init__(self) -> None:
        self.namesakes = Namesakes()

    def named(self, name: str, description: str = "d", script: Any = None, **more: Any) -> str:  # noqa: ANN401
        """Return what a scenario of it is recorded as."""
        options = RunOptions(**more)
        return recorded_as(name, None, description, script, options, host=Host(), namesakes=self.namesakes)


def test_scenarios_of_one_name_that_differ_have_numbers() -> None:
    """In description, fields, scripted words; the same scenario again is itself."""
    named = Program().named
    said = scenario.user("Rome?"), scenario.user("Oslo?")
    assert [named("w", "Rome"), named("w", "Oslo"), named("w", "Rome"), named("v", "Oslo")] == ["w", "w.2", "w", "v"]
    assert [named("f", fields={"n": each}) for each in (1, 2, 1)] == ["f", "f.2", "f"]
    assert [named("s", script=[each, scenario.agent()]) for each in (*said, scenario.user("Rome?"))] == [
        "s",
        "s.2",
        "s",
    ]


def test_a_name_that_is_given_is_taken() -> None:
    """`cassette=` is the user's word."""
    named = Program().named
    assert [named("w", each, cassette="mine") for each in ("a", "b")] == ["mine", "mine"]


def test_objects_and_functions_do_not_make_a_scenario_another() -> None:
    """They lie elsewhere in memory each time."""

    def check(state: object) -> None:
        """Look at nothing."""

    named = Program().named
    assert {named("o", script=[check, lambda _: None], parameters={"client": object()}) for _ in range(2)} == {"o"}


def test_a_test_runner_says_the_place() -> None:
    """Then nothing is numbered here."""
    host = Host(place=lambda name: f"test/{name}")
    assert [recorded_as("w", None, each, None, RunOptions(), host=host) for each in ("a", "b")] == ["test/w", "test/w"]


class Speaker(scenario.AgentAdapter):
    """Asks its model what the user asked."""

    async def call(self, input: scenario.AgentInput) -> str:  # noqa: A002
        """Answer with the model's words."""
        from openai import OpenAI

        made = OpenAI(api_key="k").chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
        return str(made.choices[0].message.content)


def test_a_loop_replays_each_as_it_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenarios of one name ask the same and were answered otherwise."""
    monkeypatch.setattr(HOST, "place", None)  # be a plain program

    def loop(proxy: str, mode: str) -> list[str]:
        script = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
        runs = [
            scenario.run_sync("a loop", city, [Speaker()], script=script, proxy=proxy, mode=mode, verbose=False)
            for city in ("Rome", "Oslo")
        ]
        return [str(run.messages[-1]["content"]) for run in runs]

    with Provider([step(say="sun"), step(say="rain")]) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px:
            assert loop(px.url, "record") == ["sun", "rain"]
        with near("replay", tmp_path / "x.db") as px:
            assert loop(px.url, "replay") == ["sun", "rain"]
