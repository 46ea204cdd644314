"""All options of llmproxy, each declared once: a field of :class:`Settings`.

Its name gives the flag (``--miss-status``), the environment variable (``LLMPROXY_MISS_STATUS``) and the key in
``[tool.llmproxy]`` of pyproject.toml. Precedence: default < pyproject.toml < environment < flag.

Every command imports this module, and an MCP client waits for the shim to start: so its values are plain dataclasses
(pydantic's import and schema took 0.1 s of a start).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy import parsers, protocol
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SettingsError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, is_postgres_url, map_postgres_store_to_copy_path
from llmproxy.protocol import VCR_MODES, BindingPolicy, Channel, Exhausted, Mode, UnknownToolPolicy, UpdateMode

ENV_PREFIX = "LLMPROXY_"
TABLE = "[tool.llmproxy]"
_OTHER = "DEBUG|DOCTOR|URL|COMMAND|STARTED_BY|SUMMARY|PACER|NOW|SEED|SUITE|SCENARIO|RUN|USER|TEST_.*"
NOT_OPTIONS = re.compile(f"LLMPROXY_({_OTHER})")
"""Variables with our prefix that are no options: debugging, variables for children of `run` and suites, tests."""
NOT_SETTINGS = frozenset({"suite"})
"""Tables below ours that are no options of the proxy but defaults of suites."""
SCRUBBED = "<scrubbed>"


@dataclass(frozen=True, slots=True)
class KeyTextReplacement:
    """Replacement of a pattern's matches in the texts of a request before its key is derived."""

    pattern: str
    placeholder: str = SCRUBBED


@dataclass(frozen=True, slots=True)
class RequestNormalizationRules:
    """The user's rules for which requests are the same (``[tool.llmproxy.normalize]``)."""

    ignore: tuple[str, ...] = ()
    """JSON paths left out of the key."""
    scrub: tuple[KeyTextReplacement, ...] = ()
    packs: tuple[str, ...] = ()


def parse_normalize_rules(value: object) -> RequestNormalizationRules:
    """Read the user's rules. Raises ValueError with the place in the table."""
    if isinstance(value, RequestNormalizationRules):
        return value
    try:
        table = json.loads(value) if isinstance(value, str) else value  # in the environment it is JSON
    except ValueError as error:
        raise ValueError(f"{value!r} is not JSON ({error})") from error
    given = _check_members(table, RequestNormalizationRules, "")
    scrubs = enumerate(_check_list(given.get("scrub", ()), "scrub"))
    return RequestNormalizationRules(
        ignore=_check_texts(given.get("ignore", ()), "ignore"),
        scrub=tuple(_read_key_scrub_rule(each, f"scrub.{number}") for number, each in scrubs),
        packs=_check_texts(given.get("packs", ()), "packs"),
    )


def _read_key_scrub_rule(value: object, where: str) -> KeyTextReplacement:
    if isinstance(value, KeyTextReplacement):
        return value
    given = _check_members(value, KeyTextReplacement, f"{where}.")
    if "pattern" not in given:
        raise ValueError(f"{where}: a pattern is missing (got {value!r})")
    texts = {name: _check_text(each, f"{where}.{name}") for name, each in given.items()}
    try:
        re.compile(texts["pattern"])
    except re.error as error:
        raise ValueError(f"{where}: {texts['pattern']!r} is not a regular expression: {error}") from error
    return KeyTextReplacement(**texts)


def _check_members(
    value: object, kind: type[RequestNormalizationRules | KeyTextReplacement], where: str
) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where.rstrip('.')}{': ' if where else ''}{value!r} is not a table")
    for name in value:
        if name not in {each.name for each in fields(kind)}:
            known = [each.name for table in (RequestNormalizationRules, KeyTextReplacement) for each in fields(table)]
            raise ValueError(f"unknown name {where}{name}{did_you_mean(str(name), known)}")
    return value


def _check_list(value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}: {value!r} is not a list")
    return tuple(value)


def _check_texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(_check_text(each, f"{where}.{number}") for number, each in enumerate(_check_list(value, where)))


