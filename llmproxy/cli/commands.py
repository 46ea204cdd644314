"""The commands: where each is, and what the help says of it, so that `llmproxy --help` imports none of them and a
command only itself.

A module has a ``register(app)`` that adds its commands. What stands here is one short line; a command's docstring says
more.
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


GROUPS = {
    "Record and replay": {
        "start": Listed("start", "Start the proxy; then point your agent's base URL at it."),
        "run": Listed("run", "Run a command with the proxy: its calls are replayed, or recorded."),
        "mcp": Listed("mcp", "Stand before an MCP server over stdio: recorded, or replayed."),
        "replay": Listed("replay", "Run an agent on its recording, with results or answers overridden."),
        "status": Listed("status_stop", "Say whether a proxy runs, in which mode, and what came so far."),
        "stop": Listed("status_stop", "End a running proxy in order: what is open may finish."),
        "faults": Listed("faults", "List the kinds of injected faults and the presets, or print one."),
        "demo": Listed("demo", "See a recording replayed to a real SDK client: no key, no network."),
    },
    "Look": {
        "ls": Listed("ls", "List cassettes and the interactions recorded in them."),
        "show": Listed("show", "Show an interaction, or a whole cassette as a conversation."),
        "ui": Listed("ui", "Look at recordings and live calls in the browser."),
        "diff": Listed("diff", "Show where two interactions or two cassettes differ."),
        "why": Listed("ls", "Say why the last requests were refused, and what to type."),
        "audit": Listed("audit", "Say which recordings count as one request, and why that is sound."),
        "verify": Listed("maintenance", "Check every recording: the file, each body's hash, and each key."),
        "scan": Listed("scan", "Find secrets in stores, cassettes and reports that exist."),
    },
    "Change": {
        "fork": Listed("replay", "Make a new cassette that begins as another one does."),
        "learn": Listed("learn", "Learn which values of tools vary from run to run."),
        "rerecord": Listed("rerecord", "Ask one recorded question again, and keep the new answer."),
        "rm": Listed("maintenance", "Delete cassettes or single interactions, after asking."),
        "rename": Listed("maintenance", "Give a cassette another name."),
        "prune": Listed("maintenance", "Delete recordings that are not wanted any more, after asking."),
        "merge": Listed("merge", "Put the parts of a test together: reports and recordings."),
        "import": Listed("import_export", "Import recordings: vcrpy, HAR, mitmproxy, aimock and more."),
        "push": Listed("push_pull", "Bring cassettes of a file to the team's server."),
        "pull": Listed("push_pull", "Bring cassettes of the team's server into a file."),
        "export": Listed("import_export", "Export a cassette: YAML, HAR, JSON lines, spans, a page."),
        "textconv": Listed("import_export", "Print a store as text for review, for `git diff`."),
    },
    "Test": {
        "test": Listed("test", "Test an agent by YAML suites; LLM calls are replayed, or recorded."),
        "suite": Listed("suite", "Look at YAML suites without running them, and make new ones."),
        "judge": Listed("judge", "Compare a judge with people and with itself."),
        "label": Listed("label", "Label recorded conversations at the terminal, for judge calibrate."),
        "cache": Listed("cache", "What @scenario.cache keeps (SCENARIO_CACHE_DIR says where)."),
    },
    "Set up": {
        "env": Listed("env", "Print the variables that send SDKs to a running proxy."),
        "doctor": Listed("doctor", "Find out why an agent does not use the proxy, and what to do."),
        "settings": Listed("settings", "Show every option: its value, and where it came from."),
        "addon": Listed("addon", "Print the path of the mitmproxy addon."),
    },
}
"""In the order of the help; each line fits a terminal of 80 cells."""

COMMANDS = {name: each for group in GROUPS.values() for name, each in group.items()}


class Commands(TyperGroup):
    """The group of all commands. Each is imported when it is asked for; the help asks for none."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (as the group that it is takes them)
        super().__init__(**attributes)
        listed = {name: TyperCommand(name, help=each.help, rich_markup_mode=None) for name, each in COMMANDS.items()}
        self.commands = {**self.commands, **listed}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (of typer, or of its own click)
        """Import a command; None if there is none of this name."""
        return load(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 (as above)
        """Write the list in groups, as typer does, nothing cut."""
        widest = max(map(len, self.commands))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), each.help) for name, each in commands.items()])


def application(**more: Any) -> typer.Typer:  # noqa: ANN401 (as Typer takes them)
    """Return an application with the properties that all of ours have."""
    return typer.Typer(
        rich_markup_mode=None,  # rich's help and tracebacks double the start-up time
        pretty_exceptions_enable=False,
        **{"add_completion": False, **more},
    )


def load(name: str) -> Any:  # noqa: ANN401 (as above)
    app = application()
    app.callback()(lambda: None)  # with one, an application of a single command stays a group
    register: Callable[[typer.Typer], None] = importlib.import_module(f"{__package__}.{COMMANDS[name].module}").register
    register(app)
    group: Any = get_command(app)
    return group.commands[name]
