"""Commands that a text advises: typed as they stand they do what the text says.

    format_command("show 12", store)       a command that looks into the store that the advice is about
    StartCommand(...).command("record", cassette)  what was typed to start this proxy, with another mode or cassette
    requirement("proxy")                    this package, as pip, uv and pipx take it
    install_command("postgres")             what brings an extra into the environment that runs this

No other text of the product names a command that reads or makes recordings: tests/test_advice.py reads every string and
knows the few that need nothing. `core` makes no `StartCommand`: whoever starts it hands one in.

What is installed must be there. On an index this package is `llmproxy-replay`. What was installed from a clone, a wheel
or a repository is named with that place (PEP 508's ` @ `), read from what the installer noted (PEP 610): the advice
works before a first release, and gives the same version.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from llmproxy.errors import MachineError, printable
from llmproxy.protocol import DEFAULT_STORE
from llmproxy.server_store_path import show_store

NAME = "llmproxy-replay"
LONGEST = 700
"""Characters of all options; a command that would be cut somewhere is worse than one that says that it is not whole."""
_MODE = "{mode}"
_OF_ONE = frozenset({"host", "port", "answer_to", "allow_origin", "forward"})
"""Options of the proxy that runs, which another one beside it does not share."""


@dataclass(frozen=True, slots=True)
class StartCommand:
    """What was typed to start the proxy, without mode, cassette and store, which each advice says itself."""

    start: str = "llmproxy start"
    """The command: ``llmproxy run --intercept``, ``mitmdump -s ...``; with ``{mode}`` in it a test runner's, whole."""
    rest: str = ""
    """What stands behind the options: `` -- COMMAND``."""
    options: tuple[tuple[str, str | bool], ...] = ()
    """Name as in `Settings`, and value; a repeated option once for each value."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment: base URLs that were set where the proxy was started."""
    page: str = field(default="", compare=False)
    """Address of the page of a proxy that goes on when its client has ended; empty where there is none."""

    @property
    def is_run(self) -> bool:
        """Whether the proxy is started for one command, and not by hand."""
        return bool(self.rest)

    @property
    def is_test_runner(self) -> bool:
        return _MODE in self.start

    def command(
        self, mode: str, cassette: str = "", *, store: str = DEFAULT_STORE, upstreams: Mapping[str, str] | None = None
    ) -> str:
        """Return the command, empty `mode`: its own; `upstreams` are a session's, unknown to the proxy itself."""
        if self.is_test_runner:  # its plugin knows cassette, store and upstreams; what it takes is the mode
            return self.start.replace(_MODE, mode)
        of_session = tuple(("upstream", f"{name}={url}") for name, url in (upstreams or {}).items())
        named = ([("mode", mode)] if mode else []) + ([("cassette", cassette)] if cassette else [])
        named += [("store", store)] if store != DEFAULT_STORE else []
        kept = " ".join(self._spell_option(name, value) for name, value in self.options + of_session)
        if len(kept) > LONGEST:
            kept = "... (and the options that it runs with: see `llmproxy settings`)"
        before = " ".join(f"{name}={quote_word(_without_password(value))}" for name, value in self.variables)
        words = [before, self.start, *(self._spell_option(*each) for each in named), kept]
        return " ".join(filter(None, words)) + self.rest

    def for_other(self, start: str, rest: str = " -- COMMAND") -> StartCommand:
        """Return how another command, which has a proxy of its own, is started with the same options."""
        if self.is_test_runner:
            return StartCommand(start, rest)
        return replace(self, start=start, rest=rest, options=tuple(x for x in self.options if x[0] not in _OF_ONE))

    def without_tools(self) -> StartCommand | None:
        """Return how the same is started without servers of tools; None if not by `run`, or if it said which."""
        if self.start.split()[:2] != ["llmproxy", "run"] or "--mcp-config" in self.start:
            return None
        return replace(self, options=(*self.options, ("mcp_config", "none")))

    def _spell_option(self, name: str, value: str | bool) -> str:  # noqa: FBT001 - the value of a switch
        if self.start.startswith("mitm"):
            return f"--set {quote_word(f'llmproxy_{name}={str(value).lower() if isinstance(value, bool) else value}')}"
        key = name.replace("_", "-")
        return f"--{key if value else f'no-{key}'}" if isinstance(value, bool) else f"--{key} {quote_word(value)}"


def _without_password(url: str) -> str:
    """Return a base URL fit to be printed: typed as it stands, one with a password fails instead of leaking."""
    _, at, host = urlsplit(url).netloc.rpartition("@")
    return url.replace(urlsplit(url).netloc, f"USER:PASSWORD@{host}", 1) if at else url


