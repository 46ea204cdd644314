"""Answers of many megabytes are read in parts, and what is read is the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.dialects.conversation import made_ids, read_answer
from llmproxy.core.dialects.long import LONG, elements, shorten_json
from llmproxy.core.dialects.streams import ending, events_in, events_of
from llmproxy.core.dialects.usage import model_of, usage_of
from llmproxy.core.traffic.interaction import Ending

JSON = "application/json"
FILLING = 'ab\\"\n\tü€😀' * 250
"""Longer than any string that is kept."""

trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(FILLING),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
)


def without_filling(tree: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a tree with its long strings cut off at the same place."""
    match tree:
        case dict():
            return {name: without_filling(value) for name, value in tree.items()}
        case list():
            return [without_filling(value) for value in tree]
        case str() if len(tree) > 2000:
            return tree[:100]
        case _:
            return tree


@settings(max_examples=40)
@given(trees, st.booleans())
def test_a_document_keeps_everything_but_the_ends_of_long_strings(tree: object, ascii_only: bool) -> None:
    """Whatever escapes and characters stand where it is cut."""
    body = json.dumps({"tree": tree}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if b"\xed" in body:  # a lone surrogate, which UTF-8 does not have
        return
    left = json.loads(shorten_json(body))
    assert without_filling_of_kept(left) == without_filling({"tree": tree})


def without_filling_of_kept(tree: Any) -> Any:  # noqa: ANN401 - JSON
    """Cut the strings that were long in the same way."""
    match tree:
        case dict():
            return {name: without_filling_of_kept(value) for name, value in tree.items()}
        case list():
            return [without_filling_of_kept(value) for value in tree]
        case str() if len(tree) > 300 and FILLING.startswith(tree):
            return tree[:100]
        case _:
            return tree


@pytest.mark.parametrize("escape", ["\\", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "€", "😀"])
@pytest.mark.parametrize("before", range(12))
def test_a_string_is_cut_between_two_characters(escape: str, before: int) -> None:
    """Wherever an escape or a character of several bytes meets the cut."""
    raw = "x" * before + (escape if escape != "\\" else "\\n") * 3_000
    body = f'{{"a": "{raw}", "b": 1}}'.encode()
    left = json.loads(shorten_json(body))
    assert left["b"] == 1
    assert json.loads(body)["a"].startswith(left["a"])
    assert len(left["a"]) > 150


def test_long_lists_are_left_out_and_what_stands_around_them_stays() -> None:
    """Vectors are nothing that is asked about; a list of a million small things is empty, its neighbours are not."""
    vectors = ",".join(['{"object":"embedding","embedding":[' + ",".join(["0.12345"] * 1500) + '],"index":0}'] * 100)
    scores = ",".join(['{"token":"a","logprob":-1}'] * 45_000)
    body = f'{{"model":"m","data":[{vectors}],"x":{{"deep":[[{scores}],2]}},"usage":{{"prompt_tokens":3,"total_tokens":3}}}}'
    assert json.loads(shorten_json(body.encode())) == {
        "model": "m", "data": [], "x": {"deep": [[], 2]}, "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"' * 9,
        b"[" * 5_000_000,
        b"]" * 100,
        b'{"a": "' + b"x" * 5_000_000,
        b"{" + b'"%s":1,' % (b"a" * 100) * 50_000,
        b'{"a": [1, "\\"',
    ],
)
def test_what_is_no_document_is_none_afterwards(body: bytes) -> None:
    """And ends quickly."""
    assert list(events_in(JSON, body)) == []


def filled(value: dict[str, Any]) -> bytes:
    """Return an answer that is too long to be read at once."""
    return json.dumps({"filling": "x" * LONG, **value}).encode()


def test_of_a_long_document_the_same_is_known_as_of_a_short_one() -> None:
    """Model, tokens, ids and the first words."""
    said = {"model": "gpt-4o", "id": "resp_1", "object": "response", "output": [{"type": "function_call", "id": "fc_1", "call_id": "call_1"}],
            "usage": {"input_tokens": 3, "output_tokens": 4}}  # fmt: skip
    short, long = json.dumps(said).encode(), filled(said)
    for read in (usage_of, model_of, made_ids):
        assert read("openai", "responses", JSON, long) == read("openai", "responses", JSON, short)
        assert read("openai", "responses", JSON, long)
    text = {"choices": [{"message": {"role": "assistant", "content": "word " * LONG}}]}
    message = read_answer("openai", "chat.completions", JSON, json.dumps(text).encode())
    assert message is not None
    assert message.text.startswith("word " * 300)


EVENTS = [{"model": "m", "choices": [{"delta": {"content": f"{n} " + "x" * 900}}]} for n in range(5_000)]
SSE_BODY = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in EVENTS)
LONG_BODIES = {
    "text/event-stream": SSE_BODY + b"data: [DONE]\n\n",
    "text/event-stream; crlf": SSE_BODY.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    "application/x-ndjson": b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    "application/json; lines": b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    "application/json; array": b"[" + b",\r\n".join(json.dumps(event).encode() for event in EVENTS) + b"]",
    "application/json; cut": b"["
    + b",\r\n".join(json.dumps(event).encode() for event in EVENTS)
    + b',\r\n{"model": "cut',
    "text/plain": b"word " * LONG,
}


@pytest.mark.parametrize("kind", LONG_BODIES)
def test_events_in_is_events_of(kind: str) -> None:
    """One after the other, and the same."""
    body = LONG_BODIES[kind]
    assert len(body) > LONG
    assert list(events_in(kind, body)) == events_of(kind, body)


def test_the_end_of_a_long_stream_is_seen() -> None:
    """In every framing that has one."""
    sse, lines = "text/event-stream", "application/x-ndjson"
    for kind in ("text/event-stream", "text/event-stream; crlf"):
        assert ending("openai", "chat.completions", True, 200, sse, LONG_BODIES[kind], False) is Ending.COMPLETE
        assert ending("openai", "chat.completions", True, 200, sse, LONG_BODIES[kind][:-16], False) is Ending.CUT
    done = LONG_BODIES[lines] + b'{"done": true, "filling": "%s"}' % (b"x" * LONG)
    assert ending("ollama", "api.chat", True, 200, lines, done, False) is Ending.COMPLETE
    assert ending("ollama", "api.chat", True, 200, lines, LONG_BODIES[lines], False) is Ending.CUT


def test_elements_of_an_array_are_documents() -> None:
    """Brackets and commas in strings are none."""
    values = [{"a": "]},{[\\"}, [1, [2]], {"b": {"c": '"'}}]
    assert [json.loads(element) for element in elements(json.dumps(values).encode())] == values
