"""Detection of a child's run variables: folder, user, day, branch; in a few milliseconds, before it starts.

An unknown value is not declared: a name that only one of two runs declares binds nothing.
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.errors import SettingsError, remove_prefix
from llmproxy.protocol import API_KEYS, PLACEHOLDER_KEY

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Declared = list[dict[str, str]]
_GIT_SECONDS = 2.0
_COMMITS = 5


def gather_run_variables(
    env: Mapping[str, str], cwd: Path, now: datetime | None = None, *, git: bool = False
) -> Declared:
    """Return the run variables of a child in `cwd`; `now`: aware time, default now; `git` adds git's."""
    here = (now or datetime.now(UTC)).astimezone(_read_tz_variable(env))
    day, utc = here.strftime("%Y-%m-%d"), here.astimezone(UTC).strftime("%Y-%m-%d")
    found: Declared = [build_path_variable("cwd", _find_logical_cwd(cwd, env))]
    found.append(build_path_variable("home", Path(env.get("HOME") or env.get("USERPROFILE") or Path.home())))
    found.append(build_path_variable("tmp", Path(env.get("TMPDIR") or tempfile.gettempdir())))
    found.append({"name": "date", "value": day} | ({"other": utc} if utc != day else {}))
    words = {
        "user": env.get("USER") or env.get("LOGNAME") or _find_user_name(),
        "host": socket.gethostname(),
        "timezone": env.get("TZ") or here.tzname() or "",
        "shell": env.get("SHELL", "").rpartition("/")[2],
        "os_version": f"{platform.system()} {platform.release()}",
        API_KEYS: " ".join(list_set_api_keys(env)) or "none",
    }
    found += [{"name": name, "value": value} for name, value in words.items() if value]
    told = [each for each in found if each["value"].strip("/\\.")]  # the root is in every path
    return [*told, *(_read_git_state(cwd) if git else [])]


def list_set_api_keys(env: Mapping[str, str]) -> list[str]:
    """Return the names, never the values, of providers' key variables that are set."""
    keys = [key for provider in PROVIDERS.values() for key in provider.keys]
    known = {name for key in keys for name in (key.name, *key.instead)} | {"AWS_ACCESS_KEY_ID", "AWS_PROFILE"}
    return sorted(name for name in known if env.get(name) not in (None, "", PLACEHOLDER_KEY))


def _read_tz_variable(env: Mapping[str, str]) -> ZoneInfo | None:
    if not env.get("TZ"):
        return None
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(env["TZ"].removeprefix(":"))
    except (ZoneInfoNotFoundError, ValueError, OSError):  # ``EST5EDT,M3.2.0`` and the like: the C library knows
        return None


def _find_logical_cwd(cwd: Path, env: Mapping[str, str]) -> Path:
    """Return the folder as the shell names it, with its symbolic links, if PWD agrees."""
    with suppress(OSError):
        said = Path(env.get("PWD", ""))
        if said.is_absolute() and said.samefile(cwd):
            return said
    return cwd


def build_path_variable(name: str, path: Path) -> dict[str, str]:
    plain, real = os.path.abspath(path), os.path.realpath(path)  # noqa: PTH100 - Path.resolve follows links
    return {"name": name, "value": plain} | ({"other": real} if real != plain else {})


def _find_user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run under a number without a name
        return ""


def _read_git_state(cwd: Path) -> Declared:
    if not any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        return []
    status = _run_git(cwd, "status", "--short")
    who = _run_git(cwd, "var", "GIT_AUTHOR_IDENT")  # Ann Smith <ann@example.com> 1795000000 +0000
    found = {
        "git_user": who and " ".join(who.split(" ")[:-2]),
        "git_branch": _run_git(cwd, "branch", "--show-current"),
        "git_status": None if status is None else status or "(clean)",
        "git_commits": _run_git(cwd, "log", "--oneline", "-n", str(_COMMITS)),
    }
    return [{"name": name, "value": value[:10_000]} for name, value in found.items() if value]


def _run_git(cwd: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *words],  # noqa: S607 - the user's own git
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None


def parse_var_option_dicts(given: list[str]) -> Declared:
    """Parse arguments of the form ``NAME=VALUE``. Raises SettingsError."""
    from llmproxy.core.bindings.run_variables import BadRunVariable, parse_run_variable

    found = []
    for each in given:
        name, mark, value = each.partition("=")
        if not mark or not name or not value:
            raise SettingsError(f"--var {each!r}: it is NAME=VALUE, as in task=1007.")
        try:
            parse_run_variable(name, value)
        except BadRunVariable as error:
            raise SettingsError(f"--var {each!r}: {remove_prefix(error)}") from error
        found.append({"name": name, "value": value})
    return found


_ZONES = ("Pacific/Kiritimati", "Etc/GMT+12")
"""Zones 26 hours apart: one of them has another date than any given one."""


def find_zone_with_other_date(day: str, now: datetime | None = None) -> str:
    """Return a time zone with another date than ``2026-11-22``, so another hour too; empty if none is known."""
    moment = now or datetime.now(UTC)
    for name in _ZONES:
        zone = _read_tz_variable({"TZ": name})
        if zone is not None and moment.astimezone(zone).strftime("%Y-%m-%d") != day:
            return name
    return ""