def format_command(command: str, store: str | Path) -> str:
    """Return the line that runs `command` (``show 12``) on a store."""
    return f"llmproxy {command}{format_store_option(store)}"


def format_store_option(store: str | Path) -> str:
    """Return `` --store PATH``; nothing for the default one, however it is written."""
    said = show_store(store)
    return "" if said in (DEFAULT_STORE, str(Path.cwd() / DEFAULT_STORE)) else f" --store {quote_word(said)}"


def quote_word(text: str) -> str:
    """Return one word of a shell, without what would move a terminal's cursor."""
    return shlex.quote(printable(text))


# -- this package


def requirement(*extras: str) -> str:
    """Return what an installer takes for this package with these extras, `llmproxy-replay[proxy]`; to be quoted."""
    return build_url_requirement(_read_direct_url_json(), *extras)


EXTRAS = {
    "mitmproxy": "proxy",
    "litellm": "runner",
    "sqlalchemy": "runner",
    "jsonschema": "runner",
    "regex": "runner",
    "openai": "demo",
    "psycopg": "postgres",
    "mcp": "mcp",
    "ray": "ray",
}
"""Module -> the extra that brings it."""


def install_command(extra: str) -> str:
    """Return what brings an extra into this environment, beside those that it has."""
    from importlib import metadata

    there = {EXTRAS[each] for each in ("mitmproxy", "litellm", "psycopg", "mcp", "ray") if find_spec(each)}
    with suppress(metadata.PackageNotFoundError):
        installer = (metadata.distribution(NAME).read_text("INSTALLER") or "").strip()
        return choose_install_command(
            requirement(*sorted({*there, extra})), Path(sys.prefix), installer, _read_direct_url_json()
        )
    return f"pip install '{requirement(extra)}'"


def choose_install_command(package: str, prefix: Path, installer: str, noted: str) -> str:
    """Return the same for an environment at `prefix`, made by `installer` (pip, uv); `noted`: its `direct_url.json`."""
    parts, told = prefix.parts, json.loads(noted or "{}")
    if {"uv", "tools"} <= set(parts):
        return f"uv tool install --force '{package}'"
    if {"pipx", "venvs"} <= set(parts):
        return f"pipx install --force '{package}'"
    if installer == "uv" and told.get("dir_info", {}).get("editable") and prefix.name == ".venv":  # a clone
        extras = package.partition("[")[2].partition("]")[0].split(",")
        return " ".join(["uv sync --inexact", *(f"--extra {each}" for each in extras)])
    return f"{'uv ' if installer == 'uv' else ''}pip install '{package}'"


def explain_missing(error: BaseException) -> MachineError | None:
    """Return what to say of a module that one of our extras brings; None for any other error."""
    module = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if (extra := EXTRAS.get(module)) is None:
        return None
    return MachineError(f"this needs the package {module}, which is not installed here.", hint=install_command(extra))


def describe_upgrade() -> str:
    """Describe how a newer one is had."""
    return describe_upgrade_by_direct_url(_read_direct_url_json())


def build_url_requirement(noted: str, *extras: str) -> str:
    """Return the same for what an installer noted in `direct_url.json`; empty where it came from an index."""
    named = f"{NAME}[{','.join(extras)}]" if extras else NAME
    return f"{named} @ {where}" if (where := parse_install_url(noted)) else named


def describe_upgrade_by_direct_url(noted: str) -> str:
    """Describe how one that is newer than what was noted is had."""
    if not parse_install_url(noted):
        return f"uv tool upgrade {NAME}   (or pip install --upgrade {NAME})"
    typed = (
        f"uv tool install --force '{build_url_requirement(noted)}'   (or the same with pip install --force-reinstall)"
    )
    return f"Bring what it was installed from up to date, then:  {typed}"


def parse_install_url(noted: str) -> str:
    """Return the URL that installs it again; empty for none, a file that is gone, or one with a password."""
    try:
        told = json.loads(noted or "{}")
        url, source = str(told.get("url", "")), told.get("vcs_info") or {}
        parts = urlsplit(url)
    except (ValueError, AttributeError):
        return ""
    if not parts.scheme or parts.password or (parts.username and parts.scheme.startswith("http")):
        return ""
    if source:
        revision = source.get("requested_revision") or source.get("commit_id", "")
        return f"{source.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    from urllib.request import url2pathname  # late: it loads a client of HTTP, and most commands advise no installation

    return "" if parts.scheme == "file" and not Path(url2pathname(parts.path)).exists() else url


@cache
def _read_direct_url_json() -> str:
    from importlib import metadata

    try:
        return metadata.distribution(NAME).read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return ""
