"""Empty environments, into which the built package is installed.

| name      | Python | what                                                                 |
|-----------|--------|----------------------------------------------------------------------|
| base      | 3.12   | the package alone, and pytest: a user's own test environment         |
| proxy     | 3.13   | `[proxy]`, from the wheel                                            |
| all       | 3.12   | `[all]`, from the sdist                                              |
| mitmproxy | 3.12   | somebody's own mitmproxy: nothing of ours                            |

One of each kind, and half of them under the oldest Python: what is there beside us depends on the kind (mitmproxy imports ours from `base`, so both are of one Python), what we import is tried under
both Pythons by the other tests.

They lie in `.venv-package/`, where other packages stay from run to run; ours is installed anew each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import ROOT, clean_env, needed

PLACE = ROOT / ".venv-package"
NEWEST, OLDEST = "3.13", "3.12"
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Wanted:
    python: str
    extra: str = ""
    """Of our package; None of it where `ours` is False."""
    more: tuple[str, ...] = ()
    from_sdist: bool = False
    ours: bool = True


ENVIRONMENTS = {
    "base": Wanted(OLDEST, more=("pytest",)),
    "proxy": Wanted(NEWEST, "[proxy]"),
    "all": Wanted(OLDEST, "[all]", from_sdist=True),
    "mitmproxy": Wanted(OLDEST, more=("mitmproxy>=12.2,<13",), ours=False),
}


@dataclass(frozen=True, slots=True)
class Built:
    """What `uv build` made."""

    wheel: Path
    sdist: Path


def uv() -> str:
    return shutil.which("uv") or needed("uv, which builds the package and its environments")


def call(*words: str | Path) -> str:
    """Run a tool as this machine has it set up; returns what it said on stdout."""
    done = subprocess.run(
        [str(each) for each in words], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def build(folder: Path) -> Built:
    call(uv(), "build", "--quiet", "--out-dir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def interpreter(version: str) -> str | None:
    """Return a Python of this version: this one, one that uv finds, or pyenv's; None if there is none."""
    if sys.version_info[:2] == tuple(int(each) for each in version.split(".")):
        return sys.executable
    words = [uv(), "python", "find", "--no-project", "--no-python-downloads", version]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    owned = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    return found.stdout.strip() if found.returncode == 0 else str(owned[-1]) if owned else None


def install(name: str, built: Built) -> Path | None:
    """Make an environment ready; returns its folder of programs, None if its Python is not there."""
    wanted, place = ENVIRONMENTS[name], PLACE / name
    python = interpreter(wanted.python)
    if python is None:
        return None
    if not place.is_dir():
        call(uv(), "venv", "--quiet", "--python", python, place)
    package = built.sdist if wanted.from_sdist else built.wheel
    ours = [f"llmproxy-replay{wanted.extra} @ {package.as_uri()}"] if wanted.ours else []
    again = ["--reinstall-package", "llmproxy-replay"] if ours else []
    call(uv(), "pip", "install", "--quiet", "--python", place, *again, *ours, *wanted.more)
    return place / ("Scripts" if os.name == "nt" else "bin")


def install_all(names: Iterable[str], built: Built) -> dict[str, Path | None]:
    with ThreadPoolExecutor(2) as pool:
        wanted = list(names)
        return dict(zip(wanted, pool.map(lambda name: install(name, built), wanted), strict=True))


def environment(*programs: Path, **more: str) -> dict[str, str]:
    """Return variables in which only these folders of programs are on PATH, and the system's own."""
    given = clean_env({"PATH": os.pathsep.join([*map(str, programs), "/usr/bin", "/bin"])} | more)
    return {name: value for name, value in given.items() if name in more or name != "LLMPROXY_COMMAND"}
