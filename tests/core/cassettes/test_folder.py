"""A folder of cassette files, in step with a store."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.bindings import RunVariable, dump_run_variables
from llmproxy.core.cassettes.anonymized_export import interaction_to_file_record
from llmproxy.core.cassettes.folder_sync import CassetteDir, FolderLoadSummary, build_slug
from llmproxy.core.cassettes.formats import Recorded, review_yaml
from llmproxy.core.cassettes.formats.vcr import dumps
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.forks.fork_rows import Fork, find_fork, store_fork_row
from llmproxy.core.forks.overrides import parse_answer_override_options
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.reader import was_abandoned_twice
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction
from llmproxy.errors import CassetteBusy, CassetteCorrupt, CassetteError, LLMProxyError, MachineError
from tests.support.narrowing import known
from tests.support.recordings import NOW, look

ROOT = Path(__file__).resolve().parents[3]
JSON = (("content-type", "application/json"),)


def recordings(*texts: str, cassette: str = "trip", at: float = NOW, sample: int = 1) -> list[Interaction]:
    exchanges = [
        Recorded("POST", "https://api.openai.com/v1/chat/completions", JSON,
                 json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode(),
                 200, "OK", JSON, json.dumps({"choices": [{"message": {"content": f"to {text}"}}]}).encode(),
                 extra={"started_at": at + n, "sample": sample, "head_offset": 5})
        for n, text in enumerate(texts)
    ]  # fmt: skip
    adopted = convert_exchanges(exchanges, cassette, rules=Rules(), redactor=Redactor())
    return [each.interaction for each in adopted if each.interaction]


@pytest.fixture
def kept(tmp_path: Path) -> CassetteDir:
    return CassetteDir(tmp_path / "cassettes", now=lambda: NOW + 1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=True, now=lambda: NOW) as opened:
        yield opened


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Store]:
    with SqliteCassetteStore.open(tmp_path / "b.db", writable=True, now=lambda: NOW) as opened:
        yield opened


def record(store: Store, *texts: str, **more: object) -> None:
    for each in recordings(*texts, **more):  # type: ignore[arg-type]
        store.add_interaction(each, supersede=each.occurrence == 1)


def saved(kept: CassetteDir, store: Store, *texts: str) -> Path:
    record(store, *texts)
    return known(kept.save_cassette(store, "trip"))


def load(kept: CassetteDir, store: Store) -> FolderLoadSummary:
    return kept.load_into(store, rules=Rules())


def plain(store: Store, cassette: str = "trip") -> list[Interaction]:
    return [replace(each, id=None) for each in store.iter_interactions(cassette)]


def answers(store: Store, cassette: str = "trip") -> list[str]:
    return [
        json.loads(each.response.body)["choices"][0]["message"]["content"] for each in store.iter_interactions(cassette)
    ]


def test_a_clone_replays_at_once(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """What one store wrote, an empty one reads: the same interactions, times, samples and order."""
    record(store, "a", "b", "a")
    record(store, "a", sample=2)
    for sample in (1, 2):
        store.begin_writing("trip", sample, exclusive=True, holder="a")
        store.end_writing("trip", sample, "a", clean=True)
    assert kept.save_cassette(store, "trip") == kept.path / "trip.yaml"
    assert load(kept, fresh) == FolderLoadSummary(imported=("trip",), interactions=4)
    assert plain(fresh) == plain(store)
    assert fresh.last_session_ended_cleanly("trip", 1)
    assert fresh.last_session_ended_cleanly("trip", 2)


@pytest.mark.parametrize("again", [False, True])
def test_a_clone_knows_whether_an_answer_was_left_again(
    again: bool, kept: CassetteDir, store: Store, fresh: Store
) -> None:
    """So `auto` does not ask live once more on every machine."""
    (made,) = recordings("a")
    left = replace(made, response=replace(made.response, ending=Ending.LEFT))
    for nth in range(1, 2 + again):
        store.add_interactions([InteractionToStore(replace(left, occurrence=nth), healing=())])
    kept.save_cassette(store, "trip")
    load(kept, fresh)
    (slot,) = fresh.find_keyed("trip", 1, "agent", made.key)
    assert was_abandoned_twice(slot, 1) is again


def test_in_step_nothing_is_written(kept: CassetteDir, store: Store, tmp_path: Path) -> None:
    """A store that agrees with the files is not touched, nor are the files."""
    saved(kept, store, "a", "b")
    store.close()
    before = (tmp_path / "a.db").read_bytes(), look(kept.path)
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=True, now=lambda: NOW) as again:
        assert load(kept, again) == FolderLoadSummary(unchanged=1)
        kept.save_cassette(again, "trip")
    assert ((tmp_path / "a.db").read_bytes(), look(kept.path)) == before


def test_an_edited_file_wins(kept: CassetteDir, store: Store) -> None:
    """What a person changed is answered; what was deleted is gone; the rest stays, and older recordings are set aside."""
    path = saved(kept, store, "a", "b", "c")
    path.write_text(path.read_text().replace("content: to a", "content: edited by hand"))
    assert load(kept, store) == FolderLoadSummary(imported=("trip",), interactions=3, set_aside=3)
    assert answers(store) == ["edited by hand", "to b", "to c"]
    assert load(kept, store) == FolderLoadSummary(unchanged=1)
    first = next(iter(store.iter_interactions("trip")))
    assert first.response.chunks == (Chunk(0, first.response.body),)  # its borders no longer fit
    head, *interactions = path.read_text().split("\n# openai")
    path.write_text("\n# openai".join([head, interactions[0], interactions[2]]))
    assert load(kept, store).interactions == 2
    assert answers(store) == ["edited by hand", "to c"]
    assert store.list_summaries("trip", superseded=True)[0].superseded


def asked_by_an_sdk() -> Interaction:
    """Return a recording as clients make them: with fields that choose nothing, and what its run declared."""
    (made,) = recordings("Hi?")
    fields = ("host", "api.openai.com"), ("x-stainless-os", "Linux"), ("user-agent", "OpenAI/Python 3"), *JSON
    variables = [RunVariable("cwd", "/srv/shop"), RunVariable("date", "2026-11-27"), RunVariable("user", "albert")]
    return replace(made, request=replace(made.request, headers=fields), run_variables=dump_run_variables(variables))


def test_a_question_is_short_to_review(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """One of one line takes 20 lines; what was left out chooses no answer, so the key is the same."""
    store.begin_writing("trip", 1, exclusive=True, holder="a")
    store.add_interaction(asked_by_an_sdk(), supersede=False)
    store.end_writing("trip", 1, "a", clean=True)
    text = known(kept.save_cassette(store, "trip")).read_text()
    assert len(text.splitlines()) <= 20
    assert [word in text for word in ("OpenAI/Python 3", "stainless", "run_variables")] == [True, False, False]
    load(kept, fresh)
    assert [each.key for each in fresh.iter_interactions("trip")] == [asked_by_an_sdk().key]


def test_a_file_that_says_more_is_in_step_and_written_anew(kept: CassetteDir, store: Store) -> None:
    """As earlier versions wrote it, with all fields; it is read as it is, and no edit."""
    store.add_interaction(asked_by_an_sdk(), supersede=False)
    kept.path.mkdir()
    recorded = interaction_to_file_record(replace(asked_by_an_sdk(), run_variables=""))
    (kept.path / "trip.yaml").write_text(review_yaml.dumps([recorded], "trip", unfinished=True))
    assert load(kept, store) == FolderLoadSummary(unchanged=1)
    record(store, "more", at=NOW + 9)
    assert "stainless" not in known(kept.save_cassette(store, "trip")).read_text()


def test_a_checked_out_file_brings_its_answers_back(kept: CassetteDir, store: Store) -> None:
    """Switching between two versions of a file switches the answers, as often as one likes."""
    path = saved(kept, store, "a")
    old = path.read_bytes()
    record(store, "x", "y", at=NOW + 50)
    kept.save_cassette(store, "trip")
    for data, said in [(old, ["to a"]), (path.read_bytes(), ["to a", "to x", "to y"]), (old, ["to a"])]:
        path.write_bytes(data)
        load(kept, store)
        assert answers(store) == said
        assert load(kept, store) == FolderLoadSummary(unchanged=1)


def test_differently_written_files_are_in_step(kept: CassetteDir, store: Store) -> None:
    """Comments and other ways of writing the same are no difference: the store is not filled with copies."""
    path = saved(kept, store, "a")
    path.write_text("# checked by me\n" + path.read_text().replace("content: to a", "content: 'to a'"))
    assert load(kept, store) == FolderLoadSummary(unchanged=1)
    assert len(store.list_summaries("trip", superseded=True)) == 1


def test_a_fork_is_in_its_file(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """With the overridden results, which a clone swaps too; the file wins here as well, and an edit is not overwritten."""
    fork = Fork(
        "trip", "base", 2, "because", overrides=parse_answer_override_options(["get_weather=5"], []), created_at=NOW
    )
    record(store, "a", "b")
    store_fork_row(store, fork)
    path = known(kept.save_cassette(store, "trip"))
    assert load(kept, fresh).imported == ("trip",)
    assert (find_fork(fresh, "trip", 1), plain(fresh)) == (fork, plain(store))
    assert load(kept, fresh).imported == ()
    path.write_text(path.read_text().replace('result: "5"', 'result: "6"'))
    with pytest.raises(CassetteBusy, match="`fork`"):
        kept.save_cassette(store, "trip")
    assert (load(kept, fresh).imported, load(kept, fresh).imported) == (("trip",), ())
    assert known(find_fork(fresh, "trip", 1)).overrides.tools[0].text == "6"
    head, rest = path.read_text().split("fork:\n")
    path.write_text(head + rest[rest.index("interactions:") :])
    load(kept, fresh)
    assert (find_fork(fresh, "trip", 1), len(plain(fresh))) == (None, 2)


def test_other_cassettes_stay(kept: CassetteDir, store: Store) -> None:
    """A cassette without a file is neither changed nor written."""
    record(store, "a", cassette="mine")
    saved(kept, store, "b")
    load(kept, store)
    assert answers(store, "mine") == ["to a"]
    assert list(kept.list_cassette_files()) == ["trip"]
    assert kept.save_cassette(store, "nothing") is None


def test_damage_stops_everything(kept: CassetteDir, store: Store, tmp_path: Path) -> None:
    """Damaged files are named together; no sound one was brought in, and none was overwritten."""
    saved(kept, store, "a")
    (kept.path / "cut.yaml").write_text((kept.path / "trip.yaml").read_text().replace("trip", "cut")[:-40])
    (kept.path / "odd.yaml").write_text("just: this\n")
    with SqliteCassetteStore.open(tmp_path / "b.db", writable=True, now=lambda: NOW) as fresh:
        with pytest.raises(CassetteCorrupt, match="2 cassette files cannot be read; nothing was changed") as caught:
            load(kept, fresh)
        assert "cut.yaml" in str(caught.value)
        assert "odd.yaml: this is not a cassette of any format" in str(caught.value)
        assert fresh.cassettes() == []
    (kept.path / "odd.yaml").unlink()
    with pytest.raises(CassetteCorrupt, match=r"cut\.yaml"):
        load(kept, store)


def test_a_start_that_fails_loses_nothing(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """A full disk, or a kill, while an edited file is brought in: what only the store has is there at the next start."""
    path = saved(kept, store, "a", "b")
    load(kept, fresh)
    record(fresh, "mine", at=NOW + 20)
    path.write_text(path.read_text().replace("to a", "edited"))
    with closing(sqlite3.connect(fresh.path)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON interactions BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(LLMProxyError, match="full"):
            load(kept, fresh)
        other.execute("DROP TRIGGER full")
    load(kept, fresh)
    assert answers(fresh) == ["edited", "to b", "to mine"]


def test_a_damaged_file_is_not_overwritten(kept: CassetteDir, store: Store) -> None:
    """A file that cannot be read, or that others wrote, stays; `force` replaces it."""
    path = saved(kept, store, "a")
    for text in (path.read_text()[:-30], "llmproxy-cassette: 2\ncassette: trip\n...\n", dumps([], "trip")):
        path.write_text(text)
        with pytest.raises(CassetteError, match="Not overwritten"):
            kept.save_cassette(store, "trip")
        assert path.read_text() == text
    kept.save_cassette(store, "trip", force=True)
    assert load(kept, store) == FolderLoadSummary(unchanged=1)


def test_an_edit_during_the_run_is_not_overwritten(kept: CassetteDir, store: Store) -> None:
    """What a person wrote while the proxy ran stays; what other recordings replaced may be overwritten."""
    path = saved(kept, store, "a", "b")
    record(store, "a", at=NOW + 20)  # recorded anew: the file's is known, though replaced
    kept.save_cassette(store, "trip")
    edited = path.read_text().replace("to b", "to me")
    path.write_text(edited)
    record(store, "c", at=NOW + 30)
    with pytest.raises(CassetteBusy, match=r"was edited while this cassette was in use \(interaction"):
        kept.save_cassette(store, "trip")
    assert path.read_text() == edited


def test_the_name_inside_counts(kept: CassetteDir, store: Store) -> None:
    """A file that was moved is the same cassette, and is written where it lies now; two files of one are refused."""
    path = saved(kept, store, "a")
    moved = kept.path / "deep" / "other.yaml"
    moved.parent.mkdir()
    path.rename(moved)
    record(store, "b", at=NOW + 9)
    assert kept.save_cassette(store, "trip") == moved
    (kept.path / "copy.yml").write_text(moved.read_text())
    with pytest.raises(CassetteCorrupt, match="are both cassette 'trip'"):
        load(kept, store)


def test_a_file_is_opened_again_only_after_a_change(kept: CassetteDir, store: Store) -> None:
    """In a folder of ten thousand each new cassette would open all: what is as it was is known, what is not is read."""
    path = saved(kept, store, "a")
    before = path.stat()
    assert kept.list_cassette_files() == {"trip": path}
    path.write_text(path.read_text().replace("cassette: trip", "cassette: hike"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept.list_cassette_files() == {"trip": path}
    os.utime(path)
    assert kept.list_cassette_files() == {"hike": path}
    path.rename(kept.path / "elsewhere.yaml")
    assert kept.list_cassette_files() == {"hike": kept.path / "elsewhere.yaml"}


@pytest.mark.parametrize(
    "name", ["../../etc/x", "a/b", "ü", "tests/test_a.py::test[x y]", "x" * 300, ".hidden", "no", "a\nb", "-"]
)
def test_any_name_is_a_file_in_the_folder(name: str, kept: CassetteDir, store: Store, fresh: Store) -> None:
    """Names that no path can be get a hash; the folder is never left, and the name comes back."""
    record(store, "a", cassette=name)
    path = known(kept.save_cassette(store, name))
    assert path.parent == kept.path
    assert len(path.name) <= 110
    assert load(kept, fresh).imported == (name,)


def test_names_that_differ_in_case_only(kept: CassetteDir, store: Store) -> None:
    """On file systems that do not tell them apart, two cassettes must not share a file."""
    record(store, "a", cassette="Trip")
    record(store, "b", cassette="trip")
    paths = [kept.save_cassette(store, "Trip"), kept.save_cassette(store, "trip")]
    assert len({str(path).lower() for path in paths}) == 2
    assert build_slug("trip") == "trip" != build_slug("trip", unique=True)
    # No file on Windows, whatever stands behind the point:
    for device in ("con", "NUL", "aux.yaml", "com1", "Lpt9.a.b"):
        assert build_slug(device).partition(".")[0].lower() not in ("con", "nul", "aux", "com1", "lpt9")
    assert [build_slug(name) for name in ("console", "silicon.1", "com10")] == ["console", "silicon.1", "com10"]


def test_other_programs_yaml(kept: CassetteDir, store: Store) -> None:
    """Files of vcrpy in the folder are cassettes named like the file, read and never overwritten."""
    kept.path.mkdir()
    each = Recorded(
        "POST", "https://api.openai.com/v1/chat/completions", JSON, b'{"messages":[]}', 200, "OK", JSON, b"{}"
    )
    (kept.path / "old").mkdir()
    (kept.path / "old/playback.yaml").write_text(dumps([each, replace(each, uri="ftp://x")], "ignored"))
    loaded = load(kept, store)
    assert (loaded.imported, loaded.interactions) == (("old.playback",), 1)
    assert "interaction 2: its URI is not an http one" in loaded.skipped[0]
    assert load(kept, store).unchanged == 1
    record(store, "a", cassette="old.playback")
    with pytest.raises(CassetteCorrupt, match="was not written by llmproxy"):
        kept.save_cassette(store, "old.playback")


def test_somebody_records_it(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """A cassette that is being recorded is waited for, then refused by name; one in step does not care."""
    saved(kept, store, "a")
    fresh.begin_writing("trip", 1, exclusive=True, holder="somebody")
    waited: list[float] = []
    with pytest.raises(CassetteBusy, match="somebody"):
        kept.load_into(fresh, rules=Rules(), wait=waited.append)
    assert len(waited) == 24
    with pytest.raises(CassetteBusy):
        load(kept, fresh)

    def ended(seconds: float) -> None:
        """Do as the other process would: bring the file in, and end."""
        for each in recordings("a"):
            fresh.add_interaction(each, supersede=False)
        fresh.end_writing("trip", 1, "somebody", clean=True)

    assert kept.load_into(fresh, rules=Rules(), wait=ended).set_aside == 0
    assert len(fresh.list_summaries("trip", superseded=True)) == 1


def test_many_processes_start_at_once(kept: CassetteDir, store: Store, tmp_path: Path) -> None:
    """Runs that start together on one empty store bring everything in once."""
    for n in range(5):
        record(store, "a", "b", cassette=f"c{n}")
        kept.save_cassette(store, f"c{n}")
    program = (
        "import sys, time; from pathlib import Path; from llmproxy.core.cassettes.folder_sync import CassetteDir\n"
        "from llmproxy.core.keys.normalize import Rules; from llmproxy.core.store.file.store import SqliteCassetteStore\n"
        "with SqliteCassetteStore.open(sys.argv[1], writable=True, now=time.time) as store:\n"
        "    CassetteDir(Path(sys.argv[2]), now=time.time).load_into(store, rules=Rules(), wait=time.sleep)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "c.db"), str(kept.path)]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    with SqliteCassetteStore.open(tmp_path / "c.db", writable=False, now=lambda: NOW) as reader:
        assert [(info.name, info.live, info.stored) for info in reader.cassettes()] == [
            (f"c{n}", 2, 2) for n in range(5)
        ]


def test_what_others_record_meanwhile_is_in_the_file(kept: CassetteDir, store: Store, tmp_path: Path) -> None:
    """Two processes that record one cassette leave a file with the recordings of both, whoever wrote last."""
    saved(kept, store, "a")
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=True, now=lambda: NOW) as other:
        record(other, "b", at=NOW + 5)
        kept.save_cassette(other, "trip")
    record(store, "c", at=NOW + 9)
    kept.save_cassette(store, "trip")
    assert all(f"content: to {name}" in (kept.path / "trip.yaml").read_text() for name in "abc")


def test_a_folder_that_cannot_be_written(kept: CassetteDir, store: Store, tmp_path: Path) -> None:
    """Where a file stands in the folder's place, that is said; an empty or missing folder is no error."""
    assert load(kept, store) == FolderLoadSummary()
    (tmp_path / "file").write_text("")
    record(store, "a")
    with pytest.raises(MachineError, match="is a file"):
        CassetteDir(tmp_path / "file", now=lambda: NOW).save_cassette(store, "trip")


