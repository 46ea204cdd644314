"""Accepted changes in a session: what they carry, what they say, and where they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.bindings.volatile_result_fields import VolatileField
from llmproxy.core.changes.accepted_change_model import (
    AcceptedChange,
    ClientVersionCondition,
    build_accepted_changes,
    build_change_for_removed_call,
)
from llmproxy.core.changes.segment_change import CarriedAnswerAttempt, ChangeCause, ChangeSource, RefusalReason
from llmproxy.core.engine.carried_answers import find_recordings_equated_by_change
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import (
    save_cassette_volatile_fields,
    store_accepted_changes,
)
from llmproxy.core.traffic.interaction import Chunk, Response
from llmproxy.protocol import CARRIED_HEADER
from tests.oracle.speak import JSON_TYPE
from tests.support.in_process import NOW, Answer, InProcess

Json = Any
TODAY = date(2027, 1, 15)
SYSTEM, EDITED = "You help.\nBe brief.\nNever guess.", "You help.\nBe brief and kind.\nNever guess."


def _ask(system: str, words: str = "What is 1+1?", **more: Json) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": words}]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def _say(text: str, status: int = 200) -> Callable[[bytes], Response]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    made = Response(status, "", (("content-type", JSON_TYPE),), (Chunk(0, json.dumps(body).encode()),))
    return lambda _: made


def _record(store: Path, *asked: tuple[bytes, str, int]) -> None:
    with InProcess(store, "record") as proxy:
        for body, text, status in asked:
            proxy.ask("r", "/s/c/v1/chat/completions", body, _say(text, status))


def _send(proxy: InProcess, body: bytes, agent: str = "") -> Answer:
    head = (("user-agent", agent),) if agent else ()
    return proxy.ask("p", "/s/c/v1/chat/completions", body, _say("live"), head)


def _try(store: Path, *bodies: bytes, **more: Json) -> list[CarriedAnswerAttempt]:
    with InProcess(store, "replay") as proxy:
        assert proxy.control("POST", "sessions", name="c", trial=True, **more)[0] == 201
        for body in bodies:
            _send(proxy, body)
        return [CarriedAnswerAttempt.from_json(each) for each in proxy.control("GET", "sessions/c")[1]["trial"]]


def _accept(store: Path, body: bytes, **more: date | ClientVersionCondition) -> list[AcceptedChange]:
    made = build_accepted_changes((change for call in _try(store, body) for change in call.changes), TODAY, **more)  # type: ignore[arg-type]
    with open_store(store, writable=True, now=lambda: NOW) as opened:
        store_accepted_changes(opened, "c", made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    _record(tmp_path / "s.db", (_ask(SYSTEM), "It is 2.", 200))
    return tmp_path / "s.db"


def test_what_is_accepted_is_carried_and_said(store: Path) -> None:
    """The answer has a header and a word of its own in its call and in the totals; without acceptance it is a miss."""
    with InProcess(store, "replay") as proxy:
        assert _send(proxy, _ask(EDITED)).status == 404
    (change,) = _accept(store, _ask(EDITED))
    with InProcess(store, "replay") as proxy:
        answer = _send(proxy, _ask(EDITED))
        assert answer.status == 200
        assert f"{CARRIED_HEADER}: {change.name}".encode() in answer.data
        assert b"It is 2." in answer.body
        totals = proxy.control("GET", "sessions/c")[1]
        (call,) = proxy.control("GET", "calls?session=c")[1]["calls"]
        assert (totals["hits"], totals["carried"], totals["carried_names"], totals["bound"]) == (1, 1, [change.name], 0)
        assert (call["carried"], call["note"]) == ([change.name], f"carried: {change.name}")
        assert _send(proxy, _ask(SYSTEM)).status == 200


@pytest.mark.parametrize(
    "body",
    [_ask(EDITED, "What is 1+2?"), _ask(f"{EDITED}\nAnd more."), _ask(EDITED, model="n"), _ask(EDITED, stream=True),
     _ask(EDITED, n=2), _ask(EDITED.replace("help", "helped"))],
)  # fmt: skip
def test_nothing_else_is_carried_with_it(store: Path, body: bytes) -> None:
    """An accepted change holds for the very texts that were seen, and lets no other difference pass."""
    _accept(store, _ask(EDITED))
    with InProcess(store, "replay") as proxy:
        assert _send(proxy, body).status == 404


@pytest.mark.parametrize(("now", "said"), [
    ([{"role": "user", "content": "What is 1+1?"}], "system prompt is gone"),
    ([{"role": "developer", "content": SYSTEM}, {"role": "user", "content": "What is 1+1?"}],
     'role of a message, after 0 answers: "system", "user" -> "developer", "user"'),
])  # fmt: skip
def test_a_system_prompt_may_be_gone_or_new_but_not_change_its_role(store: Path, now: Json, said: str) -> None:
    """Its message has a role, which comes and goes with it."""
    (seen,) = _try(store, json.dumps({"model": "m", "messages": now}).encode())
    assert (seen.refusal.text if seen.refusal else str(seen.changes[0])) == said


def test_nothing_is_composed_over_time(store: Path) -> None:
    """A to B and B to C are no A to C; and what went back to A is exact."""
    third = EDITED.replace("kind", "very kind")
    made = [*_accept(store, _ask(EDITED)), *_accept(store, _ask(third))]
    assert len({each.name for each in made}) == 2
    with open_store(store, writable=True, now=lambda: NOW) as opened:
        store_accepted_changes(opened, "c", made[:1])
    with InProcess(store, "replay") as proxy:
        assert [_send(proxy, _ask(each)).status for each in (EDITED, third, SYSTEM)] == [200, 404, 200]


def test_it_ends_and_holds_for_a_client(store: Path) -> None:
    """After its last day it is a miss that says so; for another client's requests it never holds."""
    _accept(store, _ask(EDITED), until=date(2027, 1, 1), when=ClientVersionCondition("codex", "2.0"))
    with InProcess(store, "replay") as proxy:
        answer = _send(proxy, _ask(EDITED), "codex/2.1")
        assert (answer.status, b"was accepted until 2027-01-01" in answer.body) == (404, True)
    _accept(store, _ask(EDITED), when=ClientVersionCondition("codex", "2.0"))
    with InProcess(store, "replay") as proxy:
        assert [_send(proxy, _ask(EDITED), agent).status for agent in ("codex/1.9", "codex/2.0")] == [404, 200]


