"""The YAML that --cassette-dir keeps: exact, stable, readable."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.cassettes.anonymized_export import interaction_to_file_record
from llmproxy.core.cassettes.formats import Recorded, Source, read_file_of_recordings, review_yaml
from llmproxy.core.cassettes.formats.vcr import read as read_vcr
from llmproxy.core.cassettes.formats.yaml_text import encode_json_in_style
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.forks.fork_rows import Fork
from llmproxy.core.forks.overrides import parse_answer_override_options
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt, CassetteNewer

JSON = (("content-type", "application/json"),)


def one(body: bytes = b"", answer: bytes = b"", **changes: object) -> Recorded:
    base = Recorded("POST", "https://api.openai.com/v1/chat/completions", JSON, body, 200, "OK", JSON, answer)
    return replace(base, **changes)  # type: ignore[arg-type]


def source(text: str) -> Source:
    return Source(text.encode(), "x")


def back(*recorded: Recorded, name: str = "x") -> list[Recorded]:
    text = review_yaml.dumps(recorded, name)
    found = review_yaml.read(source(text))
    assert review_yaml.dumps(found, name) == text
    return [replace(each, number=0) for each in found]


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(deadline=None)
def test_any_body_comes_back(body: bytes) -> None:
    """Bytes of any kind, asked and answered, are the same bytes after a round trip."""
    assert back(one(body, body)) == [one(body, body)]


@pytest.mark.parametrize(("body", "form"), [
    (b'{"a":1}', "json: {a: 1}"),
    (b'{"a": 1}', "style: spaced\n    json: {a: 1}"),
    (b'{\n  "a": 1\n}\n', "style: indent2-newline\n"),
    (b'{"a":1.00}', "text: "),
    (b"data: {}\n\ndata: [DONE]\n\n", "text: |+\n      data: {}\n\n      data: [DONE]\n\n"),
    (b"data: 1\r\n\r\n", 'text: "data: 1\\r\\n\\r\\n"'),
    (b"a\x00b", "base64: |\n"),
    (b"\xff", "base64: |\n"),
    (b"\xed\xa0\x80", "base64: |\n"),
])  # fmt: skip
def test_forms(body: bytes, form: str) -> None:
    """Each body stands in the first form that gives its bytes back."""
    assert form in review_yaml.dumps([one(b"", body)], "x")
    assert back(one(b"", body))[0].response_body == body


def test_the_real_traffic(traffic: Path) -> None:
    """Every exchange of the real traffic comes back, and most JSON answers are trees."""
    trees = answers = 0
    for path in sorted(traffic.rglob("*.yaml"))[::4]:
        adopted = convert_exchanges(read_vcr(read_file_of_recordings(path)), "c", rules=Rules(), redactor=Redactor())
        recorded = [interaction_to_file_record(each.interaction) for each in adopted if each.interaction]
        found = review_yaml.read(Source(review_yaml.dumps(recorded, "c").encode(), "c"))
        assert [replace(each, number=0) for each in found] == recorded, path
        bodies = [each.response_body for each in recorded if each.response_body[:1] in (b"{", b"[")]
        answers += len(bodies)
        trees += sum(not {"json", "json_parts"}.isdisjoint(review_yaml._format_body(body, None)) for body in bodies)
    assert answers > 50
    assert trees / answers > 0.85


def test_a_conversation_is_written_once() -> None:
    """What every turn sends again stands there once; editing it there changes all turns."""
    system, tools = "You are helpful. " * 10, [{"name": "weather", "description": "The weather. " * 10}]
    turns = [{"role": "user", "content": f"Question {n}: " + "why? " * 30} for n in range(6)]
    recorded = [
        one(
            encode_json_in_style(
                {"model": "m", "system": system, "tools": tools, "messages": turns[: n + 1]}, "compact"
            )
        )
        for n in range(6)
    ]
    text = review_yaml.dumps(recorded, "x")
    assert [text.count(f"Question {n}") for n in range(5)] == [2] + [2] * 4  # once in the comment of its turn
    assert text.count("The weather.") == 10
    assert text.count("You are helpful.") == 10
    assert back(*recorded) == recorded
    edited = review_yaml.read(Source(text.replace("You are helpful.", "You are rude.").encode(), "x"))
    assert all(b"You are rude." in each.body and b"helpful" not in each.body for each in edited)


def test_adding_a_turn_changes_nothing_before_it(dialogue: list[Interaction]) -> None:
    """A diff shows the added interaction only: nothing is numbered through."""
    recorded = [interaction_to_file_record(each) for each in dialogue]
    before = review_yaml.dumps(recorded[:2], "x").splitlines()
    assert review_yaml.dumps(recorded[:3], "x").splitlines()[: len(before) - 1] == before[:-1]


def test_the_reader_is_told_what_happens(dialogue: list[Interaction]) -> None:
    """A comment above each interaction says who was asked what, and what came back, on one line."""
    text = review_yaml.dumps([interaction_to_file_record(each) for each in dialogue], "x")
    assert (
        '# openai chat.completions 200: What is the weather in Oslo? -> get_weather({"city":"Oslo","unit":"C"})' in text
    )
    nasty = one(b'{"messages":[{"role":"user","content":"a\\nb\\u0000"}]}', extra={"provider": "p", "operation": "o"})
    assert "\n# p o 200: a\\nb\\u0000\n" in review_yaml.dumps([nasty], "x")


def test_names() -> None:
    """Any name of a cassette is found in the head alone."""
    for name in ("trip", "a: b", "no", "ü/2 #x", "1", "x\ny"):
        assert review_yaml.read_cassette_name_in_file(source(review_yaml.dumps([], name))) == name
    assert review_yaml.read_cassette_name_in_file(source("llmproxy-cassette: 1\n")) == ""


def test_whose_child_it_is() -> None:
    """Before the interactions, where a reader sees it; nothing is said of a cassette that is nobody's."""
    overrides = parse_answer_override_options(["t#2=yes", 'u={"a": 1}'], [])
    fork = Fork("x", "trip", 2, "a tool's result was overridden", overrides=overrides)
    text = review_yaml.dumps([one()], "x", fork)
    assert text.index("fork:\n  parent: trip\n  step: 2\n") < text.index("interactions:")
    assert review_yaml.read_fork_in_cassette_file(source(text)) == fork
    assert review_yaml.read_fork_in_cassette_file(source(review_yaml.dumps([one(b"fork: no")], "x"))) is None
    head, member = text.split("fork:\n")
    member, rest = member.split("interactions:\n")
    moved = f'{head}interactions:\n{rest.removesuffix("...\n")}{" " * 70_000}\n"fork":\n{member}...\n'
    assert review_yaml.read_fork_in_cassette_file(source(moved)) == fork
    with pytest.raises(CassetteCorrupt, match="`fork` says no `parent`"):
        review_yaml.read_fork_in_cassette_file(source(text.replace("  parent: trip\n", "")))


