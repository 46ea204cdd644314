"""Environments of their own for what must not be in ours: Evalcraft, and the SDKs to compare with.

Built once beside the project (``.venv-*`` is ignored by git) from exact versions, and used again. What cannot be built
skips its tests loudly; they are marked `sdk`, so LLMPROXY_TEST_REQUIRE=all makes that a failure.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180


@cache
def python(name: str, *requirements: str) -> str:
    """Return the interpreter of ``.venv-<name>`` with these packages, built if need be; skips where it cannot be."""
    place = ROOT / f".venv-{name}"
    place.mkdir(exist_ok=True)
    with (place / ".building").open("w") as lock:  # not ".lock": uv waits for that one itself
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in another process may want it at this moment
        return _built(place, requirements)


def _built(place: Path, requirements: tuple[str, ...]) -> str:
    interpreter, stamp = place / "bin/python", place / ".requirements"
    wanted = "\n".join(requirements)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted and interpreter.exists():
        return str(interpreter)
    if shutil.which("uv") is None:
        pytest.skip(f"uv is not installed, so the environment {place.name} cannot be built")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for command in (
        ("uv", "venv", "--quiet", "--allow-existing", "--python", version, str(place)),
        ("uv", "pip", "install", "--quiet", "--python", str(interpreter), *requirements),
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"building {place.name} took over {SECONDS} s (is there a network?)")
        if done.returncode:
            pytest.skip(f"{place.name} cannot be built: {done.stderr.strip().splitlines()[-3:]}")
    stamp.write_text(wanted, "utf-8")
    return str(interpreter)
