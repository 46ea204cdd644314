"""The shim's command: parses its arguments, chooses the backend and serves the client.

A client waits for every MCP server that it starts. So the arguments are parsed here, without typer and the settings,
whose import takes longer than all the shim's work; anything unusual is left to the command line, which reports errors.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmproxy.errors import SettingsError
from llmproxy.protocol import DEFAULT_SESSION, RUN_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from llmproxy.client.tools.mcp_shim.shim_deciders import ShimBackend


_SECRET = re.compile(r"token|secret|passw|credential|api_?key|access_?key|_key$|(?:^|_)pat$", re.IGNORECASE)
SHORTEST_SECRET = 8


class ShimOptions(NamedTuple):
    command: tuple[str, ...]
    name: str = ""
    proxy: str = ""
    session: str = ""
    mode: str | None = None
    cassette: str | None = None
    store: str | None = None
    faults: str | None = None


_OPTIONS = {f"--{name}": name for name in ShimOptions._fields[1:]}


def parse_shim_words(words: Sequence[str]) -> ShimOptions | None:
    """Parse the words after ``llmproxy mcp``; None unless they are just our options, ``--`` and a command."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at] != "--":
        flag, has_value, value = words[at].partition("=")
        if not has_value:
            at += 1
            value = words[at] if at < len(words) else "--"
        if flag not in _OPTIONS or (value.startswith("-") and not has_value):
            return None
        found[_OPTIONS[flag]] = value
        at += 1
    command = tuple(words[at + 1 :])
    return ShimOptions(command, **found) if command else None


def run_shim(asked: ShimOptions, env: Mapping[str, str]) -> int:
    """Serve the client on stdin and stdout until it leaves; return the exit code. Raises LLMProxyError."""
    from llmproxy.client.tools.mcp_shim.server_pipes import make_client_line_writer
    from llmproxy.client.tools.mcp_shim.stdio_proxy import StdioProxy

    tmp = env.get("TMPDIR", "/tmp").rstrip("/")  # noqa: S108 - compared with
    places = {"cwd": str(Path.cwd()), "home": str(Path.home()), "tmp": tmp}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    host = _make_backend(asked, asked.name or choose_server_name(asked.command, places), env)
    gc.enable()  # `__main__` put it off
    own = {name: value for name, value in env.items() if name not in (URL_VARIABLE, RUN_VARIABLE)}
    shim = StdioProxy(asked.command, own, host, make_client_line_writer())
    try:
        return shim.serve(lambda size: os.read(0, size))
    except KeyboardInterrupt:
        return 0


def _make_backend(asked: ShimOptions, server: str, env: Mapping[str, str]) -> ShimBackend:
    secrets = [
        value
        for name, value in env.items()
        if _SECRET.search(name) and len(value) >= SHORTEST_SECRET and not value.startswith(("/", "~"))
    ]
    flags = {
        name: value for name in ("mode", "cassette", "store", "faults") if (value := getattr(asked, name)) is not None
    }
    from llmproxy.client.tools.mcp_shim.shim_deciders import EngineShimBackend, ProxyShimBackend

    if url := asked.proxy or env.get(URL_VARIABLE, ""):
        if flags:
            raise SettingsError(f"--{', --'.join(flags)}: a proxy runs at {url}, and it has options of its own.")
        named = asked.session or env.get(RUN_VARIABLE, "") or DEFAULT_SESSION
        return ProxyShimBackend(url, named, server, f"{os.getpid()}-{os.urandom(4).hex()}", secrets)
    from llmproxy.core.providers.upstreams_and_rates import add_env_upstreams
    from llmproxy.settings import load

    return EngineShimBackend(add_env_upstreams(load(flags, env, Path.cwd()), env).settings, server, env, secrets)


_RUNNERS = frozenset({
    "npx", "uvx", "bunx", "pnpx", "npm", "pnpm", "yarn", "bun", "deno", "node", "python", "python3", "uv", "pipx",
    "docker", "podman",
    "run", "exec", "dlx", "tool", "env", "sh", "bash", "cmd",
})  # fmt: skip
"""Programs, and their subcommands, that only run another program."""
_VERSION = re.compile(r"@[\w.^~-]+$")


def choose_server_name(command: Sequence[str], places: Mapping[str, str]) -> str:
    """Return a name for the server of `command`, independent of `places` (cwd, home, tmp)."""
    words = [word for word in command if not word.startswith("-")]
    meant = next(
        (word for word in words if _strip_path_and_version(word) not in _RUNNERS), words[0] if words else "server"
    )
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", _strip_path_and_version(meant)).strip("-.") or "server"
    return f"{shown[:60]}-{_digest_command(command, places)}"


def _strip_path_and_version(word: str) -> str:
    """Return the base name of a path or package: ``@scope/server-files@1.2`` gives server-files."""
    bare = word.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return re.sub(r"\.exe$", "", _VERSION.sub("", bare), flags=re.IGNORECASE) or bare


def _digest_command(command: Sequence[str], places: Mapping[str, str]) -> str:
    """Return a digest that distinguishes commands, without the program's path and the run's folders."""
    longest_first = sorted(
        ((path, name) for name, path in places.items() if len(path) > 1), key=lambda pair: -len(pair[0])
    )
    told = [_strip_path_and_version(command[0]) if command else ""]
    for word in command[1:]:
        for path, name in longest_first:
            word = re.sub(re.escape(path) + r"(?![\w.-])", f"<{name}>", word)  # noqa: PLW2901 - one after the other
        told.append(word)
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:8]
