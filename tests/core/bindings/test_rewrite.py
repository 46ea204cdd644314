"""Recorded answers as this run must get them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    IdPair,
    IdPairs,
    MisfitReason,
    Mismatch,
    RunVariable,
    VolatileField,
    match_requests_with_bindings,
    rewrite_answer,
    rewrite_exact_hit_answer,
)
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.support.messages import used
from tests.support.narrowing import narrow

Json = Any
OLD, NEW = "3f2b9c1e-0000-4000-8000-00000000000a", "77777777-1111-4111-8111-00000000000b"
BINDINGS = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/ci/w")])
EMPTY = Fit((), ())


def _whole(value: Json) -> Response:
    return Response(200, "OK", (("content-type", "application/json"),), (Chunk(5, json.dumps(value).encode()),))


def _stream(*events: Json) -> Response:
    chunks = [Chunk(100 * n, b"data: " + json.dumps(event).encode() + b"\n\n") for n, event in enumerate(events, 1)]
    return Response(200, "OK", (("content-type", "text/event-stream"), ("etag", "e")), tuple(chunks), chunked=True)


def _message(*blocks: Json) -> Response:
    return _whole({"type": "message", "role": "assistant", "content": list(blocks)})


def _blocks(response: Response | Mismatch) -> list[Json]:
    assert isinstance(response, Response), str(response)
    return list(json.loads(response.body)["content"])


def _identity(kind: str = "uuid", old: str = OLD, new: str = NEW) -> Fit:
    return Fit((), (IdPair("made", kind, old, new),))


def _bound(before: dict[str, str], now: dict[str, str]) -> Bindings:
    recorded, present = ([RunVariable(*each) for each in run.items()] for run in (before, now))
    return Bindings(recorded, present)


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _use(tool: str, **arguments: Json) -> Json:
    return {"type": "tool_use", "id": "t", "name": tool, "input": arguments}


def _fitted(bindings: Bindings, recorded: str, present: str) -> Fit:
    return narrow(Fit, match_requests_with_bindings(bindings, {"system": recorded}, {"system": present}))


SPACE = _bound({"cwd": "/tmp/a"}, {"cwd": "/srv/my work"})
ONE_OF_TWO = _bound({"cwd": "/h", "home": "/h"}, {"cwd": "/w", "home": "/users/ann"})
WORDS = _bound(
    {"date": "2026-11-22", "user": "kim", "git_branch": "main"},
    {"date": "2026-11-23", "user": "ann", "git_branch": "dev"},
)
SEVENS = _bound({"task.id": "7", "user.id": "7"}, {"task.id": "1007", "user.id": "2001"})
BELOW_HOME = _bound({"cwd": "/tmp/a", "home": "/home/ann"}, {"cwd": "/home/kim/src/a", "home": "/home/kim"})
SHOP = _bound({"cwd": "/tmp/shop", "home": "/home/ann"}, {"cwd": "/srv/of-today", "home": "/srv/kim"})
MADE, SWAPPED = _identity(), Fit((), (IdPair("one", "uuid", OLD, NEW), IdPair("other", "uuid", NEW, OLD)))
COMMIT, NEW_COMMIT = "1f3a9c0de4" * 4, "ab01cd23ef" * 4
DECLARED = _bound({"head": COMMIT, "task.id": OLD}, {"head": NEW_COMMIT, "task.id": NEW})
SECOND = Fit((), (IdPair("task_id", "integer", "4500", "3333"), IdPair("task_id_2", "integer", "1240", "6666")))


@pytest.mark.parametrize(("bindings", "fit", "said", "wanted"), [
    pytest.param(BINDINGS, EMPTY, _text("/tmp/ab is no folder of ours"), None, id="no value"),
    pytest.param(BINDINGS, MADE, _use("write", path=f"out/{OLD}.txt", text=f"id={OLD}_x"),
                 _use("write", path=f"out/{NEW}.txt", text=f"id={NEW}_x"), id="an id has borders of letters and digits only"),
    pytest.param(BINDINGS, MADE, _text(f"x{OLD}y"), MisfitReason.LEAKED, id="an id glued to other letters"),
    pytest.param(BINDINGS, SWAPPED, _text(f"{OLD}, then {NEW}"), _text(f"{NEW}, then {OLD}"), id="two ids that changed places"),
    pytest.param(BINDINGS, SWAPPED, _use("edit", **{OLD: 1, "x": {NEW: OLD}, NEW: 2}), _use("edit", **{NEW: 1, "x": {OLD: NEW}, OLD: 2}),
                 id="members that changed places"),
    *(pytest.param(BINDINGS, _identity("hex", COMMIT, NEW_COMMIT), _text(f"at {COMMIT[:n]}."), _text(f"at {NEW_COMMIT[:n]}."),
                   id=f"{n} digits of a commit") for n in (40, 10, 7)),
    *(pytest.param(DECLARED, EMPTY, _text(f"at {COMMIT[:n]}."), _text(f"at {NEW_COMMIT[:n]}."), id=f"{n} digits of a declared one") for n in (40, 7)),
    pytest.param(DECLARED, EMPTY, _use("bash", command=f"git show {COMMIT[:5]}"), (MisfitReason.LEAKED, "head"), id="5 digits of a declared one"),
    pytest.param(DECLARED, EMPTY, _text(f"task {OLD[:8]}"), _text(f"task {NEW[:8]}"), id="the beginning of a declared UUID"),
    pytest.param(DECLARED, Fit((), (), unchanged={COMMIT}), _text(f"at {COMMIT[:8]}."), None, id="this run's request has the declared one"),
    pytest.param(BINDINGS, SECOND, _use("delete_task", task_id="1240"), _use("delete_task", task_id="6666"), id="a second value of a name"),
    pytest.param(BINDINGS, SECOND, _use("delete_task", id=4500), _use("delete_task", id=3333), id="the first value of a name"),
    pytest.param(BINDINGS, SECOND, _use("tag", x=["1240"]), MisfitReason.SHORT, id="an old number as a text that no name explains"),
    pytest.param(BINDINGS, SECOND, _use("tag", x=1240, y=True), MisfitReason.SHORT, id="an old number that no name explains"),
    pytest.param(BINDINGS, _identity("pid", "1240", "6666"), _use("Bash", command="kill 1240"), MisfitReason.SHORT, id="the recorded process"),
    pytest.param(BINDINGS, _identity("integer", "7", "9"), _use("tag", x=7), None, id="a small number may be anything"),
    pytest.param(SPACE, EMPTY, _use("bash", command="cat /tmp/a/x"), MisfitReason.QUOTING, id="a space would make two words of it"),
    pytest.param(SPACE, EMPTY, _use("bash", command='cat "/tmp/a/x"'), _use("bash", command='cat "/srv/my work/x"'), id="in quotes"),
    pytest.param(SPACE, EMPTY, _use("bash", command="cat '/tmp/a/x'"), _use("bash", command="cat '/srv/my work/x'"), id="in others"),
    *(pytest.param(SPACE, EMPTY, _text(f"See /tmp/a:\n{fence}bash\ncat /tmp/a/x\n{fence}\n"), MisfitReason.QUOTING, id=f"a block of code, {fence}")
      for fence in ("```", "~~~")),
    pytest.param(SPACE, EMPTY, _text("See /tmp/a:\ncat /tmp/a/x\n"), _text("See /srv/my work:\ncat /srv/my work/x\n"), id="prose is no command"),
    pytest.param(SPACE, EMPTY, _use("read", file_path="/tmp/a/x"), _use("read", file_path="/srv/my work/x"), id="a whole argument"),
    pytest.param(ONE_OF_TWO, EMPTY, _text("in /h"), MisfitReason.AMBIGUOUS, id="cwd was home, and nobody shows which is meant"),
    pytest.param(ONE_OF_TWO, _fitted(ONE_OF_TWO, "in /h", "in /w"), _text("in /h"), _text("in /w"), id="the request shows which"),
    pytest.param(WORDS, EMPTY, _text("2026-11-22\nbranch: main\nkim"), None, id="days and words"),
    pytest.param(SEVENS, EMPTY, _use("assign_user_task", id=7), (MisfitReason.AMBIGUOUS, "task.id and user.id"), id="one number of two things"),
    pytest.param(SEVENS, EMPTY, _use("assign_user_task", task_id=7, user_id=7), _use("assign_user_task", task_id=1007, user_id=2001),
                 id="two numbers by their names"),
    *(pytest.param(BINDINGS, MADE, _text(f"made {write(OLD)}."), _text(f"made {write(NEW)}."), id=name)
      for name, write in (("in capitals", str.upper), ("without dashes", lambda text: text.replace("-", "")),
                          ("with others", lambda text: text.replace("-", "_")))),
    pytest.param(BINDINGS, MADE, _text(f"made x{OLD.upper()}y."), MisfitReason.LEAKED, id="in capitals between letters"),
    pytest.param(BINDINGS, EMPTY, _use("edit", changes={"/tmp/a": 1, "/srv/ci/w": 2}), MisfitReason.NOT_ONE_TO_ONE, id="two members become one"),
    pytest.param(BELOW_HOME, _fitted(BELOW_HOME, "in /tmp/a", "in ~/src/a"), _use("bash", command='cat "/tmp/a/x"'),
                 _use("bash", command='cat "/home/kim/src/a/x"'), id="a shell makes no home of a tilde in quotes"),
    pytest.param(BINDINGS, _identity("word", "release-12345", "release-1;id"), _use("bash", command="deploy release-12345"), MisfitReason.QUOTING,
                 id="a word that means something to a shell"),
    pytest.param(SHOP, EMPTY, _text("see /home/ann/.gemini/tmp/shop/logs"), _text("see /srv/kim/.gemini/tmp/of-today/logs"), id="gemini's folder"),
    pytest.param(SHOP, EMPTY, _text("see /home/ann/.config/shop/x"), _text("see /srv/kim/.config/shop/x"), id="one called so by chance"),
])  # fmt: skip
def test_a_block_is_rewritten_refused_or_the_same(bindings: Bindings, fit: Fit, said: Json, wanted: Json) -> None:
    """What this run gets, in the order of its members; or why it gets nothing; or (None) the same object, nothing copied."""
    answer = _message(said)
    got = rewrite_answer(bindings, fit, answer)
    if wanted is None:
        assert got is answer
    elif isinstance(wanted, dict):
        assert json.dumps(_blocks(got)) == json.dumps([wanted])
    else:
        assert isinstance(got, Mismatch), got
        assert wanted in (got.why, (got.why, got.name)), str(got)


ORDERS = _bound(
    {"date": "2026-11-22", "git_status": "M x", "order": "order-123456"},
    {"date": "2026-11-23", "git_status": "M y", "order": "order-654321"},
)


@pytest.mark.parametrize(("bindings", "request_", "more", "said", "wanted"), [
    pytest.param(BINDINGS, "", {}, [_text("/tmp/a is allowed")], [_text("/srv/ci/w is allowed")], id="this run's folder"),
    pytest.param(BINDINGS, "is /tmp/a/x there?", {}, [_text("/tmp/a is allowed")], None, id="a request that names the recorded one"),
    pytest.param(BINDINGS, "", {"named": frozenset()}, [_text("/tmp/a is ours"), _use("read", path="/tmp/a/x")],
                 [_text("/tmp/a is ours"), _use("read", path="/srv/ci/w/x")], id="in words only what the run named"),
    pytest.param(BINDINGS, "", {"named": frozenset({"cwd"})}, [_text("/tmp/a is ours")], [_text("/srv/ci/w is ours")], id="named before"),
    *(pytest.param(_bound({"tmp": folder}, {"tmp": "/srv/ci/tmp"}), "", {},
                   [_text(f"Linux uses {folder}, which is cleared at reboot"), _use("write", content=f"WORKDIR {folder}")], None, id=folder)
      for folder in ("/tmp", "/root", "/app", "/usr/local", "/usr/src/app", "/var/tmp")),
    pytest.param(BINDINGS, "", {"known": IdPairs([IdPair("made", "uuid", OLD, NEW)])}, [_text(f"made {OLD}")], [_text(f"made {NEW}")],
                 id="what a tool made this time"),
    pytest.param(BINDINGS, OLD, {"known": IdPairs([IdPair("made", "uuid", OLD, NEW)])}, [_text(f"made {OLD}")], None,
                 id="a request that holds the recorded id"),
    pytest.param(BINDINGS, "close it", {"known": IdPairs([IdPair("task", "integer", "7", "1007")])}, [_use("close_task", id=7)], None,
                 id="a short id may be another thing's"),
    pytest.param(ORDERS, "", {}, [_text("2026-11-22 order-123456")], None, id="days and blocks"),
])  # fmt: skip
def test_an_exact_hit_names_this_runs_folders_and_ids(
    bindings: Bindings, request_: str, more: dict[str, Json], said: list[Json], wanted: list[Json] | None
) -> None:
    """An equal question gets the recorded words but for these; the same object where there are none."""
    answer = _message(*said)
    got = rewrite_exact_hit_answer(bindings, {"messages": [{"role": "user", "content": request_}]}, answer, **more)
    assert got is answer if wanted is None else _blocks(got) == wanted


@pytest.mark.parametrize(("asked", "said"), [
    ("", "mv /tmp/a/data /srv/ci/w/data"),
    ("move it to /srv/ci/w", "rm -rf /tmp/a/data"),
    ("", "rm -rf /tmp/a/data ~/x"),
    ("", "echo WORKDIR /app; rm -rf /tmp/a/data"),  # no folder of a run
])  # fmt: skip
def test_two_folders_stay_two(asked: str, said: str) -> None:
    """One of them is this run's by now: the recorded command would be about one folder."""
    answer = _message(_use("bash", command=said), _text("Moved."))
    bindings = _bound(
        {"cwd": "/tmp/a"}, {"cwd": "/srv/x" if "~" in said else "/app" if "/app" in said else "/srv/ci/w"}
    )
    request = {"messages": [{"role": "user", "content": asked}]}
    got = [rewrite_exact_hit_answer(bindings, request, answer)]
    got += [] if asked else [rewrite_answer(bindings, EMPTY, answer)]  # a request that fits does not hold it
    if "~" in said or "/app" in said:
        assert all(isinstance(each, Response) for each in got), got
    else:
        assert [(narrow(Mismatch, each).why, narrow(Mismatch, each).name) for each in got] == [
            (MisfitReason.MERGED, "cwd")
        ] * len(got)


