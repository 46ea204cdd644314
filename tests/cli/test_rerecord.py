"""``llmproxy rerecord``: one question asked again of a real provider, through a real proxy."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from llmproxy.amount_formatting import format_local_time
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Interaction, Request
from tests.provider import Provider, step
from tests.support.asking import ASK
from tests.support.chats import NOW, chat, fill
from tests.support.process import llmproxy, python

Json = Any
KEYED = Request("POST", "/v1/chat/completions", (
    ("content-type", "application/json"), ("authorization", "Bearer [REDACTED]")), chat().request.body)  # fmt: skip


def rerecord(store: Path, *typed: str, upstream: str = "", key: str = "") -> subprocess.CompletedProcess[str]:
    more = {"OPENAI_BASE_URL": f"{upstream}/v1"} if upstream else {}
    env = {**more, **({"OPENAI_API_KEY": key} if key else {})}
    return llmproxy("rerecord", "--store", str(store), *typed, env=env, cwd=store.parent)


def live(store: Path) -> list[Interaction]:
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as database:
        return list(database.iter_interactions("default"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a conversation of two calls, the first asked twice."""
    first = chat(request=KEYED)
    second = dataclasses.replace(first, started_at=NOW + 1, occurrence=2)
    fill(tmp_path / "x.db", first, second, chat("And now?", "Still fine.", started_at=NOW + 2))
    return tmp_path / "x.db"


def test_the_new_answer_takes_the_old_ones_place(store: Path) -> None:
    """Its key, its occurrence and its place in the conversation; the key goes to the provider and not into the store."""
    with Provider([step(user="How are you?", say="Better.")]) as provider:
        done = rerecord(store, "1", upstream=provider.url, key="sk-proj-a-key-of-mine-0123456789abcdef")
        assert (done.returncode, "#1 is replaced by #4" in done.stdout) == (0, True), done.stdout + done.stderr
        assert len(provider.requests) == 1
    found = live(store)
    assert [each.id for each in found] == [4, 2, 3]
    assert b"Better." in found[0].response.body
    old = chat(request=KEYED)
    assert (found[0].key, found[0].occurrence, found[0].started_at) == (old.key, 1, NOW)
    assert b"sk-proj" not in store.read_bytes()


def test_several_are_asked_within_a_limit(store: Path) -> None:
    """Each once, in their order; the next one is not sent where it might exceed --max-cost."""
    answer = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Better."}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 100, "total_tokens": 111},
    }
    for limit, code, asked in (("0.16", 1, 0), ("0.1645", 1, 1), ("0.17", 0, 2)):
        with Provider([step(user="How are you?", json=answer, times=None)], check=False) as provider:
            numbers = [str(each.id) for each in live(store)[:2]]
            done = rerecord(store, *numbers, numbers[0], "--max-cost", limit, upstream=provider.url, key="k")
            assert (done.returncode, len(provider.requests)) == (code, asked), done.stdout + done.stderr
        assert ("is not asked: it may cost $0.1639, and" in done.stdout) is bool(code)


AGENT = (
    f"{ASK}\n"
    """
messages = []
for text in ("one", "two"):
    messages.append({"role": "user", "content": text})
    messages.append(ask(messages, max_tokens=50))
"""
)


def test_what_follows_from_a_new_answer_is_asked_by_the_command(tmp_path: Path) -> None:
    """Where the answer is the same one, nothing else is asked; a number that is none, or with --changed, is refused."""
    store, command = tmp_path / "x.db", ["--", python(), "-c", AGENT]
    with Provider([step(user="one", say="A"), step(user="two", say="B")]) as provider:
        env = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "k"}
        assert llmproxy("run", "--mode=record", f"--store={store}", *command, env=env).returncode == 0
    for answers, numbers in ((["C", "D"], ["3", "4"]), (["C"], ["5", "4"])):
        script = [step(user=text, say=say) for text, say in zip(("one", "two"), answers, strict=False)]
        with Provider(script) as provider:
            first = str(live(store)[0].id)
            done = rerecord(store, first, "--max-cost", "0.01", *command, upstream=provider.url, key="k")
            assert (done.returncode, len(provider.requests)) == (0, len(answers)), done.stdout + done.stderr
        assert sorted(str(each.id) for each in live(store)) == sorted(numbers)
    done = rerecord(store, "1", *command, key="k")
    assert (done.returncode, "was replaced by a newer one" in done.stderr) == (2, True)
    assert rerecord(store, "--changed", "5", *command, key="k").returncode == 2


PROGRAMS = (
    f"{ASK}\n"
    """
for system, *texts in json.loads(sys.argv[1]):
    messages = [{"role": "system", "content": system}]
    for text in texts:
        messages.append({"role": "user", "content": text})
        messages.append(ask(messages, max_tokens=50))
        print(messages[-1]["content"])
"""
)
PLANNER, CODER = ["You plan.", "plan", "more"], ["You code.", "code", "second", "third"]


