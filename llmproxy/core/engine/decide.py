"""The decision on hits and misses: one pure function (`decide`), driven by the row of the mode (`protocol.Mode`).

The n-th request of a key in a session gets its n-th recording. If the mode plays only good recordings, the answer that
it forwards replaces a failure. An answer that its client left, and left again when it was requested live once more, is
good as far as it goes; a client that reads on and repeats the request gets it live.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.core.keys.mcp import is_tool_call
from llmproxy.core.providers.provider_table import SAFE
from llmproxy.core.sessions.exchange import Exchange, RoutedRequestHead
from llmproxy.core.sessions.interceptor import Decided, Lookup, MissReason
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import KeyedRecording, is_replayable_status, was_left_twice
from llmproxy.core.traffic.interaction import Ending, header
from llmproxy.protocol import THREAD_FIELD, Channel, Decision, Exhausted, ModePolicy, ReplayScope


def decide_from_head(place: RoutedRequestHead, session: Session) -> Decision | None:
    """Return the decision on a request that does not depend on its body; None if it must be looked up."""
    policy, not_llm = session.policy, place.route.row.not_llm
    if any(each.always for each in place.stubs) and not (not_llm and policy.on_miss is not Decision.REFUSE):
        return None
    if not policy.reaches_network:
        return None if place.in_scope else Decision.PASS
    if not place.in_scope or not_llm:
        return Decision.PASS
    if session.needs_whole_requests:
        return None
    return policy.on_miss if policy.plays is ReplayScope.NOTHING else None


def count_arrival(call: Exchange, found: Lookup) -> None:
    if not call.nth:
        recordings = list_playable(call.session.policy, found.recordings)
        call.nth = call.session.count_arrival((call.party, found.key), len(recordings))
        thread = header(call.request.headers, THREAD_FIELD) or call.progress.connection
        call.kept.after = call.session.position.swap_last_key_of_thread(thread, found.key)


def decide_by_mode(call: Exchange, found: Lookup, nth: int) -> Decided:
    session, place = call.session, call.place
    chosen = session.settings.exhausted
    exhausted = decide_exhausted(chosen, call.channel, call.method, call.operation, changes=place.changes)
    here = (call.party, found.key) in session.position.recorded_here
    return decide(session.policy, found.recordings, nth, exhausted, recorded_here=here)


def decide(
    policy: ModePolicy, recordings: Sequence[KeyedRecording], nth: int, exhausted: Exhausted, *, recorded_here: bool
) -> Decided:
    """Decide on a request, the `nth` arrival of its key in the session, counted from 1.

    `policy` is the session's, `recordings` are the key's live ones in its cassette, in order of occurrence.
    `recorded_here`: the key was first recorded in this session: it is recorded again, so a first run in `auto` equals
    `record`.
    """
    if policy.plays is ReplayScope.NOTHING:
        return Decided(policy.on_miss)
    tape = list_playable(policy, recordings)
    if policy.on_miss is Decision.REFUSE:
        return _decide_replay(tape, nth, exhausted)
    if recorded_here or nth > len(tape):
        return Decided(policy.on_miss)
    return Decided(Decision.REPLAY, tape[nth - 1])


def list_playable(policy: ModePolicy, recordings: Sequence[KeyedRecording]) -> Sequence[KeyedRecording]:
    """Return the recordings that count for this policy: those that it plays in turn, or all if it plays none."""
    if policy.plays is ReplayScope.GOOD:
        return [each for turn, each in enumerate(recordings, 1) if each.is_good_answer or was_left_twice(each, turn)]
    return recordings


def decide_exhausted(
    chosen: Exhausted, channel: Channel, method: str, operation: str = "", *, changes: bool = False
) -> Exhausted:
    """Return how to answer a request that comes more often than it was recorded; `chosen` is the session's setting.

    `changes`: its provider's row states that it creates or changes something.

    A request that changes something is not answered with the last recording again: a second invoice would have the
    first one's number.
    """
    tells = channel is Channel.HTTP and method not in SAFE
    # It is unknown whether a tool changes something.
    tells = tells or changes or (channel is Channel.MCP and is_tool_call(operation))
    return Exhausted.MISS if tells and chosen is Exhausted.LAST else chosen


_SAID: dict[Ending, str] = {
    Ending.LEFT: "the client left it",
    Ending.CUT: "it broke off",
    Ending.UNTERMINATED: "it has no end",
    Ending.FAILED: "its grpc-status says so",
}


def describe_recorded_failure(recording: KeyedRecording) -> str:
    if recording.ending is not Ending.COMPLETE:
        return f"a recorded failure: {_SAID[recording.ending]}"
    return "" if is_replayable_status(recording.status) else f"a recorded failure: {recording.status}"


def _decide_replay(tape: Sequence[KeyedRecording], nth: int, exhausted: Exhausted) -> Decided:
    if not tape:
        return Decided(Decision.REFUSE, reason=MissReason.NEVER)
    if nth <= len(tape):
        return Decided(Decision.REPLAY, tape[nth - 1])
    match exhausted:
        case Exhausted.MISS:
            return Decided(Decision.REFUSE, reason=MissReason.EXHAUSTED)
        case Exhausted.CYCLE:
            return Decided(Decision.REPLAY, tape[(nth - 1) % len(tape)])
        case Exhausted.LAST:
            return Decided(Decision.REPLAY, next((each for each in reversed(tape) if each.is_good_answer), tape[-1]))
