"""The engine without any network: from a request to its decision, and from an answer to the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.providers.upstreams_and_rate_limits import AwsSignedForProxyError
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange, RoutedRequestHead
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.sessions.session import PartyKey
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import (
    CassetteBusy,
    CassetteCorrupt,
    LLMProxyError,
    MissError,
    RecordingError,
    RefusedError,
    SettingsError,
)
from llmproxy.protocol import Decision, Mode
from tests.support.narrowing import narrow

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
NOW = 1_800_000_000.0


@contextmanager
def engine(
    store: Path,
    mode: Mode = Mode.RECORD,
    *,
    holder: str = "llmproxy",
    clock: Callable[[], float] = lambda: 100.0,
    kind: type[Engine] = Engine,
    **config: Any,
) -> Iterator[Engine]:
    """Run an engine; closed as a proxy that ends closes it."""
    journal = CallDecisionJournalWriter.open(Path(f"{store}.state.db"), lambda: NOW)
    made = kind(
        EngineConfig(mode=mode, store=store, **config), redactor=Redactor(), journal=journal, now=lambda: NOW,
        clock=clock, holder=holder,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.close()
        journal.close()


def body(text: str = "hi", **more: object) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}).encode()


def send(made: Engine, sent: bytes, target: str = CHAT, headers: Headers = ()) -> Exchange:
    exchange = made.begin_exchange("POST", target, None, headers)
    made.stages.identify_and_decide(exchange, sent)
    return exchange


def ask(made: Engine, text: str = "hi", target: str = CHAT, headers: Headers = (), **more: object) -> Exchange:
    return send(made, body(text, **more), target, headers)


def answered(made: Engine, exchange: Exchange, answer: bytes = b'{"choices": []}', status: int = 200) -> None:
    exchange.recording.on_head(
        10, status, "OK", (("content-type", "application/json"), ("content-length", str(len(answer))))
    )
    exchange.recording.on_data(20, answer)
    made.writer.store_answer(exchange, proper=True)


def record_texts(store: Path, *texts: str) -> None:
    with engine(store) as made:
        for text in texts:
            answered(made, ask(made, text))


def test_from_a_recording_to_its_replay(store: Path) -> None:
    """What was stored is what is answered, under the same key."""
    with engine(store) as made:
        exchange = ask(made)
        assert (exchange.decision, exchange.nth, exchange.method) == (Decision.RECORD, 1, "POST")
        answered(made, exchange)
        outcome = made.accounting.record_end(exchange, 200)
        assert (outcome.interaction, outcome.model, outcome.operation) == (1, "gpt-4o", "chat.completions")
    with engine(store, Mode.REPLAY) as made:
        assert made.count_unused() == 0, "nobody has a session"
        again = ask(made)
        assert (again.decision, again.key) == (Decision.REPLAY, exchange.key)
        assert made.answering.serve_recorded(again).body == b'{"choices": []}'
        assert made.accounting.record_end(again, 200).interaction == 1
        assert made.count_unused() == 0


def test_what_is_asked_again_without_a_stream_is_one_miss(store: Path) -> None:
    """Claude Code does so after a 404: refused, and neither counted nor journalled twice. Asked streamed again it is a miss of its own."""
    record_texts(store, "hi")
    with engine(store, Mode.REPLAY) as made:
        streamed = [ask(made, "hi there", stream=True), ask(made, "hi there", stream=True)]
        again, other, late = ask(made, "hi there"), ask(made, "who?"), ask(made, "hi there")
        assert [made.accounting.record_end(each, 404).miss for each in (*streamed, again, other, late)] == [
            True, True, False, True, True,
        ]  # fmt: skip
        assert [(each.decision, narrow(MissError, each.error).nearest) for each in streamed] == [
            (Decision.REFUSE, 1)
        ] * 2
        assert "asked again by its client" in made.accounting.record_end(again, 404).note
        assert len(made.journal.list_misses()) == 4


CLAUDE = ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)")
LESS: Mapping[str, Any] = {"tools": [{"type": "function", "function": {"name": "other"}}], "stream": True}


@pytest.mark.parametrize(("client", "changed", "later", "counted"), [
    (CLAUDE, LESS, 1.0, False),
    (CLAUDE, {"stream": False}, 1.0, False),
    (CLAUDE, {**LESS, "text": "hello"}, 1.0, True),
    (CLAUDE, {**LESS, "model": "gpt-5"}, 1.0, True),
    (CLAUDE, {"stream": True}, 1.0, True),
    (CLAUDE, LESS, 3600.0, True),
    (("user-agent", "OpenAI/Python 3.57.0"), LESS, 1.0, True),
])  # fmt: skip
def test_a_question_that_is_asked_on_with_less_is_one_miss(
    client: tuple[str, str], changed: Mapping[str, Any], later: float, *, counted: bool, tmp_path: Path
) -> None:
    """Claude Code drops betas and swaps tools: every attempt is told what the first one differed in. Another question is another miss."""
    store, now = tmp_path / "x.db", [0.0]
    record_texts(store, "hi")
    with engine(store, Mode.REPLAY, clock=lambda: now[0]) as made:
        first = ask(made, "hi there", headers=(client,), stream=True)
        now[0] += later
        asked: dict[str, Any] = {"text": "hi there", **changed}
        again = ask(made, headers=(client,), **asked)
        assert [made.accounting.record_end(each, 501).miss for each in (first, again)] == [True, counted]
        told = [narrow(MissError, each.error).message for each in (first, again)]
        assert counted or told[0] == told[1]


def test_identical_requests_in_flight_are_two(store: Path) -> None:
    """The number is given at arrival; who is answered first does not matter."""
    with engine(store) as made:
        first, second = ask(made), ask(made)
        assert (first.nth, second.nth) == (1, 2)
        answered(made, second, b'{"n": 2}')
        answered(made, first, b'{"n": 1}')
    with engine(store, Mode.REPLAY) as made:
        assert [made.answering.serve_recorded(ask(made)).body for _ in range(2)] == [b'{"n": 1}', b'{"n": 2}']


def test_the_key_does_not_depend_on_the_caller(tmp_path: Path) -> None:
    """Credentials, user agents, our own headers and the way here are not part of the question."""
    with engine(tmp_path / "x.db", Mode.AUTO) as made:
        plain = ask(made).key
        assert ask(made, headers=(("Authorization", "Bearer sk-x"), ("User-Agent", "a"))).key == plain
        assert ask(made, target="/s/other/openai/v1/chat/completions").key == plain
        assert ask(made, headers=(("x-llmproxy-session", "third"),)).key == plain
        forward = made.begin_exchange("POST", CHAT, ("https", "api.openai.com", 443), ())
        made.stages.identify_and_decide(forward, body())
        assert forward.key == plain
        assert ask(made, temperature=1).key != plain


def test_a_credential_learned_later_changes_what_was_remembered(tmp_path: Path) -> None:
    """A text that turns out to be a secret is keyed as one from then on; the memory of keys does not hide that."""
    secret = "canary-of-no-known-pattern-0123456789"
    with engine(tmp_path / "x.db", Mode.AUTO) as made:
        before = ask(made, f"it is {secret}").key
        assert ask(made, f"it is {secret}").key == before
        after = ask(made, f"it is {secret}", headers=(("authorization", f"Bearer {secret}"),)).key
        assert after != before
        assert ask(made, f"it is {secret}").key == after


def test_the_request_that_was_redacted_for_its_key_is_the_one_that_is_stored(tmp_path: Path) -> None:
    """It is made once; with a credential learned in between it is made anew, so that nothing of that gets into the store."""
    store, secret = tmp_path / "x.db", "kx7-Canary-Gateway-0123456789"
    with engine(store) as made:
        first = ask(made, "one")
        kept = first.request.redacted
        answered(made, first)
        assert first.request.redacted is kept is not None
        second = ask(made, secret)
        made.begin_exchange("POST", CHAT, None, (("Authorization", f"Bearer {secret}"),))
        answered(made, second)
    assert secret.encode() not in store.read_bytes()
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as read:
        assert [b"one" in read.load(1).request.body, b"REDACTED" in read.load(2).request.body] == [True, True]


@pytest.mark.parametrize(("target", "headers", "error"), [
    ("/nowhere", (), RefusedError),
    ("/s//v1/models", (), RefusedError),
    (CHAT, (("x-llmproxy-party", "nobody"),), RefusedError),
    (CHAT, (("x-llmproxy-session", "a\x01b"),), RefusedError),
])  # fmt: skip
def test_what_belongs_nowhere_is_refused(tmp_path: Path, target: str, headers: Headers, error: type[Exception]) -> None:
    """At the head, before anything is read or sent."""
    with engine(tmp_path / "x.db") as made, pytest.raises(error):
        made.begin_exchange("POST", target, None, headers)


@pytest.mark.parametrize(("target", "headers", "error"), [
    ("/openai/deployments/d/chat/completions", (("api-key", "k"),), SettingsError),
    (
        "/model/m/converse",
        (("host", "127.0.0.1:8080"), ("authorization", "AWS4-HMAC-SHA256 Credential=x")),
        AwsSignedForProxyError,
    ),
])  # fmt: skip
@pytest.mark.parametrize("mode", [Mode.RECORD, Mode.AUTO, Mode.PASSTHROUGH])
def test_what_cannot_go_upstream_is_refused_in_its_own_dialect(
    tmp_path: Path, target: str, headers: Headers, error: type[Exception], mode: Mode
) -> None:
    """Nobody said where it is, or it is signed for our address: not raised, so that the provider's own envelope says it."""
    with engine(tmp_path / "x.db", mode) as made:
        exchange = send(made, b"{}", target, headers)
        assert (exchange.decision, type(exchange.error)) == (Decision.REFUSE, error)
        assert made.accounting.record_end(exchange, 400).miss is False