def test_only_the_deltas_that_held_the_value_change() -> None:
    """The present value goes out where the recorded one began; every other piece and every time stays."""
    pieces = ["see ", "/t", "mp", "/a", "/x ", "and", " more"]
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    events = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    before = _stream(*events, {"type": "message_stop"})
    got = narrow(Response, rewrite_answer(BINDINGS, EMPTY, before))
    texts = [json.loads(chunk.data[6:])["delta"]["text"] for chunk in got.chunks[:-1]]
    assert texts == ["see ", "/srv/ci/w", "", "", "/x ", "and", " more"]
    assert [chunk.offset for chunk in got.chunks] == [chunk.offset for chunk in before.chunks]
    for n in (0, 5, 6, 7):
        assert got.chunks[n] == before.chunks[n]


@pytest.mark.parametrize("around", [
    {"message": {"role": "assistant", "content": "%s"}, "done": False},
    {"response": "%s", "done": False},
    {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "%s"}}}},
    {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": "%s"}}}}},
])  # fmt: skip
def test_a_value_is_found_over_the_pieces_of_ollama_and_cohere(around: Json) -> None:
    before = _stream(*(json.loads(json.dumps(around) % piece) for piece in ("see /t", "mp/a/x")))
    got = narrow(Response, rewrite_answer(BINDINGS, EMPTY, before))
    wanted = _stream(*(json.loads(json.dumps(around) % piece) for piece in ("see /srv/ci/w", "/x")))
    assert got.body == wanted.body


