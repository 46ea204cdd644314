"""Cassettes as files for pull requests: run variables and volatile fields are there to be seen, nobody's name is."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from llmproxy.core.bindings import RunVariable, VolatileField, deserialize_run_variables, dump_run_variables
from llmproxy.core.cassettes.anonymized_export import (
    HOME,
    anonymize_interaction,
    build_interaction_from_json,
    convert_interaction_to_json,
    describe_remaining_personal_names,
)
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.cassettes.formats import Source
from llmproxy.core.cassettes.formats.jsonl import read
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import read_volatile_fields, save_cassette_volatile_fields
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Response, Usage
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_bound_hits import _open, _request, _text
from tests.core.engine.test_engine import answered, engine, send as _ask
from tests.support.chats import ODD, chat, run
from tests.support.messages import answer, said, used, user as asks

KIM = (
    RunVariable("cwd", "/home/kim.ono/code/app"),
    RunVariable("home", "/home/kim.ono"),
    RunVariable("tmp", "/tmp/pytest-of-kim.ono/pytest-1"),
    RunVariable("user", "kim.ono"),
    RunVariable("host", "kims-laptop"),
    RunVariable("date", "2026-11-22"),
)
CI = (
    RunVariable("cwd", "/builds/app"), RunVariable("home", "/root"), RunVariable("tmp", "/tmp/x"),
    RunVariable("user", "root"), RunVariable("host", "runner"), RunVariable("date", "2026-12-24"),
)  # fmt: skip


def _of(run: tuple[RunVariable, ...]) -> tuple[str, str, str]:
    named = {each.name: each.value for each in run}
    return named["cwd"], named["home"], named["tmp"]


def _body(run: tuple[RunVariable, ...]) -> bytes:
    cwd, home, tmp = _of(run)
    return _request(
        cwd, {each.name: each.value for each in run}["date"], question=f"see {home}/notes, {tmp}/y and ~/code"
    )


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path]:
    """Record a run of Kim's, and keep its file; return the store and the folder."""
    path, folder = tmp_path / "s.db", tmp_path / "cassettes"
    cwd, home, tmp = _of(KIM)
    with engine(path) as made:
        _open(made, KIM)
        answered(made, _ask(made, _body(KIM)), answer(said(f"in {cwd}/x, {home}, {tmp}")))
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 1.0) as store:
        save_cassette_volatile_fields(store, "default", [VolatileField("chunk", "hex", "exec", before="Chunk ID: ")])
        CassetteDir(folder, now=lambda: 1.0).save_cassette(store, "default")
    return path, folder


def test_a_file_names_nobody(recorded: tuple[Path, Path]) -> None:
    """Home, user, host, and folders that hold the user's name have stand-ins; volatile fields and run variables stand at the head."""
    text = (recorded[1] / "default.yaml").read_text()
    assert "kim" not in text.lower()
    head = text.partition("interactions:")[0]
    assert 'before: "Chunk ID: "' in head or "before: 'Chunk ID: '" in head
    for word in ("run_variables:", "run-1:", HOME, "2026-11-22", "chunk"):
        assert word in head, head


def test_a_file_is_replayed_elsewhere(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    """A colleague's fresh store has the run variables and the volatile fields from the file."""
    path = tmp_path / "theirs.db"
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 2.0) as store:
        assert CassetteDir(recorded[1], now=lambda: 2.0).load_into(store, rules=Rules()).imported == ("default",)
        assert read_volatile_fields(store, "default") == (VolatileField("chunk", "hex", "exec", before="Chunk ID: "),)
    for mine in (CI, KIM):
        with engine(path, Mode.REPLAY) as made:
            _open(made, mine)
            cwd, home, tmp = _of(mine)
            assert _text(made, _ask(made, _body(mine))) == f"in {cwd}/x, {home}, {tmp}"


def test_a_file_that_was_written_is_in_step_with_its_store(recorded: tuple[Path, Path]) -> None:
    """The store keeps what was recorded, byte for byte; nothing is brought in again."""
    path, folder = recorded
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 2.0) as store:
        assert CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules()).imported == ()
    with engine(path, Mode.REPLAY) as made:
        _open(made, KIM)
        exchange = _ask(made, _body(KIM))
        assert exchange.decision is Decision.REPLAY
        assert made.accounting.record_end(exchange, 200).bound == ()