def _check_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is not a text")
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as read by everything derived from it."""

    read: Callable[[Any], Any]
    """Converter of the typed value; raises ValueError."""
    default: object
    metavar: str = ""
    help: str = ""
    has_flag: bool = True
    secret: bool = False
    """Whether its value is never shown."""
    again: bool = True
    """Whether a suggested command repeats it: mode, cassette and store are set anew, others concern one run."""
    of_session: bool = False
    """Whether it applies to a proxy that is already running."""
    of_live: bool = False
    name: str = ""
    """Field of `Settings`, ``miss_status``."""

    def explain(self, help_text: str) -> Any:
        return field(default_factory=lambda: self.default, metadata={"option": replace(self, help=help_text)})

    @property
    def key(self) -> str:
        """Name in pyproject.toml, ``miss-status`` (``miss_status`` is accepted too)."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.key}" if self.has_flag else ""

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def boolean(self) -> bool:
        return isinstance(self.default, bool)

    @property
    def repeat(self) -> bool:
        return isinstance(self.default, (tuple, dict))


def _declare_switch(help_text: str, **more: Any) -> Any:
    return Option(parsers.read_truth, default=False, **more).explain(help_text)


_VCR = parsers.join_with_and([name for name, mode in VCR_MODES.items() if name != mode])


