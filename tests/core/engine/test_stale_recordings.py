"""Recordings that are older than `--max-age`, through a real proxy."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import time
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import RecordingMaxAge, read_cassette_replay_rules
from llmproxy.errors import Exit
from llmproxy.protocol import Decision
from tests.core.engine.test_engine import ask, engine
from tests.provider import Provider, Step, step
from tests.support.asking import ASK_EACH
from tests.support.chats import chat, fill
from tests.support.forked import program
from tests.support.process import clean_env, python

DAY = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a recording of 40 days ago and one of an hour ago."""
    old, new = chat("old"), chat("new")
    fill(tmp_path / "x.db", *(dataclasses.replace(each, started_at=time.time() - age)
                             for each, age in ((old, 40 * DAY), (new, 3_600))))  # fmt: skip
    return tmp_path / "x.db"


def run(
    store: Path,
    *typed: str,
    upstream: str = "http://127.0.0.1:9",
    asks: tuple[str, ...] = ("old", "new"),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    env = clean_env({"OPENAI_BASE_URL": f"{upstream}/v1", "OPENAI_API_KEY": "sk-test"})
    agent = [python(), "-c", ASK_EACH, *asks]
    command = [*program("llmproxy"), "run", "--store", str(store), *typed, "--", *agent]
    cwd = cwd or store.parent
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False, cwd=cwd)


@pytest.mark.parametrize(("typed", "code", "said"), [
    (["--max-age", "30d"], Exit.OK, "2 hits (1 older than its max age)"),
    (["--max-age", "30d", "--fail-on-stale"], Exit.STALE, "exit code 10 because of --fail-on-stale: 2 hits (1 older than its max age)."),
    (["--max-age", "8w", "--fail-on-stale"], Exit.OK, "2 hits, 0 misses"),
    (["--max-age", "30"], Exit.USAGE, "is not an age: hours, days or weeks"),
    (["--max-age", "-1d"], Exit.USAGE, "is not an age: hours, days or weeks"),
])  # fmt: skip
def test_a_replay_says_what_is_old(store: Path, typed: list[str], code: Exit, said: str) -> None:
    """It serves it all the same, and has a code for who wants one."""
    done = run(store, *typed)
    assert (done.returncode, said in done.stderr) == (code, True), done.stdout + done.stderr
    assert code is Exit.USAGE or done.stdout.splitlines() == ["Fine.", "Fine."]


