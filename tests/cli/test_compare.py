"""``llmproxy diff``, on real stores; by number it is tested with the other looking commands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from llmproxy.core.interaction import Chunk, Response
from tests.support.chats import chat, fill, run


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