def test_a_second_recorder_is_refused(tmp_path: Path) -> None:
    """It names who holds the cassette; another sample is free."""
    with engine(tmp_path / "x.db", holder="first") as one, engine(tmp_path / "x.db", holder="second") as two:
        answered(one, ask(one))
        with pytest.raises(CassetteBusy, match="first"):
            two.begin_exchange("POST", CHAT, None, ())
        assert two.begin_exchange("POST", "/s/default~2/v1/chat/completions", None, ()).decision is Decision.RECORD


def test_a_damaged_store_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is not a store")
    for mode in (Mode.REPLAY, Mode.RECORD):
        with pytest.raises(CassetteCorrupt), engine(tmp_path / "x.db", mode):
            pass


def test_an_answer_whose_request_never_ended_is_not_stored(tmp_path: Path) -> None:
    with engine(tmp_path / "x.db") as made:
        exchange = made.begin_exchange("POST", CHAT, None, ())
        exchange.recording.on_head(1, 413, "", ())
        with pytest.raises(RecordingError, match="ended before"):
            made.writer.store_answer(exchange, proper=True)
        exchange = ask(made)
        exchange.recording.damaged = True
        with pytest.raises(RecordingError, match="lost"):
            made.writer.store_answer(exchange, proper=True)


def test_several_answers_are_stored_together_or_not_at_all(store: Path) -> None:
    """One that cannot be takes the others along; by themselves they are stored then, and only they replace what was there."""
    record_texts(store, *"ab")
    with engine(store) as made:
        both = [ask(made, text) for text in "ab"]
        for exchange in both:
            exchange.recording.on_head(10, 200, "OK", ())
        both[1].recording.damaged = True
        with pytest.raises(RecordingError):
            made.writer.store_answers([(exchange, True) for exchange in both])
        both[1].recording.damaged = False
        with closing(sqlite3.connect(store)) as other:
            other.execute("CREATE TRIGGER refusing BEFORE INSERT ON interactions BEGIN SELECT RAISE(ABORT, 'no'); END")
            with pytest.raises(LLMProxyError, match="no"):
                made.writer.store_answers([(exchange, True) for exchange in both])
            other.execute("DROP TRIGGER refusing")
        made.writer.store_answer(both[0], proper=True)
        made.writer.store_answers([(both[1], True)])
        assert [exchange.kept.interaction for exchange in both] == [3, 4]
    with SqliteCassetteStore.open(store, writable=False, now=lambda: NOW) as opened:
        live = opened.conn.execute("SELECT id FROM interactions WHERE superseded_at IS NULL ORDER BY id").fetchall()
        assert [row[0] for row in live] == [3, 4]