def test_secrets_do_not_come_in_by_hand(kept: CassetteDir, store: Store) -> None:
    """A key that a person put into a file is redacted like any other on the way in."""
    path = saved(kept, store, "a")
    secret = "sk-proj-" + "Zq8Xv3Lm" * 5
    with_secret = f"    headers:\n      - authorization: Bearer {secret}\n"
    path.write_text(path.read_text().replace("    headers:\n", with_secret, 1))
    load(kept, store)
    assert secret not in repr(plain(store))


def step(kept: CassetteDir, store: Store) -> Path:
    """Save as a session's end does."""
    return known(kept.save_cassette(store, "trip", remember=store.record_synced_file))


@pytest.mark.parametrize("imported", [False, True])
def test_what_no_file_holds_yet_is_not_set_aside(imported: bool, kept: CassetteDir, store: Store, fresh: Store) -> None:
    """A second proxy that starts while the first records, or a start after kill -9: what is recorded and not yet written stays."""
    record(store, "a", "b")
    step(kept, store)
    used = fresh if imported else store
    if imported:
        load(kept, fresh)
    record(used, "c", at=NOW + 50)
    assert load(kept, used) == FolderLoadSummary(unchanged=1)
    assert answers(used) == ["to a", "to b", "to c"]
    assert "to c" in step(kept, used).read_text()
    assert load(kept, used) == FolderLoadSummary(unchanged=1)


