"""What a server keeps is part of the question: generated conversations with it, played with a step left out, swapped or doubled."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered, engine

JSON: Headers = (("content-type", "application/json"),)


class Step(NamedTuple):
    """One request: a path and a body with names of what earlier steps made, and what its answer makes."""

    method: str
    path: str
    body: object = None
    makes: str = ""
    changes: str = ""
    """What it changes; empty for a creation and for reading."""


def _plays(rng: random.Random) -> dict[str, list[Step]]:
    """Return conversations with what servers keep, one of each kind, with words by lot."""
    word = f"word-{rng.randrange(10**9)}"
    said = [f"{word}-{n}" for n in range(3)]
    answer = [
        Step("POST", "/v1/responses", {"model": "m", "input": text, "conversation": "{conv}"}, changes="conv")
        for text in said
    ]
    return {
        "conversation": [Step("POST", "/v1/conversations", {}, "conv"), *answer],
        "conversation as an object": [
            Step("POST", "/v1/conversations", {}, "conv"),
            *(each._replace(body={**each.body, "conversation": {"id": "{conv}"}}) for each in answer),  # type: ignore[dict-item]
        ],
        "items": [
            Step("POST", "/v1/conversations", {}, "conv"),
            *(Step("POST", "/v1/conversations/{conv}/items", {"items": [{"type": "message", "role": "user", "content": text}]},
                   changes="conv") for text in said),
            Step("GET", "/v1/conversations/{conv}/items"),
        ],
        "thread": [
            Step("POST", "/v1/assistants", {"model": "m"}, "asst"),
            Step("POST", "/v1/threads", {}, "thread"),
            *(Step("POST", "/v1/threads/{thread}/messages", {"role": "user", "content": text}, changes="thread") for text in said),
            Step("POST", "/v1/threads/{thread}/runs", {"assistant_id": "{asst}"}, "run", changes="thread"),
            Step("GET", "/v1/threads/{thread}/messages"),
        ],
        "vector store": [
            Step("POST", "/v1/vector_stores", {"name": word}, "vs"),
            *(Step("POST", "/v1/vector_stores/{vs}/files", {"file_id": f"file-{text}"}, changes="vs") for text in said),
            Step("POST", "/v1/vector_stores/{vs}/search", {"query": word}),
            Step("POST", "/v1/responses", {"model": "m", "input": word, "tools": [{"type": "file_search", "vector_store_ids": ["{vs}"]}]}),
        ],
        "files": [
            *(Step("POST", "/v1/files", {"file": text}, f"file{n}", changes="files") for n, text in enumerate(said)),
            Step("GET", "/v1/files"),
            Step("DELETE", "/v1/files/{file0}", changes="files"),
            Step("GET", "/v1/files"),
        ],
        "container": [
            Step("POST", "/v1/containers", {"name": word}, "cntr"),
            *(Step("POST", "/v1/containers/{cntr}/files", {"file_id": f"file-{text}"}, changes="cntr") for text in said),
            Step("GET", "/v1/containers/{cntr}/files"),
        ],
        "cache": [
            Step("POST", "/v1beta/cachedContents", {"contents": [{"parts": [{"text": word}]}]}, "cachedContents/c"),
            Step("PATCH", "/v1beta/cachedContents/c", {"ttl": "10s"}, changes="c"),
            Step("POST", "/v1beta/models/g:generateContent", {"contents": [{"parts": [{"text": word}]}], "cachedContent": "cachedContents/c"}),
        ],
        "assistant": [
            Step("POST", "/v1/assistants", {"model": "m"}, "asst"),
            Step("POST", "/v1/assistants/{asst}", {"instructions": word}, changes="asst"),
            Step("POST", "/v1/threads/runs", {"assistant_id": "{asst}"}, "run"),
        ],
        "file of a vector store of an assistant": [
            *(Step("POST", "/v1/files", {"file": text}, f"file{n}", changes="files") for n, text in enumerate(said)),
            Step("POST", "/v1/vector_stores", {"name": word}, "vs"),
            Step("POST", "/v1/assistants", {"tool_resources": {"file_search": {"vector_store_ids": ["{vs}"]}}}, "asst"),
            *(Step("POST", "/v1/vector_stores/{vs}/files", {"file_id": f"{{file{n}}}"}, changes="vs") for n in range(3)),
            Step("POST", "/v1/threads", {"messages": [{"role": "user", "content": word}]}, "thread"),
            Step("DELETE", "/v1/files/{file1}", changes="file1"),
            Step("POST", "/v1/threads/{thread}/runs", {"assistant_id": "{asst}"}, "run", changes="thread"),
            Step("GET", "/v1/threads/{thread}/messages"),
            Step("DELETE", "/v1/vector_stores/{vs}/files/{file2}", changes="vs"),
            Step("GET", "/v1/assistants/{asst}"),
        ],
        "file of a batch": [
            Step("POST", "/v1/files", {"file": word}, "file0", changes="files"),
            Step("POST", "/v1/batches", {"input_file_id": "{file0}"}, "batch"),
            Step("GET", "/v1/batches/{batch}"),
            Step("DELETE", "/v1/files/{file0}", changes="file0"),
            Step("GET", "/v1/batches/{batch}"),
        ],
    }  # fmt: skip


def _fill(value: object, ids: dict[str, str]) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value
    for name, id_ in ids.items():
        text = text.replace(f"{{{name}}}", id_)
    return text


class Played(NamedTuple):
    decision: Decision | None
    interaction: int | None


def play(made: Engine, steps: Sequence[Step], suffix: str = "r") -> list[Played]:
    """Send the steps; where a server is asked, it makes ids with this suffix."""
    ids: dict[str, str] = {}
    found = []
    for step in steps:
        body = b"" if step.body is None else _fill(step.body, ids).encode()
        exchange: Exchange = made.begin_exchange(step.method, _fill(step.path, ids), None, JSON if body else ())
        made.stages.identify_and_decide(exchange, body)
        new = step.makes if "/" in step.makes else f"{step.makes}_{suffix}"
        if exchange.slot is None and exchange.error is None:
            kind = "name" if "/" in step.makes else "id"
            answer = json.dumps({kind: new, "object": "thing"} if step.makes else {"ok": True}).encode()
            answered(made, exchange, answer)
        made.accounting.record_end(exchange, 200 if exchange.error is None else 404)
        if step.makes and exchange.error is None:
            replayed = exchange.slot and json.loads(made.answering.serve_recorded(exchange).body)
            ids[step.makes] = replayed.get("id", new) if replayed else new
        found.append(Played(exchange.decision, exchange.slot.id if exchange.slot else exchange.kept.interaction))
    return found


KINDS = list(_plays(random.Random(0)))
HEAPS = ("vs", "cntr", "files")
"""Things to which something is added in any order."""


def _lists(step: Step) -> bool:
    return step.method == "GET" and step.path.endswith("/files")


def _things(step: Step) -> set[str]:
    """Return the things that a step names, files as a whole where it lists them."""
    text = f"{step.path} {json.dumps(step.body)}"
    named = set(re.findall(r"\{(\w+)\}", text))
    named |= {"files"} if (step.method, step.path) == ("GET", "/v1/files") else set()
    return named | ({"c"} if "cachedContents/c" in text else set())


def _histories(steps: Sequence[Step], happened: Sequence[bool]) -> list[dict[str, list[str]]]:
    """Return what had been made of each thing that a step names, and of what these refer to: what a server answers from."""
    made: dict[str, list[str]] = {}
    refers: dict[str, set[str]] = {}
    found = []
    for step, did in zip(steps, happened, strict=True):
        todo = sorted(_things(step) - ({step.changes} if step.changes in HEAPS else set()))
        for thing in todo:
            todo += sorted(refers.get(thing, set()) - set(todo))
        history = {
            thing: sorted(made.get(thing, [])) if thing in HEAPS and not _lists(step) else list(made.get(thing, []))
            for thing in todo
        }
        found.append(history)
        if not did:
            continue
        text = f"{step.method} {step.path} {json.dumps(step.body)} after {sorted(history.items())}"
        files = {"files"} if step.makes.startswith("file") or "/v1/files" in step.path else set()
        changed = ({step.changes} | files) - {""}
        for thing in changed if step.method != "GET" else ():
            made.setdefault(thing, []).append(text)
        for thing in (changed | {step.makes}) - {"", "files"}:
            refers.setdefault(thing, set()).update(_things(step))
    return found


def _mutate(rng: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Return the steps with one left out, said twice, swapped with another, or moved to the end."""
    found = list(steps)
    for _ in range(rng.choice((1, 1, 2))):
        n, m = (rng.randrange(len(found)) for _ in "12")
        match rng.choice(("out", "twice", "swap", "end")):
            case "out" if len(found) > 2:
                found.pop(n)
            case "twice":
                found.insert(m, found[n])
            case "swap":
                found[n], found[m] = found[m], found[n]
            case _:
                found.append(found.pop(n))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_served_only_in_the_state_in_which_it_was_given(kind: str, tmp_path: Path) -> None:
    """Steps left out, doubled, swapped: whatever is served was recorded after the very changes that were made here; 0 wrong."""
    covered = Counter[Decision | None]()
    rng = random.Random(kind)
    steps = _plays(rng)[kind]
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        recorded = play(made, steps)
    before = dict(zip([each.interaction for each in recorded], _histories(steps, [True] * len(steps)), strict=True))
    with engine(tmp_path / "a.db", Mode.REPLAY) as made:
        assert play(made, steps) == [Played(Decision.REPLAY, each.interaction) for each in recorded]
    for _ in range(20):
        asked = _mutate(rng, steps)
        with engine(tmp_path / "a.db", Mode.REPLAY) as made:
            made.sessions.open_session("default")
            got = play(made, asked)
        happened = [each.decision is Decision.REPLAY for each in got]
        for step, each, history in zip(asked, got, _histories(asked, happened), strict=True):
            covered[each.decision] += 1
            if each.decision is Decision.REPLAY:
                assert history == before[each.interaction], (step, asked)
    assert covered[Decision.REPLAY] > 10
    assert covered[Decision.REFUSE] > 5


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "cache"])
def test_other_ids_of_a_second_recording_are_the_same_question(kind: str, tmp_path: Path) -> None:
    """A change is told by what was asked, not by random ids: keys of two recordings agree."""
    keys = []
    for suffix in ("one", "two"):
        with engine(tmp_path / f"{suffix}.db", Mode.RECORD) as made:
            play(made, _plays(random.Random(7))[kind], suffix)
            assert made.store is not None
            keys.append([row.key for row in made.store.list_summaries()])
    assert keys[0] == keys[1]