def test_an_edited_slot_of_a_file_counts(recorded: tuple[Path, Path]) -> None:
    """A reviewer takes one out; a volatile field that cannot be is an error, and nothing is changed."""
    path, folder = recorded
    file = folder / "default.yaml"
    text = file.read_text()
    file.write_text(text.replace("kind: hex", "kind: nonsense"))
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 2.0) as store:
        with pytest.raises(CassetteCorrupt, match="nonsense"):
            CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules())
        assert read_volatile_fields(store, "default")
        file.write_text(text.replace("kind: hex", "kind: uuid"))
        assert CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules()).imported == ("default",)
        assert [slot.kind for slot in read_volatile_fields(store, "default")] == ["uuid"]


def test_run_variables_survive_the_store_and_its_text() -> None:
    """One text for the same ones; a recording without any stays the same object."""
    said = dump_run_variables(reversed(KIM))
    assert said == dump_run_variables(KIM)
    assert set(deserialize_run_variables(said)) == set(KIM)
    assert json.loads(said)[0]["name"] == "cwd"


def test_what_names_nobody_stays(recorded: tuple[Path, Path]) -> None:
    """A run of root's in a folder of no one keeps its bytes; only the host's name goes."""
    path = recorded[0]
    with engine(path) as made:
        made.sessions.open_session("other", run_variables=CI)
        answered(made, _ask(made, _body(CI), "/s/other/openai/v1/chat/completions"), answer(said("ok")))
    with SqliteCassetteStore.open(path, writable=False, now=lambda: 2.0) as store:
        (one,) = store.iter_interactions("other")
        assert anonymize_interaction(one).request == one.request
        left = {each.name: each.value for each in deserialize_run_variables(anonymize_interaction(one).run_variables)}
        assert left == {each.name: each.value for each in CI} | {"host": "host"}


def test_who_commits_is_left_out(recorded: tuple[Path, Path]) -> None:
    """Git's user is nothing but a name: replayed without one, any author may be this run's."""
    with SqliteCassetteStore.open(recorded[0], writable=False, now=lambda: 2.0) as store:
        (one, *_) = store.iter_interactions("default")
    said = dump_run_variables((*KIM, RunVariable("git_user", "Kim Ono <kim@ono.example>")))
    kept = anonymize_interaction(replace(one, run_variables=said))
    assert "git_user" not in {each.name for each in deserialize_run_variables(kept.run_variables)}
    assert "ono.example" not in kept.run_variables


def _told(run: tuple[RunVariable, ...]) -> bytes:
    """Return a request that says who runs it in every way in which a run variable says it."""
    named = {each.name: each.value for each in run}
    cwd, home, user = named["cwd"], named["home"], named["user"]
    slug = re.sub(r"[^A-Za-z0-9]", "-", cwd)
    system = [
        f"You work in {cwd} of {home}, at file://{quote(cwd)} or {quote(cwd, safe='')}, kept in {home}/.x/{slug}.",
        f"Hash {hashlib.sha256(cwd.encode()).hexdigest()}; ~/ is {json.dumps(home)} and {json.dumps(json.dumps(cwd))}.",
        f"Current branch: {named['git_branch']}",
        f"<git-commits>\n{named['git_commits']}\n</git-commits>",
    ]
    rows = f"total 8\ndrwxr-xr-x 2 {user} {user} 4096 Nov 22 13:53 .\n-rw-r--r-- 1 {user} staff 12 Nov 22 13:53 a.txt\n"
    return json.dumps({
        "model": "gpt-5",
        "messages": [
            {"role": "system", "content": "\n".join(system)},
            asks(f"tidy {home}/notes"),
            *used("run", {"command": f"ls -la {cwd}", "job": named["job"]}, rows + json.dumps({"in": cwd, "id": named["job"]})),
        ],
    }).encode()  # fmt: skip


MORE = {
    KIM: (RunVariable("git_branch", "kim.ono/fix"), RunVariable("git_commits", "1a2b3c4 merge KIM.ONO/main on kims-laptop"),
          RunVariable("job", "kim.ono-2026-77")),
    CI: (RunVariable("git_branch", "main"), RunVariable("git_commits", "9f8e7d6 tidy"), RunVariable("job", "runner-2026-12")),
}  # fmt: skip