@dataclass(frozen=True)
class Settings:
    """Settings of one proxy run. The defaults spend no money and listen on this machine only."""

    mode: Mode = Option(parsers.read_mode, Mode.REPLAY, "|".join(Mode), again=False, of_session=True).explain(
        f"What to do with a request: {', '.join(f'{mode} {mode.policy.does}' for mode in Mode)}. "
        f"VCR's names {_VCR} work, too."
    )
    host: str = Option(parsers.read_host, protocol.DEFAULT_HOST, "ADDRESS").explain(
        "Address to listen on. Other machines can reach any address but loopback."
    )
    port: int = Option(parsers.read_port, protocol.DEFAULT_PORT, "PORT").explain(
        "Port to listen on; 0 takes any free port."
    )
    store: Path = Option(
        parsers.parse_optional_path_setting, Path(protocol.DEFAULT_STORE), "PATH", again=False
    ).explain("The database of recordings: a SQLite file, or postgresql://USER@HOST/DATABASE for a team.")
    cassette_dir: Path | None = Option(parsers.parse_optional_path_setting, None, "DIR").explain(
        "Folder with one YAML file per cassette, for review: read at the start (files take precedence over "
        "the store), written when a session that recorded ends."
    )
    cassette: str = Option(parsers.read_name, protocol.DEFAULT_SESSION, "NAME", again=False, of_session=True).explain(
        "Cassette for requests that name no session, by URL or header."
    )
    upstream: Mapping[str, str] = Option(parsers.read_upstreams, {}, "NAME=URL").explain(
        "Base URL of a provider, or of your own OpenAI-compatible server, then served under /NAME. "
        "default=URL is for requests to no known provider."
    )
    speed: float = Option(parsers.read_speed, 0.0, "0|1|N", of_session=True).explain(
        "Speed of replay: 0 is immediate (a stream in one piece), 1 as recorded, N is N times as fast."
    )
    exhausted: Exhausted = Option(parsers.read_exhausted, Exhausted.LAST, "last|cycle|miss", of_session=True).explain(
        "Answer to a request that is sent more often than recorded: the last recording, all of them again "
        "from the first, or a miss."
    )
    order_wait: float = Option(parsers.read_wait, protocol.DEFAULT_ORDER_WAIT, "SECONDS").explain(
        "Answers to concurrent requests end in recorded order. How long an answer waits for an earlier one "
        "that does not come; 0 ignores the order."
    )
    coalesce: bool = _declare_switch(
        "In modes record and once, identical concurrent requests to models share one answer.", again=False
    )
    bind: BindingPolicy = Option(parsers.read_scope, BindingPolicy.ALL, "all|paths|none", of_session=True).explain(
        "What may differ between the recorded run and this one: all (run variables and the cassette's "
        "volatile fields), paths (cwd, home, tmp), or none (only equal requests are hits)."
    )
    max_age: str = Option(parsers.validate_age, "", "AGE").explain(
        "Maximum age of recordings, such as 12h, 30d, 8w. Modes auto and once record older ones again; "
        "replay reports them."
    )
    update: UpdateMode = Option(
        parsers.read_update, UpdateMode.NONE, "all|changed|trial", has_flag=False, again=False
    ).explain(
        "Replace recordings when a session ends without an error: all of its cassette, or only those of "
        "changed requests. `llmproxy rerecord --changed`, `llmproxy changes` and `pytest --llmproxy-update` set it."
    )
    max_cost: Decimal | None = Option(parsers.read_cost, None, "USD").explain(
        "Maximum cost of live model calls. A call that might exceed it, or has no known price, is not "
        "sent; recordings older than --max-age are then replayed."
    )
    change: tuple[str, ...] = Option(parsers.read_names, (), "NAME", has_flag=False, again=False).explain(
        "If update is `changed`: record only requests with this change, by its name in `llmproxy changes`."
    )
    faults: str = Option(parsers.require_string_setting, "", "FILE|PRESET", again=False, of_session=True).explain(
        "Injected faults: a file, a preset, or a kind such as http-429 or reset@3 (in the third call). "
        "`llmproxy faults` lists kinds and presets."
    )
    faults_seed: int | None = Option(parsers.read_seed, None, "N", again=False, of_session=True).explain(
        "Random seed for fault injection; default: the seed of the faults file."
    )
    forward: bool = _declare_switch(
        "Also serve as HTTPS_PROXY, for clients that cannot change their base URL: hosts of known "
        "providers are decrypted, all others tunnelled, or refused in replay."
    )
    token: str = Option(parsers.require_string_setting, "", "SECRET", secret=True).explain(
        "Token that clients on other machines must send as x-llmproxy-token to use the control API."
    )
    allow_host: tuple[str, ...] = Option(parsers.read_hosts, (), "HOST").explain(
        "Host that clients may reach through the proxy even in replay; *.NAME is every host below it."
    )
    record_host: tuple[str, ...] = Option(parsers.read_hosts, (), "HOST").explain(
        "Host of another HTTP service to record and replay, intercepted or under /HOST; *.NAME is every "
        "host below it, * every host. Replay refuses requests that were not recorded."
    )
    answer_to: tuple[str, ...] = Option(parsers.read_names, (), "NAME").explain(
        "Further host name under which clients may address a proxy on a loopback port. Others are refused: "
        "a web page could point its own name here."
    )
    allow_origin: tuple[str, ...] = Option(parsers.read_origins, (), "ORIGIN").explain(
        "Origin of web pages that may use the proxy: http://localhost:5173, vscode-webview://*, null. All "
        "others are refused."
    )
    client_cert: Path | None = Option(parsers.parse_optional_path_setting, None, "PATH").explain(
        "PEM file with certificate and key for upstreams that require mTLS, or a folder of HOST.pem files."
    )
    allow_live: bool = _declare_switch("Let clients of a replay proxy open sessions in modes that use the network.")
    live: tuple[Channel, ...] = Option(
        parsers.parse_channel_list, (), "llm|mcp|http", again=False, of_session=True, of_live=True
    ).explain(
        "Channel that uses its real providers or tools in mode replay, while other channels are replayed: "
        "llm tries another model or prompt on recorded tools. Live calls are recorded in their own cassette, "
        "CASSETTE@live-N."
    )
    unknown_tool: UnknownToolPolicy = Option(
        parsers.read_tool_policy, UnknownToolPolicy.ERROR, "error|fail|live", again=False, of_session=True, of_live=True
    ).explain(
        "With --live, for a tool call without a recording, or with other state-changing calls before it "
        "than recorded: the model reads an error, the run fails, or the real tool is called."
    )
    read_only: tuple[str, ...] = Option(
        parsers.read_name_patterns, (), "NAME", again=False, of_session=True, of_live=True
    ).explain(
        "With --live: a tool, or a request such as 'POST api.example.com/search*', that changes nothing, "
        "so its calls may come in any order; * stands for any characters."
    )
    stub: Mapping[str, str] = Option(parsers.parse_stub_kinds_by_url, {}, "HOST/PATH=KIND").explain(
        "Your own sign-in endpoint, which replay answers without a recording: like a token endpoint "
        "(token), with an empty body (empty), or as an authorization server (issuer); * stands for any characters."
    )
    rate: Mapping[str, str] = Option(parsers.read_rates, {}, "[NAME=]N/s|min|h").explain(
        "Maximum rate of live calls: 60/min for each provider, or openai=60/min for one. Further calls "
        "wait; replayed calls do not count."
    )
    match_credential: bool = _declare_switch(
        "Make a fingerprint of the caller's API key part of a request's identity, so that a wrong API key "
        "does not get the right one's answer."
    )
    fail_on_miss: bool = _declare_switch(
        "End with exit code 4 if a request was refused because it was not recorded.", again=False, of_session=True
    )
    fail_on_carried: bool = _declare_switch(
        "End with exit code 7 if a recorded answer was reused for a changed request, under an accepted change.",
        again=False,
        of_session=True,
    )
    fail_on_stale: bool = _declare_switch(
        "End with exit code 10 if a recording older than --max-age was replayed.", again=False, of_session=True
    )
    strict: bool = _declare_switch(
        "Like --fail-on-miss; also end with exit code 4 if no request came, a recording was not used, or a "
        "hit was not exact (bound or carried).",
        of_session=True,
    )
    miss_status: int | None = Option(parsers.read_status, None, "400|404|422|501|503").explain(
        "HTTP status of a miss; default: the status that each client handles best (404, 400, 422, 501)."
    )
    max_request: int = Option(parsers.read_size, 64 << 20, "SIZE").explain(
        "Largest request body in bytes: replay refuses larger, auto and record forward them unrecorded."
    )
    quiet: bool = _declare_switch("Print misses and the summary only.", again=False, of_session=True)
    verbose: bool = _declare_switch("Log each step.", again=False, of_session=True)
    normalize: RequestNormalizationRules = Option(
        parse_normalize_rules, RequestNormalizationRules(), has_flag=False
    ).explain("Your own rules for parts of requests that do not count: ignore, scrub, packs.")

    def __post_init__(self) -> None:
        """Convert the given values. Raises ValueError."""
        for each in fields(self):
            object.__setattr__(self, each.name, each.metadata["option"].read(getattr(self, each.name)))
        if self.quiet and self.verbose:
            raise ValueError("quiet and verbose exclude each other")

    @property
    def intercepts(self) -> bool:
        """Whether clients may use the proxy as HTTPS_PROXY: if requested, or if other hosts are recorded."""
        return self.forward or bool(self.record_host)


