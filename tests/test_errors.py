"""Errors: one table of codes, statuses and exit codes, and texts that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy import errors
from llmproxy.cli import main
from llmproxy.errors import Exit, LLMProxyError, MachineError, ensure_program_prefix, redact_url_passwords

ALL = sorted(
    (found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, LLMProxyError)),
    key=lambda found: found.__name__,
)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_has_a_code_a_status_and_an_exit_code(error: type[LLMProxyError]) -> None:
    """Programs read the code, clients the status, shells the exit code."""
    assert error.code.startswith("llmproxy_")
    assert 400 <= error.status < 600
    assert error.exit_code in Exit
    assert error.__name__ in (errors.__doc__ or "") or error is LLMProxyError


def test_codes_are_distinct() -> None:
    assert len({error.code for error in ALL}) == len(ALL)


def test_a_hint_stands_on_a_line_of_its_own() -> None:
    assert str(LLMProxyError("it broke", hint="mend it")) == "it broke\nmend it"
    assert str(LLMProxyError("it broke")) == "it broke"


def test_exit_codes_are_those_of_the_readme() -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "ENVIRONMENT": 3,
        "MISS": 4,
        "NOTHING": 5,
        "CHANGED": 6,
        "CARRIED": 7,
        "DRIFTED": 8,
        "UNTOLD": 9,
        "STALE": 10,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(("said", "shown"), [
    ("no postgresql://me:s3:cr%21et@h/x, no y@z", "no postgresql://me:***@h/x, no y@z"),
    ("postgresql:/me:secret@h:5432/x", "postgresql:/me:***@h:5432/x"),
    ("redis://:secret@h", "redis://:***@h"),
    ("https://me@h:1/a:b@c and C:/x:y", "https://me@h:1/a:b@c and C:/x:y"),
])  # fmt: skip
def test_no_message_has_a_password_of_a_url(said: str, shown: str) -> None:
    """Also of one that lost a slash when it was taken for a path."""
    assert redact_url_passwords(said) == shown


def test_who_speaks_is_said_once() -> None:
    """What the proxy says over HTTP begins with its name already."""
    assert ensure_program_prefix("no store") == "llmproxy: no store"
    assert ensure_program_prefix(MachineError("llmproxy: no store", hint="x")) == "llmproxy: no store\nx"


@pytest.mark.parametrize("command", ["test", "show", "ui", "verify", "import", "scan", "diff"])
def test_a_name_that_no_system_takes_is_told_in_words(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads it first: the beginning of the name and what the system says, no internal error."""
    monkeypatch.chdir(tmp_path)
    words = ["n" * 5_000] * (1 + (command == "diff"))
    assert main([command, *words]) in (Exit.USAGE, Exit.ENVIRONMENT)
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "Traceback" not in said
