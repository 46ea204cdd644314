"""How the proxy is called from here: the first of these that is there.

1. ``LLMPROXY_COMMAND``, as a command line.
2. This environment, if mitmproxy is installed in it.
3. An ``llmproxy`` on PATH whose environment has mitmproxy: ``uv tool install 'llmproxy-replay[proxy]'`` or pipx made it. Each is asked,
   since the first one is often that of this environment, which cannot.
4. ``uvx --offline``: what an earlier call downloaded.
5. ``uvx``, else ``pipx run``: these install it first, which an offline run must not learn from a hanging socket, so it is said before.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import llmproxy
from llmproxy.errors import MachineError
from llmproxy.install import NAME, requirement

COMMAND_VARIABLE = "LLMPROXY_COMMAND"
"""How to call ``llmproxy`` where the proxy can run, ``/opt/llmproxy/bin/llmproxy``."""
PATIENCE = 120.0
"""Seconds until a proxy must serve: a cold disk, and a machine with ten times the work it can do, take their time to load mitmproxy."""
DOWNLOAD_PATIENCE = 300.0
"""The same where uvx or pipx may have to install it first."""
ASKED = 30.0
"""Seconds that a command may take to say what it is."""
_SERVES = re.compile(r"llmproxy (?P<version>\S+) \(mitmproxy \S+\)")
"""What `llmproxy --version` says where the proxy can run."""


@dataclass(frozen=True, slots=True)
class Command:
    """How the proxy is called from here."""

    words: tuple[str, ...]
    source: str
    """Why this one, in a few words."""
    patience: float = PATIENCE
    notice: str = ""
    """What whoever runs it should read before it starts: that something will be downloaded, or that versions differ."""


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _on_path(path: str) -> Iterator[str]:
    """Yield every ``llmproxy`` of a PATH, in its order; each place once."""
    seen: set[str] = set()
    for folder in path.split(os.pathsep):
        found = shutil.which("llmproxy", path=folder) if folder else None
        if found and (real := str(Path(found).resolve())) not in seen:
            seen.add(real)
            yield found


def _ask_version(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return what a command says its version is; empty if it does not."""
    try:
        done = subprocess.run(
            [*words, "--version"], capture_output=True, text=True, timeout=ASKED, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


@dataclass(frozen=True, slots=True)
class Look:
    """How to look around on this machine; a test hands in its own."""

    installed: Callable[[str], bool] = _is_installed
    """Tells whether a module is installed in this environment."""
    on_path: Callable[[str], Iterator[str]] = _on_path
    which: Callable[[str, str], str | None] = lambda name, path: shutil.which(name, path=path)
    """Finds a program of a PATH."""
    ask_version: Callable[[Sequence[str], Mapping[str, str]], str] = _ask_version
    package: Callable[[str], str] = requirement
    """Names this package with an extra, as installers take it."""


def find_command(env: Mapping[str, str], look: Look | None = None) -> Command:
    """Find out how to call a proxy that can run; the module says in which order.

    Raises:
        MachineError: there is no way, and what to install.

    """
    look = look or Look()
    if words := tuple(shlex.split(env.get(COMMAND_VARIABLE, ""))):
        return Command(words, COMMAND_VARIABLE)
    if look.installed("mitmproxy"):
        return Command((sys.executable, "-m", "llmproxy"), "this environment")
    path = env.get("PATH", os.defpath)
    for found in look.on_path(path):
        if said := _SERVES.search(look.ask_version([found], env)):
            return Command((found,), f"{found} on PATH", notice=_other_version(said["version"], found))
    package = look.package("proxy")
    if uvx := look.which("uvx", path):
        cached = (uvx, "--offline", "--from", package, "llmproxy")
        if said := _SERVES.search(look.ask_version(cached, env)):
            return Command(cached, "uvx, from its cache", notice=_other_version(said["version"], "uvx's cache"))
        return _downloading((uvx, "--from", package, "llmproxy"), "uvx", package)
    if pipx := look.which("pipx", path):
        return _downloading((pipx, "run", "--spec", package, "llmproxy"), "pipx", package)
    raise MachineError(
        "the proxy needs mitmproxy, which is not installed here; no llmproxy on PATH has it, and neither uvx nor pipx is there.",
        hint=_keep_one(package),
    )


def _other_version(version: str, where: str) -> str:
    if version == llmproxy.__version__:
        return ""
    return f"the proxy is llmproxy {version} ({where}), while {llmproxy.__version__} asks it"


def _keep_one(package: str) -> str:
    return (
        f"To have one, once and for all:  uv tool install '{package}'  (or the same with pipx install),\n"
        f'or say where it is:  export {COMMAND_VARIABLE}="$(uv tool dir)/{NAME}/bin/llmproxy"'
    )


def _downloading(words: tuple[str, ...], tool: str, package: str) -> Command:
    typed = shlex.join((tool, *words[1:]))
    what = f"no proxy in this environment or on PATH: `{typed}` may download one now."
    return Command(words, tool, DOWNLOAD_PATIENCE, f"{what}\n{_keep_one(package)}")