def test_replay_says_what_is_missing_at_the_start(store: Path) -> None:
    """No store yet, or an empty cassette beside full ones."""
    with engine(store, Mode.REPLAY) as made:
        assert "there is no store" in made.notes()[0]
    with engine(store, cassette="other") as made:
        answered(made, ask(made))
        assert made.notes() == []
    with engine(store, Mode.REPLAY) as made:
        assert "other" in made.notes()[0]


@pytest.mark.parametrize("status", [200, 400, 404, 429, 500])
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.policy.writes])
def test_what_arrives_while_an_answer_is_stored_does_not_lose_it(tmp_path: Path, mode: Mode, status: int) -> None:
    """The writer's thread walks over nothing that the event loop adds to: of a set that grows meanwhile no loop is left."""

    class Growing(set[PartyKey]):
        def __iter__(self) -> NoReturn:
            raise RuntimeError("changed size during iteration")

    with engine(tmp_path / "x.db", mode) as made:
        for more in ({}, {"previous_response_id": "resp_1"}):
            exchange = made.begin_exchange("POST", "/v1/responses", None, ())
            exchange.session.position.recorded_here = Growing()
            made.stages.identify_and_decide(exchange, json.dumps({"model": "m", "input": "b", **more}).encode())
            answered(made, exchange, b'{"error":{"message":"no"}}', status=status)
            assert (exchange.decision, exchange.kept.interaction is not None) == (Decision.RECORD, True)


