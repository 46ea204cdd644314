"""Recorded exchanges become interactions, and the other way round."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import brotli
import pytest
import zstandard

from llmproxy.core.bindings import parse_volatile_field
from llmproxy.core.cassettes.anonymized_export import interaction_to_file_record
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.cassettes.formats import Recorded, Source, read_file_of_recordings
from llmproxy.core.cassettes.formats.vcr import dumps, read
from llmproxy.core.cassettes.importing import ImportedOrSkippedExchange, convert_exchanges
from llmproxy.core.cassettes.merging import MergeConflict, merge_cassette_folders, merge_stores_into_new_one
from llmproxy.core.changes.accepted_change_model import build_accepted_changes
from llmproxy.core.changes.segment_change import SegmentChange, digest_texts
from llmproxy.core.forks.fork_rows import Fork, find_fork, store_fork_row
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import (
    read_cassette_accepted_changes,
    read_volatile_fields,
    save_cassette_volatile_fields,
    store_accepted_changes,
)
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, header
from llmproxy.errors import CassetteError, CassetteNewer
from llmproxy.sqlite_file import open_sqlite_connection
from tests.support.recordings import NOW, interaction, reopened

KEY = "sk-proj-" + "Zq8Xv3Lm" * 5
ASKED = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = json.dumps({
    "id": "chatcmpl-1",
    "model": "gpt-4o-2024-08-06",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}).encode()  # fmt: skip
JSON = ("content-type", "application/json")


def recorded(**changes: object) -> Recorded:
    values: dict[str, object] = {
        "method": "POST",
        "uri": "https://api.openai.com/v1/chat/completions",
        "headers": (JSON, ("authorization", f"Bearer {KEY}")),
        "body": ASKED,
        "status": 200,
        "reason": "OK",
        "response_headers": (JSON,),
        "response_body": ANSWER,
    }
    return Recorded(**(values | changes))  # type: ignore[arg-type]


def taken(*each: Recorded, upstreams: dict[str, str] | None = None) -> list[ImportedOrSkippedExchange]:
    return convert_exchanges(each, "c", rules=Rules(), redactor=Redactor(), upstreams=upstreams)


def one(*, upstreams: dict[str, str] | None = None, **changes: object) -> Interaction:
    (adopted,) = taken(recorded(**changes), upstreams=upstreams)
    assert adopted.interaction is not None
    return adopted.interaction


def test_everything_is_derived() -> None:
    """Provider, operation, key, model, usage and ending are what live traffic would have given."""
    found = one()
    assert (found.provider, found.operation, found.model) == ("openai", "chat.completions", "gpt-4o")
    assert (found.usage.input, found.usage.output) == (3, 2)
    assert found.response.ending is Ending.COMPLETE
    assert found.response.chunks == (Chunk(0, ANSWER),)
    assert (found.started_at, found.upstream, found.cassette) == (0.0, "https://api.openai.com", "c")
    assert found.key.startswith("v2:")


def test_secrets_do_not_come_in() -> None:
    """A key in a header is gone, also from an earlier answer that quotes it, and matching does not depend on it."""
    adopted = taken(recorded(response_body=ANSWER.replace(b"chatcmpl-1", KEY.encode()), headers=(JSON,)), recorded())
    assert KEY not in repr(adopted[0].interaction)
    assert KEY not in repr(adopted[1].interaction)
    assert one().key == one(headers=(JSON,)).key


@pytest.mark.parametrize(("coding", "body"), [
    ("gzip", gzip.compress(ANSWER)), ("br", brotli.compress(ANSWER)), ("zstd", zstandard.compress(ANSWER)),
    ("gzip", ANSWER), ("made-up", ANSWER),
])  # fmt: skip
def test_bodies_are_decoded(coding: str, body: bytes) -> None:
    """A compressed answer is decoded, and a coding that the body does not have is dropped."""
    headers = (JSON, ("Content-Encoding", coding), ("Content-Length", str(len(body))))
    found = one(response_headers=headers, response_body=body)
    assert found.response.body == ANSWER
    assert header(found.response.headers, "content-encoding") is None
    assert not found.response.chunked


def test_compressed_request_has_the_same_key() -> None:
    """A request that was sent compressed is found by one that is not."""
    packed = one(headers=(JSON, ("content-encoding", "gzip")), body=gzip.compress(ASKED))
    assert packed.key == one().key
    assert packed.request.body == ASKED


def test_what_counts_and_is_never_stored_tells_imported_requests_apart() -> None:
    """Two carts of one shop are two questions; their cookies come in as fingerprints."""
    carts = [
        one(uri="https://shop.example/cart", headers=(("cookie", f"cart={each}"),)) for each in ("secret1", "other2")
    ]
    assert carts[0].key != carts[1].key
    assert "secret1" not in str(carts[0].request.headers)


def test_repeats_are_occurrences() -> None:
    """The same request again is the next occurrence, and only the first one replaces what was there before."""
    adopted = taken(recorded(), recorded(response_body=b"{}"), recorded(body=b"{}"))
    assert [each.interaction.occurrence for each in adopted if each.interaction] == [1, 2, 1]
    assert [each.first for each in adopted] == [True, False, True]


def test_unknown_hosts_are_named_after_themselves() -> None:
    """A host of no table is imported as the provider that `--upstream HOST=URL` would make."""
    adopted = taken(recorded(uri="http://LocalHost:8000/v1/chat/completions"))[0]
    assert adopted.interaction is not None
    assert (adopted.known, adopted.host, adopted.interaction.provider) == (False, "localhost:8000", "localhost:8000")
    assert adopted.interaction.operation == "chat.completions"
    ours = one(uri="http://localhost:8000/v1/chat/completions", upstreams={"mine": "http://localhost:8000/v1"})
    assert ours.provider == "mine"


@pytest.mark.parametrize("uri", ["ftp://a/b", "data:,x", "/v1/chat", "http://", "http://a:99999/"])
def test_what_is_not_http_is_skipped(uri: str) -> None:
    """An exchange that was not HTTP is skipped, and says why; the others are taken."""
    adopted = taken(recorded(uri=uri), recorded())
    assert adopted[0].interaction is None
    assert uri in adopted[0].why
    assert adopted[1].interaction is not None


def test_uris_become_what_was_on_the_wire() -> None:
    """User info and fragment go, blanks and letters beyond ASCII are percent-encoded."""
    found = one(uri="https://user:pw@api.openai.com/v1/files/a b/é?x=1 2#top", method="GET", body=b"")
    assert found.request.target == "/v1/files/a%20b/%C3%A9?x=1%202"
    assert "pw" not in repr(found)


def test_ids_that_answers_made() -> None:
    """A later request that names an earlier response has a key that does not depend on the random id."""

    def conversation(made: str) -> list[str]:
        first = recorded(
            uri="https://api.openai.com/v1/responses",
            body=b'{"model": "gpt-4o", "input": "hi"}',
            response_body=json.dumps({"id": made, "object": "response", "output": []}).encode(),
        )
        body = json.dumps({"model": "gpt-4o", "input": "more", "previous_response_id": made}).encode()
        return [each.interaction.key for each in taken(first, replace(first, body=body)) if each.interaction]

    assert conversation("resp_" + "1" * 40) == conversation("resp_" + "2" * 40)


FULL = replace(
    one(response_headers=(JSON, ("x-b", "2"), ("x-a", "1"), ("x-b", "3"))),
    started_at=1795132800.123456,
    sample=3,
    party="judge",
    upstream="https://gateway.example.com:8443",
    redacted=True,
)


@pytest.mark.parametrize("before", [
    one(),
    FULL,
    replace(one(), upstream=""),
    one(status=500, reason="", response_body=b""),
    one(method="GET", uri="https://api.openai.com/v1/models?limit=2&x=%2F", body=b""),
    one(uri="http://localhost:8000/v1/chat/completions"),
    replace(one(), response=replace(one().response, headers=(JSON, ("content-encoding", "foo")))),
    replace(FULL, response=replace(FULL.response, headers=(JSON, ("content-encoding", "gzip")))),
    one(uri="https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1"),
    replace(
        FULL,
        response=replace(
            FULL.response,
            chunks=(Chunk(5, ANSWER[:10]), Chunk(5, ANSWER[10:11]), Chunk(70_000, ANSWER[11:])),
            head_offset=4,
            ending=Ending.CUT,
            chunked=False,
        ),
    ),
])  # fmt: skip
def test_round_trip(before: Interaction) -> None:
    """Interaction -> YAML -> interaction loses nothing: chunks, times, party, sample, ending, order of fields."""
    source = Source(dumps([interaction_to_file_record(before)], "c").encode(), "c.yaml")
    (after,) = convert_exchanges(read(source), "c", rules=Rules(), redactor=Redactor())
    assert after.interaction == before


@pytest.mark.parametrize("value", ["x", -1, True, None, [1], 1.5])
def test_nonsense_in_our_notes_is_ignored(value: object) -> None:
    """Notes that make no sense are as if they were not there."""
    notes = dict.fromkeys(("sample", "head_offset", "chunks", "ending", "provider", "upstream"), value)
    notes |= {"party": 7, "started_at": "x"}
    found = one(extra={name: each for name, each in notes.items() if not isinstance(each, str)})
    assert (found.sample, found.party, found.response.head_offset) == (1, "agent", 0)
    assert one(extra={"chunks": "1:2 x:y", "ending": "never"}).response == one().response


@pytest.mark.slow
def test_real_traffic(traffic: Path) -> None:
    """Every exchange of the real cassettes is taken; what is written from it reads back the same."""
    files = sorted(traffic.rglob("*.yaml"))
    skipped: Counter[str] = Counter()
    for path in files:
        adopted = convert_exchanges(read(read_file_of_recordings(path)), path.stem, rules=Rules(), redactor=Redactor())
        skipped.update(each.why for each in adopted if each.interaction is None)
        before = [each.interaction for each in adopted if each.interaction]
        text = dumps([interaction_to_file_record(each) for each in before], path.stem)
        again = convert_exchanges(read(Source(text.encode(), "c.yaml")), path.stem, rules=Rules(), redactor=Redactor())
        assert [each.interaction for each in again] == before, path
    assert len(files) > 380
    assert not skipped


def test_what_cannot_be_replayed_is_skipped() -> None:
    """An exchange whose file says why it is none is skipped with that reason, and named by its host."""
    adopted = taken(recorded(problem="its body was not saved"), recorded())
    assert [(each.host, each.interaction is None, each.why) for each in adopted] == [
        ("api.openai.com", True, "its body was not saved"), ("api.openai.com", False, "")
    ]  # fmt: skip
    assert taken(recorded(problem="it is a WebSocket", uri=""))[0].host == ""


def test_other_programs_say_when_the_body_was_there() -> None:
    """Where there are no chunk borders, the whole body comes when its end was seen."""
    times = {"head_offset": 5, "body_offset": 90}
    assert one(extra=times).response.chunks == (Chunk(90, ANSWER),)
    assert one(extra={**times, "chunks": f"7:{len(ANSWER)}"}).response.chunks == (Chunk(7, ANSWER),)
    assert one(extra=times, response_body=b"").response.chunks == ()


SLOT = {"name": "number", "kind": "integer", "tool": "t", "at": "$.id"}


def named(n: int, cassette: str, **changes: object) -> Interaction:
    return replace(interaction(n, **changes), cassette=cassette)


def other(one: Interaction, text: bytes = b"other") -> Interaction:
    return replace(one, started_at=one.started_at + 60, response=replace(one.response, chunks=(Chunk(1, text),)))


def fill(path: Path, many: Sequence[Interaction], *, supersede: bool = False, clean: bool = True) -> Path:
    with reopened(path, writable=True) as store:
        for name in dict.fromkeys(each.cassette for each in many):
            store.begin_writing(name, 1, exclusive=True, holder="test")
        for each in many:
            store.add_interaction(each, supersede=supersede)
        for name in dict.fromkeys(each.cassette for each in many):
            store.end_writing(name, 1, "test", clean=clean)
    return path


def told(path: Path) -> list[tuple[object, ...]]:
    with reopened(path) as store:
        return [
            (info.name, info.sample, info.closed_cleanly, each.id, each.key, each.occurrence, each.started_at, each.response.body)
            for info in store.cassettes()
            for each in store.iter_interactions(info.name, info.sample)
        ]  # fmt: skip


def test_ten_stores_in_any_order_one_of_them_twice_are_one(tmp_path: Path) -> None:
    base = [named(n, "base") for n in range(3)]
    paths = [
        fill(
            tmp_path / f"{n}.db", [*base, *(named(10 * n + k, f"c{n}") for k in range(1, 3)), named(900 + n, "shared")]
        )
        for n in range(10)
    ]
    seen = []
    for seed in range(3):
        mixed = [*random.Random(seed).sample(paths, 10), paths[4]]
        done = merge_stores_into_new_one(mixed, tmp_path / f"all{seed}.db", lambda: NOW)
        assert (done.cassettes, done.interactions, done.stale) == (12, 33, 0)
        seen.append(told(tmp_path / f"all{seed}.db"))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 33
    assert not list(tmp_path.glob(".*"))


def test_what_one_of_them_replaced_stays_away(tmp_path: Path) -> None:
    """A part that recorded anew knows what was there before; what the others still have is the older one."""
    first = [named(1, "c"), named(2, "c")]
    old, new = fill(tmp_path / "old.db", first), fill(tmp_path / "new.db", first)
    fill(new, [other(first[0])], supersede=True)
    done = merge_stores_into_new_one([old, new], tmp_path / "all.db", lambda: NOW)
    assert (done.interactions, done.stale) == (2, 1)
    assert [row[-1] for row in told(tmp_path / "all.db")] == [b"answer 2", b"other"]


def test_two_answers_to_one_request_are_shown_and_nothing_is_written(tmp_path: Path) -> None:
    """Each with its number and store; the same answer at another time is none."""
    a = fill(tmp_path / "a.db", [named(1, "c"), named(2, "c")])
    b = fill(tmp_path / "b.db", [other(named(1, "c")), other(named(2, "c"), b"answer 2")])
    with pytest.raises(MergeConflict) as caught:
        merge_stores_into_new_one([b, a], tmp_path / "all.db", lambda: NOW)
    assert "1 conflict; nothing was written" in str(caught.value)
    assert f"cassette c, POST /v1/chat/completions, agent: #1 of {a}, #1 of {b}" in str(caught.value)
    assert "llmproxy rm ID --store STORE" in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.db", "b.db"]
    assert caught.value.exit_code == 3


def test_repeats_parties_samples_and_heads_come_along(tmp_path: Path) -> None:
    """Whose child a cassette is, what varies in it, which ids were made, and whether something is missing."""
    one = named(1, "c")
    many = [
        one,
        replace(one, occurrence=2, started_at=NOW + 2),
        replace(one, party="judge"),
        replace(one, sample=2, made_ids=("resp_1",)),
    ]
    a, b = fill(tmp_path / "a.db", many, clean=False), fill(tmp_path / "b.db", [one])
    with reopened(a, writable=True) as store:
        store_fork_row(store, Fork("c", "parent", 1, "why"))
        save_cassette_volatile_fields(store, "c", [parse_volatile_field(SLOT)])
    merge_stores_into_new_one([a, b], tmp_path / "all.db", lambda: NOW)
    with reopened(tmp_path / "all.db") as store:
        found = list(store.iter_interactions("c"))
        assert [(each.sample, each.party, each.occurrence) for each in found] == [
            (1, "agent", 1), (1, "judge", 1), (1, "agent", 2), (2, "agent", 1),
        ]  # fmt: skip
        assert found[3].made_ids == ("resp_1",)
        assert (find_fork(store, "c", 1) or one) == Fork("c", "parent", 1, "why")
        assert read_volatile_fields(store, "c") == (parse_volatile_field(SLOT),)
        assert not store.last_session_ended_cleanly("c", 1)
    with reopened(b, writable=True) as store:
        store_fork_row(store, Fork("c", "parent", 2, "why not"))
    with pytest.raises(MergeConflict, match="say different things about whose child it is"):
        merge_stores_into_new_one([a, b], tmp_path / "again.db", lambda: NOW)


@pytest.mark.parametrize(("statement", "error", "said"), [
    ("ALTER TABLE volatile_fields RENAME COLUMN field TO slot;ALTER TABLE forks DROP COLUMN live;DELETE FROM _sqlite_migrations WHERE name IN ('m005_words', 'm006_live')", CassetteError, "written by different versions: m004_files and m006_live"),
    ("UPDATE _sqlite_migrations SET name = 'm999_new' WHERE name = 'm005_words'", CassetteNewer, "written by a newer llmproxy"),
    ("UPDATE interactions SET rules = 'others'", CassetteError, "made by different rules"),
    ("UPDATE interactions SET key = replace(key, 'v1:', 'v0:')", CassetteError, "made by different rules"),
])  # fmt: skip
def test_stores_of_different_versions_are_refused(
    statement: str, error: type[CassetteError], said: str, tmp_path: Path
) -> None:
    a, b = fill(tmp_path / "a.db", [named(1, "c")]), fill(tmp_path / "b.db", [named(2, "c")])
    conn = open_sqlite_connection(b, "mode=rw", timeout=5)
    for each in statement.split(";"):
        conn.execute(each)
    conn.close()
    with pytest.raises(error, match=said) as caught:
        merge_stores_into_new_one([a, b], tmp_path / "all.db", lambda: NOW)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "all.db").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, many: Sequence[Interaction]) -> Path:
        with SqliteCassetteStore.open(fill(tmp_path / f"{name}.db", many), writable=False, now=lambda: NOW) as opened:
            kept = CassetteDir(tmp_path / name, now=lambda: NOW)
            for info in opened.cassettes():
                kept.save_cassette(opened, info.name)
        return tmp_path / name

    return make


def texts(path: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(path.iterdir())}


def test_folders_of_ten_parts_are_the_folder_of_one(folder: Callable[..., Path], tmp_path: Path) -> None:
    """Each recorded its own cassettes beside those that were there; in any order, one of them twice."""
    base = [named(1, "base"), named(2, "base")]
    new = {n: [named(10 * n, f"c{n}"), named(10 * n + 1, f"c{n}")] for n in range(1, 11)}
    whole = folder("whole", [*base, *(each for many in new.values() for each in many)])
    parts = [folder(f"part{n}", [*base, *many]) for n, many in new.items()]
    for seed in range(3):
        target = folder(f"target{seed}", base)
        done = merge_cassette_folders([*random.Random(seed).sample(parts, 10), parts[0]], target, lambda: NOW)
        assert (len(done.written), done.unchanged) == (10, 1)
        assert texts(target) == texts(whole)


def test_what_two_parts_added_to_one_cassette_is_put_together(folder: Callable[..., Path]) -> None:
    """Compared with what was there before: one replaced an answer, one added one, and both had the rest."""
    base = [named(1, "c"), named(2, "c")]
    target = folder("target", base)
    one = folder("one", [other(base[0]), base[1]])
    merge_cassette_folders([folder("two", [*base, named(3, "c")]), one], target, lambda: NOW)
    assert texts(target) == texts(folder("wanted", [other(base[0]), base[1], named(3, "c")]))


def test_requests_that_differ_in_a_header_that_counts_are_two(folder: Callable[..., Path]) -> None:
    """Their equal answers are no reason to keep one; a header that does not count makes no second one."""

    def asked(name: str, value: str, extra: str) -> Path:
        one = named(1, "c")
        headers = (*one.request.headers, ("openai-beta", value), ("x-stainless-lang", extra))
        return folder(name, [replace(one, request=replace(one.request, headers=headers))])

    target = folder("target", [])
    merge_cassette_folders(
        [asked("one", "v1", "a"), asked("two", "v2", "a"), asked("three", "v2", "b")], target, lambda: NOW
    )
    assert texts(target)["c.yaml"].count("- request:") == 2


def test_what_two_branches_accept_is_accepted_by_both(folder: Callable[..., Path]) -> None:
    """Each accepted a change and one dropped one: the file says both new ones and not the third, and is read back."""

    def accepted(name: str, *texts: str) -> Path:
        made = [
            SegmentChange("system", "system prompt", "a", text, "0" * 16, digest_texts([text]), ()) for text in texts
        ]
        store = fill(folder(name, [named(1, "c")]).with_suffix(".accepted"), [named(1, "c")])
        with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as opened:
            store_accepted_changes(opened, "c", build_accepted_changes(made, date(2026, 11, 26)))
            CassetteDir(store.with_suffix(""), now=lambda: NOW).save_cassette(opened, "c")
        return store.with_suffix("")

    target = accepted("target", "old")
    merge_cassette_folders([accepted("one", "old", "x"), accepted("two", "y")], target, lambda: NOW)
    assert texts(target) == texts(accepted("wanted", "x", "y"))
    assert "changes:" in texts(target)["c.yaml"]
    with SqliteCassetteStore.open(target.with_suffix(".read"), writable=True, now=lambda: NOW) as opened:
        CassetteDir(target, now=lambda: NOW).load_into(opened, rules=Rules())
        assert {each.exactly for each in read_cassette_accepted_changes(opened, "c")} == {
            frozenset([("0" * 16, digest_texts([text]))]) for text in ("x", "y")
        }


def test_folders_that_answer_one_request_differently_are_a_conflict(folder: Callable[..., Path]) -> None:
    """Nothing is written, not even what is no conflict."""
    one = folder("one", [named(1, "c"), named(5, "fine")])
    two = folder("two", [other(named(1, "c"))])
    target = one.parent / "target"
    target.mkdir()
    with pytest.raises(MergeConflict, match=r"cassette c: POST .*interaction 1 of .*, 1 of "):
        merge_cassette_folders([one, two], target, lambda: NOW)
    assert texts(target) == {}
