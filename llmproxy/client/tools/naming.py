"""What a server of tools over stdio is called in recordings: after its program, and apart from another one with other arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

_RUNNERS = frozenset({
    "npx", "uvx", "bunx", "pnpx", "npm", "pnpm", "yarn", "bun", "deno", "node", "python", "python3", "uv", "pipx", "docker", "podman",
    "run", "exec", "dlx", "tool", "env", "sh", "bash", "cmd",
})  # fmt: skip
"""Programs, and their commands, that only start what is meant."""
_VERSION = re.compile(r"@[\w.^~-]+$")


def server_name(command: Sequence[str], places: Mapping[str, str]) -> str:
    """Return the name of a server that is started by `command`.

    `places` are folders of this run by name (cwd, home, tmp): a server in one of them has the same name wherever that is.
    """
    words = [word for word in command if not word.startswith("-")]
    meant = next((word for word in words if _base(word) not in _RUNNERS), words[0] if words else "server")
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", _base(meant)).strip("-.") or "server"
    return f"{shown[:60]}-{_digest(command, places)}"


def _base(word: str) -> str:
    """Return what a path or a package is called: ``@scope/server-files@1.2`` is server-files."""
    bare = word.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return re.sub(r"\.exe$", "", _VERSION.sub("", bare), flags=re.IGNORECASE) or bare


def _digest(command: Sequence[str], places: Mapping[str, str]) -> str:
    """Return what tells a command from others, the program's own path and the folders of the run left out."""
    longest_first = sorted(
        ((path, name) for name, path in places.items() if len(path) > 1), key=lambda pair: -len(pair[0])
    )
    told = [_base(command[0]) if command else ""]
    for word in command[1:]:
        for path, name in longest_first:
            word = re.sub(re.escape(path) + r"(?![\w.-])", f"<{name}>", word)  # noqa: PLW2901 - one after the other
        told.append(word)
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:8]
