"""Commands suggested in messages: each works when typed exactly as printed.

No other text of the product names a command that reads or writes recordings: tests/test_advice.py reads every string
and lists the exceptions. `core` creates no `SuggestedCommandTemplate`: the code that starts the proxy passes one in.

On an index this package is `llmproxy-replay`. Installed from a clone, a wheel or a repository it is named with that
place (PEP 508's ` @ `), read from the installer's record (PEP 610): the command works, and installs the same version.
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
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.protocol import DEFAULT_STORE

NAME = "llmproxy-replay"
LONGEST = 700
"""Maximum characters of all options. A longer command is shown with a note that it is incomplete, never cut."""
_MODE = "{mode}"
PYTEST_MODE = f"--llmproxy-mode {_MODE}"
SUITE_MODE = f" --mode {_MODE}"
_NPM_MODE = f"LLMPROXY_MODE={_MODE} "
_OF_ONE = frozenset({"host", "port", "answer_to", "allow_origin", "allow_live", "forward"})
"""Options of the running proxy that a second proxy on the same machine cannot share, or does not need."""


@dataclass(frozen=True, slots=True)
class SuggestedCommandTemplate:
    """The command that started the proxy, without mode, cassette and store, which each suggestion sets."""

    start: str = "llmproxy start"
    """The command: ``llmproxy run --intercept``, ``mitmdump -s ...``; a test runner's whole command with ``{mode}``."""
    rest: str = ""
    """Arguments after the options: `` -- COMMAND``."""
    options: tuple[tuple[str, str | bool], ...] = ()
    """Name as in `Settings`, and value; a repeated option has one entry for each value."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables with base URLs, as set where the proxy was started."""
    page: str = field(default="", compare=False)
    """Address of the viewer of a proxy that keeps running after its client; empty if there is none."""
    names_cassette: bool = True
    """False for a session whose own client named its cassette: no option of the command may name another."""
    in_mitmproxy: bool = False
    """Whether options are mitmproxy's, ``--set llmproxy_NAME=VALUE``."""

    @property
    def is_for_one_command(self) -> bool:
        return bool(self.rest)

    @property
    def is_begun_anew(self) -> bool:
        """Whether each run starts a proxy of its own, so that nobody starts it by hand."""
        return self.is_for_one_command or self.is_test_runner

    @property
    def is_test_runner(self) -> bool:
        return _MODE in self.start

    @property
    def is_pytest(self) -> bool:
        return PYTEST_MODE in self.start

    @property
    def is_suite(self) -> bool:
        return self.start.endswith(SUITE_MODE)

    def command(
        self, mode: str, cassette: str = "", *, store: str = DEFAULT_STORE, upstreams: Mapping[str, str] | None = None
    ) -> str:
        """Return the command; an empty `mode` keeps its own; `upstreams` belong to a session, not to the proxy."""
        if self.is_test_runner:  # its plugin knows cassette, store and upstreams; what it takes is the mode
            return self.start.replace(_MODE, mode)
        of_session = tuple(("upstream", f"{name}={url}") for name, url in (upstreams or {}).items())
        given = (("mode", mode), ("cassette", cassette if self.names_cassette else ""))
        named = [each for each in given if each[1]] + ([("store", store)] if store != DEFAULT_STORE else [])
        kept = " ".join(self._spell_option(name, value) for name, value in self.options + of_session)
        if len(kept) > LONGEST:
            kept = "... (and the options that it runs with: see `llmproxy settings`)"
        before = " ".join(f"{name}={quote_word(_without_password(value))}" for name, value in self.variables)
        stop = f"llmproxy stop --url {self.page[:-1]};" if self.page else ""  # it keeps running, and has the port
        words = [stop, before, self.start, *(self._spell_option(*each) for each in named), kept]
        return " ".join(filter(None, words)) + self.rest

    def for_other_command(self, start: str, rest: str = " -- COMMAND") -> SuggestedCommandTemplate:
        options = tuple(x for x in self.options if x[0] not in _OF_ONE)
        return replace(self, start=start, rest=rest, options=options, in_mitmproxy=False, page="")

    def format_changes_command(self, cassette: str, store: str) -> str:
        """Return the command that lists, offline, what changed; empty if the command of the run is unknown."""
        if self.is_pytest:
            return self.start.replace(PYTEST_MODE, "--llmproxy-changes")
        if self.is_suite:
            return self.start.replace(SUITE_MODE, " --changes")
        if self.is_test_runner:  # each of its tests names its own cassette
            cassette, start, rest = "", "llmproxy changes", f" -- {self.start.removeprefix(_NPM_MODE)}"
        elif self.start.startswith("llmproxy run"):
            start, rest = self.start.replace("run", "changes", 1), self.rest
        else:
            return ""
        return self.for_other_command(start, rest).command("", cassette, store=store)

    def without_mcp_servers(self) -> SuggestedCommandTemplate | None:
        """Return the command without MCP servers; None if `run` did not start it, or the option was given."""
        if self.start.split()[:2] != ["llmproxy", "run"] or "--mcp-config" in self.start:
            return None
        return replace(self, options=(*self.options, ("mcp_config", "none")))

    def _spell_option(self, name: str, value: str | bool) -> str:  # noqa: FBT001 - the value of a switch
        if self.in_mitmproxy:
            return f"--set {quote_word(f'llmproxy_{name}={str(value).lower() if isinstance(value, bool) else value}')}"
        key = name.replace("_", "-")
        return f"--{key if value else f'no-{key}'}" if isinstance(value, bool) else f"--{key} {quote_word(value)}"


