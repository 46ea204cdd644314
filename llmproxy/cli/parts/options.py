"""Command-line options: derived from fields of `Settings`, and a table of those that run agents (`RunCommandOptions`).

Deriving takes time; it happens when such a command is parsed or its help is shown, not when it is listed.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, cast, get_type_hints

import typer
from typer.core import TyperCommand
from typer.main import get_command

from llmproxy import protocol
from llmproxy.advice import SuggestedCommandTemplate, quote_word
from llmproxy.cli.parts.completion import complete_cassette_names, make_word_completer
from llmproxy.core.providers.upstreams_and_rate_limits import add_env_upstreams
from llmproxy.errors import SettingsError
from llmproxy.postgres_store_paths import store_exists
from llmproxy.settings import Loaded, Option, format_setting_value, format_shown_path, list_options_of_settings, load


@dataclass(frozen=True, slots=True)
class RunOptionDeclaration:
    flag: str
    """Flag in typer's form: ``--base-urls/--no-base-urls`` if on by default."""
    help: Mapping[str, str]
    """Help by command; other commands lack the option."""
    metavar: str | None
    again: bool
    limits: Mapping[str, float]


def _run_option_field(
    flag: str, *, default: Any = None, metavar: str = "", again: bool = False, limits: Any = None, **help_: str
) -> Any:
    """Declare an option; `help_` is by command name, with `_` for a space."""
    said = {name.replace("_", " "): text for name, text in help_.items()}
    return field(
        default=default, metadata={"option": RunOptionDeclaration(flag, said, metavar or None, again, limits or {})}
    )


_HTTPS = "Also intercept HTTPS, for clients whose base URL cannot be changed."
_DOCTOR_HTTPS = "Also intercept HTTPS."
_SERVERS = "The agent's MCP configuration"


@dataclass(frozen=True, slots=True)
class RunCommandOptions:
    intercept: bool = _run_option_field(
        "--intercept", default=False, again=True, run=_HTTPS, replay=_HTTPS, changes=_HTTPS, doctor=_DOCTOR_HTTPS
    )
    base_urls: bool = _run_option_field(
        "--base-urls/--no-base-urls",
        default=True,
        again=True,
        run="Set base-URL variables; without them only --intercept is used.",
        changes="Set base-URL variables, as in `run`.",
    )
    run_variable: tuple[str, ...] = _run_option_field(
        "--var",
        default=(),
        metavar="NAME=VALUE",
        again=True,
        run="A value that belongs to this run only, such as an id. A replay exchanges it for the recorded value.",
        changes="Run variable, as in `run`.",
        rerecord="Run variable, as in `run`.",
        learn="Run variable, as in `run`.",
    )
    only: bool = _run_option_field(
        "--only",
        default=False,
        again=True,
        run="Let the command reach only the proxy (Linux). Other connections are blocked and listed; exit code 4.",
        changes="Let the command reach only the proxy, as in `run`.",
    )
    only_allow: tuple[str, ...] = _run_option_field(
        "--only-allow",
        default=(),
        metavar="HOST:PORT",
        again=True,
        run="With --only: allow this address, too, or a Unix socket's path.",
        changes="With --only: allow this address, too.",
    )
    mcp_config: str | None = _run_option_field(
        "--mcp-config",
        metavar="FILE",
        again=True,
        run=f"{_SERVERS}: its servers are recorded, or replayed, too. The command gets a copy in its place."
        " The files of Claude Code and Codex are found automatically; `none` disables this.",
        replay=f"{_SERVERS}, as `run` takes it: its servers are not started, their calls are replayed.",
        changes=f"{_SERVERS}, as `run` takes it.",
        rerecord=f"{_SERVERS}, as `run` takes it.",
        mcp_serve=f"{_SERVERS}: `replay` starts none of its servers.",
    )
    json: Path | None = _run_option_field(  # noqa: RUF009 (as above)
        "--json", metavar="FILE", run="Write counts, cost, misses, exit code as JSON.", changes="Write changes as JSON."
    )
    jobs: int | None = _run_option_field(
        "--jobs", metavar="N", limits={"min": 1, "max": 64}, run="With --faults sweep: number of parallel runs."
    )
    runs: int | None = _run_option_field(
        "--runs", metavar="N", limits={"min": 1, "max": 1000}, run="With --live: number of runs, each recorded apart."
    )
    patience: float | None = _run_option_field(
        "--patience",
        metavar="SECONDS",
        limits={"min": 0},
        run="With --faults sweep: time limit of a run. [20, or 5 times a run without faults]",
    )

    def list_flags_to_repeat(self) -> Iterator[tuple[str, str | None]]:
        """Yield the flags to repeat with their values, None for a switch."""
        for name, row in list_run_options_of_cli_command().items():
            value = getattr(self, name)
            if not row.again or value in (None, RUN_DEFAULTS[name]):
                continue
            on, _, off = row.flag.partition("/")
            if isinstance(value, bool):
                yield (on if value else off), None
            else:
                yield from ((on, str(each)) for each in (value if isinstance(value, tuple) else (value,)))


