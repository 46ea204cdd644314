"""One call as plain values."""

from __future__ import annotations

import dataclasses
import json

from llmproxy.core.traffic.interaction import Chunk
from llmproxy.ui.calls import CHUNKS, TEXT, ExchangeLinker, build_step_list_of_run, call_to_json
from tests.support.chats import chat
from tests.ui import samples


def test_a_call_says_what_changed_beside_the_conversation() -> None:
    """A new system prompt is told with both texts; the messages that were added are not told again."""
    reader = ExchangeLinker()
    first, second = samples.hostile()
    reader.read(first)
    found = call_to_json(reader.read(second))
    assert [(each["path"], each["new"]) for each in found["changes"]] == [("$.system", samples.EVIL + "2")]
    assert found["known"] == 3
    assert found["previous"] is None  # not stored, so it has no number


def test_a_picture_stands_with_its_message() -> None:
    found = call_to_json(ExchangeLinker().read(samples.picture()))
    assert [each.get("media") for each in found["messages"]] == [None, [{"type": "image/png", "data": samples.PICTURE}]]


def test_what_is_not_known_is_none() -> None:
    """No price, no times: never 0."""
    silent = chat(model="a-model-of-nobody")
    silent = dataclasses.replace(silent, response=dataclasses.replace(silent.response, chunks=(Chunk(0, b"{}"),)))
    found = call_to_json(ExchangeLinker().read(silent))
    assert found["cost"] is None
    assert found["timing"] is None
    assert found["answer"] is None


def test_a_great_many_chunks_are_told_together() -> None:
    """No byte is lost, and the page gets no more than it can draw."""
    many = chat()
    pieces = tuple(Chunk(1000 * n, b"x" * 10) for n in range(1, 3 * CHUNKS))
    many = dataclasses.replace(many, response=dataclasses.replace(many.response, chunks=pieces))
    timing = call_to_json(ExchangeLinker().read(many))["timing"]
    assert len(timing["chunks"]) <= CHUNKS
    assert sum(size for _, size in timing["chunks"]) == 10 * len(pieces)
    assert timing["count"] == len(pieces)


def test_who_asked_and_answered_when_is_told() -> None:
    """The client with its version, the answer's model with its fingerprint, and the day on which it was asked again."""
    one, day = chat(), "Sat, 28 Nov 2026 01:02:03 GMT"
    said = b'{"model": "gpt-4o-2024-08-06", "system_fingerprint": "fp_7", "choices": []}'
    request = dataclasses.replace(one.request, headers=(*one.request.headers, ("user-agent", "claude-cli/2.1.197")))
    answer = dataclasses.replace(one.response, headers=(*one.response.headers, ("date", day)), chunks=(Chunk(1, said),))
    asked = dataclasses.replace(one, request=request, response=answer, started_at=1_790_000_000.0)
    found = call_to_json(ExchangeLinker().read(asked))
    assert (found["client"], found["answered_by"]) == ("Claude Code 2.1.197", "gpt-4o-2024-08-06 fp_7")
    assert (found["at"], found["recorded_at"]) == (1_790_000_000.0, 1_795_827_723.0)
    assert call_to_json(ExchangeLinker().read(chat()))["recorded_at"] == chat().started_at


def test_tools_of_every_dialect_are_listed() -> None:
    """Bedrock's are in `toolConfig`."""
    body = json.dumps({"toolConfig": {"tools": [{"toolSpec": {"name": "find", "description": "Finds."}}]}}).encode()
    asked = dataclasses.replace(chat(), request=dataclasses.replace(chat().request, body=body))
    assert call_to_json(ExchangeLinker().read(asked))["tools"] == [{"name": "find", "about": "Finds."}]


def test_everything_told_is_json() -> None:
    """Whatever was recorded: half surrogate pairs too."""
    for each in (*samples.agent(), *samples.hostile(), samples.picture()):
        json.dumps(call_to_json(ExchangeLinker().read(each))).encode()


def test_the_steps_tell_what_was_asked_done_and_answered() -> None:
    """Each step names the call where it stands; what failed was asked again; a sub-agent stands deeper."""
    calls = [dataclasses.replace(each, id=n) for n, each in enumerate(samples.agent(), 1)]
    told = [(step["kind"], step["call"], step["depth"]) for step in build_step_list_of_run(calls)]
    assert told == [
        ("user", 1, 0),
        ("says", 1, 0),
        ("tool", 1, 0),
        ("failed", 2, 0),
        ("tool", 3, 0),
        ("tool", 3, 0),
        ("user", 4, 1),
        ("answer", 4, 1),
        ("answer", 5, 0),
    ]


def test_a_tool_stands_with_what_it_was_given_and_what_it_returned() -> None:
    calls = [dataclasses.replace(each, id=n) for n, each in enumerate(samples.agent(), 1)]
    tool = next(step for step in build_step_list_of_run(calls) if step["kind"] == "tool")
    assert (tool["name"], tool["given"]) == ("read_file", '{"path": "calc.py"}')
    assert tool["result"].startswith("def add")
    assert tool["ms"] == 573.0


def test_a_long_text_is_cut_and_says_so() -> None:
    steps = build_step_list_of_run([dataclasses.replace(chat(answer="x" * 3 * TEXT), id=1)])
    assert steps[-1]["text"].endswith(f"… ({3 * TEXT:,} characters)")
