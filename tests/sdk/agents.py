"""Small agents on each SDK of the matrix, with tools that answer something else on every run: recorded, tried once, replayed elsewhere.

Their tools mint a uuid, an integer key, a time, a temporary file, a port, and write keys in any order; two sub-agents ask at the same
time. The model names again what the tools made. `python/agent.py` and `node/agent.mjs` are the agents.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.coding.lab import AWAY, DEAD, Ran, can_cut_off
from tests.provider import Provider, Script, load
from tests.support.forked import program
from tests.support.process import clean_env

from .environments import HERE, starter

QUESTION = "Keep a note about the boats."
SECONDS = 120
PROVIDERS = ("openai", "anthropic", "gemini", "bedrock")
KEYS = {
    "OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-ant-test", "GEMINI_API_KEY": "AIza-test",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-secret-that-only-signs",
    "AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TAKES = {
    "id": r'"id": ?(\d+)', "token": f"({UUID})", "path": r"written: (\S+)", "port": r"http://127\.0\.0\.1:(\d+)/",
    "run": r'"run": ?"([0-9a-f]{12})"',
}  # fmt: skip
TURNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("make_task", {"title": "boats"}),
    ("mint_token", {}),
    ("close_task", {"task_id": {"number": "{id}"}, "token": "{token}"}),
    ("write_note", {"text": "for {token}"}),
    ("read_note", {"path": "{path}"}),
    ("serve", {}),
    ("fetch", {"url": "http://127.0.0.1:{port}/"}),
    ("look_at_clock", {}),
    ("delegate", {"first": "Count the boats.", "second": "Count the bridges."}),
)
TAKEN = ("task_id", "tmp_name", "port")
"""Volatile fields that `--accept` does not take."""
SAID = "The note is at {path}, its token is {token}."


def script() -> Script:
    """Return what the model says: one call a turn, and of the two sub-agents each a call and a report."""
    turns = enumerate(TURNS)
    steps = [_step(QUESTION, number, [{"name": name, "arguments": given}]) for number, (name, given) in turns]
    steps.append(_step(QUESTION, len(TURNS), say=SAID))
    for what in ("boats", "bridges"):
        question = f"Count the {what}."
        steps.append(_step(question, 0, [{"name": "count", "arguments": {"what": what}}]))
        steps.append(_step(question, 1, say=f"{what.title()} counted in run {{run}}."))
    return load({"ordered": False, "steps": steps})


def _step(user: str, results: int, call: list[dict[str, Any]] | None = None, say: str = "") -> dict[str, Any]:
    text = repr(call) + say
    takes = {name: pattern for name, pattern in TAKES.items() if f"{{{name}}}" in text}
    return {"user": user, "results": results, "times": None, "call": call or [], "say": say, "takes": takes}


@dataclass(frozen=True, slots=True)
class SdkAgent:
    name: str
    environment: str
    sdk: str
    """What the program calls it."""
    options: tuple[str, ...] = ()
    """Of `llmproxy run` and `learn`."""

    @property
    def command(self) -> list[str]:
        place = HERE / ("node/agent.mjs" if self.environment == "node" else "python/agent.py")
        return [starter(self.environment), str(place), self.sdk, QUESTION]


AGENTS = (
    SdkAgent("openai-py", "newest", "openai"),
    SdkAgent("responses-py", "newest", "responses"),
    SdkAgent("anthropic-py", "newest", "anthropic"),
    SdkAgent("genai-py", "newest", "genai"),
    SdkAgent("boto3", "newest", "bedrock"),
    SdkAgent("litellm", "previous", "litellm"),
    SdkAgent("openai-js", "node", "openai"),
    SdkAgent("anthropic-js", "node", "anthropic"),
    SdkAgent("genai-js", "node", "google"),
    SdkAgent("ai-sdk", "node", "ai"),
)


@dataclass(slots=True)
class SdkLab:
    """One agent, recorded in one folder, tried in a second, replayed in a third."""

    agent: SdkAgent
    folder: Path

    def record(self) -> Ran:
        with Provider(script(), check=False) as up:
            ran = self._run("a", up.url, "run", "--mode", "record")
            ran.upstream = len(up.requests)
            ran.stderr += "".join(f"\nprovider refused {seen.target}: {seen.refused}" for seen in up.refused)
        return ran

    def learn(self) -> Ran:
        """Try it in a third place; numbers and names are taken by name."""
        taken = [word for name in TAKEN for word in ("--take", name)]
        return self._run("trial", DEAD, "learn", self.agent.name, "--accept", *taken)

    def replay(self) -> Ran:
        return self._run("b-of-another-length", DEAD, "run")

    def _run(self, place: str, upstream: str, *words: str) -> Ran:
        where = self.folder / place
        folders = {"PWD": where / "project", "HOME": where / "home", "TMPDIR": where / "tmp"}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        places = {name: str(folder) for name, folder in folders.items()}
        env = clean_env(places | {"PYTHONDONTWRITEBYTECODE": ""} | KEYS)
        options = ["--store", str(self.folder / "llmproxy.db"), *self.agent.options]
        options += ["--cassette", self.agent.name] if words[0] == "run" else []
        options += [word for name in PROVIDERS for word in ("--upstream", f"{name}={upstream}")]
        away = AWAY if upstream == DEAD and can_cut_off() else ()
        command = [*away, *program("llmproxy"), *words, *options, "--", *self.agent.command]
        done = subprocess.run(
            command, cwd=folders["PWD"], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def problems(self, ran: Ran, recorded: Ran) -> list[str]:
        """Return what of a replay is not as it must be; empty if all is."""
        wrong = [] if ran.code == 0 else [f"exit {ran.code}"]
        hits, misses, wanted = ran.count("hit"), ran.count("miss"), recorded.count("recorded")
        if misses or hits != wanted:
            wrong.append(f"{hits} hits of {wanted}, {misses} misses")
        said = re.search(r"The note is at (\S+), its token is (\S+)\.", ran.stdout)
        if said is None:
            return [*wrong, f"answer not seen: {ran.stdout[-300:]!r}"]
        path, token = said.groups()
        if not Path(path).is_relative_to(self.folder / "b-of-another-length" / "tmp"):
            wrong.append(f"the note is of the recording: {path}")
        elif Path(path).read_text() != f"for {token}":
            wrong.append(f"{path} holds {Path(path).read_text()!r}")
        if token in recorded.stdout:
            wrong.append(f"the token is of the recording: {token}")
        return wrong