def _ask_as(
    version: str, question: str = "What do my notes say?", rules: str = "Be brief.", found: str = "Milk.", **more: Json
) -> tuple[bytes, str]:
    """Return a request of Claude Code: an older one says of the project in the user's name, a newer one in its own.

    `found`: by a sub-agent, as a notification tells it.
    """
    said = f"<system-reminder>\nAs you answer the user's questions, you can use the following context:\n{rules}\n</system-reminder>"
    own = "You are Claude Code, Anthropic's official CLI for Claude, running within the Claude Agent SDK."
    newer = version > "2.1.3"
    parts = (
        [{"type": "text", "text": question}] if newer else [{"type": "text", "text": each} for each in (said, question)]
    )
    system = f"Speak of boats.\n{own}\n\n{rules}" if newer else "Speak of boats."
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("Bash", "Read")[: 1 + newer]
    ]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": parts}]
    ended = f"<task-notification>\n<status>completed</status>\n<result>{found}</result>\n</task-notification>"
    messages += [{"role": "assistant", "content": "One looks."}, {"role": "user", "content": ended}]
    return json.dumps({"model": "m", "tools": tools, "messages": messages, **more}).encode(), f"claude-cli/{version}"


@pytest.mark.parametrize(("more", "status"), [
    ({}, 200),
    ({"question": "What do my letters say?"}, 404),
    ({"question": "<system-reminder>\nWhat do my notes say?\n</system-reminder>"}, 404),
    ({"rules": "Be kind."}, 404),
    ({"found": "Bread."}, 404),
    ({"model": "n"}, 404),
    ({"version": "2.1.333"}, 200),
])  # fmt: skip
def test_an_upgrade_of_a_client_is_one_change(tmp_path: Path, more: Json, status: int) -> None:
    """What it writes itself moves, its tools come: nobody else's words may."""
    store = tmp_path / "s.db"
    with InProcess(store, "record") as proxy:
        body, agent = _ask_as("2.1.197")
        proxy.ask("r", "/s/c/v1/chat/completions", body, _say("Milk."), (("user-agent", agent),))
    with InProcess(store, "replay") as proxy:
        proxy.control("POST", "sessions", name="c", trial=True)
        _send(proxy, *_ask_as("2.1.332"))
        (call,) = [CarriedAnswerAttempt.from_json(each) for each in proxy.control("GET", "sessions/c")[1]["trial"]]
    assert {each.origin for each in call.changes} == {ChangeCause(ChangeSource.CLIENT, "Claude Code", "2.1.332")}, call
    with open_store(store, writable=True, now=lambda: NOW) as opened:
        store_accepted_changes(opened, "c", build_accepted_changes(call.changes, TODAY))
    with InProcess(store, "replay") as proxy:
        assert _send(proxy, *_ask_as(**{"version": "2.1.332", **more})).status == status


