"""What the benches need and the project does not: peers, in places of their own that git ignores."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from lib.machine import ROOT, Failed

PLACE = ROOT / ".venv-bench"
NODE = Path(__file__).parents[1] / "node"
PYTHON = {"httptools": "0.7.1", "uvloop": "0.22.1", "coding-agent-vcr": "0.2.1", "ddapm-test-agent": "1.69.1"}
NPM = {"@copilotkit/aimock": "1.43.0", "wiremock": "3.13.2", "proxay": "1.9.0"}


def _run(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {(done.stderr or done.stdout)[-800:]}")


@cache
def _uv() -> str | None:
    """Return uv, if it is here and works: a shim of a version manager may be neither."""
    found = shutil.which("uv")
    works = found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    return found if works else None


@cache
def python(*packages: str) -> Path:
    """Return the Python of an environment with these packages of the table.

    Raises:
        Failed: they cannot be had here.

    """
    binary = PLACE / "bin" / "python"
    wanted = [f"{name}=={PYTHON[name]}" for name in packages]
    missing = [each for each in wanted if not (PLACE / f".has-{each}").exists()]
    if missing:
        uv = _uv()
        if not binary.exists():
            _run(
                *(
                    (uv, "venv", "-q", "-p", sys.executable, str(PLACE))
                    if uv
                    else (sys.executable, "-m", "venv", str(PLACE))
                )
            )
        install = (uv, "pip", "install", "-q", "-p", str(binary)) if uv else (str(binary), "-m", "pip", "install", "-q")
        _run(*install, *missing)
        for each in missing:
            (PLACE / f".has-{each}").touch()
    return binary


@cache
def apart(package: str, version: str, *beside: str) -> Path:
    """Return the Python of an environment in which this package is alone, with what it needs and with `beside`.

    Raises:
        Failed: it cannot be had here.

    """
    place = ROOT / f".venv-bench-{package}-{version}"
    binary, stamp = place / "bin" / "python", place / ".has-it"
    if not stamp.exists():
        uv = _uv()
        _run(
            *((uv, "venv", "-q", "--clear", "-p", sys.executable) if uv else (sys.executable, "-m", "venv", "--clear")),
            str(place),
        )
        install = (uv, "pip", "install", "-q", "-p", str(binary)) if uv else (str(binary), "-m", "pip", "install", "-q")
        _run(*install, f"{package}=={version}", *beside)
        stamp.touch()
    return binary


@cache
def node(package: str) -> Path:
    """Return the folder of an npm package of the table.

    Raises:
        Failed: it cannot be had here.

    """
    folder = NODE / "node_modules" / package
    stamp = folder / f".has-{NPM[package]}"
    if not stamp.exists():
        if not shutil.which("npm") or not shutil.which("node"):
            raise Failed("there is no npm or no node here")
        NODE.mkdir(exist_ok=True)
        if not (NODE / "package.json").exists():
            (NODE / "package.json").write_text('{"private": true}\n')
        _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"{package}@{NPM[package]}", cwd=NODE)
        stamp.touch()
    return folder


def tool(name: str) -> Path:
    """Return a program of the environment that this bench runs in, mitmdump for one."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise Failed(f"{path} is missing")
    return path


def java() -> str:
    """Return the java program."""
    if found := shutil.which("java"):
        return found
    raise Failed("there is no java here")


def missing(need: Callable[[], object]) -> str:
    """Return why something cannot be had, "" if it can."""
    try:
        need()
    except (Failed, OSError) as error:
        return str(error).strip().splitlines()[-1][:200]
    return ""
