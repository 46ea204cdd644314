"""MCP configurations of known coding agents, and how to replace them for one run.

The user's files are read, and never written:

    claude   ``.mcp.json`` of the folder (approved servers),                 -> only a copy, by --mcp-config
             ``~/.claude.json``, ``--mcp-config``
    codex    ``$CODEX_HOME/config.toml``                                     -> ``-c mcp_servers.NAME.args=...``

An agent is a row of `AGENTS`. Invalid parts of a file are left to the agent, which reports them better. An agent at the
beginning of a shell's text (``sh -c 'codex exec "hi"'``) is found too, and gets our arguments; after a ``cd``, with
another home or in a loop it is unknown where the program would look.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.client.tools.proxied_mcp_config import (
    ParsedMcpConfig,
    build_config_from_servers,
    insert_config,
    parse_tools_config,
)
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.errors import SettingsError
from llmproxy.files import read_bounded_text

NONE = "none"
"""Value of --mcp-config that keeps the agent's servers."""
_CLAUDE = "--mcp-config"
_STRICT = "--strict-mcp-config"
_SUBCOMMANDS = frozenset(
    {"mcp", "config", "doctor", "update", "install", "plugin", "auth", "login", "logout", "features"}
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
"""Pattern of names for a dotted key of TOML."""


@dataclass(frozen=True, slots=True)
class FoundTools:
    config: ParsedMcpConfig
    place: Callable[[Mapping[str, Any], Path], tuple[str, ...]]
    """Takes the run's configuration and a folder that lives as long; returns the command."""
    notes: tuple[str, ...] = ()


def find_agent_mcp_servers(
    asked: str | None, command: Sequence[str], env: Mapping[str, str], cwd: Path
) -> FoundTools | None:
    """Return the agent's servers; None if none are known. Raises SettingsError: not in `asked`."""
    if asked is not None and asked != NONE:
        insert_config(command, asked, f"{asked}.copy")  # what cannot be meant is said now
        try:
            text = read_bounded_text(cwd / asked)
        except (OSError, ValueError) as error:
            why = (
                "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
            )
            raise SettingsError(f"--mcp-config {asked} cannot be read: {why}.") from error

        def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
            return insert_config(command, asked, write_config_copy(made, folder))

        return FoundTools(parse_tools_config(text, asked), place)
    return _find_agent_mcp_servers(command, env, cwd) if asked is None else None


def _find_agent_mcp_servers(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundTools | None:
    if (inside := parse_shell_command(command)) is not None:
        found = _find_agent_mcp_servers((inside.program, *inside.words), env, cwd)
        if found is None:
            return None
        if any(word.startswith((_CLAUDE, _STRICT)) for word in inside.words):
            note = (
                f"{inside.program}: LEFT AS IT IS: {_CLAUDE} in a shell's words; let `llmproxy run` start it without "
                "the shell"
            )
            return FoundTools(build_config_from_servers({}), lambda *_: tuple(command), (note,))
        behind = len(inside.words)

        def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
            words = found.place(made, folder)
            return inside.add_words(words[1 : len(words) - behind])

        return FoundTools(found.config, place, found.notes)
    program = re.sub(r"\.(exe|cmd)$", "", command[0].replace("\\", "/").rpartition("/")[2])
    row = AGENTS.get(program)
    runs = not (command[1:2] and command[1] in _SUBCOMMANDS)
    return row(command, env, cwd) if row is not None and runs else None


def write_config_copy(made: Mapping[str, Any], folder: Path) -> str:
    copy = folder / "mcp.json"
    copy.touch(mode=0o600)  # it may hold credentials
    copy.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return str(copy)


# --- Claude Code -----------------------------------------------------------------------------------------------------


def _find_claude_mcp_servers(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundTools | None:
    rest, given = _extract_mcp_config_values(command)
    servers: dict[str, Any] = {}
    notes: list[str] = []
    if _STRICT not in rest:
        home = Path(env.get("CLAUDE_CONFIG_DIR") or env.get("HOME") or Path.home())
        own = _read_json_or_empty(home / ".claude.json")
        local = _get_table_or_empty(_get_table_or_empty(own, "projects"), str(cwd))
        servers |= _get_table_or_empty(own, "mcpServers")
        approved = _make_approval_check(env, cwd, local)
        for name, server in _get_table_or_empty(_read_json_or_empty(cwd / ".mcp.json"), "mcpServers").items():
            if approved(name):
                servers[name] = server
            else:
                notes.append(
                    f"{name}: LEFT OUT: nobody has approved this server of .mcp.json (claude asks, interactively)"
                )
        servers |= _get_table_or_empty(local, "mcpServers")
    unread = []
    for word in given:
        said = _parse_json_or_empty(word) if word.lstrip().startswith("{") else _read_json_or_empty(cwd / word)
        servers |= _get_table_or_empty(said, "mcpServers")
        if not said:
            unread.append(word)
    if not servers:
        return None

    def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
        program, *others = (word for word in rest if word != _STRICT)
        # of the unread ones claude says what is wrong
        return (program, _CLAUDE, write_config_copy(made, folder), *unread, _STRICT, *others)

    return FoundTools(build_config_from_servers(servers), place, tuple(notes))


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
    said = [local, *map(_read_json_or_empty, files)]

    def names(key: str) -> set[str]:
        found = [each.get(key) for each in said]
        return {name for each in found if isinstance(each, list) for name in each if isinstance(name, str)}

    refused, allowed = names("disabledMcpjsonServers"), names("enabledMcpjsonServers")
    everything = any(each.get("enableAllProjectMcpServers") is True for each in said)
    return lambda name: name not in refused and (everything or name in allowed)


def _get_table_or_empty(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _read_json_or_empty(file: Path) -> dict[str, Any]:
    try:
        return _parse_json_or_empty(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _parse_json_or_empty(text: str) -> dict[str, Any]:
    value = parse_json(text)
    return value if isinstance(value, dict) else {}


# --- Codex -----------------------------------------------------------------------------------------------------------


def _find_codex_tools(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundTools | None:
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home(), ".codex"))
    own = _read_toml(home / "config.toml")
    trusted = _get_table_or_empty(_get_table_or_empty(own, "projects"), str(cwd)).get("trust_level") == "trusted"
    files = [own, *([_read_toml(cwd / ".codex" / "config.toml")] if trusted else [])]
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

    return FoundTools(build_config_from_servers(servers), place, tuple(notes))


def _build_toml_overrides(made: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences as codex options: JSON strings are valid TOML strings."""
    for name, server in made.items():
        for key in ("command", "args", "url"):
            if key in server and server[key] != before[name].get(key):
                yield f"mcp_servers.{name}.{key}={json.dumps(server[key])}"


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


AGENTS: Mapping[str, Callable[[Sequence[str], Mapping[str, str], Path], FoundTools | None]] = {
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
class ShellCommand:
    program: str
    words: tuple[str, ...]
    """Words after it, to the end of the text, with variables unexpanded."""
    _shell: tuple[str, ...]
    _before: str
    _rest: str
    _after: tuple[str, ...]

    def add_words(self, words: Sequence[str]) -> tuple[str, ...]:
        added = shlex.join([self.program, *words])
        return (*self._shell, f"{self._before}{added}{self._rest}", *self._after)


def parse_shell_command(command: Sequence[str]) -> ShellCommand | None:
    """Return the first command of a shell's text; None for any other command, or an unreadable text."""
    program = command[0].replace("\\", "/").rpartition("/")[2]
    if program not in _SHELLS or len(command) < 3 or _RUNS.fullmatch(command[1]) is None:
        return None
    found = _TEXT.fullmatch(command[2])
    if found is None:
        return None
    rest = found["rest"] or ""
    try:
        words = tuple(shlex.split(rest))
    except ValueError:
        return None
    return ShellCommand(found["program"], words, tuple(command[:2]), found["before"], rest, tuple(command[3:]))
