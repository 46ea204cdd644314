"""``llmproxy learn``, around a small agent whose tool mints an id, a number and a time."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli import main
from llmproxy.core.bindings import VolatileField
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import read_volatile_fields, save_cassette_volatile_fields
from tests.provider import Provider, load
from tests.support import process
from tests.support.asking import ASK
from tests.support.process import python

AGENT = (
    f"{ASK}\n"
    """
import random, time, uuid
said = [{"role": "user", "content": "Make a task."}]
answer = ask(said)
said.append(answer)
made, number = str(uuid.uuid4()), random.randrange(1000, 10**9)
day = time.strftime("\\nmade on %Y-%m-%d") if sys.argv[1] == "today" else ""
result = f"made {made}\\nsequence {number}\\nkind {sys.argv[1]}{day}"
said.append({"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": result})
final = ask(said)["content"]
print(final)
sys.exit(0 if final == f"Task {made} is there." else 9)
"""
)
UUID = "made ([0-9a-f-]{36})"
STEPS: dict[str, Any] = {"ordered": False, "steps": [
    {"results": 0, "times": None, "call": [{"name": "make_task", "arguments": {"title": "milk"}}]},
    {"results": 1, "times": None, "say": "Task {uuid} is there.", "takes": {"uuid": UUID}},
]}  # fmt: skip


def llmproxy(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = process.llmproxy(*words, cwd=cwd, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def agent(kind: str = "todo") -> list[str]:
    """Return the agent's command."""
    return ["--", python(), "-c", AGENT, kind]


def run_live(
    folder: Path, *commands: list[str], mode: str = "auto", steps: dict[str, Any] = STEPS
) -> subprocess.CompletedProcess[str]:
    """Run agents beside their model, one after the other; returns the last one."""
    with Provider(load(steps)) as up:
        env = {"OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": "sk-x"}
        words = ("run", "--mode", mode, "--cassette", "tasks")
        return [llmproxy(*words, *command, cwd=folder, env=env) for command in commands][-1]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_live(folder := tmp_path_factory.mktemp("once"), agent(), mode="record")
    return folder


@pytest.fixture
def recorded(once: Path, tmp_path: Path) -> Path:
    """A folder of this test's own with one recorded run."""
    return Path(shutil.copytree(once, tmp_path / "recorded"))


def slots(folder: Path) -> list[str]:
    """Return the names of the volatile fields that the cassette has."""
    with SqliteCassetteStore.open(folder / "llmproxy.db", writable=False, now=time.time) as store:
        return [slot.name for slot in read_volatile_fields(store, "tasks")]


def test_one_trial_teaches_all_and_nothing_is_taken_that_was_not_named(recorded: Path) -> None:
    """Before it a miss; the table; `--accept` takes the uuid, the number is taken by name; then a run is a hit with its own id."""
    before = llmproxy("run", "--cassette", "tasks", *agent(), cwd=recorded, code=1)
    assert "1 miss" in before.stderr
    why = llmproxy("why", cwd=recorded)
    assert "would be a hit if what tools made were volatile fields (made " in why.stdout
    assert "llmproxy learn tasks -- COMMAND" in why.stdout
    seen = llmproxy("learn", "tasks", *agent(), cwd=recorded, code=4)
    assert "2 values vary from run to run in cassette tasks" in seen.stderr
    assert "sequence (by name)" in seen.stderr
    assert "not taken: made, sequence. If they may be anything of their kind: --accept --take sequence" in seen.stderr
    assert slots(recorded) == []
    half = llmproxy("learn", "tasks", "--accept", *agent(), cwd=recorded, code=4)
    assert "not taken: sequence." in half.stderr
    assert "a replay in which they differ again will miss" in half.stderr
    assert slots(recorded) == ["made"]
    llmproxy("learn", "tasks", "--take", "sequence", *agent(), cwd=recorded)
    assert slots(recorded) == ["made", "sequence"]
    after = llmproxy("run", "--cassette", "tasks", "--fail-on-miss", *agent(), cwd=recorded)
    assert "2 hits (1 bound: made, sequence), 0 misses" in after.stderr
    other = llmproxy("run", "--cassette", "tasks", *agent("urgent"), cwd=recorded, code=1)
    assert "1 miss" in other.stderr  # another kind of task is another question
    llmproxy("learn", "tasks", "--drop", "sequence", cwd=recorded)
    assert slots(recorded) == ["made"]


@pytest.mark.slow
def test_what_says_the_day_is_learned_on_the_day_of_the_recording(tmp_path: Path) -> None:
    """The trial runs in a zone where it is another day; with --keep-timezone only what varied here is learned."""
    run_live(tmp_path, agent("today"), mode="record")
    kept = llmproxy("learn", "tasks", "--keep-timezone", *agent("today"), cwd=tmp_path, code=4)
    assert ("time zone" in kept.stderr, " time " in kept.stderr) == (False, False), kept.stderr
    tried = llmproxy("learn", "tasks", "--accept", "--take", "sequence", *agent("today"), cwd=tmp_path)
    assert "it was recorded today: tried in the time zone" in tried.stderr
    assert sorted(slots(tmp_path)) == ["made", "made_on", "sequence"]


@pytest.mark.slow
def test_a_trial_serves_nothing_else_than_what_was_recorded(recorded: Path) -> None:
    """Another word in the result is no value that a tool made: a miss, said, and exit code 4; so is a mistyped name."""
    done = llmproxy("learn", "tasks", "--accept", *agent("urgent"), cwd=recorded, code=4)
    assert "could not be served, even on trial" in done.stderr
    assert "llmproxy run --mode auto --cassette tasks --upstream openai=http" in llmproxy("why", cwd=recorded).stdout
    mistyped = llmproxy("learn", "taks", *agent(), cwd=recorded, code=3)
    assert "Cassettes there: tasks.\nRecord it first: llmproxy run --mode record --cassette taks" in mistyped.stderr
    assert slots(recorded) == []