def test_events_of_one_array_that_are_alike_are_each_rewritten() -> None:
    """Gemini without `alt=sse` answers with one array, whose events may be equal."""
    event = {"candidates": [{"content": {"parts": [{"text": "in /tmp/a now. "}], "role": "model"}}]}
    made = rewrite_answer(BINDINGS, EMPTY, _whole([event, event, {"candidates": []}, event]))
    assert isinstance(made, Response), str(made)
    assert made.body.count(b"/srv/ci/w") == 3, made.body
    assert b"/tmp/a" not in made.body


def test_a_rewritten_answer_loses_what_is_no_longer_true_of_it() -> None:
    """Digests, lengths and encodings go; the rest of the head stays."""
    names = ("content-length", "content-encoding", "ETag", "content-digest", "x-request-id", "content-type")
    headers = tuple((name, "application/json") for name in names)
    answer = Response(200, "OK", headers, _message(_text("in /tmp/a")).chunks)
    got = narrow(Response, rewrite_answer(BINDINGS, EMPTY, answer))
    assert [name for name, _ in got.headers] == ["x-request-id", "content-type"]


def test_arguments_stay_json() -> None:
    """A path with a quote or a letter beyond ASCII is escaped as the arguments need it, in pieces too."""
    bindings = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", '/srv/"é')])
    written = json.dumps({"file_path": "/tmp/a/x.py", "old_string": 'say "/tmp/a"\n'})
    events = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]}
        for piece in [written[:7], written[7:19], written[19:]]
    ]
    got = narrow(Response, rewrite_answer(bindings, EMPTY, _stream(*events)))
    values = [json.loads(chunk.data[6:]) for chunk in got.chunks]
    joined = "".join(value["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for value in values)
    assert json.loads(joined) == {"file_path": '/srv/"é/x.py', "old_string": 'say "/srv/"é"\n'}


def test_what_only_its_maker_can_read_is_left_alone() -> None:
    """Signed thinking, its signature, encrypted content: never rewritten."""
    thinking = {"type": "thinking", "thinking": "in /tmp/a", "signature": "c2ln"}
    got = _blocks(rewrite_answer(BINDINGS, EMPTY, _message(thinking, {"type": "text", "text": "/tmp/a"})))
    assert got == [thinking, {"type": "text", "text": "/srv/ci/w"}]


@pytest.mark.parametrize("text", ["{made}", "{other}", "see /tmp/a/x and {made}.txt", "{made} {other}"])
def test_what_this_run_made_leaks_nothing(text: str) -> None:
    """Four digits of a new id, or of another uuid, or a folder's name, begin a recorded id by chance."""
    other, folder = "99999999-9999-4999-8999-99993f2b9999", "/srv/3f2b/w"
    new = NEW.replace("-1111-", "-3f2b-")
    bindings = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", folder)])
    said, wanted = (text.format(made=made, other=other.replace("-9999-", "-3f2b-")) for made in (OLD, new))
    result = rewrite_answer(bindings, _identity(new=new), _message({"type": "text", "text": said}))
    assert _blocks(result)[0]["text"] == wanted.replace("/tmp/a", folder)
    left = rewrite_answer(bindings, _identity(new=new), _message(_text(f"{said}, in short 3f2b")))
    assert narrow(Mismatch, left).why is MisfitReason.LEAKED


def test_what_was_one_value_and_is_two_now_does_not_fit() -> None:
    """Which of the two does the answer mean?"""
    fields = [VolatileField(name, "uuid", name, at="$.id") for name in ("one", "other")]

    def request(*ids: str) -> Json:
        turns = [
            each
            for n, name in enumerate(("one", "other"))
            for each in used(name, {}, json.dumps({"id": ids[n]}), f"c{n}")
        ]
        return {"model": "m", "messages": [{"role": "user", "content": "go"}, *turns]}

    third = OLD.replace("3f2b", "1234")
    for now, why in (((NEW, third), MisfitReason.AMBIGUOUS), ((NEW, NEW), None), ((OLD, OLD), None)):
        fit = match_requests_with_bindings(Bindings([], [], fields), request(OLD, OLD), request(*now))
        assert (fit.why if isinstance(fit, Mismatch) else None) is why, fit


def test_one_value_seen_both_ways_that_the_answer_holds_is_a_miss() -> None:
    """The request names the recorded folder and this one: which does the answer mean?"""
    bodies = [{"system": f"in {cwd}; a file says /tmp/a"} for cwd in ("/tmp/a", "/srv/ci/w")]
    fit = narrow(Fit, match_requests_with_bindings(BINDINGS, bodies[0], bodies[1]))
    result = narrow(Mismatch, rewrite_answer(BINDINGS, fit, _message({"type": "text", "text": "cd /tmp/a"})))
    assert result.why is MisfitReason.BOTH_WAYS
    assert "cwd" in str(result)
    unchanged = narrow(Fit, match_requests_with_bindings(BINDINGS, bodies[0], bodies[0]))
    same = _message({"type": "text", "text": "cd /tmp/a"})
    assert rewrite_answer(BINDINGS, unchanged, same) is same


def test_a_short_id_is_written_only_at_arguments_that_name_it() -> None:
    """Task 7 becomes task 1007 at ``task_id``; seats, texts and other things' ids stay."""
    bindings = Bindings([RunVariable("task.id", "7")], [RunVariable("task.id", "1007")])
    arguments = {"task_id": 7, "seats": 7, "note": "7", "ids": [7]}
    blocks = [_use(name, **arguments) for name in ("close_task", "close_order")]
    words = "Of 7 tasks, order 7 at 7.5 % on 2026-11-7 for $7"
    first, second, text = _blocks(rewrite_answer(bindings, EMPTY, _message(*blocks, {"type": "text", "text": words})))
    assert first["input"] == {"task_id": 1007, "seats": 7, "note": "7", "ids": [1007]}
    assert second["input"] == {"task_id": 1007, "seats": 7, "note": "7", "ids": [7]}
    assert text["text"] == words
    call = {"type": "function_call", "call_id": "c", "name": "close_task", "arguments": json.dumps(arguments)}
    got = narrow(Response, rewrite_answer(bindings, EMPTY, _whole({"object": "response", "output": [call]})))
    assert json.loads(json.loads(got.body)["output"][0]["arguments"]) == first["input"]


@pytest.mark.parametrize("words", [
    "Task 7", "I closed task #7.", "task_id: 7", "Tasks 3 and 7 are open", "Created with ID 7", "(task `7`)",
    "Added #7",
])  # fmt: skip
def test_a_sentence_that_names_a_thing_by_its_old_number_is_not_said(words: str) -> None:
    """In prose a number is not exchanged, so an answer that means the thing would be wrong: a miss that says which."""
    bindings = Bindings([RunVariable("task.id", "7")], [RunVariable("task.id", "1007")])
    answer = _message({"type": "text", "text": words})
    result = narrow(Mismatch, rewrite_answer(bindings, EMPTY, answer))
    assert (result.why, result.name, result.recorded, result.present) == (MisfitReason.SHORT, "task.id", "7", "1007")
    unchanged = Fit((), (), unchanged={"task.id=7"})
    assert rewrite_answer(bindings, unchanged, answer) is answer, "this run calls it so too"
    assert rewrite_answer(bindings, EMPTY, answer, strict=False) is answer, "nobody is answered with it"


@pytest.mark.parametrize(("kind", "old", "new", "command"), [
    ("integer", "1007", "2033", "close 1007"),
    ("hex", "a1b2", "c3d4", "touch a1b2.txt"),
    ("name", "topic", "other", "git push origin topic"),
    ("hex", "0a1b2c3d4e" * 4, "ffeeddccbb" * 4, "git show 0a1b2"),
])  # fmt: skip
def test_a_command_with_what_the_recorded_tool_made_is_not_run(kind: str, old: str, new: str, command: str) -> None:
    """Too short to be exchanged in a text, and long enough to be meant."""
    call = _message(_use("bash", command=command))
    result = narrow(Mismatch, rewrite_answer(BINDINGS, _identity(kind, old, new), call))
    assert result.why in (MisfitReason.SHORT, MisfitReason.LEAKED)
    other = _message(_use("bash", command="git show deadbeef 10071"))
    assert rewrite_answer(BINDINGS, _identity(kind, old, new), other) is other


@pytest.mark.parametrize("written", [True, False])
def test_members_are_called_by_this_runs_values(written: bool) -> None:
    """``{"/tmp/a/x.py": ...}``: in arguments that are text and in those that are an object, in their order."""
    old = {"changes": {"file:///tmp/a/y": 1, "/tmp/a/x.py": {OLD: "/tmp/a"}, "z": 2}, "seats": 7}
    new = {"changes": {"file:///srv/ci/w/y": 1, "/srv/ci/w/x.py": {NEW: "/srv/ci/w"}, "z": 2}, "seats": 7}
    call = {"type": "function_call", "call_id": "c", "name": "edit", "arguments": json.dumps(old)}
    answer = _whole({"object": "response", "output": [call]}) if written else _message(_use("edit", **old))
    body = json.loads(narrow(Response, rewrite_answer(BINDINGS, _identity(), answer)).body)
    assert (body["output"][0]["arguments"] if written else json.dumps(body["content"][0]["input"])) == json.dumps(new)


def test_what_a_tool_answers_as_an_object_is_rewritten_whole() -> None:
    """A member of it may be called as an envelope's is: ``name``, ``data``."""
    result = {"content": [], "structuredContent": {"name": "/tmp/a/x", "data": {"/tmp/a": 1}}}
    got = narrow(Response, rewrite_answer(BINDINGS, EMPTY, _whole({"jsonrpc": "2.0", "id": 1, "result": result})))
    assert json.loads(got.body)["result"]["structuredContent"] == {"name": "/srv/ci/w/x", "data": {"/srv/ci/w": 1}}


@pytest.mark.parametrize("number", [True, False])
def test_a_short_id_that_this_run_leaves_as_it_was_stays_in_the_answer(number: bool) -> None:
    """A request that names the old task by its old id means the old one; one in which both ids are the same task's is a miss."""
    bindings = Bindings([RunVariable("task.id", "7")], [RunVariable("task.id", "1007")])
    old, new = (7, 1007) if number else ("7", "1007")

    def asked(*ids: object) -> dict[str, Json]:
        call = {"type": "tool_use", "id": "@0", "name": "list_tasks", "input": {}}
        told = {"type": "tool_result", "tool_use_id": "@0", "content": json.dumps([{"task_id": each} for each in ids])}
        return {"messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": [told]}]}

    answer = _message({"type": "tool_use", "id": "t", "name": "close_task", "input": {"task_id": old}})
    for ids, wanted in (((new, 3), new), ((old, 3), old)):
        fit = narrow(Fit, match_requests_with_bindings(bindings, asked(old, 3), asked(*ids)))
        assert _blocks(rewrite_answer(bindings, fit, answer))[0]["input"] == {"task_id": wanted}
    both = narrow(Mismatch, match_requests_with_bindings(bindings, asked(old, old), asked(new, old)))
    assert (both.why, both.name) == (MisfitReason.UNEVEN, "task.id")