@pytest.mark.parametrize("kind", ["vector store", "files", "container"])
def test_what_is_added_in_any_order_is_found(kind: str, tmp_path: Path) -> None:
    """Files that are sent side by side arrive in any order: only a list of them depends on it."""
    steps = _plays(random.Random(3))[kind]
    changing = [n for n, each in enumerate(steps) if each.changes in ("vs", "cntr") or each.makes.startswith("file")]
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        play(made, steps)
    turned = list(steps)
    for n, m in zip(changing, reversed(changing), strict=True):
        turned[n] = steps[m]
    with engine(tmp_path / "a.db", Mode.REPLAY) as made:
        for step, each in zip(turned, play(made, turned), strict=True):
            assert each.decision is (Decision.REFUSE if _lists(step) else Decision.REPLAY)


READ_AFTER = """
responses/{id} POST responses/{id}/cancel | responses/{id} DELETE responses/{id} | responses/{id}/input_items DELETE responses/{id}
batches/{id} POST batches/{id}/cancel | messages/batches/{id} POST messages/batches/{id}/cancel | uploads/{id} POST uploads/{id}/parts
fine_tuning/jobs/{id} POST fine_tuning/jobs/{id}/pause | fine_tuning/jobs POST fine_tuning/jobs/{id}/cancel | models/ft:m DELETE models/ft:m
chat/completions/{id} POST chat/completions/{id} | chat/completions/{id} DELETE chat/completions/{id} | evals/{id} POST evals/{id}
evals/{id}/runs POST evals/{id}/runs | videos/{id} DELETE videos/{id} | containers/{id}/files POST containers/{id}/files
skills/{id}/versions POST skills/{id}/versions | conversations/{id} POST conversations/{id} | assistants/{id} DELETE assistants/{id}
conversations/{id}/items DELETE conversations/{id}/items/msg_1 | vector_stores/{id}/files/f POST vector_stores/{id}/files/f
threads/{id}/messages POST threads/{id}/messages | threads/{id}/runs/run_1 POST threads/{id}/runs/run_1/cancel | files/{id} DELETE files/{id}
audio/voices DELETE audio/voices/{id} | chatkit/sessions/{id} POST chatkit/sessions/{id}/cancel | libraries/{id}/documents POST libraries/{id}/documents
/v1beta/fileSearchStores/{id}/documents POST /v1beta/fileSearchStores/{id}:importFile | /v1beta/interactions/{id} DELETE /v1beta/interactions/{id}
/api/tags DELETE /api/delete | /api/tags POST /api/pull | /api/ps POST /api/copy | /replicate/v1/predictions/{id} POST /replicate/v1/predictions/{id}/cancel
"""
"""What is read, and what changes it."""


