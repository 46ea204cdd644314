"""The command ``llmproxy``: the table of commands, and a thin layer that parses, calls and prints.

``llmproxy --help`` prints the table and imports no command. A command is the function of its name in its module; a
module with groups or own command classes has a ``register(app)`` that adds them. :func:`main` is the one place
where an error becomes a message and an exit code.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import llmproxy
from llmproxy.cli.parts.completion import adapt_bash_completion_words
from llmproxy.errors import Exit, print_final_error, redact_url_passwords


class CommandEntry(NamedTuple):
    module: str
    """Module below this package."""
    help: str


GROUPS = {
    "Record and replay": {
        "start": CommandEntry("start", "Start the proxy; then point your agent's base URL at it."),
        "run": CommandEntry("run", "Run a command with the proxy: its calls are replayed, or recorded."),
        "mcp": CommandEntry("mcp", "Record or replay the calls of a client to an MCP stdio server."),
        "replay": CommandEntry("replay", "Run an agent on its recording, with results or answers overridden."),
        "status": CommandEntry("env", "Show whether a proxy runs, its mode, and its counts so far."),
        "stop": CommandEntry("env", "Stop a running proxy after open answers have finished."),
        "faults": CommandEntry(
            "settings_faults_addon", "List the kinds of injected faults and the presets, or print one."
        ),
        "demo": CommandEntry("demo", "Replay a recording to a real SDK client: no key, no network."),
    },
    "Look": {
        "ls": CommandEntry("ls", "List cassettes and the interactions recorded in them."),
        "show": CommandEntry("show", "Show an interaction, or a whole cassette as a conversation."),
        "ui": CommandEntry("ui", "Show recordings and live calls in the browser."),
        "diff": CommandEntry("show", "Show where two interactions or two cassettes differ."),
        "why": CommandEntry("ls", "Explain why the last requests were refused, and what to type."),
        "audit": CommandEntry("ls", "List recordings that count as one request, with the reasons."),
        "verify": CommandEntry("maintenance", "Check every recording: the file, each body's hash, and each key."),
        "drift": CommandEntry("drift", "Send recorded requests again: do the models' answers differ?"),
        "scan": CommandEntry("maintenance", "Find secrets in existing stores, cassettes and reports."),
    },
    "Change": {
        "changes": CommandEntry("changes", "List, offline, what changed since the recording, and its price."),
        "review": CommandEntry("changes", "Decide on each change: keep recorded answers, or record again."),
        "accept": CommandEntry("changes", "Accept changes: keep recorded answers for changed requests."),
        "fork": CommandEntry("replay", "Make a new cassette that begins like another one."),
        "learn": CommandEntry("learn", "Learn which values in tool results vary from run to run."),
        "rerecord": CommandEntry("rerecord", "Record one request, or all changed ones, again."),
        "rm": CommandEntry("maintenance", "Delete cassettes or single interactions, after confirmation."),
        "rename": CommandEntry("maintenance", "Rename a cassette."),
        "prune": CommandEntry("maintenance", "Delete replaced, unused or old recordings, after confirmation."),
        "merge": CommandEntry("merge", "Merge reports and recordings of a test that ran in parts."),
        "import": CommandEntry("import_export", "Import recordings: vcrpy, HAR, mitmproxy, aimock and more."),
        "push": CommandEntry("import_export", "Copy cassettes from a file to the team's server."),
        "pull": CommandEntry("import_export", "Copy cassettes from the team's server into a file."),
        "export": CommandEntry("import_export", "Export a cassette: YAML, HAR, JSON lines, spans, a page."),
        "textconv": CommandEntry("import_export", "Print a store as text for review, for `git diff`."),
    },
    "Test": {
        "test": CommandEntry("test", "Test an agent by YAML suites; LLM calls are replayed, or recorded."),
        "suite": CommandEntry("suite", "Check and list YAML suites without running them, or make one."),
        "judge": CommandEntry("judge", "Compare a judge's verdicts with human labels."),
        "label": CommandEntry("judge", "Label recorded conversations at the terminal, for judge calibrate."),
        "cache": CommandEntry("cache", "List or clear the cache of @scenario.cache."),
    },
    "Set up": {
        "env": CommandEntry("env", "Print the variables that send SDKs to a running proxy."),
        "doctor": CommandEntry("doctor", "Find out why an agent does not use the proxy, and what to do."),
        "settings": CommandEntry("settings_faults_addon", "Show the value of every option and its source."),
        "addon": CommandEntry("settings_faults_addon", "Print the path of the mitmproxy addon."),
    },
}
"""Groups in the order of the help; each line fits a terminal of 80 columns."""

EXAMPLES = {
    "start": "--mode auto",
    "run": "--mode auto -- python agent.py",
    "mcp": "-- npx -y @modelcontextprotocol/server-filesystem .",
    "mcp serve": "--write",
    "replay": "--override-tool get_weather=sunny -- python agent.py",
    "status": "--url http://127.0.0.1:8080",
    "stop": "--url http://127.0.0.1:8080",
    "faults": "http-429",
    "demo": "",
    "ls": "default",
    "show": "1",
    "ui": "llmproxy.db",
    "diff": "1 2",
    "why": "",
    "audit": "",
    "verify": "llmproxy.db",
    "drift": "default --calls 4 --max-cost 0.50",
    "scan": "tests/cassettes",
    "fork": "default --at 3 --as changed",
    "learn": "default -- python agent.py",
    "rerecord": "1",
    "changes": "-- pytest",
    "review": "",
    "accept": "system-3f2a",
    "rm": "default",
    "rename": "default weather",
    "prune": "--unused",
    "merge": "part-1 part-2 --report junit=tests.xml",
    "import": "cassettes/weather.yaml",
    "push": "weather --store postgresql://team@db.example.com/llmproxy",
    "pull": "weather --store postgresql://team@db.example.com/llmproxy",
    "export": "weather.yaml",
    "textconv": "llmproxy.db",
    "test": "tests/weather.suite.yaml --mode auto",
    "suite validate": "tests",
    "suite schema": "> suite.schema.json",
    "suite list": "tests --tag smoke",
    "suite from-session": "default",
    "judge calibrate": "labels.jsonl --model openai/gpt-4.1-mini",
    "label": "last-report.json",
    "cache stats": "",
    "cache list": "--limit 10",
    "cache clear": "--older-than 30d",
    "env": "--format dotenv > .env",
    "doctor": "-- python agent.py",
    "settings": "",
    "addon": "inject_faults",
}

COMMANDS = {name: each for group in GROUPS.values() for name, each in group.items()}


def _skip_typer_conversion(parameters: list[Any]) -> list[Any]:
    """Skip typer's conversion of text parameters and of parameters that were not given.

    Typer 0.29 imports pydantic and builds an adapter even for these: 0.1 s of each command.
    """
    for each in parameters:
        each.process_value = partial(_keep_or_convert_parameter, each)
    return parameters


def _keep_or_convert_parameter(parameter: Any, ctx: Any, value: Any) -> Any:
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    as_typed = value is None or value is parameter.default or kind in (str, list[str])
    if not as_typed or (parameter.required and not value):
        return type(parameter).process_value(parameter, ctx, value)
    many = parameter.multiple or parameter.nargs == -1
    kept = value if not many else () if value is None else list(value)
    return parameter.callback(ctx, parameter, kept) if parameter.callback else kept


class CommandGroup(TyperGroup):
    """The group of all commands. Each is imported when it is used; the help imports none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        listed = {name: TyperCommand(name, help=each.help, rich_markup_mode=None) for name, each in COMMANDS.items()}
        self.commands = {**self.commands, **listed}

    def get_params(self, ctx: Any) -> list[Any]:
        return _skip_typer_conversion(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (as above)
        """Write the list in groups like typer, without cutting lines."""
        widest = max(map(len, self.commands))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), each.help) for name, each in commands.items()])