def test_what_cannot_be_read_is_served_only_if_nothing_is_in_it() -> None:
    """Bytes that are no JSON and hold the folder are a miss, others pass."""
    headers = (("content-type", "text/plain"),)
    result = narrow(Mismatch, rewrite_answer(BINDINGS, EMPTY, Response(200, "OK", headers, (Chunk(0, b"in /tmp/a"),))))
    assert result.why is MisfitReason.UNREADABLE
    audio = Response(200, "OK", (("content-type", "audio/mpeg"),), (Chunk(0, bytes(range(256))),))
    assert rewrite_answer(BINDINGS, EMPTY, audio) is audio


def test_what_the_session_knows_checks_and_does_not_choose() -> None:
    """Another mapping of the same value than the session's is a miss; so is an id that came back."""
    bindings = Bindings([], [], [VolatileField("made", "uuid", "mint")])

    def body(value: str) -> Json:
        return {"messages": used("mint", "{}", value)}

    fit = narrow(Fit, match_requests_with_bindings(bindings, body(OLD), body(NEW)))
    assert fit.identities == (IdPair("made", "uuid", OLD, NEW),)
    known = IdPairs(fit.identities)
    assert isinstance(match_requests_with_bindings(bindings, body(OLD), body(NEW), known), Fit)
    third = narrow(Mismatch, match_requests_with_bindings(bindings, body(OLD), body(NEW.replace("7", "8")), known))
    assert third.why is MisfitReason.NOT_ONE_TO_ONE


