"""The shell lines that docs/ci.md gives to GitHub and GitLab, typed in a repository as their machines would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from llmproxy.cli import main
from tests.support.chats import chat, fill
from tests.support.process import ROOT, needed

from .environments import Built, uv

PAGE = (ROOT / "docs/ci.md").read_text("utf-8")
PUBLISHED = re.compile(r"llmproxy-replay\[proxy\] @ git\+https://github\.com/OWNER/llmproxy@v[\d.]+")
ELSEWHERE = re.compile(r"curl -LsSf https://astral\.sh/uv/install\.sh \| sh")
"""What only a machine with the internet can type: it puts `uv` where the next lines look for it."""
ASK = """
const body = { model: "gpt-4o", messages: [{ role: "user", content: process.env.SAY ?? "hi" }] };
const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, asked);
console.log((await answer.json()).choices?.[0].message.content ?? "refused");
"""


def block(info: str) -> str:
    (text, *_) = re.findall(rf"^```{info}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def lines_of(system: str) -> list[str]:
    if system == "gitlab":
        job = yaml.safe_load(block("yaml gitlab"))["test"]
        return [*job["before_script"], *job["script"]]
    job = yaml.safe_load(block("yaml github"))["jobs"]["test"]
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository whose agent, in Node, was recorded once."""
    if not shutil.which("npm"):
        needed("npm")
    folder = tmp_path_factory.mktemp("repository")
    (folder / "package.json").write_text(json.dumps({"name": "agent", "scripts": {"test": "node ask.mjs"}}))
    lock = {"name": "agent", "lockfileVersion": 3, "requires": True, "packages": {"": {"name": "agent"}}}
    (folder / "package-lock.json").write_text(json.dumps(lock))
    (folder / "ask.mjs").write_text(ASK)
    fill(folder / "llmproxy.db", chat("hi", "hello"))
    assert main(["verify", str(folder / "llmproxy.db")]) == 0
    return folder


@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_its_lines_replay_and_are_red_after_a_miss(system: str, repository: Path, built: Built, tmp_path: Path) -> None:
    """Exit code 0 and the recorded answer; another question, and 4."""
    programs = Path(os.environ.get("UV") or uv()).parent
    (tmp_path / ".local").mkdir()
    (tmp_path / ".local/bin").symlink_to(programs)
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)
    ours = f"llmproxy-replay[proxy] @ {built.wheel.as_uri()}"
    typed = [PUBLISHED.sub(ours, line) for line in lines_of(system) if not ELSEWHERE.match(line)]
    assert sum(str(built.wheel) in line for line in typed) == 1
    # The machine's own: where packages come from, and whom it trusts. No address of a proxy, and no key.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLMPROXY", "OPENAI", "VIRTUAL"))}
    cache = subprocess.run([uv(), "cache", "dir"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    env = kept | {"PATH": path, "UV_CACHE_DIR": cache}
    words = ["bash", "-c", "set -e\n" + "\n".join(typed)]

    def type_lines(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=tmp_path, env=env | more, capture_output=True, text=True, timeout=600, check=False
        )

    done = type_lines()
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["hello"]), done.stdout + done.stderr
    if system != "github":  # the same command as there
        assert json.loads((tmp_path / "llmproxy.json").read_text("utf-8"))["misses"] == 0
        return
    missed = type_lines(SAY="bye")
    said = "exit code 4 because of --fail-on-miss: 1 miss" in missed.stderr
    assert (missed.returncode, said) == (4, True), missed.stdout + missed.stderr
