"""The action's script for a nightly workflow, against a provider that drifts and a GitHub that takes what it knows alone."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli import main
from tests.cli.test_drift import USER, always, body, recorded
from tests.provider import Provider, Step, step
from tests.support.asking import ASK
from tests.support.chats import fill
from tests.support.forked import program
from tests.support.process import ROOT, clean_env
from tests.support.services import QuietHandler, serving

from .test_action import git

ACTION = ROOT / ".github/actions/drift"
AGENT = (
    f"{ASK}\n"
    """
for number in range(3):
    print(ask(f"What is order {number}?", max_tokens=100)["content"])
"""
)


class GitHub:
    """Its API for pull requests of a/b: what it does not know, or is not allowed, it refuses and keeps."""

    def __init__(self) -> None:
        self.pulls: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.closed_to_workflows = False
        github = self

        class Handler(QuietHandler):
            def _answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, said = github.take(self.command, self.path, dict(self.headers), json.loads(data or "null"))
                self.answer(json.dumps(said).encode(), status=status)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - http.server's names

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def take(self, method: str, path: str, headers: dict[str, str], told: Any) -> tuple[int, Any]:
        """Answer as docs.github.com/en/rest/pulls has it."""
        allowed = (
            headers.get("Authorization") == "Bearer ghs_1" and headers.get("Accept") == "application/vnd.github+json"
        )
        match method, path:
            case "GET", "/repos/a/b/pulls?state=open&head=a:llmproxy-drift&base=main" if allowed:
                return 200, self.pulls
            case "POST", "/repos/a/b/pulls" if allowed and self.closed_to_workflows:
                return 403, {"message": "GitHub Actions is not permitted to create or approve pull requests."}
            case "POST", "/repos/a/b/pulls" if (
                allowed and not self.pulls and told.keys() == {"title", "body", "head", "base"}
            ):
                self.pulls.append({**told, "number": 7, "html_url": "https://github.example/a/b/pull/7"})
                return 201, self.pulls[0]
            case "PATCH", "/repos/a/b/pulls/7" if allowed and self.pulls and told.keys() == {"title", "body"}:
                self.pulls[0] |= told
                return 200, self.pulls[0]
        self.refused.append(f"{method} {path}")
        return 422, {"message": "Validation Failed"}


@pytest.fixture
def github() -> Iterator[GitHub]:
    made = GitHub()
    with serving(made.server):
        yield made
    assert made.refused == []


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone of a repository with a cassette of three calls, and no store."""
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "origin.git")
    git(tmp_path, "clone", "-q", "origin.git", "clone")
    folder = tmp_path / "clone"
    fill(tmp_path / "x.db", *map(recorded, range(3)))
    assert main(["export", "--all", str(folder / "tapes"), "--store", str(tmp_path / "x.db")]) == 0
    (folder / ".gitignore").write_text("*.db*\n")
    (folder / "agent.py").write_text(AGENT)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    git(folder, "push", "-q", "origin", "HEAD:main")
    return folder


def night(clone: Path, github: GitHub, script: list[Step], **inputs: str) -> tuple[int, str, int]:
    """Run the script; returns its exit code, the job's summary and how many requests the provider got."""
    summary = clone.parent / "summary.md"
    summary.write_text("")
    with Provider(script, ordered=False, check=False) as provider:
        env = clean_env({
            "PATH": os.pathsep.join([str(Path(program("llmproxy")[0]).parent), os.environ["PATH"]]), "OPENAI_API_KEY": "sk-test",
            "OPENAI_BASE_URL": f"{provider.url}/v1", "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_REPOSITORY": "a/b",
            "GITHUB_REF_NAME": "main", "GITHUB_API_URL": f"http://127.0.0.1:{github.server.server_port}",
            "DRIFT_TOKEN": "ghs_1", "DRIFT_MAX_COST": "0.10", "DRIFT_OPTIONS": "--runs 2", "DRIFT_BRANCH": "llmproxy-drift",
            "DRIFT_CASSETTE_DIR": "tapes", **{f"DRIFT_{name.upper()}": value for name, value in inputs.items()},
        })  # fmt: skip
        words = [sys.executable, str(ACTION / "drift.py")]
        done = subprocess.run(words, cwd=clone, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, summary.read_text() + done.stderr, len(provider.requests)


def test_what_drifted_is_recorded_anew_and_proposed(clone: Path, github: GitHub) -> None:
    """The command asks what follows from a new answer as well; once it is merged, the next night finds nothing."""
    script = always(body("First.", tool="lookup") | {"model": "gpt-4o"})
    code, told, asked = night(clone, github, script, run=f"{sys.executable} agent.py", run_options="--bind paths")
    assert (code, asked) == (0, 9), told
    assert "Proposed: https://github.example/a/b/pull/7" in told
    (pull,) = github.pulls
    assert (pull["head"], pull["base"]) == ("llmproxy-drift", "main")
    assert "`gpt-4o`: drift" in pull["body"]
    assert "### `tapes/default.yaml`" in pull["body"]
    assert "lookup" in pull["body"]
    kept = git(clone, "show", "origin/llmproxy-drift:tapes/default.yaml")
    assert (kept.count("content: First."), kept.count("on its way"), "sk-test" in kept) == (3, 0, False)
    assert git(clone, "diff", "--name-only", "origin/main", "origin/llmproxy-drift") == "tapes/default.yaml"
    github.pulls.clear()
    git(clone, "checkout", "-q", "main")
    git(clone, "merge", "-q", "origin/llmproxy-drift")
    code, told, asked = night(clone, github, script)
    assert (code, asked, github.pulls) == (0, 6, []), told
    assert "no drift seen" in told


def test_what_cannot_be_recorded_anew_ends_with_a_code(clone: Path, github: GitHub) -> None:
    """A model that is gone has no new answer; nothing is proposed."""
    gone = [step(user=USER.format(n), status=404, json={"error": {"message": "retired"}}, times=None) for n in range(3)]
    code, told, _ = night(clone, github, gone, options="--calls 1 --runs 2")
    assert (code, "gone: HTTP 404: retired" in told, github.pulls) == (8, True, []), told


def test_the_pull_request_is_opened_once(github: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open it says what it holds by now; a repository that lets no workflow open one is told of."""
    told = {"DRIFT_BRANCH": "llmproxy-drift", "DRIFT_TOKEN": "ghs_1", "GITHUB_REPOSITORY": "a/b"}
    for name, value in {**told, "GITHUB_API_URL": f"http://127.0.0.1:{github.server.server_port}"}.items():
        monkeypatch.setenv(name, value)
    propose = runpy.run_path(str(ACTION / "drift.py"))["propose"]
    assert "DRIFT_TOKEN" not in os.environ
    github.closed_to_workflows = True
    with pytest.raises(SystemExit, match=r"POST pulls: 403 .*not permitted.*permissions: pull-requests: write"):
        propose("main", "one")
    github.closed_to_workflows = False
    assert propose("main", "one") == propose("main", "two") == "https://github.example/a/b/pull/7"
    assert [each["body"] for each in github.pulls] == ["two"]
