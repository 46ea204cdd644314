"""Functions as handlers; no report shows a secret, whatever the agent said, and all else goes through as it is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from llmproxy import scenario
from llmproxy.core.secrets.redact import Redactor
from llmproxy.report.events import (
    Event,
    Finished,
    Message,
    RedactingEventHandler,
    convert_to_event_handlers,
    redact_plain_data,
)
from llmproxy.report.report_kinds import KINDS, create_report_event_handler
from llmproxy.report.run_console import ScenarioConsole
from llmproxy.scenario.config import ScenarioConfig
from tests.report import samples
from tests.report.samples import events


class Agent(scenario.AgentAdapter):
    async def call(self, input: Any) -> str:  # noqa: A002 - the documented name
        return "hello"


SCRIPT = [scenario.user("hi"), scenario.agent(), scenario.succeed()]


def test_a_function_hears_every_event() -> None:
    """In the order in which they happen; an object with `handle` does as ever."""
    heard: list[Any] = []
    (handler,) = convert_to_event_handlers([heard.append])
    samples.feed(handler)
    assert heard == list(samples.events())
    assert convert_to_event_handlers([handler]) == (handler,)


@pytest.mark.parametrize(("given", "words"), [
    ([42], "42 hears nothing"),
    ([object()], "hears nothing"),
    (["print"], "hears nothing"),
    ("print", "a list"),
    ([dict], "dict()"),
])  # fmt: skip
def test_what_would_hear_nothing_is_refused(given: Any, words: str) -> None:
    """Silence would look like a run in which nothing happened."""
    with pytest.raises(ValueError, match="handlers") as caught:
        convert_to_event_handlers(given)
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


GITHUB = "ghp_aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xYz1Q9"
OWN = "Zq8T6VWM2BN5XK3DZ7QA"


def telling() -> list[Event]:
    """Return the events of a run in which everything that is said holds a key."""

    def tell(value: object) -> object:
        if isinstance(value, Message):
            return replace(value, message={**value.message, "content": f"my keys: {GITHUB} and {OWN}"})
        return replace(value, error=f"it said {GITHUB}") if isinstance(value, Finished) else value

    return [cast("Event", tell(event)) for event in events()]


@pytest.mark.parametrize("kind", [*KINDS, "github"])
def test_no_kind_of_report_shows_a_key(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each leaves a file, with neither one of a known kind nor one that stands in the environment."""
    monkeypatch.setenv("GATEWAY_KEY", OWN)
    samples.feed(create_report_event_handler(f"{kind}={tmp_path / 'reports' / 'out'}"), telling())
    shown = (tmp_path / "reports" / "out").read_text("utf-8")
    assert len(shown) > 400
    shown += capsys.readouterr().out
    assert "[REDACTED]" in shown or kind == "github"
    assert GITHUB not in shown
    assert OWN not in shown


def test_the_console_shows_none_either() -> None:
    out = io.StringIO()
    samples.feed(RedactingEventHandler(ScenarioConsole(verbose=2, stream=out), {"MY_TOKEN": OWN}), telling())
    assert "my keys: [REDACTED] and [REDACTED]" in out.getvalue()
    assert GITHUB not in out.getvalue()


def test_events_without_a_secret_are_the_same_objects() -> None:
    """Nothing is written anew for nothing, and states stay states."""
    redactor = Redactor()
    for event in events():
        assert redact_plain_data(event, redactor.text) is event
    changed = (
        cast("Finished", redact_plain_data(telling()[-2], redactor.text))
        if isinstance(telling()[-2], Finished)
        else None
    )
    assert changed is None or changed.error == "it said [REDACTED]"
    login = {"password": "Hx7Qm2Wz9LpT4", "user": "Hx7Qm2Wz9LpT4", "token": "see the vault", "path": "/srv/a2", "x": ""}
    assert redact_plain_data({"arguments": login}, redactor.text) == {"arguments": login | {"password": "[REDACTED]"}}
    assert redact_plain_data({"a": [f"x {GITHUB}", 1, None, True]}, redactor.text) == {
        "a": ["x [REDACTED]", 1, None, True]
    }
    assert redact_plain_data([type("S", (str,), {})(GITHUB)], redactor.text) == ["[REDACTED]"]
