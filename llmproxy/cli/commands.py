"""The commands: where each is, and what the help says of it, so that `llmproxy --help` imports none of them and a command only itself.

A module has a ``register(app)`` that adds its commands. What stands here is the first paragraph of a command's docstring, as a test checks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Listed(NamedTuple):
    """A command that is not imported yet."""

    module: str
    """Of this package."""
    help: str


COMMANDS = {
    "start": Listed("start", "Start the proxy; then point your agent's base URL at it."),
    "run": Listed("run", "Run a command with the proxy: its LLM calls are replayed, or recorded."),
    "replay": Listed(
        "replay", "Run an agent on its recording, with results of tools or answers of the model overridden."
    ),
    "fork": Listed("replay", "Make a new cassette that begins as another one does."),
    "status": Listed("running", "Say whether a proxy runs, in which mode, and what its sessions came to so far."),
    "stop": Listed("running", "End a running proxy in order: open answers may finish, recordings are kept."),
    "faults": Listed(
        "faults", "List the kinds of faults on purpose and the presets, with an example each; or print one."
    ),
    "learn": Listed("learn", "Learn from a trial, or from two recordings, which values of tools vary from run to run."),
    "env": Listed("env", 'Print the variables that send SDKs to a running proxy: eval "$(llmproxy env)".'),
    "doctor": Listed("doctor", "Find out why an agent does not use the proxy, and what to do about it."),
    "demo": Listed("demo", "See a recording replayed to a real SDK client: no key, no network, nothing left behind."),
    "ls": Listed("look", "List cassettes and the interactions recorded in them."),
    "show": Listed("look", "Show one interaction: the conversation, the answer, tool calls, tokens and timing."),
    "diff": Listed(
        "compare",
        "Show where two interactions differ, by JSON path; or two cassettes, by tools, texts, tokens, cost, time and requests.",
    ),
    "why": Listed("look", "Say why the last requests were refused: what was nearest, where it differs, what to type."),
    "audit": Listed(
        "audit",
        "Say which recordings count as one request, what served answers differed in from theirs, and why that is sound.",
    ),
    "verify": Listed(
        "keep", "Check every recording: the file, each body's hash, and each key under the rules of today."
    ),
    "prune": Listed("keep", "Delete recordings that are not wanted any more, after saying which and asking."),
    "scan": Listed(
        "scan",
        "Find secrets in stores, cassettes and reports that exist, by today's rules, and say how to take them out.",
    ),
    "import": Listed(
        "exchange", "Import recordings of llmproxy, vcrpy, HAR, mitmproxy, aimock, ddapm-test-agent or cassetter."
    ),
    "export": Listed(
        "exchange",
        "Export a cassette to YAML that vcrpy plays, YAML for review, HAR, JSON lines, spans (a trace file), OTLP, or a page for a browser.",
    ),
    "textconv": Listed(
        "exchange", "Print everything live in a store as text for review: for `git diff` on llmproxy.db."
    ),
    "ui": Listed("ui", "Look at recordings in the browser: conversations, what changed, time, tokens and cost."),
    "settings": Listed(
        "settings", "Show every option: its value, where the value came from, its environment variable."
    ),
    "addon": Listed("addon", 'Print the path of the mitmproxy addon: mitmdump -s "$(llmproxy addon)".'),
    "test": Listed("test", "Test an agent by YAML suites; LLM calls are replayed, or recorded with --mode record."),
    "suite": Listed("suite", "Look at YAML suites without running them, and make new ones."),
    "judge": Listed("judge", "Compare a judge with people and with itself."),
    "label": Listed("label", "Label recorded conversations at the terminal, for judge calibrate."),
    "cache": Listed("cache", "What @scenario.cache keeps (SCENARIO_CACHE_DIR says where)."),
}
"""In the order of the help."""


class Commands(TyperGroup):
    """The group of all commands. Each is imported when it is asked for; the help asks for none."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (as the group that it is takes them)
        """List the commands."""
        super().__init__(**attributes)
        listed = {name: TyperCommand(name, help=each.help, rich_markup_mode=None) for name, each in COMMANDS.items()}
        self.commands = {**self.commands, **listed}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (typer 0.29 carries its own click: no name fits both)
        """Import a command; None if there is none of this name."""
        return load(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 (as above)
        """Write the list, as typer does."""
        room = formatter.width - 6 - max(map(len, self.commands))
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(room)) for name, each in self.commands.items()])


def application(**more: Any) -> typer.Typer:  # noqa: ANN401 (as Typer takes them)
    """Return an application with the properties that all of ours have."""
    return typer.Typer(
        rich_markup_mode=None,  # rich's help and tracebacks double the start-up time
        pretty_exceptions_enable=False,
        add_completion=False,
        **more,
    )


def load(name: str) -> Any:  # noqa: ANN401 (as above)
    """Import a command of the table."""
    app = application()
    app.callback()(lambda: None)  # with one, an application of a single command stays a group
    register: Callable[[typer.Typer], None] = importlib.import_module(f"{__package__}.{COMMANDS[name].module}").register
    register(app)
    group: Any = get_command(app)
    return group.commands[name]
