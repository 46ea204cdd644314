"""``llmproxy verify``, ``prune`` and ``scan``, on real stores."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.cli import main
from llmproxy.core.forks.fork_rows import list_all_forks_in_store
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key
from llmproxy.protocol import Decision
from tests.support.chats import NOW, chat, fill, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "llmproxy.db", chat(), chat("And now?", "Still fine.", cassette="other"))
    return tmp_path / "llmproxy.db"


def test_verify_passes_a_sound_store(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys and hashes that are right end with 0."""
    assert run(capsys, path, "verify") == (0, f"{path}: 2 live interactions, nothing is wrong.\n")


def test_verify_and_prune_take_stores_by_name(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One grammar: paths, or --store; and --cassette for a part of it. What is not there is an error."""
    other = tmp_path / "second.db"
    fill(other, chat())
    assert main(["verify", str(path), str(other)]) == 0
    assert capsys.readouterr().out == (
        f"{path}: 2 live interactions, nothing is wrong.\n{other}: 1 live interaction, nothing is wrong.\n"
    )
    assert main(["verify", str(path), "--cassette", "other"]) == 0
    assert "1 live interaction" in capsys.readouterr().out
    assert main(["prune", str(path), str(other), "--cassette", "other", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "Deleted 1 interaction" in out
    assert f"nothing to delete in {other}" in out
    assert main(["verify", str(path), "--cassette", "x", "--rekey"]) == 2


@pytest.mark.parametrize("command", ["verify", "prune"])
def test_what_is_nowhere_is_an_error(
    command: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that no store holds, of a cassette or of a store: nothing was looked at, and nothing is made of it."""
    other = tmp_path / "second.db"
    fill(other, chat())
    capsys.readouterr()
    assert main([command, str(path), str(other), "--cassette", "othre"]) == 3
    assert "did you mean 'other'?" in capsys.readouterr().err
    assert main([command, "--cassette", "other", str(tmp_path / "nosuch.db"), str(path)]) == 3
    assert main([command, str(tmp_path / "nosuch.db")]) == 3
    assert "There is no store at" in capsys.readouterr().err
    assert not (tmp_path / "nosuch.db").exists()


def test_a_file_s_slots_are_verified_too(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a run would refuse has not been verified; the file is named, and whose words they are only once."""
    assert main(["export", "--all", str(tmp_path / "kept"), "--store", str(path)]) == 0
    file = min((tmp_path / "kept").glob("*.yaml"))
    volatile = "volatile:\n  - {name: x, kind: wat, tool: t}\ninteractions:"
    file.write_text(file.read_text().replace("interactions:", volatile, 1))
    capsys.readouterr()
    assert main(["verify", str(file)]) == 3
    assert capsys.readouterr().err.startswith(f"llmproxy: {file}, at `volatile`: volatile field x is of kind 'wat'.")


def test_verify_calls_an_emptied_store_damaged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(b"")
    code, out = run(capsys, path, "verify")
    assert (code, out.startswith(f"damaged: {path} is empty")) == (1, True)


@pytest.mark.parametrize("words", [["rm", "x"], ["rename", "a", "b"], ["rerecord", "1"], ["fork", "a", "--at", "1"]])
def test_a_store_that_is_not_there_is_not_made(words: list[str], tmp_path: Path) -> None:
    assert main([*words, "--store", str(tmp_path / "x.db")]) == 3
    assert list(tmp_path.iterdir()) == []


def test_verify_reads_cassette_files_and_folders(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a hook before a commit needs it: every file is looked at, also after one that cannot be read."""
    folder = tmp_path / "cassettes"
    assert main(["export", str(folder), "--all", "--format", "review", "--store", str(path)]) == 0
    (folder / "package.json").write_text("{}")
    (folder / "settings.yaml").write_text("a: 1\n")
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 0
    files = sorted(folder.glob("*.yaml"))
    assert capsys.readouterr().out.count("1 exchanges, nothing is wrong.") == 2
    broken = files[0]
    broken.write_text("<<<<<<< ours\n" + broken.read_text())
    assert main(["verify", *map(str, files[:2])]) == 3
    said = capsys.readouterr()
    assert said.err.startswith("llmproxy: ")
    assert "1 exchanges, nothing is wrong." in said.out


def test_verify_finds_damage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed body and a changed key are both named with their interaction; the exit code is 1."""
    with closing(sqlite3.connect(path)) as conn:
        body = "(SELECT response_body FROM interactions WHERE id = 1)"
        conn.execute(f"UPDATE bodies SET data = x'7b7d' WHERE id = {body}")
        conn.execute("UPDATE interactions SET key = ? WHERE id = 2", (f"v1:{'0' * 64}",))
        conn.commit()
    code, out = run(capsys, path, "verify")
    assert code == 1
    assert "damaged: interaction 1: Row" in out
    assert "damaged: interaction 2: its key is v1:000000000000..." in out
    assert "2 are not as they should be" in out


def test_verify_says_what_a_rule_change_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Recordings of two keys that are one under today's rules are called merged, the reverse is called split."""
    path = tmp_path / "llmproxy.db"
    split = [chat("one"), chat("two")]
    split = [dataclasses.replace(each, key=Key("v1:" + "5" * 64), rules="old", cassette="s") for each in split]
    alike = [dataclasses.replace(chat("same"), key=Key(f"v1:{n:064x}"), rules="old", cassette="m") for n in (1, 2)]
    fill(path, *split, *alike)
    code, out = run(capsys, path, "verify")
    assert code == 0
    assert "4 interactions were recorded under other rules" in out
    assert "Replay derives today's keys whenever it opens their cassette." in out
    assert "3, 4: one key now" in out
    assert "1, 2: different keys now" in out


def test_verify_rekeys_after_a_rule_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --rekey the recordings get their keys under today's rules, and the store is sound again."""
    path = tmp_path / "llmproxy.db"
    alike = [dataclasses.replace(chat("same"), key=Key(f"v1:{n:064x}"), rules="old", cassette="m") for n in (1, 2)]
    fill(path, *alike)
    code, out = run(capsys, path, "verify", "--rekey")
    assert (code, "2 keys derived anew." in out) == (0, True)
    assert run(capsys, path, "verify") == (0, f"{path}: 2 live interactions, nothing is wrong.\n")


def test_what_is_deleted_of_a_large_store_is_gone_though_the_file_stays(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Little of a file is free afterwards: it is not written anew, which takes as long as it is large; the place is overwritten."""
    many = random.Random(1)
    fill(path, *(chat(f"question {n}", many.randbytes(20_000).hex(), cassette="large") for n in range(40)))
    fill(path, chat("question 99", f"Much better. {many.randbytes(20_000).hex()}", cassette="small"))
    before = path.stat()
    code, out = run(capsys, path, "rm", "small", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "Deleted 1 interaction.")
    assert path.stat().st_size == before.st_size
    assert b"Much better" not in path.read_bytes()
    assert run(capsys, path, "verify")[0] == 0


def test_prune_deletes_what_was_replaced(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default only superseded recordings go; it says how many and how much, and the rest reads as before."""
    better = f"Much better. {random.Random(1).randbytes(30_000).hex()}"
    fill(path, chat(answer=better), chat(answer="Best."), supersede=True)
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        kept = list(store.iter_interactions("default")) + list(store.iter_interactions("other"))
    before = path.stat().st_size
    code, out = run(capsys, path, "prune", "--yes")
    assert code == 0
    assert "2 interactions of cassette default: 0 live, 2 replaced by newer ones" in out
    assert path.stat().st_size < before
    assert b"Much better" not in path.read_bytes()
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert list(store.iter_interactions("default")) + list(store.iter_interactions("other")) == kept
    assert run(capsys, path, "prune", "--yes") == (0, f"There is nothing to delete in {path}.\n")
    assert run(capsys, path, "verify")[0] == 0


def test_prune_unused_is_what_the_last_run_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only cassettes that the run walked through lose anything; with no run nothing is known and nothing goes."""
    fill(path, chat("never asked again"))
    code, out = run(capsys, path, "prune", "--unused", "--yes")
    assert (code, "is not known" in out) == (3, True)
    journal = CallDecisionJournalWriter.open(Path(f"{path}.state.db"), lambda: NOW)
    journal.record_call(Call(decision=Decision.REPLAY, method="POST", target="/", status=200, interaction=1))
    journal.close()
    assert "1 interaction of cassette default: 1 live" in run(capsys, path, "prune", "--unused", "--yes")[1]
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert [row.id for row in store.list_summaries()] == [1, 2]


def test_prune_by_age(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is older goes, live or not."""
    fill(path, chat("old", started_at=1000.0))
    assert "1 interaction of cassette default" in run(capsys, path, "prune", "--older-than", "7000", "--yes")[1]


def test_pruning_a_conversation_keeps_what_builds_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bodies stored as deltas on deleted ones still read exactly, and the deleted text is gone."""
    path = tmp_path / "llmproxy.db"
    history = "remember this. " * 100
    turns = []
    for n in range(12):
        history += f"turn {n} said something {'abcdefgh'[n % 8] * 40}. "
        turns.append(chat(history, cassette="odd" if n % 2 else "even"))
    fill(path, *(dataclasses.replace(turn, cassette="x") for turn in turns))
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        kept = {row.id: store.load(row.id) for row in store.list_summaries() if row.id % 3 == 0}
        with store.sqlite_transaction() as conn:
            replaced = [(n,) for n in range(1, 13) if n not in kept]
            conn.executemany("UPDATE interactions SET superseded_at = 1 WHERE id = ?", replaced)
    assert run(capsys, path, "prune", "--yes")[0] == 0
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert {row.id: store.load(row.id) for row in store.list_summaries()} == kept
        assert store.conn.execute("SELECT count(*) FROM bodies").fetchone() == (5,)
    assert run(capsys, path, "verify")[0] == 0


def test_rm_takes_cassettes_samples_and_single_interactions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By what `ls` shows; what is not there is an error that says what there is, and nothing is deleted."""
    fill(path, chat("A third?", "Yes.", cassette="other", sample=2), chat("A fourth?", "No."))
    code, out = run(capsys, path, "rm", "3", "dfault", "--yes")
    assert (code, "did you mean 'default'" in out, "Cassettes there: default, other." in out) == (3, True, True)
    code, out = run(capsys, path, "rm", "other~2", "1", "--yes")
    assert (code, "2 interactions of 2 cassettes (default, other)" in out) == (0, True)
    assert [row["id"] for row in listed(capsys, path)] == [2, 4]
    assert run(capsys, path, "rm", "other", "--yes")[0] == 0
    assert [row["id"] for row in listed(capsys, path)] == [4]
    assert run(capsys, path, "rm", "17", "--yes")[0] == 3
    assert run(capsys, path, "verify")[0] == 0


def test_what_is_being_recorded_loses_no_answer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its recording would end as complete, without them; what a newer answer replaced may go."""
    with SqliteCassetteStore.open(path, writable=True, now=time.time) as store:
        store.begin_writing("other", 1, exclusive=True, holder="llmproxy 7 on here", anew=False)
        for words in (["rm", "other"], ["rm", "2"], ["prune", "--cassette", "other"]):
            code, out = run(capsys, path, *words, "--yes")
            assert (code, "other is being recorded by llmproxy 7 on here." in out) == (3, True), out
        assert [row["id"] for row in listed(capsys, path)] == [1, 2]
        assert run(capsys, path, "prune", "--superseded", "--yes")[0] == 0
        store.end_writing("other", 1, "llmproxy 7 on here", clean=True)
    assert run(capsys, path, "rm", "other", "--yes")[0] == 0


@pytest.mark.parametrize("words", [("rm", "other"), ("prune", "--cassette", "other")])
def test_what_deletes_asks(
    path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything but yes deletes nothing, and ends with 1; so does nobody at all."""
    for said, left in (("n\n", 2), ("", 2), ("y\n", 1)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        code, out = run(capsys, path, *words)
        assert (code, "Nothing was deleted. --yes deletes without asking." in out) == (left - 1, left == 2)
        assert len(listed(capsys, path)) == left


def test_digits_are_an_id_unless_a_cassette_is_meant(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--cassette` forces a name."""
    fill(path, chat("In 17?", "Yes.", cassette="17"))
    code, out = run(capsys, path, "rm", "17", "--yes")
    assert (code, "llmproxy rm --cassette 17" in out) == (3, True)
    assert run(capsys, path, "rm", "--cassette", "17", "--yes")[0] == 0
    assert len(listed(capsys, path)) == 2


def test_a_renamed_cassette_replays_under_its_new_name(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With everything that belongs to it: its children too know their parent by it. A dead recorder has no say."""
    assert run(capsys, path, "fork", "other", "--at", "1")[0] == 0
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 0) as store:
        store.begin_writing("other", 1, exclusive=True, holder="a killed process", anew=False)
    assert "killed" not in run(capsys, path, "ls")[1]
    assert run(capsys, path, "rename", "other", "another") == (0, "other is now another.\n")
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        assert [each.parent for each in list_all_forks_in_store(store)] == ["another"]
    assert [row["cassette"] for row in listed(capsys, path)] == ["default", "another", "other@fork-1"]
    assert run(capsys, path, "verify")[0] == 0


@pytest.mark.parametrize(
    "names", ["nosuch x", "default other", "other other", "other x~2", "other 12", "other a#b", "other "]
)
def test_a_name_that_cannot_be_given_changes_nothing(
    path: Path, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not there, what is taken, what would mean something else, what no session can have."""
    before = listed(capsys, path)
    code, out = run(capsys, path, "rename", *names.split(" "))
    assert code == (3 if names == "nosuch x" else 2), out
    assert ("llmproxy rm other" in out) is (names == "default other")
    assert listed(capsys, path) == before


def test_a_file_that_still_holds_what_was_removed_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or it comes back, and nobody knows why."""
    folder = tmp_path / "cassettes"
    assert main(["export", str(folder), "--all", "--format", "review", "--store", str(path)]) == 0
    monkeypatch.setenv("LLMPROXY_CASSETTE_DIR", str(folder))
    capsys.readouterr()
    _, out = run(capsys, path, "rm", "other", "--yes")
    assert f"{folder / 'other.yaml'} still holds it" in out


def listed(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    """Return the interactions that `ls` lists."""
    capsys.readouterr()
    rows: list[dict[str, Any]] = json.loads(run(capsys, path, "ls", "--json")[1])["interactions"]
    return rows


@pytest.mark.parametrize("words", [
    ["ls", "--store", "{}"], ["start", "--store", "{}"], ["run", "--store", "{}", "--", "true"], ["verify", "{}"],
    ["prune", "{}"], ["scan", "{}"], ["ui", "{}"], ["import", "{}"], ["textconv", "{}"], ["test", "{}"],
    ["merge", "{}", "--store", "x.db"],
], ids=lambda words: words[0])  # fmt: skip
def test_a_url_becomes_no_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made whose name would hold the password, and nothing says it."""
    monkeypatch.chdir(tmp_path)
    assert main([word.format("mysql://me:s3cret@db.example/x") for word in words]) == 2
    said = capsys.readouterr()
    assert "mysql:" in said.err
    assert "s3cret" not in said.out + said.err
    assert not list(tmp_path.iterdir())


GITHUB = "ghp_aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xYz1Q9"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI5OTkifQ.abcdefGHIJ0123456789klmnopQRSTUVWXYZ42"


def leaky(text: str, answer: str, **more: str) -> Interaction:
    """Return an interaction as it would be stored without redaction."""
    made = chat(**more)
    body = made.request.body.replace(b"}", f', "note": {json.dumps(text)}}}'.encode(), 1)
    request = dataclasses.replace(made.request, body=body)
    response = dataclasses.replace(made.response, chunks=(*made.response.chunks, Chunk(9, answer.encode())))
    return dataclasses.replace(made, request=request, response=response)


def test_a_clean_store_is_said_to_be_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 0."""
    fill(tmp_path / "x.db", chat())
    assert run(capsys, tmp_path / "x.db", "scan") == (0, f"No secrets in {tmp_path / 'x.db'}.\n")


def test_secrets_are_named_by_place_and_kind_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In requests and answers of a store; followed as printed, the advice takes them out."""
    path = tmp_path / "x.db"
    fill(path, leaky(f"use {GITHUB}", f" {JWT} "), chat("other"))
    code, out = run(capsys, path, "scan")
    assert code == 1
    assert "interaction 1 of cassette default, request body: github" in out
    assert "interaction 1 of cassette default, answer body: credential" in out  # a JWT counts by its value
    assert GITHUB not in out
    assert JWT not in out
    assert "interaction 2" not in out
    assert f"llmproxy export clean --all --store {path}" in out
    clean, folder = tmp_path / "clean.db", tmp_path / "clean"
    assert run(capsys, path, "export", str(folder), "--all")[0] == 0
    assert run(capsys, clean, "import", *map(str, sorted(folder.iterdir())))[0] == 0
    assert run(capsys, clean, "scan")[0] == 0
    with SqliteCassetteStore.open(clean, writable=False, now=lambda: 0.0) as store:
        assert len(store.list_summaries()) == 2


def test_files_and_folders_are_looked_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the lines on which secrets stand; what cannot be read is an error, not clean."""
    (tmp_path / "cassettes").mkdir()
    (tmp_path / "cassettes" / "a.yaml").write_text(f"a: 1\nb: {GITHUB}\nc: {GITHUB}\n")
    (tmp_path / "cassettes" / "b.html").write_text("<p>nothing</p>")
    code, out = run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))
    assert code == 1
    assert f"{tmp_path / 'cassettes' / 'a.yaml'}: line 2, 3: github" in out
    (tmp_path / "cassettes" / "a.yaml").unlink()
    assert run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))[0] == 0
    (tmp_path / "cassettes" / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    assert run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))[0] == 3


def test_whom_git_names_is_shown_and_is_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a store, and in the cassette for a pull request, where nobody but git's lines names who recorded."""
    path, file = tmp_path / "x.db", tmp_path / "fix.yaml"
    log = "commit 1a2b3c4\nAuthor: Ann Smith <ann@example.com>\nDate: today\n\n    Commit: soon\n"
    fill(path, leaky(log, "\nGit user: Kim Lee\n"), chat("other"))
    code, out = run(capsys, path, "scan")
    assert code == 0
    where = f"{path}: interaction 1 of cassette default: git names"
    assert out.splitlines() == [
        f"{where} Ann Smith <ann@example.com>", f"{where} Kim Lee", f"No secrets in {path}; git names 2 people there.",
    ]  # fmt: skip
    assert run(capsys, path, "export", "--cassette", "default", "--format", "review", str(file))[0] == 0
    code, out = run(capsys, path, "scan", str(file))
    assert code == 0
    numbers = [n for n, line in enumerate(file.read_text().splitlines(), 1) if "Ann Smith" in line]
    assert f"{file}: line {', '.join(map(str, numbers))}: git names Ann Smith <ann@example.com>" in out


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device without an end here")
def test_what_has_no_end_is_an_error(tmp_path: Path) -> None:
    """Not clean, and not read until memory is full."""
    (tmp_path / "zero").symlink_to("/dev/zero")
    command = [sys.executable, "-m", "llmproxy", "scan", str(tmp_path / "zero")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert "zero: it has over 268,435,456 bytes, and no more are read" in ended.stderr
