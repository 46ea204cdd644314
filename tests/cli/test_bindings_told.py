"""What is bound is told: ``ls``, ``show``, ``diff``, ``verify``, ``audit`` and exported files know run variables and volatile fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.bindings import RunVariable, VolatileField
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import read_volatile_fields, save_cassette_volatile_fields
from llmproxy.protocol import Mode
from tests.core.engine.test_engine import CHAT, answered, engine
from tests.support.chats import NOW, run

Json = Any
A = (RunVariable("cwd", "/tmp/a/project"), RunVariable("home", "/home/kim"), RunVariable("date", "2026-11-22"))
B = (RunVariable("cwd", "/srv/ci/today"), RunVariable("home", "/users/ann"), RunVariable("date", "2026-11-23"))
SLOTS = (
    VolatileField("chunk", "hex", "run", before="Chunk ID: "),
    VolatileField("wall", "duration", "run", before="Wall time: "),
)


def bodies(run: tuple[RunVariable, ...], chunk: str = "98e1ef", wall: str = "0.5 s") -> list[Json]:
    """Return what an agent asks in one run: first what to do, then with a tool's result."""
    cwd, _, day = (each.value for each in run)
    asked = [
        {"role": "system", "content": f"You work in {cwd}. Today is {day}."},
        {"role": "user", "content": "list the files"},
    ]
    call = {"name": "run", "arguments": json.dumps({"command": f"ls {cwd}"})}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": f"Chunk ID: {chunk}\nWall time: {wall}\n{cwd}/x"},
    ]
    return [{"model": "gpt-5", "messages": asked}, {"model": "gpt-5", "messages": [*asked, *said]}]


def record(store: Path, cassette: str, run: tuple[RunVariable, ...], asked: list[Json], answers: list[str]) -> None:
    with engine(store) as made:
        made.sessions.open_session(cassette, run_variables=run)
        for body, text in zip(asked, answers, strict=True):
            exchange = made.begin_exchange("POST", CHAT.replace("/v1", f"/s/{cassette}/v1"), None, ())
            made.stages.identify_and_decide(exchange, json.dumps(body).encode())
            message = {"role": "assistant", "content": text}
            answered(made, exchange, json.dumps({"choices": [{"index": 0, "message": message}]}).encode())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one run, recorded in two folders."""
    path = tmp_path / "llmproxy.db"
    record(path, "a", A, bodies(A), ["I will", "see /tmp/a/project/x, made by 98e1ef"])
    record(path, "b", B, bodies(B, "aa01bc", "12 ms"), ["I will", "see /srv/ci/today/x, made by aa01bc"])
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as opened:
        save_cassette_volatile_fields(opened, "a", SLOTS)
    return path


def test_ls_tells_run_variables_and_slots(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Volatile fields in `ls`, what runs declared in `show`, a line each; nothing for a cassette without."""
    _, out = run(capsys, store, "ls")
    assert "recorded with" not in out
    assert 'a: volatile fields chunk (hex, run "Chunk ID:"), wall (duration, run "Wall time:")' in out
    said = "a: recorded with cwd /tmp/a/project, date 2026-11-22, home /home/kim"
    assert run(capsys, store, "show", "a")[1].count(said) == 1
    assert "b: volatile fields" not in out
    cassettes = {each["name"]: each for each in json.loads(run(capsys, store, "ls", "--json")[1])["cassettes"]}
    assert [each["name"] for each in cassettes["a"]["volatile"]] == ["chunk", "wall"]
    assert cassettes["b"]["volatile"] == []
    assert cassettes["b"]["run_variables"][0][0] == {"name": "cwd", "value": "/srv/ci/today"}


