"""MCP configurations of known coding agents, and how to replace them for one run: stdio servers go through the shim,
HTTP servers through the proxy. The user's files are read, and never written.

    claude   ``.mcp.json`` of the folder (approved servers),                 -> only a copy, by --mcp-config
             ``~/.claude.json``, ``--mcp-config``
    codex    ``$CODEX_HOME/config.toml``                                     -> ``-c mcp_servers.NAME.args=...``

Invalid parts of a file are left to the agent, which reports them better. An agent at the beginning of a shell's text
(``sh -c 'codex exec "hi"'``) is found too; after a ``cd``, with another home or in a loop it is unknown where the
program would look.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from llmproxy.client.child_env import is_proxy_url
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.errors import SettingsError
from llmproxy.parsers import read_text_file_named_by_user

_TABLES = ("mcpServers", "servers")
UPSTREAM = "mcp."
"""Prefix of upstream names for a configuration's servers."""
_REMOTE = frozenset({"http", "streamable-http", "streamableHttp"})


@dataclass(frozen=True, slots=True)
class ParsedMcpConfig:
    values: Mapping[str, Any]
    table: str
    names: Mapping[str, str]
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Upstreams for the proxy: name -> origin."""

    @property
    def servers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.values[self.table]
        return found

    def list_upstreams(self, url: str) -> dict[str, str]:
        """Return the upstreams for the proxy at `url`, without that proxy itself, which would call itself."""
        return {name: origin for name, origin in self.upstreams.items() if not is_proxy_url(origin, url)}


def parse_mcp_config(text: str, name: str) -> ParsedMcpConfig:
    """Parse a configuration; `name` is its file's. Raises SettingsError."""
    hint = 'It looks like {"mcpServers": {"files": {"command": "npx", "args": ["-y", "some-server"]}}}.'
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--mcp-config {name} is no JSON: {error}", hint=hint) from error
    tables = [each for each in _TABLES if isinstance(values, dict) and isinstance(values.get(each), dict)]
    if not tables:
        raise SettingsError(f"--mcp-config {name} names no servers.", hint=hint)
    full = [each for each in tables if values[each]]
    if len(full) > 1:  # nobody knows which of them the agent reads
        msg = f"--mcp-config {name} names servers twice, in {' and in '.join(full)}."
        raise SettingsError(msg, hint="Leave one of them out.")
    return _build_tools_config(values, [*full, *tables][0])


def make_parsed_mcp_config(servers: Mapping[str, Any]) -> ParsedMcpConfig:
    return _build_tools_config({_TABLES[0]: dict(servers)}, _TABLES[0])


def _build_tools_config(values: Mapping[str, Any], table: str) -> ParsedMcpConfig:
    names = make_unique_mcp_recording_names(values[table])
    found = {names[server]: origin for server, each in values[table].items() if (origin := _server_origin(each))}
    return ParsedMcpConfig(values, table, names, found)


def make_unique_mcp_recording_names(servers: Iterable[str]) -> dict[str, str]:
    """Return the recorded name by server. Names are unique, so that no server gets another's answers."""
    plain = {each: UPSTREAM + re.sub(r"[^a-z0-9._-]+", "-", each.lower()) for each in servers}
    often = Counter(plain.values())
    return {
        each: name
        if name == UPSTREAM + each or (often[name] == 1 and each.isascii())
        else f"{name}-{hashlib.sha256(each.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        for each, name in plain.items()
    }


def _server_origin(server: object) -> str:
    """Return the origin of a server over HTTP; empty for others, and for a URL with a variable or a password."""
    url = server.get("url") if isinstance(server, dict) else None
    if not isinstance(server, dict) or not isinstance(url, str) or server.get("type", "http") not in _REMOTE:
        return ""
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and not parts.username and "$" not in url
        _ = parts.port
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}" if plain else ""


