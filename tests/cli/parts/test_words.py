"""Text is taken as it was typed, and what is none is read by typer: nobody sees a difference, and pydantic is not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from llmproxy.cli.parts.words import take_as_typed

WAYS = [
    [],
    ["--text", "x", "--many", "a", "--many", "b", "one", "two"],
    ["--no-flag", "--number", "5", "--ratio", "2.5", "--path", "here"],
    ["--number", "70"],
    ["--number", "x"],
    ["--flag", "--text"],
    ["--text", "\udcff"],
    ["--many", "\udcff", "\ud800"],
    ["--nothing-of-the-kind"],
]


def application(got: list[object]) -> typer.Typer:
    """Return one with a parameter of each kind that commands of ours have; `got` is what its function was called with."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(
        words: list[str] = typer.Argument(None),
        text: str | None = typer.Option(None, "--text"),
        many: list[str] = typer.Option([], "--many"),
        maybe: list[str] | None = typer.Option(None, "--maybe"),
        flag: bool | None = typer.Option(None, "--flag/--no-flag"),
        number: int = typer.Option(3, "--number", min=1, max=64),
        ratio: float = typer.Option(0.0, "--ratio", min=0),
        whole: float = typer.Option(0, "--whole", min=0),
        path: Path | None = typer.Option(None, "--path"),
        parsed: str = typer.Option("x", "--parsed", parser=str.upper),
    ) -> None:
        got.append((words, text, many, maybe, flag, number, ratio, whole, path, parsed))

    return app


@pytest.mark.parametrize("words", WAYS, ids=repr)
def test_a_command_gets_what_typer_would_give_it(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Its values with their types, and the complaint about what cannot be read, to the letter."""
    told = []
    for ours in (False, True):
        got: list[object] = []
        command = get_command(application(got))
        if ours:
            take_as_typed(command)
        with pytest.raises(SystemExit) as ended:
            command(words, prog_name="x")
        got.append(ended.value.code)
        told.append((got, capfd.readouterr()))
    assert told[0] == told[1]
    values = [[each if isinstance(each, tuple) else (each,) for each in got] for got, _ in told]
    assert [[type(each) for each in row] for row in values[0]] == [[type(each) for each in row] for row in values[1]]


@pytest.mark.parametrize("words", [["settings"], ["ls"], ["faults"]], ids=" ".join)
def test_a_command_is_parsed_without_schemas(words: list[str], tmp_path: Path) -> None:
    """Neither its own options nor those that are derived from the settings want any, nor the ones of the whole."""
    code = f"import sys\nfrom llmproxy.cli import main\nmain({words!r})\nprint('PYDANTIC', 'pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert "PYDANTIC False" in done.stdout
