"""Functions as handlers."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.handlers import handlers_from
from llmproxy.scenario.config import ScenarioConfig
from tests.report import samples


class Agent(scenario.AgentAdapter):
    """Says hello."""

    async def call(self, input: Any) -> str:  # noqa: A002, ANN401 - the documented name
        return "hello"


SCRIPT = [scenario.user("hi"), scenario.agent(), scenario.succeed()]


def test_a_function_hears_every_event() -> None:
    """In the order in which they happen; an object with `handle` does as ever."""
    heard: list[Any] = []
    (handler,) = handlers_from([heard.append])
    for event in samples.events():
        handler.handle(event)
    handler.close()
    assert heard == list(samples.events())
    assert handlers_from([handler]) == (handler,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([42], "42 hears nothing"),
        ([object()], "hears nothing"),
        (["print"], "hears nothing"),
        ("print", "a list"),
        ([dict], "dict()"),
    ],
)
def test_what_would_hear_nothing_is_refused(given: Any, words: str) -> None:  # noqa: ANN401 - anything at all
    """Silence would look like a run in which nothing happened."""
    with pytest.raises(ValueError, match="handlers") as caught:
        handlers_from(given)
    assert words in str(caught.value)


def test_functions_hear_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given to a run, or to `configure` for all of them."""
    heard: list[str] = []
    everywhere: list[str] = []
    before = ScenarioConfig.defaults
    monkeypatch.delenv("LLMPROXY_URL", raising=False)
    try:
        scenario.configure(handlers=[lambda event: everywhere.append(type(event).__name__)])
        scenario.run_sync(
            "s", "d", [Agent()], script=SCRIPT, handlers=[lambda event: heard.append(type(event).__name__)]
        )
    finally:
        ScenarioConfig.defaults = before
    assert heard == everywhere
    assert (heard[0], heard[-1], heard.count("Message")) == ("Started", "Finished", 2)
    with pytest.warns(RuntimeWarning, match=r"the handler .*<lambda> failed: TypeError"):
        scenario.run_sync("s", "d", [Agent()], script=SCRIPT, handlers=[lambda: None])
    with pytest.raises(ValueError, match="hears nothing"):
        scenario.run_sync("s", "d", [Agent()], script=SCRIPT, handlers=[7])