def test_auto_does_not_freeze_a_forgotten_id(store: Path, tmp_path: Path) -> None:
    """A 4xx to an id that was served from a recording is passed on, not recorded, with the hint; to a live id it is recorded."""
    first, second = b'{"model":"m","input":"a"}', b'{"model":"m","input":"b","previous_response_id":"resp_1"}'
    made_it = b'{"id":"resp_1","object":"response","status":"completed","output":[]}'

    with engine(store) as made:
        answered(made, send(made, first, RESPONSES), made_it)
    with engine(store, Mode.AUTO) as made:
        assert send(made, first, RESPONSES).decision is Decision.REPLAY
        exchange = send(made, second, RESPONSES)
        assert exchange.decision is Decision.RECORD
        answered(made, exchange, b'{"error":{"message":"Previous response not found"}}', status=400)
        assert (exchange.decision, "--mode record" in exchange.note) == (Decision.PASS, True)
        assert exchange.kept.interaction is None
    with engine(tmp_path / "y.db", Mode.AUTO) as made:
        answered(made, send(made, first, RESPONSES), made_it)
        exchange = send(made, second, RESPONSES)
        answered(made, exchange, b'{"error":{"message":"bad input"}}', status=400)
        assert (exchange.decision, exchange.kept.interaction) == (Decision.RECORD, 2)


def test_a_place_holds_while_nothing_that_it_rests_on_changes(tmp_path: Path) -> None:
    """A new credential, or a session that is opened with upstreams of its own or closed, and the same head is placed anew."""
    with engine(tmp_path / "x.db", Mode.AUTO) as made:

        def place(path: str) -> RoutedRequestHead:
            return made.dispatcher.place_request("POST", f"/s/a{path}", None, ())

        before = place(CHAT)
        assert made.dispatcher.is_still_valid(before)
        made.redactor.learn_request((("authorization", "Bearer 7Qm2xR9vTb4KzLw8"),), "")
        assert not made.dispatcher.is_still_valid(before)
        before = place(CHAT)
        with pytest.raises(RefusedError):
            place("/mine/v1/chat/completions")
        made.sessions.open_session("a", upstreams={"mine": "http://gpu:8000/v1"})
        assert not made.dispatcher.is_still_valid(before)
        inside = place("/mine/v1/chat/completions")
        assert made.dispatcher.is_still_valid(inside)
        assert made.stages.begin_exchange(inside).route.upstream.startswith("http://gpu:8000")
        made.sessions.close_session("a")
        assert not made.dispatcher.is_still_valid(inside)


FAILURES = [(401, None), (403, None), (429, None), (500, None), (200, b"cut"), (200, b"left")]