def test_a_question_of_one_line_is_at_most_twenty_lines() -> None:
    """With all that a provider says of itself, its limits and its counts; and what was written line by line is read."""
    counts = {"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}, "completion_tokens": 31}
    message: dict[str, object] = {
        "role": "assistant", "content": "Oslo is wet. " * 12, "refusal": None, "annotations": [],
    }  # fmt: skip
    tree = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1774962775, "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 15, "total_tokens": 46, **counts}, "service_tier": "default",
        "system_fingerprint": None,
    }  # fmt: skip
    limits = tuple((f"x-ratelimit-{name}", "4999") for name in "abcdefghijklmnopqrst")
    asked = one(b'{"messages":[{"role":"user","content":"Hi"}]}', encode_json_in_style(tree, "indent2-newline"))
    told = replace(asked, response_headers=(*JSON, *limits), extra={"chunks": "0:943", "ending": "complete"})
    assert back(told) == [told]
    assert len(review_yaml.dumps([told], "x").splitlines()) <= 20


def test_what_was_written_before_is_read() -> None:
    """Method, reason and the members of an answer stood on lines of their own."""
    text = (
        "llmproxy-cassette: 1\ncassette: x\ninteractions:\n\n- request:\n    method: POST\n"
        "    url: https://api.openai.com/v1/chat/completions\n    headers: [{content-type: application/json}]\n"
        "  response:\n    status: 200\n    reason: OK\n    headers:\n      - {content-type: application/json}\n"
        "    style: indent2\n    json:\n      id: chatcmpl-1\n      choices:\n        - index: 0\n...\n"
    )
    answer = b'{\n  "id": "chatcmpl-1",\n  "choices": [\n    {\n      "index": 0\n    }\n  ]\n}'
    (found,) = review_yaml.read(source(text))
    assert replace(found, number=0) == one(b"", answer)


