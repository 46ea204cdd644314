"""How this package is named to pip, uv and pipx: what they are told to install must be there.

On an index it is `llmproxy-replay`. What was installed from a clone, a wheel or a repository is named with that place
(PEP 508's ` @ `, which all three take), read from what the installer noted (PEP 610): the advice works before a first
release, and gives the same version.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

NAME = "llmproxy-replay"


def requirement(*extras: str) -> str:
    """Return what an installer takes for this very package with these extras, such as `llmproxy-replay[proxy]`; to be
    quoted.
    """
    return requirement_of(_read_metadata(), *extras)


def upgrade() -> str:
    """Describe how a newer one is had."""
    return upgrade_of(_read_metadata())


def requirement_of(noted: str, *extras: str) -> str:
    """Return the same for what an installer noted in `direct_url.json`; empty where it came from an index."""
    named = f"{NAME}[{','.join(extras)}]" if extras else NAME
    return f"{named} @ {where}" if (where := place(noted)) else named


def upgrade_of(noted: str) -> str:
    """Describe how one that is newer than what was noted is had."""
    if not place(noted):
        return f"uv tool upgrade {NAME}   (or pip install --upgrade {NAME})"
    typed = f"uv tool install --force '{requirement_of(noted)}'   (or the same with pip install --force-reinstall)"
    return f"Bring what it was installed from up to date, then:  {typed}"


def place(noted: str) -> str:
    """Return the URL from which it can be installed again; empty for none, a file that is gone, or one
    with a password.
    """
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
def _read_metadata() -> str:
    from importlib import metadata

    try:
        return metadata.distribution(NAME).read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return ""
