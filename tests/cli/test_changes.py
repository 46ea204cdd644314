"""``llmproxy changes``, ``review``, ``accept`` and ``rerecord --changed``, as typed, around a small agent."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.provider import Provider, json_answer, step
from tests.support import process
from tests.support.forked import program
from tests.support.process import ROOT, clean_env, python, until

AGENT = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
head = {"content-type": "application/json", "user-agent": "shop/" + os.environ.get("SHOP", "1.0")}
head["authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
if "BETA" in os.environ:
    head["openai-beta"] = "assistants=v2"
tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
if "TOOL" in os.environ:
    tool["function"]["parameters"]["properties"] = {"limit": {"type": "integer"}}
def ask(said):
    body = json.dumps({"model": "gpt-4o", "messages": said, "tools": [tool]}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, head)) as answer:
        return json.loads(answer.read())["choices"][0]["message"]
for topic in os.environ.get("TOPICS", "lamps chairs").split():
    said = [{"role": "system", "content": "You are a shop.\\n" + (
        os.environ.get("PROMPT", "Be brief.") if topic in os.environ.get("PROMPT_OF", topic) else "Be brief.")},
            {"role": "user", "content": f"Do you have {topic}?"}]
    for n in range(2):
        said += [ask(said), {"role": "user", "content": f"And what do they cost?"}]
        print(topic, n, said[-2]["content"], flush=True)
"""
KIND: dict[str, Any] = {"PROMPT": "Be brief and kind."}


