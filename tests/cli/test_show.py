"""``llmproxy show`` of a cassette, and ``diff``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.cli.show import show_cassette
from llmproxy.core.traffic.interaction import Chunk, Interaction, Response
from tests.support.chats import NOW, chat, fill, run


def test_what_holds_no_conversation_says_where_the_rest_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server of tools that was recorded alone, say: else a line of sums stands there as if nothing had happened."""
    path = tmp_path / "x.db"
    tool = replace(chat("two", "2", cassette="b"), provider="stdio:h", operation="mcp:tools/call x")
    fill(path, chat("one", "1", cassette="a"), tool)
    for cassette, alone in (("a", False), ("b", True)):
        show_cassette(cassette, path, single="", as_json=False)
        said = capsys.readouterr().out
        assert (f"llmproxy ls b --store {path}" in said) is alone, said


def test_a_stream_and_a_whole_answer_are_compared_by_what_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same text, streamed or not, is no difference; another text is one."""
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": word}}]} for word in ("Fi", "ne.")]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    answer = Response(200, "OK", (("content-type", "text/event-stream"),), (Chunk(1, body),))
    path = tmp_path / "llmproxy.db"
    fill(path, chat(), dataclasses.replace(chat("Again?"), response=answer), chat("Third?", answer="Bad."))
    assert "answers: equal" in run(capsys, path, "diff", "1", "2")[1]
    code, out = run(capsys, path, "diff", "2", "3")
    assert (code, "$.body.text" in out, '"Bad."' in out) == (0, True, True)


def test_cassettes_are_compared_by_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed answer is shown with its text; a cassette that does not exist is an error that says so."""
    path = tmp_path / "llmproxy.db"
    fill(path, chat(), chat(answer="Bad.", cassette="other"))
    code, out = run(capsys, path, "diff", "default", "other")
    assert (code, "Fine." in out, "Bad." in out) == (0, True, True)
    assert json.loads(run(capsys, path, "diff", "default", "other", "--json")[1])["same"] is False
    assert run(capsys, path, "diff", "default", "nowhere")[0] == 3


def weather(cassette: str, city: str, said: str, result: str = "21") -> list[Interaction]:
    """Return a tool call, and the answer after its result."""
    asked = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": "c1", "type": "function", "function": asked}
    asked = {"role": "user", "content": "Weather?"}
    bodies = [
        ([asked], {"role": "assistant", "content": None, "tool_calls": [call]}),
        ([asked, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": result}],
         {"role": "assistant", "content": said}),
    ]  # fmt: skip
    made = []
    for n, (messages, message) in enumerate(bodies):
        body = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
        answer = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
        plain = chat(f"{cassette} {n}", cassette=cassette, started_at=NOW + n)
        request = dataclasses.replace(plain.request, body=body)
        response = dataclasses.replace(plain.response, chunks=(Chunk(1, answer),))
        made.append(dataclasses.replace(plain, request=request, response=response))
    return made


def test_what_was_done_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments by path and by contract, results, texts; side by side, as Markdown for a pull request, as JSON for scripts."""
    path = tmp_path / "llmproxy.db"
    fill(path, *weather("a", "Oslo", "Warm."), *weather("b", "Rome", "Hot.", "30"), *weather("c", "Oslo", "Mild."))
    code, out = run(capsys, path, "diff", "a", "b")
    assert code == 0
    for told in ("arguments.city  [contract]", '"Oslo"', '"Rome"', "Output", "Warm.", "Hot."):
        assert told in out
    code, out = run(capsys, path, "diff", "a", "b", "--format", "markdown")
    assert out.startswith("### `a` → `b`")
    assert "| contract |" in out
    data = json.loads(run(capsys, path, "diff", "a", "b", "--format", "json")[1])
    assert (data["same"], data["trace"]["contract_changed"], data["forks"]) == (False, True, [])


@pytest.mark.parametrize(("names", "on", "code"), [
    (("a", "b"), "contract", 1),
    (("a", "b"), "any", 1),
    (("a", "c"), "contract", 0),
    (("a", "c"), "any", 1),
    (("a", "a"), "any", 0),
    (("1", "2"), "any", 1),
    (("1", "1"), "any", 0),
    (("a", "b"), "all", 2),
])  # fmt: skip
def test_a_change_is_a_failure_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, str], on: str, code: int
) -> None:
    """Of the contract, or any; a word that means nothing is a mistake."""
    path = tmp_path / "llmproxy.db"
    fill(path, *weather("a", "Oslo", "Warm."), *weather("b", "Rome", "Hot."), *weather("c", "Oslo", "Mild."))
    assert run(capsys, path, "diff", *names, "--fail-on", on)[0] == code


def test_requests_tell_what_no_span_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another status or model, a request more: beside what the agent did."""
    path = tmp_path / "llmproxy.db"
    failed = dataclasses.replace(chat("hi", cassette="b").response, status=500)
    more = chat("more", cassette="b", started_at=NOW + 1)
    fill(path, chat("hi", cassette="a"), chat("hi", cassette="b", response=failed), more)
    out = run(capsys, path, "diff", "a", "b")[1]
    assert "Request 1 changed" in out
    assert "status" in out
    assert "Request 2 added" in out
    assert "1 changed, 1 added" in out
    assert "request 2 added" in run(capsys, path, "diff", "a", "b", "--format", "markdown")[1]


def test_two_files_need_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone there may be cassette files alone."""
    for name, answer in (("old", "Fine."), ("new", "Very well.")):
        fill(tmp_path / f"{name}.db", chat("hi", answer, cassette="default"))
        words = ("export", str(tmp_path / f"{name}.yaml"), "--cassette", "default", "--format", "review")
        assert run(capsys, tmp_path / f"{name}.db", *words)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert main(["diff", "old.yaml", "new.yaml", "--fail-on", "any"]) == 1
    assert "Very well." in capsys.readouterr().out
    assert main(["diff", "old.yaml", "gone.yaml"]) == 3