COMMANDS = (
    "printf '%s|' @", "printf '%s|' @/x '@/y'", 'printf "%s|" "@/a file"', "printf '%s|' 'x'@/y", 'printf "%s|" "in":@',
    "sh -c \"printf '%s|' '@/x'\"", "sh -c 'printf %s\\| @'", "printf '%s|' x'=@'", "eval \"printf '%s|' @\"", "printf '%s|' \\\"@\\\"",
    "printf '%s|' \"$(printf %s @)\"", "cat <<END\n@\nEND", "printf '%s|' \"it's @\"", "printf '%s|' # '@", "printf '%s|' $'@'",
    "bash -lc 'printf %s\\| \"@/x\"'", "A=@; printf '%s|' \"$A\"", "printf '%s|' \"@\"*",
)  # fmt: skip
"""With an at sign where the folder stands."""
HERE = "/nowhere/at/all"
FOLDERS = (
    "/srv/plain", "/srv/my work", "/srv/it's", '/srv/say "hi"', "/srv/$HOME", "/srv/`id`", "/srv/a;b", "/srv/a*", "/srv/{a,b}", "/srv/back\\slash",
    "/srv/größe", "/srv/ünï cödé 🛶", "/srv/[ab]", "/srv/a&b|c", "/srv/(x)", "/srv/~a", "/srv/a#b", "/srv/a!b", "/srv/a\nb", "/srv/$(id)",
)  # fmt: skip


