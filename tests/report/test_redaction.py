"""No report shows a secret, whatever the agent said; all else goes through as it is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from llmproxy.core.secrets.redact import Redactor
from llmproxy.report.choices import KINDS, handler_of
from llmproxy.report.events import Event, Finished, Message
from llmproxy.report.redaction import Hiding, hide_secrets
from llmproxy.report.run_console import ScenarioConsole
from tests.report.samples import events

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
    """Neither one of a known kind nor one that stands in the environment."""
    monkeypatch.setenv("GATEWAY_KEY", OWN)
    handler = handler_of(f"{kind}={tmp_path / 'report'}")
    for event in telling():
        handler.handle(event)
    handler.close()
    shown = (tmp_path / "report").read_text("utf-8") + capsys.readouterr().out
    assert "[REDACTED]" in shown or kind == "github"
    assert GITHUB not in shown
    assert OWN not in shown


def test_the_console_shows_none_either() -> None:
    """What is printed while a scenario runs."""
    out = io.StringIO()
    console = Hiding(ScenarioConsole(verbose=2, stream=out), {"MY_TOKEN": OWN})
    for event in telling():
        console.handle(event)
    assert "my keys: [REDACTED] and [REDACTED]" in out.getvalue()
    assert GITHUB not in out.getvalue()


def test_events_without_a_secret_are_the_same_objects() -> None:
    """Nothing is written anew for nothing, and states stay states."""
    redactor = Redactor()
    for event in events():
        assert hide_secrets(event, redactor.text) is event
    changed = (
        cast("Finished", hide_secrets(telling()[-2], redactor.text)) if isinstance(telling()[-2], Finished) else None
    )
    assert changed is None or changed.error == "it said [REDACTED]"
    assert hide_secrets({"a": [f"x {GITHUB}", 1, None, True]}, redactor.text) == {"a": ["x [REDACTED]", 1, None, True]}