def rewrite_mcp_config(
    config: ParsedMcpConfig, url: str, session: str, shim: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    made: dict[str, Any] = {}
    told = []
    for name, server in config.servers.items():
        made[name], how = _rewrite_server(server, config.names[name], url.rstrip("/"), session, shim)
        told.append(f"{name}: {how}")
    return {**config.values, config.table: made}, told


def _rewrite_server(server: Any, recorded: str, url: str, session: str, shim: Sequence[str]) -> tuple[Any, str]:
    command, args = (server.get("command"), server.get("args", [])) if isinstance(server, dict) else (None, None)
    if isinstance(command, str) and isinstance(args, list) and all(isinstance(each, str) for each in args):
        if "mcp" in args and "--" in args and command.rpartition("/")[2].startswith("llmproxy"):
            return server, "has the shim already"
        words = [*shim, "mcp", "--proxy", url, "--session", session, "--name", recorded, "--", command, *args]
        return {**server, "command": words[0], "args": words[1:]}, "over stdio, behind `llmproxy mcp`"
    if _server_origin(server):
        if is_proxy_url(server["url"], url):
            why = "its address is the proxy's own, and what it asks is in the session that this names"
            return server, f"LEFT AS IT IS: {why}"
        parts = urlsplit(server["url"])
        place = f"{url}/s/{quote(session, safe='')}/{recorded}{parts.path or '/'}"
        return {**server, "url": place + (f"?{parts.query}" if parts.query else "")}, "over HTTP, behind the proxy"
    return server, f"LEFT AS IT IS, and asked for real: {_explain_unproxied(server)}"


def _explain_unproxied(server: object) -> str:
    if not isinstance(server, dict) or not ("command" in server or "url" in server):
        return "it has neither `command` nor `url`"
    if "command" in server:
        return "its `command` is no text, or its `args` are no list of texts"
    if (kind := server.get("type", "http")) not in _REMOTE:
        return f"its type is {str(kind)[:40]!r}, and only Streamable HTTP can be recorded"
    return "its `url` is no plain address: http or https, a host, no user and no variable"


def replace_mcp_config_path_in_command(command: Sequence[str], file: str, copy: str) -> tuple[str, ...]:
    """Return the command with the copy in place of the file, added for Claude Code. Raises SettingsError."""
    made = tuple(
        copy if word == file else f"{word[: -len(file)]}{copy}" if word.endswith(f"={file}") else word
        for word in command
    )
    if made != tuple(command):
        return made
    if command[0].replace("\\", "/").rpartition("/")[2] in ("claude", "claude.exe", "claude.cmd"):
        return (*command, "--mcp-config", copy, "--strict-mcp-config")
    typed = f"llmproxy run --mcp-config {file} -- ./agent --mcp {file}"
    hint = f"Write it where the agent takes its configuration, as in: {typed}"
    raise SettingsError(f"--mcp-config {file}: the command does not name this file.", hint=hint)


NONE = "none"
"""Value of --mcp-config that keeps the agent's servers."""
_CLAUDE = "--mcp-config"
_STRICT = "--strict-mcp-config"
_SUBCOMMANDS = frozenset(
    {"mcp", "config", "doctor", "update", "install", "plugin", "auth", "login", "logout", "features"}
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class FoundMcpServers(NamedTuple):
    config: ParsedMcpConfig
    place: Callable[[Mapping[str, Any], Path], tuple[str, ...]]
    """Takes the run's configuration and a folder that lives as long; returns the command."""
    notes: tuple[str, ...] = ()


def find_agent_mcp_servers(
    asked: str | None, command: Sequence[str], env: Mapping[str, str], cwd: Path
) -> FoundMcpServers | None:
    """Return the agent's servers; None if none are known. Raises SettingsError: not in `asked`."""
    if asked is not None and asked != NONE:
        replace_mcp_config_path_in_command(command, asked, f"{asked}.copy")  # what cannot be meant is said now
        text = read_text_file_named_by_user(cwd / asked, f"--mcp-config {asked}")

        def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
            return replace_mcp_config_path_in_command(command, asked, write_mcp_config_copy(made, folder))

        return FoundMcpServers(parse_mcp_config(text, asked), place)
    return _find_agent_mcp_servers(command, env, cwd) if asked is None else None


def _find_agent_mcp_servers(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundMcpServers | None:
    if (inside := parse_sh_c_command(command)) is not None:
        if (found := _find_agent_mcp_servers((inside.program, *inside.words), env, cwd)) is None:
            return None
        if any(word.startswith((_CLAUDE, _STRICT)) for word in inside.words):
            why = f"{_CLAUDE} in a shell's words; let `llmproxy run` start it without the shell"
            notes = (f"{inside.program}: LEFT AS IT IS: {why}",)
            return FoundMcpServers(make_parsed_mcp_config({}), lambda *_: tuple(command), notes)
        behind = len(inside.words)

        def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
            words = found.place(made, folder)
            return inside.add_words(words[1 : len(words) - behind])

        return FoundMcpServers(found.config, place, found.notes)
    program = re.sub(r"\.(exe|cmd)$", "", command[0].replace("\\", "/").rpartition("/")[2])
    row = AGENTS.get(program)
    runs = not (command[1:2] and command[1] in _SUBCOMMANDS)
    return row(command, env, cwd) if row is not None and runs else None


def write_mcp_config_copy(made: Mapping[str, Any], folder: Path) -> str:
    copy = folder / "mcp.json"
    copy.touch(mode=0o600)  # it may hold credentials
    copy.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return str(copy)


# --- Claude Code -----------------------------------------------------------------------------------------------------


def _find_claude_mcp_servers(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundMcpServers | None:
    rest, given = _extract_mcp_config_values(command)
    servers: dict[str, Any] = {}
    notes: list[str] = []
    if _STRICT not in rest:
        home = Path(env.get("CLAUDE_CONFIG_DIR") or env.get("HOME") or Path.home())
        own = _read_file_or_empty(home / ".claude.json")
        local = _get_table_or_empty(_get_table_or_empty(own, "projects"), str(cwd))
        servers |= _get_table_or_empty(own, "mcpServers")
        approved = _make_approval_check(env, cwd, local)
        for name, server in _get_table_or_empty(_read_file_or_empty(cwd / ".mcp.json"), "mcpServers").items():
            if approved(name):
                servers[name] = server
            else:
                why = "nobody has approved this server of .mcp.json (claude asks, interactively)"
                notes.append(f"{name}: LEFT OUT: {why}")
        servers |= _get_table_or_empty(local, "mcpServers")
    unread = []
    for word in given:
        said = (parse_json_or_none(word) or {}) if word.lstrip().startswith("{") else _read_file_or_empty(cwd / word)
        servers |= _get_table_or_empty(said, "mcpServers")
        if not said:
            unread.append(word)
    if not servers:
        return None

    def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
        program, *others = (word for word in rest if word != _STRICT)
        # of the unread ones claude says what is wrong
        return (program, _CLAUDE, write_mcp_config_copy(made, folder), *unread, _STRICT, *others)

    return FoundMcpServers(make_parsed_mcp_config(servers), place, tuple(notes))


def _extract_mcp_config_values(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command without its configuration option, and the option's values: all words until the next option."""
    rest: list[str] = []
    given: list[str] = []
    taking = False
    for at, word in enumerate(command):
        if word == "--":
            return [*rest, *command[at:]], given
        taking = (taking and not word.startswith("-")) or word == _CLAUDE
        if word.startswith(f"{_CLAUDE}="):
            given.append(word.partition("=")[2])
        elif word != _CLAUDE:
            (given if taking else rest).append(word)
    return rest, given


def _make_approval_check(env: Mapping[str, str], cwd: Path, local: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return a function that checks whether a server of the folder's file was approved: it may be a stranger's."""
    home = Path(env.get("CLAUDE_CONFIG_DIR") or Path(env.get("HOME") or Path.home(), ".claude"))
    files = [home / "settings.json", cwd / ".claude" / "settings.json", cwd / ".claude" / "settings.local.json"]
    said = [local, *map(_read_file_or_empty, files)]

    def names(key: str) -> set[str]:
        found = [each.get(key) for each in said]
        return {name for each in found if isinstance(each, list) for name in each if isinstance(name, str)}

    refused, allowed = names("disabledMcpjsonServers"), names("enabledMcpjsonServers")
    everything = any(each.get("enableAllProjectMcpServers") is True for each in said)
    return lambda name: name not in refused and (everything or name in allowed)


def _get_table_or_empty(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _read_file_or_empty(file: Path, parse: Callable[[str], Any] = parse_json_or_none) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        value = parse(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    return {}


# --- Codex -----------------------------------------------------------------------------------------------------------


def _find_codex_tools(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundMcpServers | None:
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home(), ".codex"))
    own = _read_file_or_empty(home / "config.toml", tomllib.loads)
    trusted = _get_table_or_empty(_get_table_or_empty(own, "projects"), str(cwd)).get("trust_level") == "trusted"
    files = [own, *([_read_file_or_empty(cwd / ".codex" / "config.toml", tomllib.loads)] if trusted else [])]
    servers = {
        name: {"type": "http", **server} if "url" in server else server
        for each in files
        for name, server in _get_table_or_empty(each, "mcp_servers").items()
        if isinstance(server, dict) and server.get("enabled") is not False
    }
    odd = sorted(name for name in servers if _PLAIN.fullmatch(name) is None)
    notes = [f"{name}: LEFT AS IT IS: a name that codex takes by no -c" for name in odd]
    for name in odd:
        del servers[name]
    if typed := [word for word in command if "mcp_servers." in word]:
        notes.append(f"{typed[0]}: LEFT AS IT IS: typed in the command")
    if not servers:
        return None

    def place(made: Mapping[str, Any], _: Path) -> tuple[str, ...]:
        words = list(_build_toml_overrides(made["mcpServers"], servers))
        return (command[0], *(part for word in words for part in ("-c", word)), *command[1:])

    return FoundMcpServers(make_parsed_mcp_config(servers), place, tuple(notes))


def _build_toml_overrides(made: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences as codex options: JSON strings are valid TOML strings."""
    for name, server in made.items():
        for key in ("command", "args", "url"):
            if key in server and server[key] != before[name].get(key):
                yield f"mcp_servers.{name}.{key}={json.dumps(server[key])}"


AGENTS: Mapping[str, Callable[[Sequence[str], Mapping[str, str], Path], FoundMcpServers | None]] = {
    "claude": _find_claude_mcp_servers,
    "codex": _find_codex_tools,
}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_RUNS = re.compile(r"-[a-z]*c")
_ELSEWHERE = r"(?!(?:HOME|CODEX_HOME|CLAUDE_CONFIG_DIR)=)"
_TEXT = re.compile(
    rf"(?P<before>\s*(?:{_ELSEWHERE}[A-Za-z_][A-Za-z0-9_]*=[^\s;|&()'\"`$]*\s+)*(?:exec\s+)?)"
    r"(?P<quote>['\"]?)(?P<program>[^\s;|&()'\"`$=]+)(?P=quote)(?P<rest>\s.*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class AgentCommandInShellText:
    program: str
    words: tuple[str, ...]
    """Words after it, to the end of the text, with variables unexpanded."""
    _shell: tuple[str, ...]
    _before: str
    _rest: str
    _after: tuple[str, ...]

    def add_words(self, words: Sequence[str]) -> tuple[str, ...]:
        return (*self._shell, f"{self._before}{shlex.join([self.program, *words])}{self._rest}", *self._after)


def parse_sh_c_command(command: Sequence[str]) -> AgentCommandInShellText | None:
    """Return the first command of a shell's text; None for any other command, or an unreadable text."""
    program = command[0].replace("\\", "/").rpartition("/")[2]
    if program not in _SHELLS or len(command) < 3 or _RUNS.fullmatch(command[1]) is None:
        return None
    if (found := _TEXT.fullmatch(command[2])) is None:
        return None
    rest = found["rest"] or ""
    try:
        words = tuple(shlex.split(rest))
    except ValueError:
        return None
    return AgentCommandInShellText(
        found["program"], words, tuple(command[:2]), found["before"], rest, tuple(command[3:])
    )