@pytest.mark.slow
def test_two_recordings_teach_without_a_trial(recorded: Path) -> None:
    """Recorded twice, what varied between the runs is there to be taken."""
    again = run_live(recorded, agent())
    assert "2 values vary from run to run: llmproxy learn tasks" in again.stderr
    llmproxy("learn", "tasks", "--accept", "--take", "sequence", cwd=recorded)
    assert slots(recorded) == ["made", "sequence"]


@pytest.mark.slow
def test_learn_is_for_a_person(recorded: Path) -> None:
    """On CI it is refused, before anything runs; so is a name that did not vary."""
    refused = llmproxy("learn", "tasks", "--accept", *agent(), cwd=recorded, env={"CI": "true"}, code=2)
    assert "this is CI" in refused.stderr
    unknown = llmproxy("learn", "tasks", "--take", "nothing", *agent(), cwd=recorded, code=2)
    assert "--take nothing: nothing of that name varied." in unknown.stderr
    assert "These did: made, sequence. Nothing was written." in unknown.stderr
    assert slots(recorded) == []


@pytest.mark.slow
def test_a_slot_that_would_merge_two_answers_is_refused(tmp_path: Path) -> None:
    """Task 17 and task 71 were answered differently: their number is no noise, whoever takes it by name."""
    numbers = ("1017", "2071")
    fixed = AGENT.replace("random.randrange(1000, 10**9)", "sys.argv[2]").replace("uuid.uuid4()", "uuid.UUID(int=7)")
    fixed = fixed.replace('sys.exit(0 if final == f"Task {made} is there." else 9)', "")
    steps = [STEPS["steps"][0], *({"results": 1, "contains": number, "say": f"is {word}"}
                                  for number, word in zip(numbers, ("late", "done"), strict=True))]  # fmt: skip
    runs = [["--", python(), "-c", fixed, "todo", number] for number in numbers]
    run_live(tmp_path, *runs, steps={"ordered": False, "steps": steps})
    refused = llmproxy("learn", "tasks", "--take", "sequence", cwd=tmp_path, code=2)
    assert "refused: sequence: with it recording #" in refused.stderr
    assert "it would merge two answers" in refused.stderr
    assert slots(tmp_path) == []


@pytest.mark.slow
def test_where_two_recordings_fit_nothing_is_learned(recorded: Path) -> None:
    """Recorded twice: both would fit on trial, and which of them taught would be a guess. The reason and both are said."""
    run_live(recorded, agent())
    done = llmproxy("learn", "tasks", "--accept", "--take", "sequence", *agent(), cwd=recorded, code=2)
    assert "on trial: recordings #2 and #3 would both fit: nothing is learned where that is not clear" in done.stderr
    assert slots(recorded) == []


@pytest.mark.slow
def test_a_value_in_the_question_is_no_slot(tmp_path: Path) -> None:
    """What the user asks differs in a uuid: nothing is learned, whatever is accepted, and it is said why."""
    assert '"Make a task."' in AGENT
    code = AGENT.replace('"Make a task."', 'f"Make task {uuid.uuid4()}."')
    asks = ["--", python(), "-c", code, "todo"]
    run_live(tmp_path, asks, mode="record")
    done = llmproxy("learn", "tasks", "--accept", *asks, cwd=tmp_path, code=4)
    assert "could not be served, even on trial" in done.stderr
    assert "$.messages[0].content" in done.stderr
    assert "a volatile field stands in what a tool answered, never in the question" in done.stderr
    assert slots(tmp_path) == []


@pytest.mark.slow
def test_what_came_from_outside_is_shown_apart(tmp_path: Path) -> None:
    """The result of a tool that asks the web: its id is as good as another question's, so --accept leaves it."""
    steps: dict[str, Any] = {"ordered": False, "steps": [
        {"results": 0, "times": None, "call": [{"name": "web_search", "arguments": {"query": "milk"}}]},
        STEPS["steps"][1],
    ]}  # fmt: skip
    run_live(tmp_path, agent(), mode="record", steps=steps)
    done = llmproxy("learn", "tasks", "--accept", *agent(), cwd=tmp_path, code=4)
    assert "from outside of this machine (a page, a service, another host)" in done.stderr
    assert "made (by name)" in done.stderr
    assert (
        "not taken: made, sequence. If they may be anything of their kind: --take made --take sequence" in done.stderr
    )
    assert "--accept takes uuid, hex, time, duration that a tool of this machine answered" in done.stderr
    assert slots(tmp_path) == []
    llmproxy("learn", "tasks", "--take", "made", "--take", "sequence", *agent(), cwd=tmp_path)
    assert slots(tmp_path) == ["made", "sequence"]


def test_a_missing_store_and_a_missing_slot_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert main(["learn", "tasks"]) == 3
    assert "Record it first" in capsys.readouterr().err
    with SqliteCassetteStore.open(tmp_path / "llmproxy.db", writable=True, now=time.time) as store:
        save_cassette_volatile_fields(store, "tasks", [VolatileField("chunk", "hex", "sh", before="Chunk: ")])
    assert main(["learn", "tasks", "--drop", "chunks"]) == 2
    assert "It has: chunk." in capsys.readouterr().err