def rewritten(command: str, recorded: str, present: str) -> str | Mismatch:
    """Return a recorded tool call's command as this run gets it."""
    bindings = _bound({"cwd": recorded}, {"cwd": present})
    got = rewrite_answer(bindings, EMPTY, _message(_use("Bash", command=command)))
    return got if isinstance(got, Mismatch) else str(_blocks(got)[0]["input"]["command"])


def said(command: str) -> str:
    """Run a command in a shell; return what it prints, and how it ended."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd="/")
    return f"{done.stdout} {done.returncode} {bool(done.stderr)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shell_reads_a_rewritten_command_as_it_read_the_recorded_one(command: str) -> None:
    """For each folder: what is printed names this run's folder where it named the recorded one, and nothing was run besides."""
    before = said(command.replace("@", HERE))
    served = []
    for folder in FOLDERS:
        got = rewritten(command.replace("@", HERE), HERE, folder)
        if isinstance(got, Mismatch):
            assert got.why is MisfitReason.QUOTING
        else:
            assert said(got) == before.replace(HERE, folder), got
            served.append(folder)
    assert {"/srv/plain", "/srv/größe"} <= set(served)


@pytest.mark.parametrize("write", ["'@/x'", '"@/x"'])
def test_what_is_quoted_takes_what_these_quotes_keep(write: str) -> None:
    """A space, a glob, a semicolon; not the quote itself."""
    command = f"cat {write.replace('@', '/tmp/a')}"
    served = [folder for folder in FOLDERS if isinstance(rewritten(command, "/tmp/a", folder), str)]
    assert {"/srv/my work", "/srv/a*", "/srv/a;b", "/srv/[ab]", "/srv/(x)"} <= set(served)
    assert ("/srv/it's" in served, '/srv/say "hi"' in served) == (write[0] == '"', write[0] == "'")


@pytest.mark.parametrize(("recorded", "command", "wanted"), [
    ("/tmp/my work", "cat /tmp/my\\ work/x", "cat /srv/other\\ one/x"),
    ("/tmp/my work", "cat '/tmp/my work/x'", "cat '/srv/other one/x'"),
    ("/tmp/my work", "sh -c \"cat '/tmp/my work/x'\"", "sh -c \"cat '/srv/other one/x'\""),
    ("/tmp/it's", "cat '/tmp/it'\\''s/x'", "cat '/srv/other one/x'"),
    ('/tmp/a "b"', 'cat "/tmp/a \\"b\\"/x"', 'cat "/srv/other one/x"'),
])  # fmt: skip
def test_a_folder_that_needed_quotes_is_found_in_each_way_to_write_it(recorded: str, command: str, wanted: str) -> None:
    """Escaped with a backslash, in quotes, as the end of quotes and quotes again it is the folder too: nothing of the recorded run is left."""
    assert rewritten(command, recorded, "/srv/other one") == wanted
    plain = wanted.replace("/srv/other\\ one", "/srv/plain").replace("/srv/other one", "/srv/plain")
    assert rewritten(command, recorded, "/srv/plain") == plain