@pytest.mark.parametrize("first", [Mode.RECORD, Mode.AUTO, Mode.ONCE])
@pytest.mark.parametrize("second", [Mode.RECORD, Mode.AUTO, Mode.ONCE])
@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_failed_first_run_does_not_poison_the_cassette(
    first: Mode, second: Mode, failure: tuple[int, bytes | None], tmp_path: Path
) -> None:
    """A 401 and then the right key, a cut stream and then a whole one: replay serves the good answer, and nothing whole was paid for twice."""
    store, good = tmp_path / "x.db", b'{"choices": [{"message": {"content": "good"}}]}'
    status, kind = failure
    with engine(store, first) as made:
        answered(made, ask(made, "whole"), b'{"choices": [{"message": {"content": "w"}}]}')
        exchange = ask(made)
        exchange.recording.on_head(10, status, "", (("content-type", "application/json"), ("content-length", "99")))
        exchange.recording.on_data(20, b'{"choices": [')
        exchange.recording.left = kind == b"left"
        made.writer.store_answer(exchange, proper=kind is None)
        made.sessions.close_session("default")
    with engine(store, second) as made:
        made.sessions.open_session("default", mode=second)
        again = ask(made, "whole")
        assert again.decision is (Decision.RECORD if second is Mode.RECORD else Decision.REPLAY)
        exchange = ask(made)
        assert exchange.decision is Decision.RECORD
        answered(made, exchange, good)
        if again.decision is Decision.RECORD:
            answered(made, again)
        made.sessions.close_session("default")
    for mode in (Mode.REPLAY, Mode.ONCE, Mode.AUTO):
        with engine(store, mode) as made:
            exchange = ask(made)
            assert made.answering.serve_recorded(exchange).body == good
            assert exchange.note == ""
            assert made.count_unused() == 1  # the other one: no failure is left that nobody can reach


@pytest.mark.parametrize(("statuses", "kept"), [([401], 1), ([401, 403], 1), ([429, 200], 0), ([200, 401], 0)])
def test_a_failure_replaces_no_good_recording(statuses: list[int], kept: int, store: Path) -> None:
    """Recording anew, twice, with a wrong key keeps the good answer of before; the failures of one session stay together."""
    record_texts(store, "a")
    for _ in range(2):
        with engine(store) as made:
            for status in statuses:
                answered(made, ask(made, "a"), status=status)
    with engine(store, Mode.REPLAY) as made:
        served = [made.answering.serve_recorded(ask(made, "a")).status for _ in range(kept + len(statuses))]
        assert (served, made.count_unused()) == ([200] * kept + statuses, 0)


@pytest.mark.parametrize("mode", [Mode.RECORD, Mode.AUTO, Mode.ONCE])
def test_a_retry_inside_one_session_replays_as_one(mode: Mode, store: Path) -> None:
    """Failure and good answer of one session stay both, and what is served although it failed says so."""
    with engine(store, mode) as made:
        for status in (429, 401, 200):
            answered(made, ask(made), status=status)
        made.sessions.close_session("default")
    for _ in range(2):
        with engine(store, Mode.REPLAY) as made:
            asked = [ask(made) for _ in range(3)]
            assert [made.answering.serve_recorded(each).status for each in asked] == [429, 401, 200]
            for each in asked:
                made.accounting.record_end(each, 200)
            assert [each.note for each in asked] == ["a recorded failure: 429", "a recorded failure: 401", ""]
            assert made.sessions.get_or_open("default").calls.totals.to_json()["served_failures"] == 2
        with engine(store, Mode.ONCE) as made:
            assert made.sessions.get_or_open("default").complete


def test_a_cassette_that_holds_a_failure_is_sealed_by_saying_so(store: Path) -> None:
    """`close` with `complete: true`: mode once then serves the 401 and asks nobody."""
    for sealed in (None, True):
        with engine(store, Mode.ONCE) as made:
            made.sessions.open_session("default")
            exchange = ask(made)
            assert exchange.decision is Decision.RECORD
            answered(made, exchange, status=401)
            made.sessions.close_session("default", complete=sealed)
    with engine(store, Mode.ONCE) as made:
        assert made.answering.serve_recorded(ask(made)).status == 401


SSE = (("content-type", "text/event-stream"),)


def begin_response(made: Engine, said: str, name: str, **more: object) -> Exchange:
    """Ask, and get the first event: it names the answer."""
    exchange = send(made, json.dumps({"model": "gpt-4o", "input": said, "stream": True, **more}).encode(), RESPONSES)
    if exchange.decision is Decision.RECORD:
        exchange.recording.on_head(10, 200, "OK", SSE)
        exchange.recording.on_data(20, _event("response.created", name))
    return exchange