SESSIONS: list[Json] = [{}, {"trial": True}, {"carry": True}, {"overrides": {}}]


@pytest.mark.parametrize(("model", "asked", "status", "said"), [
    ("m", {"overrides": {}}, 200, b""),
    ("m", {"fork": {"live": False}}, 200, b""),
    ("m", {"live": ["mcp"]}, 404, b"a session with live channels carries nothing"),
    ("m", {"fork": {"live": True}}, 200, b"live"),
    *(("n", more, 404, b"model: m -> n") for more in SESSIONS),
])  # fmt: skip
def test_what_goes_live_or_to_another_model_carries_nothing(
    store: Path, model: str, asked: Json, status: int, said: bytes
) -> None:
    """A miss says it; a run that forks asks its provider. Overrides, and a fork that is only looked for, carry on."""
    _accept(store, _ask(EDITED))
    with InProcess(store, "replay", allow_live=model == "m") as proxy:
        assert proxy.control("POST", "sessions", name="c", **asked)[0] == 201
        answer = _send(proxy, _ask(EDITED, model=model))
        assert (answer.status, said in answer.body) == (status, True), answer.body


def test_a_call_that_may_be_gone_is_not_unused(store: Path) -> None:
    """Somebody accepted that it is no longer made; it is unused again when that is taken back."""
    _record(store, (_ask(SYSTEM, "Title?"), "A title", 200))
    with open_store(store, writable=True, now=lambda: NOW) as opened:
        key = next(row.key for row in opened.list_summaries("c") if row.last_user_text == "Title?")
        gone = build_change_for_removed_call("chat.completions", key, ChangeCause(ChangeSource.PROMPT))
        counts = []
        for accepted in (build_accepted_changes([gone], TODAY), []):
            store_accepted_changes(opened, "c", accepted)
            with InProcess(store, "replay") as proxy:
                _send(proxy, _ask(SYSTEM))
                counts.append(proxy.control("GET", "sessions/c")[1]["unused_total"])
    assert counts == [0, 1]


def test_a_session_may_ask_anew_instead(store: Path) -> None:
    """With `carry` false what changed goes to its provider where the mode allows it, and is recorded."""
    _accept(store, _ask(EDITED))
    for carry, text in ((True, b"It is 2."), (False, b"live")):
        with InProcess(store, "auto") as proxy:
            proxy.control("POST", "sessions", name="c", carry=carry)
            assert text in _send(proxy, _ask(EDITED)).body


def test_a_trial_says_what_it_would_cost(store: Path) -> None:
    """Of each call that is no exact hit: its recording, its tokens, the changes; and what is new, or not looked at."""
    carried, new, after = _try(store, _ask(EDITED), _ask(SYSTEM, "Who?"), _ask(EDITED, "Who?"), _ask(SYSTEM))
    assert (carried.recording, carried.input, carried.output, carried.refusal) == (1, 7, 3, None)
    assert [str(each) for each in carried.changes] == ['system prompt, line 2: "Be brief." -> "Be brief and kind."']
    assert carried.pending == tuple(each.name for each in carried.changes)
    assert new.has_no_place
    assert after.has_no_place
    _accept(store, _ask(EDITED))
    assert _try(store, _ask(EDITED))[0].pending == ()