def list_run_options_of_cli_command(command: str = "") -> dict[str, RunOptionDeclaration]:
    rows: dict[str, RunOptionDeclaration] = {each.name: each.metadata["option"] for each in fields(RunCommandOptions)}
    return {name: row for name, row in rows.items() if not command or command in row.help}


RUN_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(RunCommandOptions)}


@dataclass(frozen=True, slots=True)
class CliRunArguments:
    flags: Mapping[str, object]
    command: tuple[str, ...]
    options: RunCommandOptions = field(default_factory=RunCommandOptions)
    recorded: tuple[str, ...] = ()

    @classmethod
    def from_context(cls, ctx: typer.Context, command: Sequence[str] | None, **flags: object) -> Self:
        """Return what was typed, with `flags` in place of typed ones."""
        return cls({**get_given_flag_values(ctx), **flags}, tuple(command or ()), read_run_command_options(ctx))

    def list_run_variables(self, env: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the run variables; given ones override detected ones. Raises SettingsError."""
        from llmproxy.client.child_env import detect_cwd_home_date_variables, parse_run_variable_options

        found = detect_cwd_home_date_variables(env, Path.cwd(), git=True)
        typed = parse_run_variable_options(list(self.options.run_variable))
        names = {each["name"] for each in typed}
        return [*(each for each in found if each["name"] not in names), *typed]

    @property
    def run_command_prefix(self) -> str:
        """Beginning of the command for advice after a miss; the agent's command may hold private words."""
        return self.append_flags_to_command("llmproxy run")

    def append_flags_to_command(self, command: str) -> str:
        words = [
            flag if value is None else f"{flag} {quote_word(value)}"
            for flag, value in self.options.list_flags_to_repeat()
        ]
        return " ".join([command, *words])


_FLAGS, _OPTIONS, _ALL = "llmproxy.flags", "llmproxy.options", "llmproxy.help_all"


class CommandWithSettingsFlags(TyperCommand):
    """A command with the flags of `Settings` and `RunCommandOptions` that have help; `get_given_...` read them."""

    with_settings = True

    own_first = False

    free_port = False
    """Whether the proxy serves one command only, and uses any free port unless one is given."""

    without_live = False
    """Whether it has no flags for live channels, since it replays all channels."""

    shown: tuple[str, ...] = ("mode", "store", "cassette", "cassette_dir", "upstream", "speed")

    run_options = ""
    """Its name in the table of `RunCommandOptions`; the command's name unless it is in a group."""

    _derived: list[Any] | None = None
    _shared: list[Any]

    def get_params(self, ctx: Any) -> list[Any]:
        if self._derived is None:
            own_names = {each.name for each in self.params}
            facts = {"port": "[any free one unless given; for agents at a `url` 8080]"} if self.free_port else {}
            settings = [
                _make_option_signature_parameter(option, facts.get(option.name))
                for option in (list_options_of_settings() if self.with_settings else ())
                if option.has_flag and option.name not in own_names and not (self.without_live and option.of_live)
            ]
            self._derived = _make_parameters(settings)
            self._shared = _make_parameters(_make_run_option_parameters(self.run_options or self.name or "-"))
        own = super().get_params(ctx)
        at = len(self.params)  # behind them stands --help
        own = [*own[:at], *self._shared, *own[at:]]
        own.insert(len(own) - 1, _make_help_all_option())
        return [*own, *self._derived] if self.own_first else [*self._derived, *own]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write its own options and the most used derived ones, a line each; all with --help-all."""
        if ctx.meta.get(_ALL):
            super().format_options(ctx, formatter)
            return
        derived = self._derived or []
        own = [each for each in self.get_params(ctx) if each not in derived and each.param_type_name == "option"]
        few = [each for name in self.shown for each in derived if each.name == name]
        rows = [(each.get_help_record(ctx), each) for each in (*own[:-2], *few, *own[-2:])]
        with formatter.section("Options"):
            formatter.write_dl([(row[0], _shorten_help(str(each.help))) for row, each in rows if row], col_max=26)

    def invoke(self, ctx: Any) -> Any:
        """Move derived options out of the parameters: the function's signature lacks them."""
        for name, derived in ((_FLAGS, self._derived or []), (_OPTIONS, self._shared)):
            ctx.meta[name] = {option.name: ctx.params.pop(option.name) for option in derived}
        return super().invoke(ctx)


def _make_help_all_option() -> Any:
    def show(ctx: typer.Context, _parameter: object, asked: bool) -> None:
        if asked:
            ctx.meta[_ALL] = True
            typer.echo(ctx.get_help())
            raise typer.Exit

    declared = typer.Option(
        False, "--help-all", callback=show, is_eager=True, expose_value=False, help="Show all options."
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return _make_parameters([inspect.Parameter("help_all", kind, default=declared, annotation=bool)])[0]


_SHORT = 48
"""Characters of a help text that fit after the longest option on a line of 80."""


def _shorten_help(text: str) -> str:
    text = text.partition(" [")[0]
    ends = [each.start() for each in re.finditer(r"(?<=[\w)])[.:;,](?: |$)", text)] or [len(text)]
    return text[: max([end for end in ends if end <= _SHORT], default=ends[0])]


class OwnOptionsFirstInHelp(CommandWithSettingsFlags):
    free_port, own_first, shown = True, True, ("mode", "store", "cassette_dir")


class TyperCommandUsingFreeProxyPort(CommandWithSettingsFlags):
    free_port = True


class CommandWithoutLiveOptions(TyperCommandUsingFreeProxyPort):
    without_live = True


def get_given_flag_values(ctx: typer.Context) -> Mapping[str, object]:
    """Return the given values of derived flags by option; None if not given."""
    return cast("Mapping[str, object]", ctx.meta[_FLAGS])


def read_run_command_options(ctx: typer.Context) -> RunCommandOptions:
    typed: Mapping[str, object] = ctx.meta[_OPTIONS]
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in typed.items()}
    return RunCommandOptions(**given)


def _make_parameters(parameters: Sequence[inspect.Parameter]) -> list[Any]:
    def carrier() -> None: ...

    carrier.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    carrier.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return list(get_command(app).params)


def _make_run_option_parameters(command: str) -> list[inspect.Parameter]:
    made, kinds = [], get_type_hints(RunCommandOptions)
    for name, row in list_run_options_of_cli_command(command).items():
        default = RUN_DEFAULTS[name]
        shown: dict[str, Any] = {"help": row.help[command], "metavar": row.metavar, **row.limits}
        declared = typer.Option([] if default == () else default, *row.flag.split(), **shown)
        kind = list[str] if default == () else kinds[name]
        made.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=kind))
    return made


