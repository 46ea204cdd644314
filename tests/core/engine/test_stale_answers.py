"""Recordings that are older than `--max-age`, through a real proxy."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.errors import Exit
from tests.provider import Provider, Step, step
from tests.support.chats import chat, fill
from tests.support.forked import program
from tests.support.process import clean_env

DAY = 86_400
AGENT = """
import json, os, sys, urllib.error, urllib.request
for text in sys.argv[1:]:
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"content-type": "application/json"})
    try:
        print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        error.read()  # who leaves before the body has no whole answer recorded
        print(error.code)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a recording of 40 days ago and one of an hour ago."""
    old, new = chat("old"), chat("new")
    fill(tmp_path / "x.db", *(dataclasses.replace(each, started_at=time.time() - age)
                             for each, age in ((old, 40 * DAY), (new, 3_600))))  # fmt: skip
    return tmp_path / "x.db"


def run(store: Path, *typed: str, upstream: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
    """Run an agent that asks both questions."""
    env = clean_env({"OPENAI_BASE_URL": f"{upstream}/v1", "OPENAI_API_KEY": "sk-test"})
    command = [
        *program("llmproxy"),
        "run",
        "--store",
        str(store),
        *typed,
        "--",
        sys.executable,
        "-c",
        AGENT,
        "old",
        "new",
    ]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False, cwd=store.parent)


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (["--max-age", "30d"], Exit.OK, "2 hits (1 older than --max-age)"),
        (["--max-age", "30d", "--fail-on-stale"], Exit.STALE, "--fail-on-stale: 2 hits (1 older than --max-age): exit code 10"),
        (["--max-age", "8w", "--fail-on-stale"], Exit.OK, "2 hits, 0 misses"),
        (["--max-age", "30"], Exit.USAGE, "is not an age: hours, days or weeks"),
        (["--max-age", "-1d"], Exit.USAGE, "is not an age: hours, days or weeks"),
    ],
)  # fmt: skip
def test_a_replay_says_what_is_old(store: Path, typed: list[str], code: Exit, said: str) -> None:
    """It serves it all the same, and has a code for who wants one."""
    done = run(store, *typed)
    assert (done.returncode, said in done.stderr) == (code, True), done.stdout + done.stderr
    assert code is Exit.USAGE or done.stdout.splitlines() == ["Fine.", "Fine."]


@pytest.mark.parametrize(
    ("answer", "heard", "kept"),
    [
        (step(user="old", say="Still fine."), "Still fine.", ["Fine.", "Still fine."]),
        (step(user="old", status=400, json={"error": {"message": "no"}}), "400", ["Fine.", "Fine.", "no"]),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "once"])
def test_what_is_old_is_asked_anew_once(store: Path, mode: str, answer: Step, heard: str, kept: list[str]) -> None:
    """A good answer takes its place, and the next run replays it; with another one the recording stays."""
    with closing(sqlite3.connect(store)) as opened, opened:
        opened.execute("UPDATE cassettes SET closed_cleanly = 1")
    with Provider([answer]) as provider:
        done = run(store, "--mode", mode, "--max-age", "30d", upstream=provider.url)
        assert (done.stdout.splitlines(), len(provider.requests)) == ([heard, "Fine."], 1), done.stderr
    with FileStore.open(store, writable=False, now=time.time) as database:
        bodies = [json.loads(each.response.body) for each in database.interactions("default")]
    said = [
        body["choices"][0]["message"]["content"] if "choices" in body else body["error"]["message"] for body in bodies
    ]
    assert sorted(said) == sorted(kept)


def test_what_is_old_is_gone_in_another_folder_too(tmp_path: Path) -> None:
    """A hit of another run is asked in this run's words, and a third run hears the new answer, not both."""

    def go(folder: str, upstream: str, *typed: str) -> str:
        (tmp_path / folder).mkdir()
        command = [*program("llmproxy"), "run", "--store", str(tmp_path / "x.db"), *typed, "--", sys.executable]
        done = subprocess.run(
            [*command, "-c", AGENT, f"What is in {tmp_path / folder}/src?"], cwd=tmp_path / folder, check=False,
            env=clean_env({"OPENAI_BASE_URL": f"{upstream}/v1", "OPENAI_API_KEY": "sk-test"}),
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Provider([step(say="Old."), step(say="New.")]) as provider:
        go("one", provider.url, "--mode", "record")
        with closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
            database.execute(f"UPDATE interactions SET started_at = started_at - {40 * DAY}")
        assert go("two", provider.url, "--mode", "auto", "--max-age", "30d") == "New.\n"
    assert go("three", "http://127.0.0.1:9") == "New.\n"
