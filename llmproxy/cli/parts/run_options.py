"""Arguments of commands that run an agent, and the table of options that such commands share.

A field of :class:`RunOptions` is an option: `run`, `replay`, `learn` and others derive those that have a help
text for them, and suggested commands repeat those marked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from llmproxy.advice import quote_word
from llmproxy.client.gather_run_variables import gather_run_variables, parse_var_option_dicts


@dataclass(frozen=True, slots=True)
class RunOption:
    flag: str
    """Flag in typer's form: ``--base-urls/--no-base-urls`` if on by default."""
    help: Mapping[str, str]
    """Help by command; other commands lack the option."""
    metavar: str | None
    again: bool
    limits: Mapping[str, float]


def _run_option_field(
    flag: str,
    *,
    default: Any = None,
    metavar: str | None = None,
    again: bool = False,
    limits: Mapping[str, float] | None = None,
    **help_: str,
) -> Any:
    """Declare an option; `help_` is by command name, with `_` for a space."""
    said = {name.replace("_", " "): text for name, text in help_.items()}
    return field(default=default, metadata={"option": RunOption(flag, said, metavar, again, limits or {})})


_INTERCEPT = "Also intercept HTTPS, for clients whose base URL cannot be changed."
_SERVERS = "The agent's MCP configuration"


@dataclass(frozen=True, slots=True)
class RunOptions:
    intercept: bool = _run_option_field(
        "--intercept",
        default=False,
        again=True,
        run=_INTERCEPT,
        replay=_INTERCEPT,
        changes=_INTERCEPT,
        doctor="Also intercept HTTPS.",
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
        "--json",
        metavar="FILE",
        run="Write a JSON summary: counts, costs, misses, exit code.",
        changes="Write the changes as JSON.",
    )
    jobs: int | None = _run_option_field(
        "--jobs", metavar="N", limits={"min": 1, "max": 64}, run="With --faults sweep: number of parallel runs."
    )
    runs: int | None = _run_option_field(
        "--runs",
        metavar="N",
        limits={"min": 1, "max": 1000},
        run="With --live: number of runs, each with its own recording.",
    )
    patience: float | None = _run_option_field(
        "--patience",
        metavar="SECONDS",
        limits={"min": 0},
        run="With --faults sweep: time limit of a run. [20, or 5 times a run without faults]",
    )

    def list_flags_to_repeat(self) -> Iterator[tuple[str, str | None]]:
        """Yield the flags to repeat with their values, None for a switch."""
        for name, row in list_run_options().items():
            value = getattr(self, name)
            if not row.again or value in (None, RUN_DEFAULTS[name]):
                continue
            on, _, off = row.flag.partition("/")
            if isinstance(value, bool):
                yield (on if value else off), None
            else:
                yield from ((on, str(each)) for each in (value if isinstance(value, tuple) else (value,)))


def list_run_options(command: str = "") -> dict[str, RunOption]:
    rows: dict[str, RunOption] = {each.name: each.metadata["option"] for each in fields(RunOptions)}
    return {name: row for name, row in rows.items() if not command or command in row.help}


RUN_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(RunOptions)}


@dataclass(frozen=True, slots=True)
class RunArguments:
    flags: Mapping[str, object]
    command: tuple[str, ...]
    options: RunOptions = field(default_factory=RunOptions)
    recorded: tuple[str, ...] = ()
    """Hosts of other services that are recorded."""

    def list_run_variables(self, env: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the run variables; given ones override detected ones. Raises SettingsError."""
        found = gather_run_variables(env, Path.cwd(), git=True)
        typed = parse_var_option_dicts(list(self.options.run_variable))
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