def test_show_tells_what_was_declared_and_what_stands_in_slots(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(capsys, store, "show", "2")
    assert "declared    cwd /tmp/a/project, date 2026-11-22, home /home/kim" in out
    assert "volatile fields       chunk 98e1ef, wall 0.5 s" in out
    assert "volatile fields       chunk" not in run(capsys, store, "show", "1")[1]
    plain = json.loads(run(capsys, store, "show", "2", "--json")[1])
    assert plain["run_variables"][0] == {"name": "cwd", "value": "/tmp/a/project"}
    assert plain["volatile"][0] == {"name": "chunk", "kind": "hex", "value": "98e1ef", "path": "$.messages[3].content"}


def test_one_run_in_two_places_is_no_difference(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders, days and ids are exchanged before two cassettes are compared, and it is said which."""
    code, out = run(capsys, store, "diff", "a", "b", "--fail-on", "any")
    assert code == 0, out
    assert "exchanged before comparing: chunk, cwd, date, wall" in out
    assert "2 same, 0 changed, 0 added, 0 removed" in out
    plain = json.loads(run(capsys, store, "diff", "a", "b", "--json")[1])
    assert plain["exchanged"] == ["chunk", "cwd", "date", "wall"]
    assert [len(each["volatile"]) for each in plain["bindings"]] == [2, 0]


def test_what_differs_besides_is_all_that_a_diff_tells(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that says something else, in another folder."""
    record(store, "c", B, bodies(B, "aa01bc"), ["I will not", "see /srv/ci/today/x, made by aa01bc"])
    code, out = run(capsys, store, "diff", "a", "c", "--fail-on", "any")
    assert code == 1
    assert "I will not" in out
    assert "1 same, 1 changed, 0 added, 0 removed" in out


def test_two_runs_of_one_folder_say_it_once(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What both were recorded with; a run that is compared with another folder's says both."""
    record(store, "c", B, bodies(B, "aa01bc"), ["I will not", "see /srv/ci/today/x, made by aa01bc"])
    _, out = run(capsys, store, "diff", "b", "c")
    assert [line.split(":")[0] for line in out.splitlines() if "recorded with" in line] == ["both"]
    _, out = run(capsys, store, "diff", "a", "c")
    assert [line.split(":")[0] for line in out.splitlines() if "recorded with" in line] == ["a", "c"]


def test_two_interactions_say_whether_one_would_answer_the_other(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with which bindings; else where they part."""
    _, out = run(capsys, store, "diff", "2", "4")
    assert "declared - cwd /tmp/a/project" in out
    assert "declared + cwd /srv/ci/today" in out
    assert "declared cwd /tmp/a/project" in run(capsys, store, "diff", "1", "2")[1]
    assert "bound: the first would answer the second (chunk, cwd, date, wall)" in out
    assert "would not answer the second: $.messages: " in run(capsys, store, "diff", "1", "4")[1]
    assert json.loads(run(capsys, store, "diff", "2", "4", "--json")[1])["bound"].endswith("(chunk, cwd, date, wall)")


def test_verify_and_audit_name_what_slots_merge(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of a cassette that holds one run; of one that holds two, which, and whether they were answered alike."""
    assert "volatile fields (a): no pairs of recordings merged." in run(capsys, store, "verify")[1]
    assert "volatile fields (a): no pairs of recordings merged." in run(capsys, store, "audit")[1]
    record(store, "a", A, bodies(A, "aa01bc", "12 ms"), ["I will", "see /tmp/a/project/x, made by aa01bc"])
    record(store, "a", A, bodies(A, "ffee00"), ["I will", "there is nothing"])
    code, out = run(capsys, store, "verify")
    assert code == 0
    assert "volatile fields (a): 3 pairs of recordings merged:" in out
    assert "a: #2 and #6 are one by chunk, wall; answered alike" in out
    assert "a: #2 and #8 are one by chunk; answered differently" in out
    assert "a: #2 and #6 are one by chunk, wall; answered alike" in run(capsys, store, "audit")[1]
    plain = json.loads(run(capsys, store, "audit", "--json")[1])["volatile"]["a"]
    assert {"volatile": ["chunk", "wall"], "first": 2, "second": 6, "alike": True} in plain


@pytest.mark.parametrize("form", ["spans", "otlp"])
def test_spans_say_what_they_leave_out(store: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the file, never in it; a cassette without any says nothing."""
    file = store.with_name("trace.json")
    _, out = run(capsys, store, "export", str(file), "--cassette", "a", "--format", form)
    assert f"Wrote the {form} of cassette a" in out
    assert "Left out: run variables (cwd, date, home) and volatile fields (chunk, wall). Spans do not replay" in out
    assert "/home/kim" not in file.read_text()
    record(store, "plain", (), bodies(A), ["I will", "see"])
    assert "Left out" not in run(capsys, store, "export", str(file), "--cassette", "plain", "--format", form)[1]


@pytest.mark.parametrize("form", ["har", "jsonl", "review", "vcr"])
def test_files_keep_run_variables_and_slots(
    form: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every format that can be read back: another store replays them in a third folder."""
    suffix = {"har": ".har", "jsonl": ".jsonl"}.get(form, ".yaml")
    file, other = tmp_path / f"a{suffix}", tmp_path / "other.db"
    assert run(capsys, store, "export", "--cassette", "a", "--format", form, str(file))[0] == 0
    code, out = run(capsys, other, "import", "--cassette", "a", str(file))
    assert code == 0, out
    with SqliteCassetteStore.open(other, writable=False, now=lambda: NOW) as opened:
        assert read_volatile_fields(opened, "a") == SLOTS
    with engine(other, Mode.REPLAY) as made:
        made.sessions.open_session("a", run_variables=B)
        said = []
        for body in bodies(B, "aa01bc", "1 ms"):
            exchange = made.begin_exchange("POST", CHAT.replace("/v1", "/s/a/v1"), None, ())
            made.stages.identify_and_decide(exchange, json.dumps(body).encode())
            assert exchange.answer.made is not None, exchange.error
            said.append(exchange.answer.made.body)
        assert b"see /srv/ci/today/x, made by aa01bc" in said[-1]
