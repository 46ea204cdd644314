"""Hit or miss: every mode against every state of the tape, as one table."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.bindings import RunVariable, dump_run_variables
from llmproxy.core.engine.learn_fields_from_recordings import rewrite_recordings_to_new_run
from llmproxy.core.engine.request_identification import (
    RequestRouteResolver,
    fingerprint_credential,
    load_credential_hash_secret,
)
from llmproxy.core.engine.request_stages import (
    choose_exhausted_rule,
    decide,
    decide_from_request_head,
    describe_recorded_failure,
)
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.call_interceptor import Decided, MissReason
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.session import Session, Sessions, SessionSettings
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.traffic.interaction import Ending, Interaction
from llmproxy.errors import MachineError, RefusedError
from llmproxy.protocol import Channel, Decision, Exhausted, Mode, ModePolicy
from tests.support.chats import chat


def take(name: str, status: int = 200, ending: Ending = Ending.COMPLETE, occurrence: int = 1) -> RecordingHead:
    """Return a recording that keeps its name where others keep the digest of their request."""
    return RecordingHead(0, occurrence, status, ending, name.encode())


A, B = take("A"), take("B")
LIMIT, BROKEN, DENIED = take("429", 429), take("500", 500), take("401", 401)
CUT, OPEN = take("cut", ending=Ending.CUT), take("open", ending=Ending.UNTERMINATED)
LEFT = take("left", ending=Ending.LEFT)
AGAIN = take("left again", ending=Ending.LEFT, occurrence=3)
WRONG = take("400", 400)

REPLAY, AUTO, RECORD, ONCE, PASS = Mode.REPLAY, Mode.AUTO, Mode.RECORD, Mode.ONCE, Mode.PASSTHROUGH

# mode, recordings, then what the 1st, 2nd, ... arrival gets: a recording's name, "live" (recorded), "pass", or why it is refused.
TABLE: list[tuple[Mode, list[RecordingHead], list[str]]] = [
    (REPLAY, [], ["NEVER"]),
    (REPLAY, [A], ["A", "A", "A"]),
    (REPLAY, [A, B], ["A", "B", "B"]),
    (REPLAY, [LIMIT, A], ["429", "A", "A"]),
    (REPLAY, [A, BROKEN], ["A", "500", "A"]),
    (REPLAY, [A, CUT], ["A", "cut", "A"]),
    (REPLAY, [CUT], ["cut", "cut"]),
    (REPLAY, [LIMIT, BROKEN], ["429", "500", "500"]),
    (REPLAY, [WRONG], ["400", "400"]),
    (AUTO, [], ["live", "live"]),
    (AUTO, [A], ["A", "live"]),
    (AUTO, [A, B], ["A", "B", "live"]),
    (AUTO, [LIMIT, A], ["A", "live"]),
    (AUTO, [DENIED], ["live"]),
    (AUTO, [BROKEN], ["live"]),
    (AUTO, [CUT, A, OPEN, B], ["A", "B", "live"]),
    (AUTO, [WRONG], ["400", "live"]),
    (RECORD, [], ["live"]),
    (RECORD, [A, B], ["live", "live"]),
    (ONCE, [], ["live", "live"]),
    (ONCE, [A], ["A", "live"]),
    (ONCE, [LIMIT, A], ["A", "live"]),
    (ONCE, [CUT, A, OPEN, B, LEFT], ["A", "B", "live"]),
    (ONCE, [DENIED], ["live"]),
    (ONCE, [WRONG], ["400", "live"]),
    (AUTO, [LEFT], ["live"]),
    (AUTO, [AGAIN], ["left again", "live"]),
    (ONCE, [AGAIN], ["left again", "live"]),
    (ONCE, [A, AGAIN], ["A", "left again", "live"]),
    (AUTO, [take("429 left", 429, Ending.LEFT, 3)], ["live"]),
    (RECORD, [AGAIN], ["live"]),
    (REPLAY, [AGAIN], ["left again", "left again"]),
    (PASS, [], ["pass"]),
    (PASS, [A], ["pass", "pass"]),
]

# `once` on a complete cassette: it plays as replay does, and never goes live.
COMPLETE: list[tuple[list[RecordingHead], list[str]]] = [
    ([], ["NEVER"]), ([A], ["A", "A"]), ([LIMIT, A], ["429", "A", "A"]), ([CUT, A], ["cut", "A", "A"]),
    ([CUT], ["cut", "cut"]), ([OPEN, LEFT], ["open", "left", "left"]), ([DENIED], ["401", "401"]),
]  # fmt: skip


def policy_of(mode: Mode, *, complete: bool) -> ModePolicy:
    return Session("s", "s", 1, SessionSettings(mode), complete=complete).policy


def told(verdict: Decided) -> str:
    match verdict.decision:
        case Decision.REPLAY:
            assert verdict.recording is not None
            return verdict.recording.asked.decode()
        case Decision.REFUSE | Decision.FAULT:
            assert verdict.reason is not None
            return verdict.reason.name
        case Decision.RECORD:
            return "live"
        case Decision.PASS:
            return "pass"


@pytest.mark.parametrize(("policy", "takes", "expected"), [
    *(pytest.param(mode.policy, *rest, id=f"{mode}-{rest[1]}") for mode, *rest in TABLE),
    *(pytest.param(policy_of(ONCE, complete=True), *rest, id=f"complete-{rest[1]}") for rest in COMPLETE),
    pytest.param(policy_of(AUTO, complete=True), [A, LIMIT, CUT, B], ["A", "B", "live"], id="complete-auto"),
])  # fmt: skip
def test_modes(policy: ModePolicy, takes: list[RecordingHead], expected: list[str]) -> None:
    assert [
        told(decide(policy, takes, nth, Exhausted.LAST, recorded_here=False)) for nth in range(1, len(expected) + 1)
    ] == expected


@pytest.mark.parametrize(("exhausted", "expected"), [
    (Exhausted.LAST, ["A", "429", "B", "B", "B"]),
    (Exhausted.CYCLE, ["A", "429", "B", "A", "429"]),
    (Exhausted.MISS, ["A", "429", "B", "EXHAUSTED", "EXHAUSTED"]),
])  # fmt: skip
@pytest.mark.parametrize("mode", [REPLAY, ONCE])
def test_after_the_last_recording(mode: Mode, exhausted: Exhausted, expected: list[str]) -> None:
    """The rule for exhausted tapes counts in the modes that play them."""
    takes = [A, LIMIT, B]
    got = [
        told(decide(policy_of(mode, complete=True), takes, nth, exhausted, recorded_here=False)) for nth in range(1, 6)
    ]
    assert got == expected


def test_a_key_first_met_in_this_session_is_asked_again() -> None:
    """So that a first run in auto equals one in record."""
    assert told(decide(AUTO.policy, [A, B], 1, Exhausted.LAST, recorded_here=True)) == "live"
    assert told(decide(REPLAY.policy, [A], 1, Exhausted.LAST, recorded_here=True)) == "A"


@pytest.mark.parametrize(("recorded", "stays"), [
    *((take("", status), True) for status in (200, 201, 302, 400, 404, 422)), (A, True), (WRONG, True),
    *((take("", status), False) for status in (401, 403, 408, 409, 425, 429, 500, 502, 503, 529)),
    *((each, False) for each in (LIMIT, DENIED, CUT, LEFT, AGAIN, OPEN)),
])  # fmt: skip
def test_an_answer_that_may_be_another_tomorrow_says_so(recorded: RecordingHead, *, stays: bool) -> None:
    """Whatever is no good answer has a word for the log; one that stays what it is has none."""
    assert (recorded.is_good_answer, bool(describe_recorded_failure(recorded))) == (stays, not stays)


def test_every_reason_is_a_sentence() -> None:
    assert all(" " in reason for reason in MissReason)


@pytest.mark.parametrize(("channel", "method", "operation", "what"), [
    (Channel.LLM, "POST", "chat.completions", Exhausted.LAST),
    (Channel.HTTP, "GET", "/invoices", Exhausted.LAST),
    (Channel.HTTP, "POST", "/invoices", Exhausted.MISS),
    (Channel.MCP, "POST", "mcp:tools/call pay", Exhausted.MISS),
    (Channel.MCP, "POST", "mcp:tools/list", Exhausted.LAST),
])  # fmt: skip
def test_what_may_change_something_is_not_answered_twice(
    channel: Channel, method: str, operation: str, what: Exhausted
) -> None:
    """By default a call more than was recorded is a miss where it may do something; who asks for a cycle gets one."""
    assert choose_exhausted_rule(Exhausted.LAST, channel, method, operation) is what
    assert choose_exhausted_rule(Exhausted.CYCLE, channel, method, operation) is Exhausted.CYCLE


SECRET = b"0" * 32
CHAT, TELEMETRY = "/v1/chat/completions", "/v1/traces/ingest"


def placing(mode: Mode, tmp_path: Path) -> tuple[RequestRouteResolver, Sessions]:
    sessions = Sessions(SessionSettings(mode, 0.0, Exhausted.LAST), lambda _mode: None, "test")
    return RequestRouteResolver(EngineConfig(mode=mode, store=tmp_path / "x.db"), Redactor(), sessions), sessions


@pytest.mark.parametrize(("mode", "decision"), [
    (Mode.REPLAY, None), (Mode.AUTO, None), (Mode.ONCE, None), (Mode.RECORD, Decision.RECORD),
    (Mode.PASSTHROUGH, Decision.PASS),
])  # fmt: skip
def test_a_head_settles_what_need_not_be_looked_up(mode: Mode, decision: Decision | None, tmp_path: Path) -> None:
    """What is recorded or passed may stream through at once; what may be a hit waits for its body."""
    made, sessions = placing(mode, tmp_path)
    place = made.place_request("POST", CHAT, None, ())
    assert decide_from_request_head(place, sessions.get_or_open(place.name)) is decision
    assert decide_from_request_head(place._replace(in_scope=False), sessions.get_or_open(place.name)) is Decision.PASS


def test_a_stranger_is_let_through_only_where_the_network_is(tmp_path: Path) -> None:
    """In replay nothing leaves the machine but to hosts that were named."""
    host = ("https", "example.org", 443)
    with pytest.raises(RefusedError):
        placing(Mode.REPLAY, tmp_path)[0].place_request("GET", "/x", host, ())
    assert not placing(Mode.RECORD, tmp_path)[0].place_request("GET", "/x", host, ()).in_scope


def test_a_head_opens_no_session(tmp_path: Path) -> None:
    """Reading where a request belongs leaves no trace."""
    made, sessions = placing(Mode.REPLAY, tmp_path)
    made.place_request("POST", f"/s/a{CHAT}", None, ())
    assert sessions.open_sessions == {}


@pytest.mark.parametrize(("headers", "target"), [
    ((("Authorization", "Bearer sk-right"),), "/v1/models"),
    ((("x-api-key", "sk-right"),), "/v1/models"),
    ((("api-key", "sk-right"),), "/v1/models"),
    ((("X-Goog-Api-Key", "sk-right"),), "/v1/models"),
    ((), "/v1/models?key=sk-right"),
])  # fmt: skip
def test_the_same_key_is_the_same_caller_wherever_it_stands(headers: tuple[tuple[str, str], ...], target: str) -> None:
    """SDK generations send one key in different headers."""
    assert fingerprint_credential(headers, target, SECRET) == fingerprint_credential(
        (("x-api-key", "sk-right"),), "/", SECRET
    )


def test_another_key_or_none_is_another_caller() -> None:
    """A wrong key, no key, and the same key under another secret all differ; the key itself is not in it."""
    right = fingerprint_credential((("x-api-key", "sk-right"),), "/", SECRET)
    others = {
        fingerprint_credential((("x-api-key", "sk-wrong"),), "/", SECRET),
        fingerprint_credential((), "/", SECRET),
        fingerprint_credential((("x-api-key", "sk-right"),), "/", b"1" * 32),
    }
    assert len(others) == 3
    assert right not in others
    assert "sk-right" not in right


def test_a_signed_request_is_its_access_key() -> None:
    """SigV4 signs anew each time; who signs stays."""
    signed = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{}/us-east-1/bedrock/aws4_request, Signature={}"
    both = [
        fingerprint_credential((("authorization", signed.format(day, day)),), "/", SECRET)
        for day in ("20260101", "20260102")
    ]
    assert both[0] == both[1]


def test_the_secret_is_made_once_and_is_the_owners(tmp_path: Path) -> None:
    """It lies beside the store with mode 600; a damaged one is an error."""
    store = tmp_path / "a.db"
    first = load_credential_hash_secret(store)
    assert load_credential_hash_secret(store) == first
    path = tmp_path / "a.db.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(MachineError, match="5 bytes"):
        load_credential_hash_secret(store)


def run_in(folder: str, question: str) -> Interaction:
    """Return what a run in this folder asked, and the answer that names it."""
    words = dump_run_variables([RunVariable("cwd", folder)])
    return chat(f"{question} {folder}/a.txt", f"It is in {folder}/a.txt.", run_variables=words)


def test_only_the_folder_differs_and_is_exchanged() -> None:
    """Request, answer and key are those of the newer run, and the name is told."""
    old, new = run_in("/home/ann/shop", "Read"), run_in("/srv/build/7", "Read")
    told = rewrite_recordings_to_new_run([old], [new], (), Rules(), {})
    assert told.names == ("cwd",)
    (one,) = told.interactions
    assert (one.key, one.request) == (new.key, new.request)
    assert [chunk.data for chunk in one.response.chunks] == [chunk.data for chunk in new.response.chunks]


def test_another_question_stays_another() -> None:
    """It has the newer run's folder, and its own words and key."""
    old, new = run_in("/home/ann/shop", "Delete"), run_in("/srv/build/7", "Read")
    (one,) = rewrite_recordings_to_new_run([old], [new], (), Rules(), {}).interactions
    assert one.key == old.key != new.key
    assert b"Delete /srv/build/7/a.txt" in one.request.body


def test_nothing_declared_nothing_exchanged() -> None:
    """A recording without run variables comes back as it is."""
    old, new = (replace(run_in(folder, "Read"), run_variables="") for folder in ("/home/ann/shop", "/srv/build/7"))
    assert rewrite_recordings_to_new_run([old], [new], (), Rules(), {}) == ([old], ())
