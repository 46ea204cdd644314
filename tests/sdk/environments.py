"""The SDKs' own environments: built from committed locks, reused while the lock is the same, built side by side.

| name       | what                                     | lock                                      | place                    |
|------------|------------------------------------------|-------------------------------------------|--------------------------|
| newest     | newest of all Python SDKs                | python/newest/requirements.txt            | .venv-sdk-newest         |
| previous   | an older version of each, litellm        | python/previous/requirements.txt          | .venv-sdk-previous       |
| node       | Node SDKs in two versions, aimock        | node/package-lock.json                    | tests/sdk/node/node_modules |

Locks name versions and hashes, and no host: which registry serves them is the machine's business. To renew them:
`uv pip compile --no-header --no-annotate --generate-hashes --python-version 3.12 requirements.in -o requirements.txt`, and
`npm install --package-lock-only --omit-lockfile-registry-resolved`.

`python -m tests.sdk.environments` builds all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.forked import forking

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NODE = HERE / "node"
BUILD_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment: where it is, what it is built from, and with which commands."""

    name: str
    place: Path
    lock: Path
    tool: str
    commands: tuple[tuple[str, ...], ...]

    @property
    def stamp(self) -> Path:
        """File inside that holds the digest of the lock (and of the tool's major facts) it was built from."""
        return self.place / ".lock-digest"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.lock.read_bytes() + repr(self.commands).encode()).hexdigest()

    @property
    def is_built(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text("utf-8") == self.digest


def python_environment(name: str, lock: Path | None = None) -> Environment:
    """Return one of Python packages, from its own lock or from that of this folder."""
    place, lock = ROOT / f".venv-sdk-{name}", lock or HERE / "python" / name / "requirements.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    create = ("uv", "venv", "--quiet", "--allow-existing", "--python", version, str(place))
    sync = ("uv", "pip", "sync", "--quiet", "--require-hashes", "--python", str(place), str(lock))
    return Environment(name, place, lock, "uv", (create, sync))


ENVIRONMENTS = {
    "newest": python_environment("newest"),
    "previous": python_environment("previous"),
    # Nothing here needs its install scripts.
    "node": Environment(
        "node",
        NODE / "node_modules",
        NODE / "package-lock.json",
        "npm",
        (("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error", "--prefix", str(NODE)),),
    ),
}


def build(environment: Environment) -> str:
    """Build an environment unless it is there or another process builds it; returns why it could not be, empty if it is there."""
    if environment.is_built:
        return ""
    with environment.lock.open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        return _run_commands(environment)


def _run_commands(environment: Environment) -> str:
    if environment.is_built:  # by who was first
        return ""
    if shutil.which(environment.tool) is None:
        return f"{environment.tool} is not installed, so the {environment.name} SDK environment cannot be built"
    for command in environment.commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, cwd=HERE)
        except subprocess.TimeoutExpired:
            return f"building the {environment.name} SDK environment took over {BUILD_SECONDS} s (is there a network?)"
        if done.returncode:
            told = " / ".join((done.stderr or done.stdout).strip().splitlines()[-6:])
            return f"the {environment.name} SDK environment cannot be built: {' '.join(command[:3])}: {told}"
    environment.stamp.write_text(environment.digest, "utf-8")
    return ""


@cache
def prepare(names: Iterable[str] = tuple(ENVIRONMENTS)) -> dict[str, str]:
    """Build these environments side by side; returns for each why it is missing, empty if it is there. Once per process."""
    wanted = [ENVIRONMENTS[name] for name in names]
    with ThreadPoolExecutor(len(wanted) or 1) as pool:
        return dict(zip((e.name for e in wanted), pool.map(build, wanted), strict=True))


def starter(name: str) -> str:
    """Return the word that starts a program in an environment; where that is Python, with its imports done for all that are started."""
    return interpreter(name) if name == "node" else forking(interpreter(name))


def interpreter(name: str) -> str:
    if name == "node":
        return shutil.which("node") or "node"
    return str(ENVIRONMENTS[name].place / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


if __name__ == "__main__":
    begun = time.monotonic()
    problems = {name: problem for name, problem in prepare().items() if problem}
    sys.stdout.write("\n".join(problems.values()) + f"\n{time.monotonic() - begun:.1f} s\n")
    sys.exit(1 if problems else 0)