@pytest.mark.parametrize(("before", "now", "after"), [
    ([PLANNER, CODER], [["You plan well.", *PLANNER[1:]]], [CODER]),  # both answer OK at first
    ([["A", "plan"], ["A", "code"]], [["B", "plan"], ["A", "plan"], ["A", "code"]], [["B", "plan"], ["A", "plan"], ["A", "code"]]),
])  # fmt: skip
def test_only_what_changed_is_replaced(tmp_path: Path, before: Json, now: Json, after: Json) -> None:
    """Neither turns of another program that heard the same short answer, nor what the same run asks as before."""

    def run(programs: Json, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["--", python(), "-c", PROGRAMS, json.dumps(programs)]
        return llmproxy(*words, f"--store={tmp_path / 'x.db'}", *command, env={"OPENAI_API_KEY": "k", **env})

    short = [step(user=text, say="OK", times=None) for text in ("plan", "code")]
    others = [step(user=text, say=f"{text}!", times=None) for text in ("more", "second", "third")]
    with Provider([*short, *others], ordered=False, check=False) as provider:
        assert run(before, "run", "--mode=record", OPENAI_BASE_URL=f"{provider.url}/v1").returncode == 0
    with Provider([step(user="plan", say="Done", times=None), *others], ordered=False, check=False) as provider:
        done = run(now, "rerecord", "--changed", "--max-cost=1", OPENAI_BASE_URL=f"{provider.url}/v1")
        assert (done.returncode, "Done" in done.stdout) == (0, True), done.stdout + done.stderr
    done = run(after, "run", "--fail-on-miss")
    assert (done.returncode, "HTTP" in done.stdout) == (0, False), done.stdout + done.stderr


def test_a_recording_that_was_asked_again_is_young(tmp_path: Path) -> None:
    """It keeps its place, and `ls`, `show` and --max-age go by the day of its answer; one day apart is one recording."""
    old = chat(request=KEYED, started_at=time.time() - 40 * 86_400)
    fill(store := tmp_path / "x.db", old)
    assert f" {format_local_time(old.started_at)} " in llmproxy("ls", "--store", str(store)).stdout
    with Provider([step(user="How are you?", say="Better.")]) as provider:
        assert rerecord(store, "1", upstream=provider.url, key="k").returncode == 0
    assert live(store)[0].started_at == old.started_at
    today = f"{format_local_time(time.time()):.10}"
    assert f" {today} " in llmproxy("ls", "--store", str(store)).stdout
    assert f"\nasked again {today} " in llmproxy("show", "2", "--store", str(store)).stdout
    assert json.loads(llmproxy("show", "2", "--json", "--store", str(store)).stdout)["recorded_at"] > time.time() - 3601


def test_a_failed_answer_replaces_nothing(store: Path) -> None:
    """It is said, and ends with 1."""
    with Provider([step(user="How are you?", status=401)]) as provider:
        done = rerecord(store, "1", upstream=provider.url, key="wrong")
    assert (done.returncode, "stays as it is" in done.stdout) == (1, True), done.stdout + done.stderr
    assert [each.id for each in live(store)] == [1, 2, 3]


def test_a_prompt_that_speaks_of_redaction_is_asked_again(tmp_path: Path) -> None:
    """Only our own marks say that something was taken out."""
    said = "Write [REDACTED] or REDACTED where a name stood."
    fill(tmp_path / "x.db", chat(said, request=dataclasses.replace(KEYED, body=chat(said).request.body)))
    with Provider([step(user=said, say="As you like.")]) as provider:
        done = rerecord(tmp_path / "x.db", "1", upstream=provider.url, key="k")
        assert (done.returncode, len(provider.requests)) == (0, 1), done.stdout + done.stderr


@pytest.mark.parametrize(("typed", "says"), [
    (("weather",), "takes the number of an interaction"),
    (("3",), "not openai's own host"),
    (("1", "--upstream", "openai=http://127.0.0.1:1/v1"), "set OPENAI_API_KEY"),
    (("4", "--upstream", "openai=http://127.0.0.1:1/v1"), "a secret was taken out"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    store: Path, typed: tuple[str, ...], says: str
) -> None:
    """What was redacted, a host that a recording names and nobody here does, a key that is not there."""
    body = json.dumps({"messages": [{"role": "user", "content": "[REDACTED-1]"}]}).encode()
    fill(store, chat("x", request=Request("POST", "/v1/chat/completions", (), body)))
    with (
        SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as database,
        database.sqlite_transaction() as conn,
    ):
        conn.execute("UPDATE interactions SET upstream = 'https://evil.example' WHERE id = 3")
    done = rerecord(store, *typed)
    assert (done.returncode, says in done.stderr) == (2, True), done.stdout + done.stderr