FORMS: Mapping[str, Option] = {each.name: replace(each.metadata["option"], name=each.name) for each in fields(Settings)}


def list_options_of_settings() -> tuple[Option, ...]:
    return tuple(FORMS.values())


class SettingSourceKind(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    PROGRAM = "program"
    """Options of mitmproxy."""


@dataclass(frozen=True, slots=True)
class SettingSource:
    origin: SettingSourceKind = SettingSourceKind.DEFAULT
    name: str = ""

    def __str__(self) -> str:
        named = self.origin in (SettingSourceKind.FILE, SettingSourceKind.PROGRAM)
        return self.name if named else f"{self.origin} {self.name}".strip()

    @property
    def is_sdk_variable(self) -> bool:
        """Whether it is a variable that providers' SDKs read, not one of ours."""
        return self.origin is SettingSourceKind.ENVIRONMENT and not self.name.startswith(ENV_PREFIX)

    def was_typed(self, *, environment: bool) -> bool:
        ours = self.origin is SettingSourceKind.ENVIRONMENT and not self.is_sdk_variable
        return self.origin is SettingSourceKind.FLAG or (environment and ours)


def convert_listen_to_connect_host(host: str) -> str:
    """Return the host that clients use for a proxy listening at `host`, such as loopback for 0.0.0.0."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - read, not bound
    return f"[{host}]" if ":" in host else host


def format_shown_path(path: Path) -> str:
    """Return a path as typed in the current folder."""
    if (server := find_postgres_of_local_copy(path)) is not None:
        return server.shown
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def shareable_path(path: Path) -> str:
    """Return a path for a file that leaves the machine: only the name of a path outside this folder."""
    said = format_shown_path(path)
    return path.name if Path(said).is_absolute() else said


def _spell_pairs(value: Mapping[str, str]) -> list[str]:
    return [said if name == parsers.ANY_PROVIDER else f"{name}={said}" for name, said in value.items()]


def _spell_value(value: object) -> str:
    """Return a value as typed: paths relative to here, numbers without needless zeros."""
    if isinstance(value, Path):
        return format_shown_path(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    sources: Mapping[str, SettingSource]
    """By option: ``default``, ``<file> [tool.llmproxy]``, ``environment LLMPROXY_MODE``, ``flag --mode``; also for each
    ``upstream.NAME``."""

    @property
    def upstreams(self) -> tuple[tuple[str, str, SettingSource], ...]:
        return tuple((name, url, self.sources[f"upstream.{name}"]) for name, url in self.settings.upstream.items())

    def is_default(self, name: str) -> bool:
        return self.sources[name].origin is SettingSourceKind.DEFAULT

    def list_typed(self, *, environment: bool) -> tuple[tuple[str, str | bool], ...]:
        """Return name and value of given flags and, if `environment`, of variables; a list once for each value.

        Without mode, cassette and store, which a suggested command sets itself, options of one run, and the token.
        """
        given: list[tuple[str, str | bool]] = []
        for option in list_options_of_settings():
            value, source = getattr(self.settings, option.name), self.sources[option.name]
            if not option.again or option.secret or not option.has_flag:
                continue
            if option.name == "upstream":
                typed = [each for each in self.upstreams if each[2].was_typed(environment=environment)]
                given += [("upstream", f"{name}={url}") for name, url, _ in typed]
            elif source.was_typed(environment=environment):
                each = _spell_pairs(value) if isinstance(value, Mapping) else value if option.repeat else [value]
                given += [(option.name, one if isinstance(one, bool) else _spell_value(one)) for one in each]
        return tuple(given)

    def add_unset_upstreams(self, found: Mapping[str, tuple[str, SettingSource]]) -> Loaded:
        """Add upstreams that no option has set: name -> (base URL, source)."""
        if not (new := {name: pair for name, pair in found.items() if name not in self.settings.upstream}):
            return self
        upstream = {name: url for name, (url, _) in new.items()} | dict(self.settings.upstream)
        sources = dict(self.sources) | {f"upstream.{name}": source for name, (_, source) in new.items()}
        if self.is_default("upstream"):
            found_in = list(dict.fromkeys(source for _, source in new.values()))
            sources["upstream"] = SettingSource(found_in[0].origin, ", ".join(each.name for each in found_in))
        # Not read again: a name may be ours (`*`, where all goes in mitmproxy's reverse mode).
        settings = copy(self.settings)
        object.__setattr__(settings, "upstream", upstream)
        return replace(self, settings=settings, sources=sources)


class _GivenValue(NamedTuple):
    value: Any
    source: SettingSource
    folder: Path


def load(flags: Mapping[str, object], env: Mapping[str, str], cwd: Path) -> Loaded:
    """Merge all settings. Raises SettingsError.

    An unset flag is None or an empty list, an unset variable missing or empty. pyproject.toml is searched from `cwd`
    upwards; relative paths in flags start there.
    """
    file = next((_read_table(*each) for each in find_pyproject_tables(cwd)), {})
    layers = [file, _read_env(env, cwd), _read_command_line_flags(flags, cwd)]
    found: dict[str, Any] = {"store": cwd / protocol.DEFAULT_STORE}
    sources = dict.fromkeys(FORMS, SettingSource())
    for layer in layers:
        for name, given in layer.items():
            found[name] = _validate_one(name, given, found.get(name), env)
            sources[name] = given.source
            if name == "upstream":
                sources |= {f"upstream.{key}": given.source for key in parsers.read_upstreams(given.value)}
    try:
        loaded = Loaded(Settings(**found), sources)
    except ValueError as error:
        raise SettingsError(str(error), hint=f"quiet: {sources['quiet']}; verbose: {sources['verbose']}") from error
    if loaded.settings.coalesce and not loaded.settings.mode.policy.alone:
        modes = " or ".join(f"--mode {mode}" for mode in Mode if mode.policy.alone)
        msg = f"coalesce is for recording anew, and the mode is {loaded.settings.mode}"
        hint = f"Record with {modes}, or leave coalesce out (set by {sources['coalesce']}): a replay needs nothing."
        raise SettingsError(msg, hint=hint)
    return loaded


def _validate_one(name: str, given: _GivenValue, below: Any, env: Mapping[str, str]) -> Any:
    """Check one value, so that an error can name its source; return the value for `Settings`."""
    what = "A store is a file, or postgresql://USER@HOST/DATABASE. " if name == "store" else ""
    hint = f"{what}It was set by {given.source}."
    try:
        if name == "store":
            typed = str(given.value)
            if is_postgres_url(typed):
                return map_postgres_store_to_copy_path(typed, env)
            return given.folder / parsers.parse_path_setting_refusing_urls(given.value)
        value = FORMS[name].read(given.value)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}", hint=hint) from error
    return {**(below or {}), **value} if name in ("upstream", "rate", "stub") else value


def _check_option_name(name: str, spelt: str, source: str, spellings: Iterable[str]) -> str:
    """Return the option's name. Raises SettingsError with the nearest name."""
    if name in FORMS:
        return name
    hint = "`llmproxy settings` lists all options."
    raise SettingsError(f"unknown option {spelt} in {source}{did_you_mean(spelt, spellings)}", hint=hint)


def _read_command_line_flags(flags: Mapping[str, object], cwd: Path) -> dict[str, _GivenValue]:
    names = {option.name: option.flag or option.name for option in list_options_of_settings()}
    given = {name: value for name, value in flags.items() if value is not None and value not in ((), [])}
    for name in given:
        _check_option_name(name, name, "the flags", names)
    return {
        name: _GivenValue(value, SettingSource(SettingSourceKind.FLAG, names[name]), cwd)
        for name, value in given.items()
    }


def _read_env(env: Mapping[str, str], cwd: Path) -> dict[str, _GivenValue]:
    found = {}
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and not NOT_OPTIONS.fullmatch(variable) and env[variable].strip():
            spellings = [option.env for option in list_options_of_settings()]
            name = _check_option_name(variable.removeprefix(ENV_PREFIX).lower(), variable, "the environment", spellings)
            found[name] = _GivenValue(env[variable], SettingSource(SettingSourceKind.ENVIRONMENT, variable), cwd)
    return found


def find_pyproject_tables(cwd: Path) -> Iterator[tuple[Mapping[str, object], Path]]:
    """Yield each ``[tool.llmproxy]`` of a pyproject.toml at or above a folder, with its folder, nearest first."""
    for folder in (cwd, *cwd.parents):
        if (table := _tool_table(folder / "pyproject.toml")) is not None:
            yield table, folder


def _read_table(table: Mapping[str, object], folder: Path) -> dict[str, _GivenValue]:
    source = SettingSource(SettingSourceKind.FILE, f"{folder / 'pyproject.toml'} {TABLE}")
    found: dict[str, _GivenValue] = {}
    for spelt, value in table.items():
        if spelt in NOT_SETTINGS:
            continue
        spellings = [option.key for option in list_options_of_settings()]
        name = _check_option_name(spelt.replace("-", "_"), spelt, str(source), spellings)
        if name in found:
            raise SettingsError(f"{name} stands twice in {source}", hint="Keep one spelling, with '-' or with '_'.")
        found[name] = _GivenValue(value, source, folder)
    return found


def _tool_table(path: Path) -> Mapping[str, object] | None:
    try:
        tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    name, table = (TABLE, tools.get("llmproxy")) if isinstance(tools, dict) else ("`tool`", tools)
    if table is None or isinstance(table, dict):
        return table
    hint = f"Options stand below {TABLE}, as in mode = 'replay'; `llmproxy settings` lists them."
    raise SettingsError(f"{path}: {name} is not a table, but {table!r:.60}", hint=hint)


HIDDEN = "(set)"


def format_setting_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, RequestNormalizationRules):
        scrubs = [{n: v for n, v in asdict(each).items() if n == "pattern" or v != SCRUBBED} for each in value.scrub]
        rules = {"ignore": value.ignore, "scrub": scrubs, "packs": value.packs}
        told = {name: rule for name, rule in rules.items() if rule}
        return json.dumps(told) if told else ""
    if isinstance(value, Mapping):
        return " ".join(_spell_pairs(value))
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