def llmproxy(*words: str, cwd: Path, up: Provider | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command; a provider is there only where one is named. An empty value leaves a variable out."""
    given = {"OPENAI_BASE_URL": f"{up.url}/v1" if up else "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "sk-x", **env}
    return process.llmproxy(*words, cwd=cwd, env={name: value for name, value in given.items() if value})


def run(*words: str, cwd: Path, up: Provider | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return llmproxy(*words, "--", python(), "agent.py", cwd=cwd, up=up, **env)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and the files of cassettes, in which one run was recorded."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with provider("Yes.") as up:
        done = run("run", "--mode", "record", "--cassette-dir", "tapes", cwd=folder, up=up)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "copy"))


def provider(text: str) -> Provider:
    return Provider([step(say=text, times=None)])


def names(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]


def test_nothing_recorded_and_nothing_changed_have_words_of_their_own(folder: Path, tmp_path: Path) -> None:
    """A first run is told how to record, an unchanged one that there is nothing; nothing is pending then."""
    none = run("changes", cwd=tmp_path)
    assert none.returncode == 3
    assert "nothing is recorded in cassette" in none.stderr
    assert "Record it first: " in none.stderr
    same = run("changes", "--cassette-dir", "tapes", cwd=folder)
    assert (same.returncode, "no change in 4 calls, 1 cassette" in same.stdout) == (0, True), same.stderr
    left = llmproxy("accept", "system-0000", cwd=folder)
    assert (left.returncode, "nothing is pending" in left.stderr) == (2, True)


def test_a_new_question_is_no_dead_end(folder: Path) -> None:
    """The command that is printed, typed as it stands, records it; then nothing is changed."""
    topics: dict[str, Any] = {"TOPICS": "lamps chairs beds"}
    found = run("changes", "--cassette-dir", "tapes", cwd=folder, **topics)
    assert (found.returncode, "there is no change to accept" in found.stdout) == (6, True), found.stdout + found.stderr
    typed = shlex.split(found.stdout.rpartition("record what has no answer, with your keys: ")[2])
    with provider("Yes.") as up:
        done = llmproxy(*typed[1:], cwd=folder, up=up, **topics)
    assert (done.returncode, "2 recorded" in done.stderr) == (0, True), done.stderr
    same = run("changes", "--cassette-dir", "tapes", cwd=folder, **topics)
    assert (same.returncode, "no change in 6 calls" in same.stdout) == (0, True), same.stdout


def test_an_edit_is_told_accepted_carried_and_taken_back(folder: Path) -> None:
    """The trial asks nobody; what is accepted stands in the cassette's file, and every run says so until it is dropped."""
    found = run("changes", "--cassette-dir", "tapes", "--json", "x.json", "--markdown", "x.md", cwd=folder, **KIND)
    assert found.returncode == 6, found.stderr
    (name,) = names(found)
    assert f'{name}  system prompt, line 2: "Be brief." -> "Be brief and kind."   4 calls  default' in found.stdout
    assert "to record anew: 4 calls: $" in found.stdout
    told = json.loads((folder / "x.json").read_text("utf-8"))
    assert [each["name"] for each in told["changes"]] == [name]
    assert f"| `{name}` |" in (folder / "x.md").read_text("utf-8")
    before = (folder / "tapes" / "default.yaml").read_text("utf-8")
    assert "next: llmproxy review --cassette-dir tapes" in found.stdout
    lost = llmproxy("accept", name, cwd=folder)
    assert (lost.returncode, "its folder is unknown" in lost.stderr) == (2, True)
    asked = llmproxy("review", "--cassette-dir", "tapes", cwd=folder)
    assert (asked.returncode, f"llmproxy accept {name}" in asked.stderr) == (2, True)
    unknown = llmproxy("accept", "system-0000", "--cassette-dir", "tapes", cwd=folder)
    assert (unknown.returncode, f"Pending: {name}" in unknown.stderr) == (2, True)
    day = llmproxy("accept", name, "--until", "soon", "--cassette-dir", "tapes", cwd=folder)
    assert (day.returncode, "is no day" in day.stderr) == (2, True)
    taken = llmproxy("accept", name, "--cassette-dir", "tapes", cwd=folder)
    assert taken.returncode == 0, taken.stderr
    assert f"accepted: {name}, in default" in taken.stdout
    assert "+ Be brief and kind." in llmproxy("changes", "list", cwd=folder).stdout
    kept = run("run", "--cassette-dir", "tapes", cwd=folder, **KIND)
    assert (kept.returncode, f"4 hits (4 carried under {name})" in kept.stderr) == (0, True), kept.stderr
    assert f"carried: {name}: accepted " in kept.stderr
    assert run("run", "--strict", cwd=folder, **KIND).returncode == 4
    assert run("run", "--fail-on-carried", cwd=folder, **KIND).returncode == 7
    again = run("changes", cwd=folder, **KIND)
    assert (again.returncode, "4 carried under accepted changes" in again.stdout) == (0, True)
    other = run("run", "--fail-on-miss", cwd=folder, PROMPT="Be rude.")
    assert (other.returncode, "not accepted" in llmproxy("why", cwd=folder).stdout) == (4, True)
    assert name in llmproxy("changes", "list", cwd=folder).stdout
    nameless = llmproxy("changes", "drop", cwd=folder)
    assert (nameless.returncode, f"Accepted: {name}." in nameless.stderr) == (2, True), nameless.stderr
    dropped = llmproxy("changes", "drop", name, "--cassette-dir", "tapes", cwd=folder)
    assert dropped.returncode == 0, dropped.stderr
    assert (folder / "tapes" / "default.yaml").read_text("utf-8") == before
    assert run("run", "--fail-on-miss", cwd=folder, **KIND).returncode == 4


def test_an_acceptance_that_ends_is_renewed(folder: Path) -> None:
    """Before its last day and after it; a day that is past is none."""

    def accept(day: str) -> subprocess.CompletedProcess[str]:
        return llmproxy("accept", name, "--until", day, "--cassette-dir", "tapes", cwd=folder)

    (name,) = names(run("changes", "--cassette-dir", "tapes", cwd=folder, **KIND))
    past = accept("2020-01-31")
    assert (past.returncode, "--until 2020-01-31 is past." in past.stderr) == (2, True)
    assert [accept(day).returncode for day in ("2990-01-31", "2991-01-31")] == [0, 0]
    assert ", until 2991-01-31" in llmproxy("changes", "list", cwd=folder).stdout
    tape = folder / "tapes" / "default.yaml"
    tape.write_text(tape.read_text("utf-8").replace("2991-01-31", "2020-01-31"), "utf-8")
    ended = run("changes", "--cassette-dir", "tapes", cwd=folder, **KIND)
    assert (ended.returncode, names(ended)) == (6, [name]), ended.stdout
    assert accept("2992-01-31").returncode == 0
    assert run("run", "--fail-on-miss", "--cassette-dir", "tapes", cwd=folder, **KIND).returncode == 0


def test_a_trial_that_cannot_be_kept_compares_nothing(folder: Path) -> None:
    """Else the command would say that no prompt has changed, and end with 0."""
    (store,) = folder.rglob("llmproxy.db")
    journal = store.with_name(f"{store.name}.state.db")
    journal.unlink()
    journal.mkdir()
    done = run("changes", cwd=folder, **KIND)
    assert (done.returncode, "What a trial saw is kept there" in done.stderr) == (3, True), done.stdout + done.stderr
    assert run("run", "--fail-on-miss", cwd=folder).returncode == 0, "a run needs no journal"


def test_another_question_is_never_carried(folder: Path) -> None:
    """It is told as what it is, nothing of it can be accepted, and what follows is not looked at."""
    found = run("changes", cwd=folder, TOPICS="lamps sofas")
    assert found.returncode == 6
    assert not [each for each in names(found) if "-" in each], found.stdout
    assert "nothing is pending" in llmproxy("accept", "x", cwd=folder).stderr
    with provider("Sofas.") as up:
        asked = run("rerecord", "--changed", cwd=folder, up=up, TOPICS="lamps sofas")
        assert (asked.returncode, len(up.requests), "no recorded response" in asked.stderr) == (1, 0, True)


def test_review_asks_at_a_terminal(folder: Path) -> None:
    """`d` shows the difference, `r` names what to type, `k` writes; two changes are asked about one by one."""
    assert run("changes", cwd=folder, TOOL="1", **KIND).returncode == 6
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        words = [sys.executable, "-m", "llmproxy", "review", "--cassette-dir", "tapes"]
        os.execve(sys.executable, words, {**clean_env({}), "PYTHONPATH": str(ROOT)})
    said = ""
    for key in ("d", "k", "r"):
        said += _read_until(terminal, "q stop")
        os.write(terminal, f"{key}\n".encode())
    said += _read_until(terminal, "COMMAND")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert "accepted: " in said
    assert "next: llmproxy rerecord --changed --change " in said


def _read_until(terminal: int, text: str) -> str:
    said, deadline = "", time.monotonic() + 60
    while text not in said and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            try:
                said += os.read(terminal, 10_000).decode()
            except OSError:
                break
    assert text in said, said
    return said


@pytest.mark.parametrize(("env", "topics", "asked"), [
    (KIND, "lamps chairs", [
        "Do you have lamps?", "And what do they cost?", "Do you have chairs?", "And what do they cost?"]),
    ({"PROMPT_OF": "chairs", **KIND}, "lamps chairs", ["Do you have chairs?", "And what do they cost?"]),
    ({}, "lamps chairs", []),
])  # fmt: skip
def test_what_changed_and_what_follows_is_asked_and_nothing_else(
    folder: Path, env: Mapping[str, Any], topics: str, asked: list[str]
) -> None:
    """Counted at the provider; after it the changed program replays exactly, offline, and nothing is pending."""
    with provider("Yes, and kind.") as up:
        done = run("rerecord", "--changed", "--cassette-dir", "tapes", cwd=folder, up=up, TOPICS=topics, **env)
        assert [each.last_user for each in up.requests] == asked, done.stderr
    replayed = run("run", "--strict", "--cassette-dir", "tapes", cwd=folder, TOPICS=topics, **env)
    assert replayed.returncode == 0, replayed.stderr
    assert "4 hits, 0 misses" in replayed.stderr
    (folder / "llmproxy.db").unlink()
    assert run("run", "--strict", "--cassette-dir", "tapes", cwd=folder, TOPICS=topics, **env).returncode == 0


def test_only_a_chosen_change_is_asked(folder: Path) -> None:
    """Calls with other changes are answered on trial, and their recordings stay."""
    both: dict[str, Any] = {**KIND, "TOOL": "1"}
    found = [each for each in names(run("changes", cwd=folder, **both)) if each.startswith("tool")]
    with provider("Anew.") as up:
        done = run("rerecord", "--changed", "--change", "tool-0000", cwd=folder, up=up, **both)
        assert (done.returncode, up.requests) == (0, []), done.stderr
        done = run("rerecord", "--changed", "--change", found[0], cwd=folder, up=up, **both)
        assert len(up.requests) == 4, done.stderr


def test_a_budget_and_a_bad_answer_leave_the_old_recording(folder: Path) -> None:
    """It stops before the call that would exceed it, or whose price nobody knows; a failure counts as none. Files stay as they were."""
    before = (folder / "tapes" / "default.yaml").read_bytes()
    with provider("Anew.") as up:
        limit = ("--max-cost", "0.000001")
        done = run("rerecord", "--changed", *limit, "--cassette-dir", "tapes", cwd=folder, up=up, **KIND)
        assert (done.returncode, len(up.requests)) == (1, 0)
        assert "left of --max-cost $0.000001" in done.stderr
        assert "stays as it was: --max-cost might not be enough" in done.stderr
        assert "NEVER USED" not in done.stderr
    with Provider([step(status=500, times=None)]) as up:
        done = run("rerecord", "--changed", "--cassette-dir", "tapes", cwd=folder, up=up, **KIND)
        assert (done.returncode, "stays as it was" in done.stderr) == (1, True), done.stderr
    assert (folder / "tapes" / "default.yaml").read_bytes() == before
    assert run("run", "--strict", "--cassette-dir", "tapes", cwd=folder).returncode == 0


def test_without_a_key_nothing_is_asked_again(folder: Path) -> None:
    """The variable is named; the placeholder that stands for it in a replay reaches no provider, and the recording stays."""
    with Provider([step(status=401, times=None)], check=False) as up:
        done = run("rerecord", "--changed", cwd=folder, up=up, OPENAI_API_KEY="", **KIND)
        assert (done.returncode, up.requests) == (1, []), done.stderr
    assert "refused: openai wants a key: set OPENAI_API_KEY." in done.stderr
    assert run("run", "--strict", cwd=folder).returncode == 0


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_everything_whole(folder: Path, sent: signal.Signals) -> None:
    """Killed or interrupted after two of four answers: the old recording replays, and nothing else is there."""
    with Provider([step(say="Anew.", times=2), step(answer=replace(json_answer({}, 200), wait=30), times=None)]) as up:
        env = clean_env({"OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": "sk-x", **KIND})
        words = [*program("llmproxy"), "rerecord", "--changed", "--", sys.executable, "agent.py"]
        with subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as going:
            assert going.stdout is not None
            assert going.stdout.readline() + going.stdout.readline()
            going.send_signal(sent)
    until(lambda: run("run", "--strict", cwd=folder).returncode == 0, 30)
    with SqliteCassetteStore.open(folder / "llmproxy.db", writable=False, now=lambda: 0.0) as store:
        assert len(store.list_summaries("default")) == 4


def test_what_a_client_itself_changed_is_accepted_at_once_for_its_versions(folder: Path) -> None:
    """Prompts are no part of it; with `--when` older versions of the client still need exact recordings."""
    upgraded: dict[str, Any] = {"BETA": "1", "SHOP": "2.0"}
    assert run("changes", cwd=folder, **upgraded, **KIND).returncode == 6
    nobody = llmproxy("accept", "--cassette-dir", "tapes", "--client", "codex", cwd=folder)
    assert (nobody.returncode, "Clients: shop" in nobody.stderr) == (2, True), nobody.stderr
    both = llmproxy("accept", "x", "--cassette-dir", "tapes", "--client", "shop", cwd=folder)
    assert (both.returncode, "say which changes" in both.stderr) == (2, True)
    bad = llmproxy("accept", "--cassette-dir", "tapes", "--client", "shop", "--when", ">=2", cwd=folder)
    assert (bad.returncode, "names a client" in bad.stderr) == (2, True)
    taken = llmproxy("accept", "--cassette-dir", "tapes", "--client", "shop", "--when", "shop>=2.0", cwd=folder)
    assert (taken.returncode, "header: 1 new" in taken.stdout) == (0, True), taken.stdout + taken.stderr
    assert run("run", "--fail-on-miss", cwd=folder, **upgraded).returncode == 0
    assert run("run", "--fail-on-miss", cwd=folder, **upgraded, **KIND).returncode == 4
    assert run("run", "--fail-on-miss", cwd=folder, BETA="1", SHOP="1.0").returncode == 4


def test_a_suite_on_trial_says_where_its_files_are(tmp_path: Path) -> None:
    """Its files are in a folder that nobody typed; `llmproxy test --changes` names it for who accepts."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    agent = f"{{run: ['{python()}', agent.py], lines: false}}"
    suite = f"name: Shop\nagent: {{command: {agent}}}\nscenarios: [{{id: lamps, steps: [{{chat: Lamps}}]}}]\n"
    (tmp_path / "shop.yaml").write_text(suite, encoding="utf-8")
    none = llmproxy("test", "shop.yaml", "--changes", cwd=tmp_path)
    assert (none.returncode, "nothing was compared" in none.stdout) == (4, True), none.stdout + none.stderr
    with provider("Yes.") as up:
        recorded = llmproxy("test", "shop.yaml", "--mode", "record", cwd=tmp_path, up=up)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    missed = llmproxy("test", "shop.yaml", cwd=tmp_path, TOOL="1").stdout
    assert "record what is missing: llmproxy test shop.yaml --id lamps --mode auto" in missed
    why = llmproxy("why", "--store", ".llmproxy/llmproxy.db", cwd=tmp_path).stdout
    assert "record what is missing: llmproxy test shop.yaml --mode auto\n" in why
    assert "look closer: llmproxy show 1 --store" in why
    found = llmproxy("test", "shop.yaml", "--changes", cwd=tmp_path, TOOL="1")
    told = "tool search: parameter limit is new   4 calls"
    assert (found.returncode, told in found.stdout) == (6, True), found.stdout
    assert "next: llmproxy review --cassette-dir tests/cassettes --store .llmproxy/llmproxy.db\n" in found.stdout
    assert "with recorded answers: 0 tests pass as before, 1 with carried answers, 0 fail" in found.stdout