def _event(kind: str, name: str) -> bytes:
    output = [{"type": "message", "id": f"msg_{name}"}] if kind == "response.completed" else []
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': {'id': name, 'output': output}})}\n\n".encode()


def end_response(made: Engine, exchange: Exchange, name: str, *, proper: bool = True) -> None:
    if proper:
        exchange.recording.on_data(30, _event("response.completed", name))
    made.writer.store_answer(exchange, proper=proper)
    made.accounting.record_end(exchange, 200)


@pytest.mark.parametrize("mode", [Mode.RECORD, Mode.AUTO, Mode.ONCE])
@pytest.mark.parametrize("order", ["at once", "reversed", "stored first"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_key_does_not_depend_on_when_the_answer_before_is_stored(
    mode: Mode, order: str, twice: bool, store: Path
) -> None:
    """The next turn may name an answer that is not stored yet: its key is the one that replay derives."""
    with engine(store, mode) as made:
        made.sessions.open_session("default", mode=mode)
        first = [begin_response(made, "hi", f"resp_{n}") for n in range(1 + twice)]
        if order == "stored first":
            for n, each in enumerate(first):
                end_response(made, each, f"resp_{n}")
        more = [begin_response(made, "go on", f"resp_1{n}", previous_response_id=f"resp_{n}") for n in range(1 + twice)]
        open_ = [(each, f"resp_{n}") for n, each in enumerate(first)] if order != "stored first" else []
        open_ += [(each, f"resp_1{n}") for n, each in enumerate(more)]
        for each, name in reversed(open_) if order == "reversed" else open_:
            end_response(made, each, name)
        assert not any(made._state.pending._places.values())
        made.sessions.close_session("default", complete=True)
    with engine(store, Mode.REPLAY) as made:
        for n in range(1 + twice):
            assert made.answering.serve_recorded(begin_response(made, "hi", "")).body.count(f'"resp_{n}"'.encode())
        for n in range(1 + twice):
            found = begin_response(made, "go on", "", previous_response_id=f"resp_{n}")
            assert found.error is None
            assert f'"resp_1{n}"'.encode() in made.answering.serve_recorded(found).body
        assert made.count_unused() == 0


def test_an_answer_that_is_cancelled_while_it_comes_replays(store: Path) -> None:
    """The cancel names an id of which only the first chunk is here, and ends before it."""
    with engine(store, Mode.RECORD) as made:
        first = begin_response(made, "hi", "resp_a", background=True)
        cancel = send(made, b"", f"{RESPONSES}/resp_a/cancel")
        answered(made, cancel, b'{"id": "resp_a", "status": "cancelled"}')
        end_response(made, first, "resp_a", proper=False)
    with engine(store, Mode.REPLAY) as made:
        assert b"resp_a" in made.answering.serve_recorded(begin_response(made, "hi", "", background=True)).body
        assert b"cancelled" in made.answering.serve_recorded(send(made, b"", f"{RESPONSES}/resp_a/cancel")).body


def test_nothing_of_this_run_is_written_with_a_request(store: Path, tmp_path: Path) -> None:
    """The client's Host names our own port, another one each time: a file for review leaves it out."""
    for port in (8080, 49152):
        with engine(store, Mode.AUTO, cassette_dir=tmp_path / "kept") as made:
            made.sessions.open_session("default", mode=Mode.AUTO)
            answered(made, ask(made, f"port {port}", headers=(("Host", f"127.0.0.1:{port}"),)))
            made.sessions.close_session("default")
    text = (tmp_path / "kept" / "default.yaml").read_text()
    assert "Host" not in text
    assert "49152" not in text.replace("port 49152", "")
    assert "127.0.0.1" not in text


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.ONCE, Mode.RECORD, Mode.PASSTHROUGH])
@pytest.mark.parametrize(("headers", "target"), [
    ((("authorization", "Bearer REDACTED-1****"),), CHAT),
    ((("authorization", "Bearer REDACTED-1:github*****"),), CHAT),
    ((("x-api-key", "[REDACTED]"),), CHAT),
    ((("x-pass", "REDxa1b2c3d4*****"),), CHAT),
    ((("sec-websocket-protocol", "realtime, openai-insecure-api-key.REDACTED-1:openai****"),), CHAT),
    ((("x-api-key", "REDACTEDx0123456789ab****"),), CHAT),
    ((("authorization", "Basic dXNlcjpSRURBQ1RFRC0xOmNyZWRlbnRpYWwq"),), CHAT),
    ((("cookie", "sid=REDACTED-2:cookie***"),), CHAT),
    ((), f"{CHAT}?api_key=REDACTEDx0123456789ab"),
])  # fmt: skip
def test_a_placeholder_is_no_credential_and_never_leaves_the_machine(
    mode: Mode, headers: Headers, target: str, tmp_path: Path
) -> None:
    """In every mode that forwards it is refused in words, and nothing is stored; a real credential goes."""
    with engine(tmp_path / "x.db", mode) as made:
        exchange = ask(made, target=target, headers=headers)
        assert exchange.decision is Decision.REFUSE
        assert "placeholder of a recording" in str(exchange.error)
        assert not made.may_pass_unrecorded(exchange)
        assert ask(made, "other", headers=(("authorization", "Bearer real-0123456789abcdef"),)).error is None


