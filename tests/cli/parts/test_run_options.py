"""The table of options of commands that run an agent: what is derived from it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from llmproxy.cli.commands import load_command
from llmproxy.cli.parts.run_options import RunArguments, RunOptions, list_run_options

GIVEN = RunOptions(intercept=True, base_urls=False, run_variable=("a=b",), mcp_config="a b.json", runs=2)


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
    for name, row in list_run_options().items():
        assert here.get(row.flag.partition("/")[0]) == row.help.get(command), name


def test_what_is_typed_again_has_each_option_that_says_so() -> None:
    """A switch that is off by default, one that is on, and values that a shell must not part; nothing that was not typed."""
    typed = shlex.split(RunArguments({}, ("x",), GIVEN).run_command_prefix)
    assert typed == ["llmproxy", "run", "--intercept", "--no-base-urls", "--var", "a=b", "--mcp-config", "a b.json"]
    assert RunArguments({}, ("x",)).run_command_prefix == "llmproxy run"
