"""Record a real coding agent in one place, let `llmproxy learn` try it in a second, replay it in a third, and say what is not as it must be.

A place is a folder with notes and a git repository, a home, a folder for temporary files, and what the machine says of itself
(user, time zone). In replay the provider is dead: its port is closed, and the whole run is cut off from every network where the
system lets a user make a network namespace.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from llmproxy.core.bindings import RunVariable, build_run_variable
from llmproxy.errors import Exit
from tests.provider import Provider, Script, Seen
from tests.support.forked import program, python_itself
from tests.support.process import clean_env

from .agents import ASK, COMMON, Agent
from .dialogue import NOTE, UUID, script
from .environments import HERE, programs_of

SECONDS = 240
"""An agent that takes longer hangs."""
PROGRAMS = HERE.parent / "programs"
"""Agents that are a few lines on an SDK."""
AWAY = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')
"""Runs a command where no network is but its own loopback."""


@dataclass(frozen=True, slots=True)
class Where:
    cwd: Path
    home: Path
    tmp: Path
    user: str = "ann"
    timezone: str = "UTC"
    branch: str = "main"
    more_commits: int = 0
    """Commits of before, beyond the first."""
    dirty: bool = False
    """A file lies there that git does not know."""
    keeps_home: bool = False
    """What an agent left in its home stays there for the next run."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.user.title()} Smith"

    def prepare(self, name: str) -> None:
        """Make the folders, the notes and the repository, all of them anew."""
        for folder in (self.cwd, self.tmp) if self.keeps_home else (self.cwd, self.home, self.tmp):
            for old in sorted(folder.iterdir()) if folder.exists() else ():
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() and not old.is_symlink() else old.unlink()
        for folder in (self.cwd, self.home, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        (self.cwd / "notes.txt").write_text(f"{NOTE}\n")
        config = f"[user]\n\tname = {self.full_name}\n\temail = {self.user}@example.com\n[init]\n\tdefaultBranch = {self.branch}\n"
        (self.home / ".gitconfig").write_text(config)
        git = ["git", "-c", f"user.name={self.full_name}", "-c", f"user.email={self.user}@example.com"]
        (self.cwd / ".gitignore").write_text(".ids\n")
        _do(*git, "init", "-q", "-b", self.branch, ".", cwd=self.cwd)
        for field_name, value in (("name", self.full_name), ("email", f"{self.user}@example.com")):
            _do(*git, "config", f"user.{field_name}", value, cwd=self.cwd)  # Gemini CLI hides the home's from its shell
        _do(*git, "add", ".gitignore", cwd=self.cwd)
        for number in range(1 + self.more_commits):
            _do(*git, "commit", "-q", "--allow-empty", "-m", f"Begin, {number}", cwd=self.cwd)
        if self.dirty:
            (self.cwd / "left-here.txt").write_text(f"by {name}\n")

    def run_variables(self) -> list[RunVariable]:
        """Return what `llmproxy run` declares of it; after the commits of before, and before those of the dialogue."""
        day = datetime.now(ZoneInfo(self.timezone)).date().isoformat()
        log = subprocess.run(["git", "log", "--oneline"], cwd=self.cwd, capture_output=True, text=True, check=True)
        commits = "\n".join([line for line in log.stdout.splitlines() if " Begin," in line][:5])
        utc = datetime.now(UTC).date().isoformat()
        known = {"cwd": str(self.cwd), "home": str(self.home), "tmp": str(self.tmp), "user": self.user}
        known |= {
            "git_user": f"{self.full_name} <{self.user}@example.com>",
            "git_branch": self.branch,
            "git_commits": commits,
            "timezone": self.timezone,
        }
        found = [build_run_variable(name, value) for name, value in known.items() if value]
        return [*found, build_run_variable("date", day, utc)]

    def words(self) -> dict[str, str]:
        """Return what must not be found in another place: folders, and the ids that were made here."""
        found = {"cwd": str(self.cwd), "home": str(self.home), "tmp": str(self.tmp)}
        ids = self.cwd / ".ids"
        made = (
            re.findall(
                rf"{UUID}|[0-9a-f]{{40}}|token=[0-9a-f]{{16}}|[^/\s]*(?:tmp\.\w{{10}}|run-\w{{6}})", ids.read_text()
            )
            if ids.exists()
            else []
        )
        return found | {f"id {number}": value for number, value in enumerate(made)}


def _do(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


@dataclass(slots=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    upstream: int = 0
    """Requests that reached the provider."""

    @property
    def said(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith(("llmproxy:", "  miss:", "  refused:"))]

    def count(self, word: str) -> int:
        return counted(self.stderr, word)


def counted(stderr: str, word: str) -> int:
    """Return a number of the summary that `run` says at its end; 0 if it says none."""
    found = re.search(rf"llmproxy: .*?\b([0-9,]+) {word}", stderr)
    return int(found[1].replace(",", "")) if found else 0


@dataclass(slots=True)
class Lab:
    agent: Agent
    folder: Path
    turns: int
    cut_off: bool = True
    packages: Path = HERE
    """Where its packages lie."""
    script: Callable[[Agent, str, int], Script] = script
    recorded: Where | None = None
    seen: list[Seen] = field(default_factory=list)
    """Requests that reached the provider while it was recorded."""
    runs: list[Ran] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "llmproxy.db"

    def record(self, where: Where) -> Ran:
        where.prepare("record")
        with Provider(self.script(self.agent, str(where.cwd), self.turns), check=False) as up:
            ran = self.run(where, up.url, "run", "--mode", "record")
            ran.upstream = sum(seen.method != "HEAD" for seen in up.requests)  # a preconnect is not recorded
            for seen in up.refused:
                ran.stderr += f"\nprovider refused {seen.method} {seen.target}\n{seen.refused}"
        self.recorded, self.seen = where, up.requests
        return ran

    def learn(self, where: Where, *accept: str) -> Ran:
        where.prepare("learn")
        return self.run(where, DEAD, "learn", self.agent.name, *accept, cut_off=self.cut_off)

    def learn_all(self, where: Where) -> list[str]:
        """Try it there, look at the table, and take everything, names and numbers one by one; returns what went wrong."""
        seen = self.learn(where)
        if seen.code and (seen.code != Exit.MISS or "  miss:" in seen.stderr):
            return [f"the trial ended with {seen.code}: {seen.stderr[-2000:]}"]
        left = re.search(r"not taken: (.*?)\. If", seen.stderr)
        if left is None:
            return []
        names = [word for name in left[1].split(", ") for word in ("--take", name)]
        taken = self.learn(where, "--accept", *names)
        return [f"learn ended with {taken.code}: {taken.stderr[-2000:]}"] if taken.code else []

    def replay(self, where: Where, *options: str) -> Ran:
        where.prepare("replay")
        return self.run(where, DEAD, "run", *options, cut_off=self.cut_off)

    def run(self, where: Where, upstream: str, *words: str, cut_off: bool = False) -> Ran:
        own = {name: value.replace("{home}", str(where.home)) for name, value in self.agent.variables.items()}
        own["PACKAGES"] = str(self.packages / self.agent.name)
        path = f"{programs_of(self.agent, self.packages)}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = clean_env(
            {
                **COMMON,
                **own,
                "HOME": str(where.home),
                "TMPDIR": str(where.tmp),
                "USER": where.user,
                "LOGNAME": where.user,
            }
            | {"TZ": where.timezone, "PATH": path, "PYTHONDONTWRITEBYTECODE": "", **where.variables}
        )
        options = ["--store", str(self.store)]
        options += ["--cassette", self.agent.name] if words[0] == "run" else []
        options += [word for name in ("openai", "anthropic", "gemini") for word in ("--upstream", f"{name}={upstream}")]
        quoted = " ".join(f'"{word}"' for word in self.agent.command)  # with a shell's variables in force
        asked = " && ".join(filter(None, [self.agent.before, quoted]))
        asked = asked.replace("{programs}", str(PROGRAMS))
        command = [*words, *options, "--", "sh", "-c", asked]
        if where.variables:
            env["LLMPROXY_COMMAND"] = ""  # what is forked has the clock of its parent
        ours = python_itself("llmproxy") if where.variables else program("llmproxy")
        command = [*(AWAY if cut_off and can_cut_off() else ()), *ours, *command]
        env["PWD"] = str(where.cwd)
        typed = "".join(f"{text}\n" for text in self.agent.says[: self.turns])
        done = subprocess.run(
            command, cwd=where.cwd, env=env, input=typed, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        ran = Ran(done.returncode, done.stdout, done.stderr)
        self.runs.append(ran)
        return ran

    def explain(self) -> list[str]:
        """Return the line in which the last miss differs, as `llmproxy why` says it."""
        command = [*program("llmproxy"), "why", "--store", str(self.store)]
        done = subprocess.run(command, env=clean_env({}), capture_output=True, text=True, timeout=60, check=False)
        return [line for line in done.stdout.splitlines() if line.startswith("recording #")][:1]

    def problems(self, ran: Ran, where: Where) -> list[str]:
        """Return what of a replay is not as it must be; empty if all is."""
        wrong = [] if ran.code == 0 else [f"exit {ran.code}"]
        misses, hits, wanted = ran.count("miss"), ran.count("hit"), self.runs[0].count("recorded")
        if misses or hits != wanted:
            wrong.append(f"{hits} hits of {wanted}, {misses} misses")
        if NOTE not in ran.stdout:
            wrong.append(f"answer not seen: {ran.stdout[-300:]!r}")
        return wrong + self.files_left(where) if self.turns > 2 else wrong

    def files_left(self, where: Where) -> list[str]:
        """Return what the agent left that it should not have, or did not leave."""
        assert self.recorded is not None
        wrong = []
        made = re.findall(UUID, (where.cwd / ".ids").read_text()) if (where.cwd / ".ids").exists() else []
        if not made and not self.agent.says:
            wrong.append("no id was made")
        if made and self.turns > 3:
            file = where.cwd / f"{made[0]}.txt"
            if not file.exists() or file.read_text() != f"for {made[0]}\n":
                wrong.append(f"{file.name} is not there")
        here = where.words()
        for name, word in self.recorded.words().items():
            if word in here.values() or any(word in value for value in here.values()):
                continue
            for root in {where.cwd, where.home, where.tmp}:
                wrong += [
                    f"{name} of the recording ({word}) in {path}"
                    for path in sorted(root.rglob("*"))
                    if _holds(path, word)
                ]
        return wrong


def _holds(path: Path, word: str) -> bool:
    # git packs what it keeps: what the repository holds is found in its files and refs.
    if path.is_symlink() or not path.is_file() or (".git" in path.parts and "objects" in path.parts):
        return word in path.name
    return word in path.name or word.encode() in path.read_bytes()


DEAD = "http://127.0.0.1:9"
"""Nobody is there."""


@cache
def can_cut_off() -> bool:
    """Return whether this system lets us make a network namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*AWAY, "true"], capture_output=True, check=False).returncode == 0


__all__ = ["ASK", "Lab", "Ran", "Where", "can_cut_off", "json"]