def test_an_edited_file_wins_over_what_it_held_and_nothing_else(kept: CassetteDir, store: Store) -> None:
    """Edited while recordings wait to be written: the edit counts, the deleted is gone, the unwritten stays and is written."""
    record(store, "a", "b")
    path = step(kept, store)
    record(store, "c", at=NOW + 50)
    path.write_text(path.read_text().replace("content: to a", "content: edited"))
    assert load(kept, store) == FolderLoadSummary(imported=("trip",), interactions=2, set_aside=2)
    assert answers(store) == ["edited", "to b", "to c"]
    assert load(kept, store) == FolderLoadSummary(unchanged=1)
    assert "to c" in step(kept, store).read_text()


def test_an_open_cassette_stays_open_in_its_file(kept: CassetteDir, store: Store, fresh: Store) -> None:
    """Whether something is missing travels with the file: mode once adds it on any machine, and seals the cassette then."""
    record(store, "a")
    assert "\nopen: true\n" in step(kept, store).read_text()
    load(kept, fresh)
    assert not fresh.last_session_ended_cleanly("trip", 1)
    fresh.begin_writing("trip", 1, exclusive=True, holder="a")
    fresh.end_writing("trip", 1, "a", clean=None)
    assert "open: true" not in step(kept, fresh).read_text()
    load(kept, store)
    assert store.last_session_ended_cleanly("trip", 1)