def test_a_placeholder_is_answered_by_its_recording(store: Path) -> None:
    """A replay needs no credential: only what would be forwarded is refused."""
    with engine(store) as made:
        answered(made, ask(made, headers=(("authorization", "Bearer real-0123456789abcdef"),)))
    for mode in (Mode.REPLAY, Mode.AUTO):
        with engine(store, mode) as made:
            assert ask(made, headers=(("authorization", "Bearer REDACTED-1****"),)).decision is Decision.REPLAY


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.RECORD, Mode.PASSTHROUGH])
@pytest.mark.parametrize("sent", [
    b"grant_type=refresh_token&refresh_token=REDACTEDx0123456789ab****",
    b'{"grant_type": "refresh_token", "refresh_token": "REDACTED-1:anthropic-oauth****"}',
    b'{"model": "m", "tools": [{"type": "mcp", "authorization": "REDACTED-1:github****"}]}',
    b'{"model": "m", "mcp_servers": [{"name": "s", "authorization_token": "[REDACTED-1:github]"}]}',
    b'{"model": "m", "tools": [{"type": "mcp", "headers": {"X-Api-Key": "REDACTED-2****"}}]}',
    b'{"user": "kim", "login": {"password": "REDACTEDx0123456789ab****"}}',
])  # fmt: skip
def test_a_body_with_a_placeholder_for_a_credential_is_not_sent(mode: Mode, sent: bytes, tmp_path: Path) -> None:
    """The next token is asked for with the one of a recorded answer; what a conversation quotes is no credential."""
    kind = "json" if sent.startswith(b"{") else "x-www-form-urlencoded"
    with engine(tmp_path / "x.db", mode) as made:
        head = (("content-type", f"application/{kind}"),)
        assert send(made, sent, headers=head).decision is Decision.REFUSE
        quoted = {"type": "tool_use", "input": {"access_token": "REDACTED-1:github****"}}
        quoting = json.dumps({"messages": [{"role": "assistant", "content": [quoted]}]}).encode()
        assert send(made, quoting, headers=head).error is None


def test_a_large_body_is_prepared_on_a_thread_and_not_redacted_again(tmp_path: Path) -> None:
    """What takes long is there when `identify` asks; the key is the same, and what is known needs no thread."""
    large = "the answer is 42. " * 8_000
    with engine(tmp_path / "x.db", Mode.AUTO) as made:
        small, exchange = (made.begin_exchange("POST", CHAT, None, ()) for _ in range(2))
        sent = body(large)
        assert not made.keying.is_slow_to_prepare(small, body())
        assert made.keying.is_slow_to_prepare(exchange, sent)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(made.keying.redact_in_advance, exchange, sent).result()
        prepared = exchange.request.redacted
        assert prepared is not None
        made.stages.identify_and_decide(exchange, sent)
        assert exchange.request.redacted is prepared
        assert not made.keying.is_slow_to_prepare(small, sent)
        assert exchange.key == ask(made, large).key