def test_only_a_replay_is_on_trial(store: Path) -> None:
    """What changed is found out without asking anybody."""
    with InProcess(store, "auto") as proxy:
        status, said = proxy.control("POST", "sessions", name="c", trial=True)
        assert (status, "only a replay" in said["error"]["message"]) == (403, True) or status in {400, 422}


def test_a_failure_and_two_answers_are_never_carried(tmp_path: Path) -> None:
    """A recorded error is no answer; two recordings with different answers at one place are none either."""
    store = tmp_path / "s.db"
    _record(store, (_ask(SYSTEM), "overloaded", 400), (_ask("A", "Who?"), "Ann", 200), (_ask("B", "Who?"), "Bob", 200))
    whys = [call.refusal.why for call in _try(store, _ask(EDITED), _ask("C", "Who?")) if call.refusal]
    assert whys == [RefusalReason.IMPOSSIBLE, RefusalReason.AMBIGUOUS]
    (call,) = _try(store, _ask("B", "Who?", temperature=1))
    assert (call.recording, call.refusal) == (3, None)


def test_one_recording_answers_one_question(store: Path) -> None:
    """What another request had already is not given to a second one that differs from it."""
    first, second = _try(store, _ask(EDITED), _ask(EDITED, temperature=1))
    assert first.refusal is None
    assert second.refusal is not None


def test_what_says_something_else_in_each_call_is_data(tmp_path: Path) -> None:
    """Lines of a prompt that differ between recordings stay; the lines around them may change."""
    store, prompt = tmp_path / "s.db", "You help.\nBe brief.\nThe document: {}\nNever guess."
    asked = [_ask(prompt.format(name), f"What of {name}?") for name in ("one", "two")]
    _record(store, *((body, f"of {n}", 200) for n, body in enumerate(asked)))
    edited = prompt.replace("Be brief.", "Be kind.")
    carried, data = _try(store, _ask(edited.format("one"), "What of one?"), _ask(prompt.format("2"), "What of two?"))
    assert (carried.refusal, data.refusal and data.refusal.why) == (None, RefusalReason.DATA)


def test_lines_around_questions_may_change(tmp_path: Path) -> None:
    """What several recordings share is a template; the question, and values in the template, are the same or a miss."""
    store, words = tmp_path / "s.db", "Answer in one line.\nPay at most 5 euros.\nThe question: {}"
    _record(store, *((_ask(SYSTEM, words.format(name)), name, 200) for name in ("Who?", "Why?")))
    edited = words.replace("Answer", "Please answer")
    bodies = [_ask(SYSTEM, text) for text in (edited.format("Who?"), edited.format("How?"), words.format("Why?"),
                                              words.replace("5", "50").format("Why?"))]  # fmt: skip
    carried, question, amount = _try(store, *bodies)
    assert [change.segment for change in carried.changes] == ["user's words"]
    assert [each.refusal is not None for each in (question, amount)] == [True, True]


def test_a_value_learned_behind_one_command_is_no_change(tmp_path: Path) -> None:
    """An edited prompt is carried where a result differs in a volatile field of that very command, and no other one."""
    store, call = tmp_path / "s.db", {"name": "sh", "arguments": '{"cmd": "uuidgen"}'}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    asking = Response(200, "", (("content-type", JSON_TYPE),), (Chunk(0, json.dumps({"choices": [choice]}).encode()),))

    def ask(system: str, id_: str = "") -> bytes:
        said = [{"role": "system", "content": system}, {"role": "user", "content": "Make one."}]
        made = {"role": "tool", "tool_call_id": "call_1", "content": id_}
        return json.dumps({"model": "m", "messages": [*said, *([choice["message"], made] if id_ else [])]}).encode()

    old, new = "b96f0784-fe5a-40aa-aa88-70835aa5c1de", "1fb41f2f-cb3a-42c4-ab1e-607c925c4475"
    with InProcess(store, "record") as proxy:
        proxy.ask("r", "/s/c/v1/chat/completions", ask(SYSTEM), lambda _: asking)
        proxy.ask("r", "/s/c/v1/chat/completions", ask(SYSTEM, old), _say("made"))
    for command, refused in (("date", RefusalReason.RESULT), ("uuidgen", None)):
        with open_store(store, writable=True, now=lambda: NOW) as opened:
            field = VolatileField("uuid", "uuid", "sh", "line", "", f'{{"cmd":"{command}"}}')
            save_cassette_volatile_fields(opened, "c", [field])
        second = _try(store, ask(EDITED), ask(EDITED, new))[1]
        assert (second.refusal and second.refusal.why) == refused