def _make_option_signature_parameter(option: Option, facts: str | None) -> inspect.Parameter:
    """Return an option as text, parsed by `settings.load`; `facts` adds variable and default to the help."""
    kind = bool | None if option.boolean else list[str] | None if option.repeat else str | None
    names = [f"{option.flag}/--no-{option.key}"] if option.boolean else [option.flag]
    if facts is None:
        usual = format_setting_value(option.default)
        facts = f"[{option.env}; default {usual}]" if usual else f"[{option.env}]"
    metavar = None if option.boolean else option.metavar
    words = (metavar or "").split("|")
    known = make_word_completer(words) if len(words) > 1 else None
    complete = complete_cassette_names if option.name == "cassette" else known
    help_ = f"{option.help} {facts}"
    declared = typer.Option(None, *names, help=help_, metavar=metavar, show_default=False, autocompletion=complete)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=kind)


def refuse_live_channels(loaded: Loaded, command: str) -> None:
    """Raise SettingsError if live channels are set globally and the command supports none."""
    if loaded.settings.live:
        hint = f"It was set by {loaded.sources['live']}."
        raise SettingsError(f"live channels make no sense in `{command}`.", hint=hint)


def load_settings(flags: Mapping[str, object]) -> Loaded:
    """Load the settings of this process from its flags, environment and folder.

    A provider's base-URL variable, unless it is our own address, becomes that provider's upstream: a company's gateway
    key must never be sent to the public host.

    Raises SettingsError: A name or value is invalid.
    """
    return add_env_upstreams(load(flags, os.environ, Path.cwd()), os.environ)


def format_record_command(loaded: Loaded, cassette: str = "") -> str:
    """Return the command that records a cassette, by default the settings'; COMMAND stands for the user's own."""
    again = SuggestedCommandTemplate("llmproxy run", " -- COMMAND", loaded.list_typed(environment=False))
    return again.command("record", cassette or loaded.settings.cassette, store=format_shown_path(loaded.settings.store))


CASSETTES = Path("tests") / "cassettes"
STORE = Path(protocol.TESTS_STORE)
LAST_REPORT = Path(protocol.LAST_REPORT)


def suggest_cassette_file_replay(loaded: Loaded) -> str:
    """Return how to replay the cassette's file in tests/cassettes; empty without one, or if recordings are named."""
    settings, file = loaded.settings, CASSETTES / f"{loaded.settings.cassette}.yaml"
    if store_exists(settings.store) or settings.cassette_dir is not None or not file.is_file():
        return ""
    options = (*loaded.list_typed(environment=False), ("cassette_dir", str(CASSETTES)))
    again = SuggestedCommandTemplate("llmproxy run", " -- COMMAND", options)
    typed = again.command("", settings.cassette, store=format_shown_path(settings.store))
    return f"{file} is there, and was not read. Replay it: {typed}"


def find_test_recordings_store(settings: Loaded) -> Path:
    return Path.cwd() / STORE if settings.is_default("store") else settings.settings.store
