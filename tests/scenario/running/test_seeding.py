"""Conversations that have begun already: from values, files and recordings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import CassetteNotFound, SettingsError
from llmproxy.scenario.running.executor import load_conversation_history
from tests.scenario.people import Agent, User, play, said
from tests.support.chats import NOW, chat

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": [{"type": "text", "text": "my order?"}]},
]
WEATHER = {"id": "call_9", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


ONE, TWO = (([{"role": "user", "content": text}], {"content": answer}) for text, answer in (("one", "1"), ("two", "2")))


def recorded(path: Path, *exchanges: tuple[list[dict[str, Any]], dict[str, Any]], sample: int = 1) -> Path:
    """Write what an agent sent and got, exchange by exchange, into a store."""
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        for number, (asked, answer) in enumerate(exchanges):
            made = chat()
            request = json.dumps({"model": "gpt-4o", "messages": asked}).encode()
            said = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", **answer}}]}).encode()
            chunk = dataclasses.replace(made.response.chunks[0], data=said)
            sent = dataclasses.replace(made.request, body=request)
            got = dataclasses.replace(made.response, chunks=(chunk,))
            where: dict[str, Any] = {"key": Key(f"v1:{number:064d}"), "cassette": "shop", "sample": sample}
            changed = dataclasses.replace(made, request=sent, response=got, started_at=NOW + number, **where)
            store.add_interaction(changed, supersede=False)
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".object.json"])
def test_a_file_of_messages(tmp_path: Path, suffix: str) -> None:
    """A list, a line each, or an object with `messages`, as results are written."""
    path = tmp_path / f"talk{suffix}"
    lines = "\n".join(json.dumps(each) for each in TALK)
    path.write_text({".jsonl": lines, ".json": json.dumps(TALK)}.get(suffix, json.dumps({"messages": TALK})), "utf-8")
    assert load_conversation_history(str(path)) == TALK


@pytest.mark.parametrize(("text", "says"), [
    ('[{"role": "robot"}]', "message 1"),
    ('["hi"]', "message 1"),
    ("{", "no JSON"),
    ("3", "message 1"),
    (None, "cannot be read"),
])  # fmt: skip
def test_what_is_no_conversation_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=says):
        load_conversation_history(str(path))


def test_a_recorded_session_goes_on(tmp_path: Path) -> None:
    """The user's and the agent's words, without its instructions and tools."""
    start: list[Any] = [{"role": "system", "content": "You are a shop."}, {"role": "user", "content": "Oslo?"}]
    called = {"content": None, "tool_calls": [WEATHER]}
    more = [*start, {"role": "assistant", **called}, {"role": "tool", "tool_call_id": "call_9", "content": '{"c": 12}'}]
    last = [*more, {"role": "assistant", "content": "12 degrees."}, {"role": "user", "content": "And tomorrow?"}]
    path = recorded(tmp_path / "x.db", (start, called), (more, {"content": "12 degrees."}), (last, {"content": "13."}))
    words = [start[1], *last[-2:], {"role": "assistant", "content": "13."}]
    assert load_conversation_history(f"{path}::shop") == load_conversation_history(f"{path}::shop~1") == words


def test_samples_are_told_apart(tmp_path: Path) -> None:
    """`cassette~2` is the second recorded sample; an agent without memory begins anew, and all of it is one to the user."""
    path = recorded(tmp_path / "x.db", ONE)
    recorded(path, TWO, sample=2)
    assert load_conversation_history(f"{path}::shop~2")[0]["content"] == "two"
    with pytest.raises(CassetteNotFound, match="shop~x"):
        load_conversation_history(f"{path}::shop~x")
    path = recorded(tmp_path / "y.db", ONE, TWO)
    assert [message["content"] for message in load_conversation_history(f"{path}::shop")] == ["one", "1", "two", "2"]


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    """The error names what there is; nothing to go on from is an error, never an empty beginning."""
    path = recorded(tmp_path / "x.db", ONE)
    with pytest.raises(CassetteNotFound, match="there are: shop"):
        load_conversation_history(f"{path}::none")
    path = recorded(tmp_path / "y.db", ([{"role": "system", "content": "be"}], {"content": ""}))
    with pytest.raises(SettingsError, match="nobody says anything"):
        load_conversation_history(f"{path}::shop")


def test_a_run_goes_on_from_a_recording(tmp_path: Path) -> None:
    """Seeded history: what was said before is in the conversation, and the user speaks next."""
    path = recorded(tmp_path / "x.db", ONE)
    result = play(Agent("2"), User("two"), history=f"{path}::shop", max_turns=1)
    assert said(result) == ["one", "1", "two", "2"]