def make_default_typer(**more: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,  # rich's help and tracebacks double the start-up time
        pretty_exceptions_enable=False,
        **{"add_completion": False, **more},
    )


def load_command(name: str) -> Any:
    app = make_default_typer()
    app.callback()(lambda: None)  # with one, an application of a single command stays a group
    module = importlib.import_module(f"{__package__}.{COMMANDS[name].module}")
    if hasattr(module, "register"):
        module.register(app)
    else:
        app.command(name)(getattr(module, f"{name}_command"))
    group: Any = get_command(app)
    command = group.commands[name]
    below = {f"{name} {sub}": each for sub, each in getattr(command, "commands", {}).items()}
    for spelt, each in {name: command, **below}.items():
        each.get_params = lambda ctx, made=each.get_params: _skip_typer_conversion(made(ctx))
        if spelt in EXAMPLES:
            each.epilog = f"Example:  llmproxy {spelt} {EXAMPLES[spelt]}".rstrip()
    return command


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Base of all command-line errors. Typer does not export it, and since 0.29 bundles its own click."""


def build_app() -> typer.Typer:
    app = make_default_typer(
        name="llmproxy",
        help="Record any agent's LLM traffic once, replay it for ever: byte for byte, offline, free.",
        cls=CommandGroup,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        add_completion=True,
    )
    app.callback()(_root_callback)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        serves = _mitmproxy_version()
        how = f"mitmproxy {serves}" if serves else "without mitmproxy: it cannot serve"
        typer.echo(f"llmproxy {llmproxy.__version__} ({how})")
        raise typer.Exit


def _print_version_json(asked: bool) -> None:
    """Print the version for :mod:`llmproxy.client.proxy_process` in another environment."""
    if asked:
        typer.echo(json.dumps({"llmproxy": llmproxy.__version__, "mitmproxy": _mitmproxy_version()}))
        raise typer.Exit


def _mitmproxy_version() -> str | None:
    """Return mitmproxy's version; None if the proxy cannot run here."""
    from importlib.metadata import PackageNotFoundError, version

    with contextlib.suppress(PackageNotFoundError):
        return version("mitmproxy")
    return None