@pytest.mark.parametrize(
    "case", [each.strip() for line in READ_AFTER.split("\n") for each in line.split("|") if each.strip()]
)
def test_what_was_read_after_a_change_is_not_served_without_it(case: str, tmp_path: Path) -> None:
    """Nor is what was read before it served after it; as recorded it is."""
    read, method, path = (each if each.startswith("/") or each.isupper() else f"/v1/{each}" for each in case.split())
    root, said = re.split(r"/\{|/ft:", read)[0], [{"role": "user", "content": "x"}]
    body = {"model": "m", "input": "x", "messages": said}
    make = Step("POST", root if "{id}" in path else "/v1/responses", body, "id")
    look, change = Step("GET", read), Step(method, path, None if method == "DELETE" else {"x": 1})
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        _, before, _, after = play(made, [make, look, change, look])

    def replay(*steps: Step) -> list[Played]:
        with engine(tmp_path / "a.db", Mode.REPLAY) as made:
            made.sessions.open_session("default")
            return play(made, steps)

    assert {each.decision for each in replay(make, look, change, look)} == {Decision.REPLAY}
    assert Played(Decision.REPLAY, after.interaction) not in replay(make, look, look)
    assert Played(Decision.REPLAY, before.interaction) not in replay(make, change, look)


CREATIONS = [
    Step("POST", "/v1/conversations", {}), Step("POST", "/v1/threads", {}), Step("POST", "/v1/files", {"file": "x"}),
    Step("POST", "/v1/uploads", {"bytes": 3}), Step("POST", "/v1/vector_stores", {}), Step("POST", "/v1/assistants", {}),
    Step("POST", "/v1/batches", {"input_file_id": "file-x"}), Step("POST", "/v1/threads/runs", {"assistant_id": "a"}),
    Step("POST", "/v1beta/cachedContents", {"contents": []}), Step("POST", "/v1/messages/batches", {"requests": []}),
    Step("DELETE", "/v1/files/file-x"), Step("DELETE", "/v1/conversations/conv_x"), Step("DELETE", "/v1/models/ft-x"),
    Step("DELETE", "/v1/responses/resp_x"), Step("POST", "/api/create", {"model": "x", "stream": False}),
]  # fmt: skip


