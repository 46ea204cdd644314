"""The list of commands: what it says is what they say, and none is imported before it is asked for."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import llmproxy.cli
from llmproxy.cli import COMMANDS, EXAMPLES, GROUPS, load_command, main, make_default_typer


@pytest.mark.parametrize("name", COMMANDS)
def test_a_listed_command_is_there_and_says_what_the_list_says(name: str) -> None:
    """It is in its module, under its name; its own help begins as its line of the list, which a terminal of 80 cells shows whole."""
    command = load_command(name)
    assert command.name == name
    assert command.help.split()[0] == COMMANDS[name].help.split()[0]
    assert len(COMMANDS[name].help) <= 80 - len("  textconv  ")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_is_cut(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a group of commands, either; and arguments stand in one pair of brackets."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    usage, *lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.endswith("...")]
    assert len({"".join(lines).count(bracket) for bracket in "()"}) == 1
    assert max(map(len, lines)) <= 80
    assert not {"[[", "]]", "......", "...}"} & {usage[n : n + size] for size in (2, 4, 6) for n in range(len(usage))}


HELP = 43
"""Lines of a help that fit a screen."""


@pytest.mark.parametrize("spelt", EXAMPLES)
def test_help_fits_a_screen_and_ends_with_an_example_that_parses(
    spelt: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a command with all options of the proxy as well; they are behind --help-all. The example names options that there are."""
    monkeypatch.setenv("COLUMNS", "80")
    name, *below = spelt.split()
    assert main([*spelt.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= HELP
    assert " ".join(said.split()).endswith(f"Example: llmproxy {spelt} {EXAMPLES[spelt]}".strip())
    command = load_command(name)
    for each in below:
        command = command.commands[each]
    words = shlex.split(EXAMPLES[spelt].partition(">")[0])
    parameters = command.get_params(command.context_class(command))
    known = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
    ours = words[: words.index("--")] if "--" in words else words
    assert {word for word in ours if word.startswith("-")} <= known


@pytest.mark.parametrize("spelt", EXAMPLES)
def test_what_is_kept_as_typed_is_what_typer_makes_of_it(spelt: str) -> None:
    """Of nothing, of the default and of text: a default of another type than its parameter's would arrive as it is."""
    name, *below = spelt.split()
    command = load_command(name)
    for each in below:
        command = command.commands[each]
    ctx = command.context_class(command)
    for each in command.get_params(ctx):
        several = each.multiple or each.nargs == -1
        for value in (None, each.get_default(ctx), ("", "x y") if several else ""):
            ours = _process(each.process_value, ctx, value)
            assert ours == _process(partial(type(each).process_value, each), ctx, value), (each.name, value)


def _process(process: Callable[[Any, Any], Any], ctx: object, value: object) -> tuple[type, object]:
    """Return a value and its type; oldest typer's click has tuples where newer ones have lists."""
    try:
        made = process(ctx, value)
    except Exception as error:  # noqa: BLE001 (what it complains about is compared)
        return type(error), str(error)
    return (list, [*made]) if isinstance(made, tuple) else (type(made), made)


def test_every_command_has_an_example() -> None:
    """Those below another one, too; a group shows its list."""
    commands = {name: load_command(name) for name in COMMANDS}
    below = {f"{name} {sub}" for name, each in commands.items() for sub in getattr(each, "commands", {})}
    assert set(EXAMPLES) == (set(COMMANDS) | below) - {"suite", "judge", "cache"}


def test_every_command_of_a_module_is_listed() -> None:
    """A command cannot be registered and then be forgotten in the list."""
    for path in Path(llmproxy.cli.__file__).parent.glob("*.py"):
        module = importlib.import_module(f"llmproxy.cli.{path.stem}")
        if hasattr(module, "register"):
            app = make_default_typer()
            module.register(app)
            groups = {each.name for each in app.registered_groups}
            assert {each.name for each in app.registered_commands} | groups <= set(COMMANDS)


def test_the_help_lists_the_commands_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = [line for line in capsys.readouterr().out.partition("exit.\n")[2].splitlines() if line]
    assert [line.rstrip(":") for line in listed if not line.startswith(" ")] == list(GROUPS)
    assert [line.split(maxsplit=1) for line in listed if line.startswith(" ")] == [
        [name, each.help] for name, each in COMMANDS.items()
    ]


def test_a_command_imports_only_itself() -> None:
    """Neither the help of all nor that of one brings the other commands along."""
    probe = (
        "import sys\nfrom llmproxy.cli import main\nmain(sys.argv[1:])\n"
        "print('MODULES', *(name for name in sys.modules if name.startswith('llmproxy.cli.')))"
    )
    for arguments, more in ((["--help"], set()), (["env", "--help"], {"env"})):
        command = [sys.executable, "-c", probe, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        imported = {name.rpartition(".")[2] for name in done.stdout.rpartition("MODULES")[2].split()}
        assert imported & ({each.module for each in COMMANDS.values()} | {"compare", "keep"}) == more