def test_hand_written() -> None:
    """The least that a person has to write is enough."""
    text = (
        "llmproxy-cassette: 1\ninteractions:\n- request: {method: post, url: http://h/}\n"
        "  response:\n    status: 200\n    headers:\n    - retry-after: 1\n    - x:\n    json: {country: no}\n...\n"
    )
    (found,) = review_yaml.read(source(text))
    assert (found.method, found.response_headers) == ("POST", (("retry-after", "1"), ("x", "")))
    assert found.response_body == b'{"country":"no"}'


HEAD = "llmproxy-cassette: 1\ncassette: x\ninteractions:\n"
SOUND = "- request: {method: GET, url: 'http://h/'}\n  response: {status: 200}\n"


@pytest.mark.parametrize(("text", "said"), [
    (HEAD + SOUND, "does not end with a line"),
    ("llmproxy-cassette: 2\n...\n", "was written by a newer llmproxy"),
    ("llmproxy-cassette: yes\n...\n", "must be the number of its format"),
    ("llmproxy-cassette: 1\n...\n", "`interactions` must be a list, not nothing"),
    ("- 1\n...\n", "a cassette is a mapping"),
    (HEAD + SOUND + "- 1\n...\n", "line 6, interaction 2: `request` is missing"),
    (HEAD + SOUND.replace("200", "20") + "...\n", "line 4, interaction 1: the status is 20"),
    (HEAD + SOUND.replace("200", "200, json: 1, text: a") + "...\n", "stands there as json and as text"),
    (HEAD + SOUND.replace("200", "200, json_parts: [{a: 1}, {a: 2}]") + "...\n", "stands twice in `json_parts`"),
    (HEAD + SOUND.replace("200", "200, json_parts: [1]") + "...\n", "`part` is int"),
    (HEAD + SOUND.replace("200", "200, style: odd, json: 1") + "...\n", "there is no style 'odd'"),
    (HEAD + SOUND.replace("200", "200, style: {}, json: 1") + "...\n", "there is no style {}"),
    (HEAD + SOUND.replace("200", "200, text: 1") + "...\n", "`text` is int, not a text"),
    (HEAD + SOUND.replace("200", "200, base64: '?'") + "...\n", "its base64 is damaged"),
    (HEAD + SOUND.replace("200", "200, headers: [{a: 1, b: 2}]") + "...\n", "one `name: value`"),
    (HEAD + SOUND.replace("200", "200, headers: [{a: []}]") + "...\n", "the header 'a' is list"),
    (HEAD + SOUND.replace("200", "200, headers: a") + "...\n", "`headers` is str, not a list"),
    (HEAD + SOUND.replace("200", '200, json: "\\ud800"') + "...\n", "x"),
    (HEAD + SOUND + "  recorded: 3\n...\n", "`recorded` is int"),
    (HEAD + SOUND.replace("GET", "''") + "...\n", "`method` is empty"),
    (HEAD + "- [\n...\n", "x:5:1: this is no YAML"),
])  # fmt: skip
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    """A damaged file names file, line and interaction."""
    with pytest.raises((CassetteCorrupt, CassetteNewer), match=re.escape(said)):
        review_yaml.read(source(text))


def test_a_cut_file_is_found_at_every_place(dialogue: list[Interaction]) -> None:
    """Wherever the file ends too early, it is an error."""
    data = review_yaml.dumps([interaction_to_file_record(each) for each in dialogue[:2]], "x").encode()
    for end in range(0, len(data) - 1, 97):
        with pytest.raises(CassetteCorrupt):
            review_yaml.read(Source(data[:end], "x"))
