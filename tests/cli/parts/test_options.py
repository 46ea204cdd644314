"""Flags derived from the settings."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from typer.main import get_command

from llmproxy.cli import load_command, main
from llmproxy.cli.parts.options import (
    CliRunArguments,
    CommandWithSettingsFlags,
    RunCommandOptions,
    TyperCommandUsingFreeProxyPort,
    get_given_flag_values,
    list_run_options_of_cli_command,
)


@pytest.fixture
def seen() -> dict[str, object]:
    return {}


def run(seen: dict[str, object], *typed: str) -> None:
    """Run a command that has the derived flags and one of its own."""
    app = typer.Typer()

    def command(ctx: typer.Context, own: str = "") -> None:
        """Take everything."""
        seen.update(get_given_flag_values(ctx), own=own)

    app.command(cls=CommandWithSettingsFlags)(command)
    get_command(app)(args=list(typed), standalone_mode=False)


def test_what_was_typed_arrives_as_text_by_option(seen: dict[str, object]) -> None:
    """Reading it is the settings' business, who know its source."""
    run(seen, "--mode", "nonsense", "--upstream", "a=b", "--upstream", "c=d", "--fail-on-miss", "--own", "x")
    given = {name: value for name, value in seen.items() if value is not None}
    assert given.pop("own") == "x"
    found = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v != ()}
    assert found == {"mode": "nonsense", "upstream": ["a=b", "c=d"], "fail_on_miss": True}


def test_a_boolean_can_be_switched_off(seen: dict[str, object]) -> None:
    """A flag must be able to beat the file."""
    run(seen, "--no-fail-on-miss")
    assert seen["fail_on_miss"] is False


@pytest.mark.parametrize(("kind", "says"), [
    (CommandWithSettingsFlags, "default 8080]"),
    (TyperCommandUsingFreeProxyPort, "[any free one unless given; for agents at a `url` 8080]"),
])  # fmt: skip
def test_help_says_where_the_command_listens(
    kind: type[CommandWithSettingsFlags], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`start` on its port; a proxy for the length of a command where there is room."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command(cls=kind)
    def command() -> None:
        """Do nothing."""

    get_command(app)(args=["--help-all"], standalone_mode=False)
    port = capsys.readouterr().out.partition("--port PORT")[2].partition("--store")[0]
    assert says in " ".join(port.split())


def test_help_does_not_contradict_what_a_text_says_of_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of `--patience` says how long it is; the 0 that stands for that is not shown."""
    assert main(["run", "--help-all"]) == 0
    assert "5 times a run without faults] [x>=0]" in " ".join(capsys.readouterr().out.split())


GIVEN = RunCommandOptions(intercept=True, base_urls=False, run_variable=("a=b",), mcp_config="a b.json", runs=2)


def flags(command: str) -> dict[str, Any]:
    """Return the flags that a command has, with their help."""
    head, _, below = command.partition(" ")
    found = load_command(head)
    found = found.commands[below] if below else found
    parameters = found.get_params(found.make_context(command, ["--", "x"], resilient_parsing=True))
    return {flag: getattr(each, "help", None) for each in parameters for flag in each.opts}


@pytest.mark.parametrize("command", ["run", "replay", "doctor", "mcp serve", "learn"])
def test_a_command_has_the_options_that_have_a_help_for_it(command: str) -> None:
    """And no others: `learn` runs an agent as it is."""
    here = flags(command)
    for name, row in list_run_options_of_cli_command().items():
        assert here.get(row.flag.partition("/")[0]) == row.help.get(command), name


def test_what_is_typed_again_has_each_option_that_says_so() -> None:
    """A switch that is off by default, one that is on, and values that a shell must not part; nothing that was not typed."""
    typed = shlex.split(CliRunArguments({}, ("x",), GIVEN).run_command_prefix)
    assert typed == ["llmproxy", "run", "--intercept", "--no-base-urls", "--var", "a=b", "--mcp-config", "a b.json"]
    assert CliRunArguments({}, ("x",)).run_command_prefix == "llmproxy run"