@pytest.mark.parametrize("form", ["review", "har", "jsonl", "vcr"])
def test_no_file_names_whom_a_run_variable_could_have_named(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths in all their forms, owners in listings, branches, commits and ids that hold the name; and the file replays for a colleague."""
    path, file = tmp_path / "s.db", tmp_path / f"f{'.yaml' if form in ('review', 'vcr') else f'.{form}'}"
    kim, ci = ((*run, *MORE[run]) for run in (KIM, CI))
    with engine(path) as made:
        _open(made, kim)
        answered(made, _ask(made, _told(kim)), answer(said(f"see {kim[0].value}/a.txt")))
    assert run(capsys, path, "export", "--format", form, str(file))[0] == 0
    assert not re.search("kim|ono|laptop", file.read_text(), re.IGNORECASE), file.read_text()
    other = tmp_path / "theirs.db"
    assert run(capsys, other, "import", "--cassette", "default", str(file))[0] == 0
    for mine in (ci, kim):
        with engine(other, Mode.REPLAY) as made:
            _open(made, mine)
            assert _text(made, _ask(made, _told(mine))) == f"see {mine[0].value}/a.txt"


def odd() -> Interaction:
    headers, chunks = (("x", "1"), ("X", "2"), ("content-type", "")), (Chunk(3, ODD), Chunk(9, b"\xff"))
    answer = Response(429, "", headers, chunks, Ending.CUT, 2, chunked=True)
    return chat(
        response=answer, id=7, sample=3, party="judge.2", occurrence=4, stream=True, usage=Usage(1, None, 0),
        redacted=True, made_ids=("resp_1",), upstream="", rules="r",
    )  # fmt: skip


@pytest.mark.parametrize("made", [chat(), chat("é\ud83d\ude00"), odd()], ids=["plain", "text", "odd"])
def test_what_is_told_is_read_back_whole(made: Interaction) -> None:
    """Bytes, borders, times, ids, usage; nothing is derived anew."""
    assert build_interaction_from_json(json.loads(json.dumps(convert_interaction_to_json(made)))) == made


def test_it_is_a_line_of_the_export() -> None:
    """Whoever reads the JSON lines reads this."""
    (recorded,) = read(
        Source(json.dumps(convert_interaction_to_json(chat("hi", "one")), ensure_ascii=False).encode(), "x.jsonl")
    )
    assert (recorded.method, recorded.body) == ("POST", chat("hi").request.body)
    assert recorded.extra["key"] == chat("hi").key


@pytest.mark.parametrize(
    "change", [{"body": 3}, {"recorded": {}}, {"recorded": None}, {"response_body": "cut"}, {"status": "x"}]
)
def test_what_is_no_recording_is_said(change: dict[str, object]) -> None:
    """An older proxy may tell less; that is an error with its number, never half a recording."""
    with pytest.raises(CassetteCorrupt, match="recording 5"):
        build_interaction_from_json(convert_interaction_to_json(chat()) | change, 5)


def test_a_file_says_where_a_declared_name_stays() -> None:
    """Behind a terminal's colours, in a row that a carriage return wraps, in a prompt; not inside of another word."""
    rows = (
        "drwxr-xr-x 2 user staff 64 notes", "-rw-r--r-- 1 \\e[33mkim.ono\\e[0m staff 64 a",
        "10%\r-rw-r--r-- 1 kim.ono staff 12 b", "kim.ono@kims-laptop:~$ ls", "akim.onos", "cd /home/kim.ono/code",
    )  # fmt: skip
    found = list(describe_remaining_personal_names("a.yaml", "\n".join([*rows, *rows]), [dump_run_variables(KIM)]))
    assert [each.partition(" still stands on line ")[::2] for each in found] == [
        ("a.yaml: /home/kim.ono", "6, 12: look at it before you commit the file."),
        ("a.yaml: kim.ono", "2, 3, 4, 6, 8 and 3 more: look at it before you commit the file."),
        ("a.yaml: kims-laptop", "4, 10: look at it before you commit the file."),
    ]
    assert list(describe_remaining_personal_names("a.yaml", "\n".join(rows), [dump_run_variables(CI)])) == []


def test_a_kept_file_names_the_lines_where_somebody_stays(
    recorded: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Who writes the file knows what was declared, and looks once more."""
    path, folder = recorded
    with SqliteCassetteStore.open(path, writable=True, now=lambda: 0.0) as store:
        each = next(iter(store.iter_interactions("default")))
        text = b'{"content": "\\u001b[1mkim.ono\\u001b[0m $ ok"}'
        store.add_interaction(replace(each, request=replace(each.request, body=text)), supersede=False)
        CassetteDir(folder, now=lambda: 0.0).save_cassette(store, "default", force=True)
    assert "kim.ono still stands on line" in caplog.text