def test_what_would_be_one_with_two_answers_is_found(tmp_path: Path) -> None:
    """Two prompts whose recordings answer differently cannot both become a third one."""
    store, other = tmp_path / "s.db", SYSTEM.replace("brief", "short")
    _record(store, (_ask(SYSTEM), "It is 2.", 200), (_ask(other), "Two.", 200))
    made = []
    for name, system in (("c", SYSTEM), ("d", other)):
        with InProcess(tmp_path / f"{name}.db", "record") as proxy:
            proxy.ask("r", "/s/c/v1/chat/completions", _ask(system), _say("x"))
        made += [change for call in _try(tmp_path / f"{name}.db", _ask(EDITED)) for change in call.changes]
    with open_store(store, writable=False, now=lambda: NOW) as opened:
        for changes, found in ((made[:1], []), (made, [(1, 2)])):
            assert (
                list(
                    find_recordings_equated_by_change(opened, "c", build_accepted_changes(changes, TODAY), Rules(), {})
                )
                == found
            )


def test_another_folder_and_day_are_no_changes(tmp_path: Path) -> None:
    """Accepted in one folder, it holds in another and on another day, unless the request names the recorded day."""
    store = tmp_path / "s.db"

    def opened(proxy: InProcess, cwd: str, day: str, **more: Json) -> None:
        said = [{"name": "cwd", "value": cwd}, {"name": "date", "value": day}]
        assert proxy.control("POST", "sessions", name="c", run_variables=said, **more)[0] == 201

    def ask(text: str, cwd: str, day: str, words: str = "Who?") -> bytes:
        return _ask(f"{text}\nYou are in {cwd}.\nToday is {day}", words)

    there, here = ("/home/ann/work", "2026-11-20"), ("/srv/ci/job", "2026-11-27")
    with InProcess(store, "record") as proxy:
        opened(proxy, *there)
        for words, text in (("Who?", "See /home/ann/work/a.txt"), ("When?", "On 2026-11-20")):
            proxy.ask("r", "/s/c/v1/chat/completions", ask("Be brief.", *there, words), _say(text))
    with InProcess(store, "replay") as proxy:
        opened(proxy, *there, trial=True)
        _send(proxy, ask("Be kind.", *there))
        made = [CarriedAnswerAttempt.from_json(each).changes for each in proxy.control("GET", "sessions/c")[1]["trial"]]
    with open_store(store, writable=True, now=lambda: NOW) as kept:
        store_accepted_changes(
            kept, "c", build_accepted_changes((change for changes in made for change in changes), TODAY)
        )
    with InProcess(store, "replay") as proxy:
        opened(proxy, *here)
        answer = _send(proxy, ask("Be kind.", *here))
        assert (answer.status, b"/srv/ci/job/a.txt" in answer.body) == (200, True), answer.body.decode()[:1500]
        report = proxy.control("GET", "sessions/c")[1]
        assert (report["carried"], report["bound"]) == (1, 0)
        proxy.engine.sessions.close_session("c")
    elsewhere = ("/opt/other", "2026-11-26")
    with InProcess(store, "auto") as proxy:  # something else was recorded elsewhere since
        opened(proxy, *elsewhere)
        proxy.ask("r", "/s/c/v1/chat/completions", ask("Be still.", *elsewhere, "Where?"), _say("Here."))
    with InProcess(store, "replay") as proxy:
        for place in (here, elsewhere):
            opened(proxy, *place)
            answer = _send(proxy, ask("Be kind.", *place))
            assert (answer.status, f"{place[0]}/a.txt".encode() in answer.body) == (200, True), answer.body.decode()[
                :900
            ]
            proxy.engine.sessions.close_session("c")
        opened(proxy, *here)
        bodies = [ask("Be kind.", *here, "When?"), ask("Be kind.", *here, "Who on 2026-11-20?"),
                  ask("Be kind.", here[0], there[1])]  # fmt: skip
        assert [_send(proxy, body).status for body in bodies] == [404, 404, 404]