@pytest.mark.parametrize(("answer", "heard", "kept"), [
    (step(user="old", say="Still fine."), "Still fine.", ["Fine.", "Still fine."]),
    (step(user="old", status=400, json={"error": {"message": "no"}}), "HTTP 400", ["Fine.", "Fine.", "no"]),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["auto", "once"])
def test_what_is_old_is_asked_anew_once(store: Path, mode: str, answer: Step, heard: str, kept: list[str]) -> None:
    """A good answer takes its place, and the next run replays it; with another one the recording stays."""
    with closing(sqlite3.connect(store)) as opened, opened:
        opened.execute("UPDATE cassettes SET closed_cleanly = 1")
    with Provider([answer]) as provider:
        done = run(store, "--mode", mode, "--max-age", "30d", upstream=provider.url)
        assert (done.stdout.splitlines(), len(provider.requests)) == ([heard, "Fine."], 1), done.stderr
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as database:
        bodies = [json.loads(each.response.body) for each in database.iter_interactions("default")]
    said = [
        body["choices"][0]["message"]["content"] if "choices" in body else body["error"]["message"] for body in bodies
    ]
    assert sorted(said) == sorted(kept)


def test_what_was_asked_several_times_keeps_its_order(tmp_path: Path) -> None:
    """Each new answer takes the turn of the one that it replaces, while others of the same request still stand."""
    old = [chat("poll", f"old {n}", occurrence=n, started_at=time.time() - 40 * DAY + n) for n in (1, 2, 3)]
    fill(tmp_path / "x.db", *old)
    asks = ("poll",) * 3
    with Provider([step(user="poll", say=f"new {n}") for n in (1, 2, 3)]) as provider:
        done = run(tmp_path / "x.db", "--mode", "auto", "--max-age", "30d", upstream=provider.url, asks=asks)
        assert done.stdout.splitlines() == ["new 1", "new 2", "new 3"], done.stderr
    assert run(tmp_path / "x.db", asks=asks).stdout.splitlines() == ["new 1", "new 2", "new 3"]


def test_what_is_old_is_gone_in_another_folder_too(tmp_path: Path) -> None:
    """A hit of another run is asked in this run's words, and a third run hears the new answer, not both."""

    def go(folder: str, upstream: str, *typed: str) -> str:
        cwd = tmp_path / folder
        cwd.mkdir()
        done = run(tmp_path / "x.db", *typed, upstream=upstream, asks=(f"What is in {cwd}/src?",), cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Provider([step(say="Old."), step(say="New.")]) as provider:
        go("one", provider.url, "--mode", "record")
        with closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
            database.execute(f"UPDATE interactions SET started_at = started_at - {40 * DAY}")
        assert go("two", provider.url, "--mode", "auto", "--max-age", "30d") == "New.\n"
    assert go("three", "http://127.0.0.1:9") == "New.\n"


@pytest.mark.parametrize(("head", "typed", "code", "said"), [
    ("max_age: 30d", [], Exit.STALE, "1 older than its max age"),
    ("max_age: 8w", [], Exit.OK, "2 hits, 0 misses"),
    ("max_age: 8w", ["--max-age", "30d"], Exit.STALE, "1 older than its max age"),
    ("max_age: 30d", ["--max-age", "8w"], Exit.STALE, "1 older than its max age"),
    ("max_age: 30d", ["--max-age", "10m"], Exit.USAGE, "is not an age"),
    ("max_age: [8w, 30d]", [], Exit.STALE, "1 older than its max age"),
    ("max_age: 30", [], Exit.ENVIRONMENT, "default.yaml, at `max_age`: '30' is not an age: hours, days or weeks"),
    ("max_age: 0", [], Exit.ENVIRONMENT, "'0' is not an age"),
])  # fmt: skip
def test_a_cassette_says_itself_how_old_it_may_be(
    store: Path, head: str, typed: list[str], code: Exit, said: str
) -> None:
    """Of its file and the option the shorter age counts; a file that says none is an error."""
    folder = store.parent / "cassettes"
    assert main(["export", "--all", str(folder), "--store", str(store)]) == 0
    file = folder / "default.yaml"
    file.write_text(file.read_text().replace("interactions:", f"{head}\ninteractions:", 1))
    done = run(store, "--cassette-dir", str(folder), "--fail-on-stale", *typed)
    assert (done.returncode, said in done.stderr) == (code, True), done.stdout + done.stderr


def test_the_age_of_a_cassette_stays_in_its_file(store: Path) -> None:
    """Also where the cassette is recorded further, and where it is read into another store."""
    folder = store.parent / "cassettes"
    assert main(["export", "--all", str(folder), "--store", str(store)]) == 0
    file = folder / "default.yaml"
    file.write_text(file.read_text().replace("interactions:", "max_age: 30d\ninteractions:", 1))
    with Provider([step(user="old", say="Newer.")]) as provider:
        done = run(store, "--mode", "auto", "--cassette-dir", str(folder), upstream=provider.url)
    assert done.stdout.splitlines() == ["Newer.", "Fine."], done.stderr
    assert '\nmax_age: "30d"\n' in file.read_text()
    assert "Newer." in file.read_text()
    for made in ("x.jsonl", "x.yaml"):
        assert main(["export", "--cassette", "default", str(folder.parent / made), "--store", str(store)]) == 0
        into = folder.parent / f"{made}.db"
        assert main(["import", str(folder.parent / made), "--store", str(into)]) == 0
        with SqliteCassetteStore.open(into, writable=False, now=time.time) as database:
            assert read_cassette_replay_rules(database, database.cassettes()[0].name) == (RecordingMaxAge("30d"),)


@pytest.mark.parametrize(("most", "typed", "heard", "asked", "said"), [
    ("0.160", ["--max-age", "30d"], ["Fine.", "Fine."], 0, "2 hits (1 older than its max age)"),
    ("0.165", ["--max-age", "30d"], ["Newer.", "Fine."], 1, "1 hit, 0 misses, 1 recorded"),
    ("0.160", ["--cassette", "none"], ["HTTP 400", "HTTP 400"], 0, "are left of --max-cost $0.160"),
    ("0.165", ["--cassette", "none"], ["Newer.", "HTTP 400"], 1, "$0.1640 are left of --max-cost $0.165"),
    ("0.165", ["--mode", "record"], ["Newer.", "HTTP 400"], 1, "$0.1640 are left of --max-cost $0.165"),
])  # fmt: skip
def test_what_is_asked_stays_within_its_limit(
    store: Path, most: str, typed: list[str], heard: list[str], asked: int, said: str
) -> None:
    """An answer costs $0.1638 at most (16,384 tokens): above the limit the stale is replayed, and the new refused."""
    usage = {"prompt_tokens": 11, "completion_tokens": 100, "total_tokens": 111}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Newer."}}], "usage": usage}
    with Provider([step(user="old", json=answer)], check=False) as provider:
        done = run(store, "--mode", "auto", "--max-cost", most, *typed, upstream=provider.url)
        assert (done.stdout.splitlines(), len(provider.requests)) == (heard, asked), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(("typed", "why"), [
    (["--mode", "auto", "--max-cost", "-1"], "max_cost"),
    (["--live", "llm", "--max-cost", "1"], "--max-cost does not count what live channels and forks ask"),
])  # fmt: skip
def test_a_limit_that_cannot_hold_is_refused(store: Path, typed: list[str], why: str) -> None:
    with Provider() as provider:
        done = run(store, *typed, upstream=provider.url)
        assert provider.requests == []
    assert (done.returncode == 0, why in done.stdout + done.stderr) == (False, True), done.stdout + done.stderr


def test_a_call_of_which_nobody_knows_the_price_is_not_asked(tmp_path: Path) -> None:
    with engine(tmp_path / "x.db", max_cost=Decimal(1)) as made:
        unpriced = ask(made, model="of-tomorrow")
        assert unpriced.decision is Decision.REFUSE
        assert "what of-tomorrow costs at the most is not known" in str(unpriced.error)
        assert ask(made).decision is Decision.RECORD