def _root_callback(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    version_json: bool = typer.Option(
        False, "--version-json", callback=_print_version_json, is_eager=True, hidden=True
    ),
) -> None:
    """Do nothing; typer requires a callback."""


def _escape_unencodable(error: UnicodeError) -> tuple[bytes, int]:
    """Escape what no encoding can represent: a lone surrogate of a recording; bytes of a file name are kept."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    made = b""
    for each in error.object[error.start : error.end]:
        of_byte = 0xDC80 <= ord(each) < 0xDD00  # what `surrogateescape` makes of a byte
        made += bytes([ord(each) & 0xFF]) if of_byte else each.encode("ascii", "backslashreplace")
    return made, error.end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see `errors.Exit`); `arguments` default to the process's own."""
    codecs.register_error("llmproxy", _escape_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with contextlib.suppress(OSError):  # what lies beneath was exchanged meanwhile
                stream.reconfigure(errors="llmproxy")
    try:
        with adapt_bash_completion_words(os.environ):
            code = get_command(build_app())(args=arguments, prog_name="llmproxy", standalone_mode=False)
        return code if isinstance(code, int) else Exit.OK
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Exit.FAILED
    except _UsageError as error:
        return _print_usage_error(error)
    except KeyboardInterrupt:  # typer makes an exit code of it where it can
        return Exit.INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough; nor may the interpreter flush into it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 (the last place where it can become a message)
        from llmproxy.advice import build_missing_extra_error

        final = build_missing_extra_error(error) or error
        return print_final_error(final, debug=bool(os.environ.get("LLMPROXY_DEBUG")))


def _print_usage_error(error: Any) -> Exit:
    if possible := getattr(error, "possibilities", None):
        error.possibilities = None
        error.message = f"{error.message}. Did you mean {possible[0]!r}?"
    error.message = redact_url_passwords(error.message)
    error.show()
    return Exit.USAGE