READING = [
    Step("GET", "/v1/files"), Step("GET", "/v1/files/file-x"), Step("POST", "/v1/vector_stores/vs_x/search", {"query": "x"}),
    Step("POST", "/v1/embeddings", {"model": "m", "input": "x"}), Step("POST", "/v1/responses", {"model": "m", "input": "x"}),
]  # fmt: skip


ASKED_AGAIN = [*((each, Decision.REFUSE) for each in CREATIONS), *((each, Decision.REPLAY) for each in READING)]


@pytest.mark.parametrize(("step", "again"), ASKED_AGAIN, ids=lambda each: str(each)[:80])
def test_creations_are_not_answered_twice(step: Step, again: Decision, tmp_path: Path) -> None:
    """Recorded once and asked three times: what changes nothing gets the last answer once more."""
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        play(made, [step])
    with engine(tmp_path / "a.db", Mode.REPLAY) as made:
        assert [each.decision for each in play(made, [step] * 3)] == [Decision.REPLAY, again, again]


def test_a_change_that_failed_changed_nothing(tmp_path: Path) -> None:
    """A retry after an error is the same question, and what follows it as well."""
    steps = _plays(random.Random(1))["items"]
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        play(made, steps)
        session = made.sessions.open_sessions["default"]
        before = session.position.changes.digest_state(["conv_r"], lambda _: None)
        exchange = made.begin_exchange("POST", "/v1/conversations/conv_r/items", None, JSON)
        made.stages.identify_and_decide(exchange, b'{"items": []}')
        assert session.position.changes.digest_state(["conv_r"], lambda _: None) != before
        made.accounting.record_end(exchange, 500)
        assert session.position.changes.digest_state(["conv_r"], lambda _: None) == before


def test_the_next_run_of_the_same_agent_begins_without_changes(tmp_path: Path) -> None:
    """In a session that nobody opened the first request begins again, and what the run before changed is forgotten."""
    steps = _plays(random.Random(2))["thread"]
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        recorded = play(made, steps)
    with engine(tmp_path / "a.db", Mode.REPLAY) as made:
        for _ in range(3):
            assert [each.interaction for each in play(made, steps)] == [each.interaction for each in recorded]


def test_only_what_was_put_in_is_taken_out(tmp_path: Path) -> None:
    """Files are put into a store, and taken out of it, in any order; a file that never was in it is not taken out."""
    files = [Step("POST", "/v1/files", {"file": word}, word) for word in ("one", "two")]
    store = Step("POST", "/v1/vector_stores", {"name": "x"}, "vs")
    put = [Step("POST", "/v1/vector_stores/{vs}/files", {"file_id": f"{{{word}}}"}) for word in ("one", "two")]
    out = [Step("DELETE", f"/v1/vector_stores/{{vs}}/files/{{{word}}}") for word in ("one", "two")]
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        play(made, [*files, store, *put, *out])
    for steps, served in (
        ([*files, store, *put[::-1], *out[::-1]], [True, True]),
        ([*files, store, put[0], *out], [True, False]),
        ([*files, store, *out], [False, False]),
    ):
        with engine(tmp_path / "a.db", Mode.REPLAY) as made:
            found = play(made, steps)[-2:]
        assert [each.decision is Decision.REPLAY for each in found] == served