def _without_password(url: str) -> str:
    """Return a base URL for printing: a password is replaced so that the typed command fails instead of leaking."""
    _, at, host = urlsplit(url).netloc.rpartition("@")
    return url.replace(urlsplit(url).netloc, f"USER:PASSWORD@{host}", 1) if at else url


def format_llmproxy_command(command: str, store: str | Path) -> str:
    return f"llmproxy {command}{format_store_option(store)}"


def format_store_option(store: str | Path) -> str:
    """Return `` --store PATH``; empty for the default store, however its path is written."""
    said = format_store_location(store)
    return "" if said in (DEFAULT_STORE, str(Path.cwd() / DEFAULT_STORE)) else f" --store {quote_word(said)}"


def quote_word(text: str) -> str:
    """Quote a word for a shell, without characters that move a terminal's cursor."""
    return shlex.quote(printable(text))


def build_own_pip_requirement(*extras: str) -> str:
    """Return this package with extras as installers take it, `llmproxy-replay[proxy]`; the caller quotes it."""
    return build_pip_requirement(_read_direct_url_text(), *extras)


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
"""Module -> the extra that installs it."""


def build_install_command(extra: str) -> str:
    from importlib import metadata

    there = {EXTRAS[each] for each in ("mitmproxy", "litellm", "psycopg", "mcp", "ray") if find_spec(each)}
    with suppress(metadata.PackageNotFoundError):
        installer = (metadata.distribution(NAME).read_text("INSTALLER") or "").strip()
        package = build_own_pip_requirement(*sorted({*there, extra}))
        return choose_install_command(package, Path(sys.prefix), installer, _read_direct_url_text())
    return f"pip install '{build_own_pip_requirement(extra)}'"


def choose_install_command(package: str, prefix: Path, installer: str, noted: str) -> str:
    """Return the command for an environment at `prefix` with `installer` (pip, uv) and its `direct_url.json`."""
    parts, told = prefix.parts, json.loads(noted or "{}")
    if {"uv", "tools"} <= set(parts):
        return f"uv tool install --force '{package}'"
    if {"pipx", "venvs"} <= set(parts):
        return f"pipx install --force '{package}'"
    if installer == "uv" and told.get("dir_info", {}).get("editable") and prefix.name == ".venv":  # a clone
        extras = package.partition("[")[2].partition("]")[0].split(",")
        return " ".join(["uv sync --inexact", *(f"--extra {each}" for each in extras)])
    return f"{'uv ' if installer == 'uv' else ''}pip install '{package}'"


def build_missing_extra_error(error: BaseException) -> MachineError | None:
    module = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if (extra := EXTRAS.get(module)) is None:
        return None
    return MachineError(
        f"this needs the package {module}, which is not installed here.", hint=build_install_command(extra)
    )


def build_pip_requirement(noted: str, *extras: str) -> str:
    """Return the requirement that the installer recorded in `direct_url.json`; empty for an index."""
    named = f"{NAME}[{','.join(extras)}]" if extras else NAME
    return f"{named} @ {where}" if (where := find_reinstall_url(noted)) else named


def describe_how_to_upgrade_llmproxy(noted: str | None = None) -> str:
    """Describe how to install a version newer than the installed one; `noted`: its `direct_url.json`."""
    noted = _read_direct_url_text() if noted is None else noted
    if not find_reinstall_url(noted):
        return f"uv tool upgrade {NAME}   (or pip install --upgrade {NAME})"
    typed = f"uv tool install --force '{build_pip_requirement(noted)}'"
    also = "(or the same with pip install --force-reinstall)"
    return f"Bring what it was installed from up to date, then:  {typed}   {also}"


def find_reinstall_url(noted: str) -> str:
    """Return the URL that reinstalls the package; empty without one, for a missing file or with a password."""
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
def _read_direct_url_text() -> str:
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return metadata.distribution(NAME).read_text("direct_url.json") or ""
    return ""
