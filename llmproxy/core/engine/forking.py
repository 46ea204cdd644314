"""A session whose agent deviates from its recording: overrides of results and answers, and the fork from the parent.

The first request that is neither the parent's nor overridden *forks* the run: it is refused and explained, or (live)
sent upstream and recorded in a child from here on. Until it forks, the session is a replay of its parent; then it
records its child. Any later replay of a child replaces tool results as its row in `forks` states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.answer_writing import build_provider_answer, can_build_provider_answer
from llmproxy.core.dialects.conversation import parse_answer_as_message
from llmproxy.core.dialects.messages import as_dict
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_identification import refuse_if_unsendable
from llmproxy.core.engine.request_stages import assign_call_occurrence
from llmproxy.core.forks.fork_rows import CopiedRecording, Fork, find_fork, store_fork_with_copies
from llmproxy.core.forks.overrides import (
    AnswerOverrides,
    Known,
    NthCallOfTool,
    OverrideNeedsCallArgumentsError,
    replace_tool_results,
)
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.sessions.call_interceptor import Decided, MissReason, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session, SessionInUse
from llmproxy.core.traffic.body_decoding import decode_body
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Interaction, Response, Usage, get_content_encoding, header, remove_headers
from llmproxy.errors import RefusedError
from llmproxy.protocol import AGENT, OFFLINE, Channel, Decision, Mode

_FAILED = 400
_HISTORIES = ("previous_response_id", "previous_interaction_id", "conversation")
"""Members of a request that name a history at the provider."""
_NAMED = 20
"""Maximum tools that are named in a report."""


class _NumberedRequest(NamedTuple):
    number: int = 0
    """From 1; 0 if it is not counted."""
    llm_call: int | None = None
    """Number of this call to a model, from 0."""


def _get_numbered_request(call: Exchange) -> _NumberedRequest:
    return call.state.get(_NumberedRequest) or _NumberedRequest()


@dataclass(slots=True)
class ForkState:
    overrides: AnswerOverrides = field(default_factory=AnswerOverrides)
    """Effective overrides: the given ones over the inherited ones."""
    given: AnswerOverrides = field(default_factory=AnswerOverrides)
    """Overrides that must match something."""
    parent: tuple[str, int] = ("", 1)
    asked_for: bool = False
    """Whether the session was opened for this; False: it only plays a child whose overrides it inherited."""
    mocks: bool = False
    """Whether results are replaced in any mode: the recording contains them, and nothing forks from it."""
    live: bool = False
    at: int | None = None
    """Number of the agent's request, from 1, at which to fork, even if it equals the parent's."""
    child: str | None = None
    """Reserved name of the cassette that is recorded after the fork."""
    fork: Fork | None = None
    """The fork; without a cassette if the run stopped there."""
    requests: int = 0
    llm_calls: int = 0
    shared: list[CopiedRecording] = field(default_factory=list)
    made: dict[int, Interaction] = field(default_factory=dict)
    """Answers from overrides, by number of the call in the session."""
    _used: Counter[str] = field(default_factory=Counter)
    _answered: set[int] = field(default_factory=set)
    _seen: dict[str, None] = field(default_factory=dict)
    _causes: dict[str, None] = field(default_factory=dict)
    _last: tuple[str | None, bool] = (None, False)
    calls: dict[str, NthCallOfTool] = field(default_factory=dict)
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Calls of each tool up to an answer, by its id or its conversation's."""
    scanned: int = 0
    """Number of the session's first calls whose answers were searched for ids of tool calls."""
    learned: set[int] = field(default_factory=set)
    """Numbers of all calls that were searched."""

    @property
    def is_forked(self) -> bool:
        return self.fork is not None and bool(self.fork.cassette)

    def restart(self) -> None:
        self.requests = self.llm_calls = 0
        self._last = (None, False)
        if not self.is_forked:
            self.fork = None
            self.shared.clear()
            self.made.clear()

    def override_results(self, call: Exchange, body: bytes, known: Known) -> bytes:
        if not self.overrides.tools:
            return body
        done = replace_tool_results(body, self.overrides, lambda id_: self.calls.get(id_) or known(id_))
        self._seen.update(dict.fromkeys(done.seen))
        self.calls.update(done.calls)
        for each in done.swaps:
            self._used[each.override.name_as_typed] += 1
            self._causes[f"the result of {each.place.tool} (call {each.place.nth}) was overridden"] = None
        if done.swaps:
            call.request.body, call.request.rewritten = done.body, True
            call.request.headers = remove_headers(call.request.headers, "content-encoding")
            call.note = f"overridden: {', '.join(dict.fromkeys(each.override.name_as_typed for each in done.swaps))}"
        return done.body

    def assign_llm_call_number(self, call: Exchange) -> int | None:
        """Count an agent's request; returns its number of LLM call, from 0, or None. A retry keeps its original's."""
        numbered = self.peek_number(call)
        call.state.put(numbered)
        self.requests = numbered.number
        if numbered.llm_call is not None:
            self.llm_calls, self._last = numbered.llm_call + 1, (call.key, False)
        return numbered.llm_call

    def peek_number(self, call: Exchange) -> _NumberedRequest:
        """Return a call's number without counting it: the next, or the original's for a retry."""
        again = self._last[0] == call.key and bool(call.place.attempt)
        is_next = not again and self._last != (call.key, True)
        llm_call = self.llm_calls - 1 + is_next if can_build_provider_answer(call.operation) else None
        return _NumberedRequest(self.requests + (not again), llm_call)

    def mark_failed_for_retry(self, call: Exchange, status: int) -> None:
        if _get_numbered_request(call).llm_call is not None and self._last[0] == call.key:
            self._last = (call.key, status >= _FAILED or not status)

    def build_overridden_answer(self, call: Exchange, number: int | None) -> Response | None:
        """Return a call's overridden answer, None if it has none; `number` is `assign_llm_call_number`'s result."""
        if (made := self.write_overridden_answer(call, number)) is not None and number is not None:
            self._answered.add(number)
            self._causes[f"the answer of LLM call {number} was overridden"] = None
            call.note = "; ".join(note for note in (call.note, f"answer {number} overridden") if note)
        return made

    def write_overridden_answer(self, call: Exchange, number: int | None) -> Response | None:
        if number is None or (said := self.overrides.answers.get(number)) is None:
            return None
        return build_provider_answer(
            call.operation, call.request.data, call.route.target, call.identity.model, said,
            stream=call.identity.stream, call=number,
        )  # fmt: skip

    def learn_tool_calls(self, answered: Interaction) -> None:
        """Number the calls of an answer within its conversation, whose history the provider may keep."""
        said, asked = parse_answer_as_message(answered), as_dict(parse_json_or_none(answered.request.body))
        before = next((str(asked[name]) for name in _HISTORIES if asked.get(name)), "")
        counts = Counter(self._counts.get(before))
        for each in said.tool_calls if said is not None else ():
            counts[each.name] += 1
            if each.id:
                self.calls.setdefault(each.id, NthCallOfTool(each.name, counts[each.name], each.arguments))
        named = [before] if asked.get("conversation") else []
        self._counts |= dict.fromkeys((*named, *answered.made_ids), counts)

    def record_stop(self, call: Exchange, miss: ExplainedMiss) -> str:
        """Record that the run stopped at its fork, if first; returns the text. An override is no explained miss."""
        fork = self.build_fork(call, miss, "")
        self.fork = self.fork or fork
        asked = _get_numbered_request(call)
        where = f"at request {asked.number} of the agent: {fork.why}"
        number = "N" if asked.llm_call is None else asked.llm_call
        forks = f"llmproxy: the run forks here, {where}."
        return (
            (forks if self._causes else f"{miss.text}\nThe run forks here, {where}.")
            + f"\nGo on with the provider and record the fork: the same command with --live; or say what is answered:"
            f" --override-llm {number}='...'"
        )

    def should_fork_at(self, numbered: _NumberedRequest, *, hit: bool) -> bool:
        is_wanted = self.at is not None and numbered.number >= self.at  # that request itself may be overridden
        return self.live and not self.is_forked and (not hit or is_wanted)

    def build_fork(self, call: Exchange, miss: ExplainedMiss | None, child: str, now: float = 0.0) -> Fork:
        near = miss.nearest if miss is not None else None
        differs = " and ".join(self._causes) or "the agent asked something else by itself"
        return Fork(
            cassette=child, parent=self.parent[0], parent_sample=self.parent[1],
            step=_get_numbered_request(call).number, shared=len(self.shared) + len(self.made),
            why=f"--from {self.at}" if miss is None else differs,
            path=near.differences[0].path if near is not None and near.differences else None, overrides=self.overrides,
            created_at=now,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        fork = self.fork
        tools = [{**each.to_json(), "used": self._used[each.name_as_typed]} for each in self.overrides.tools]
        for each, plain in zip(self.overrides.tools, tools, strict=True):
            plain["inherited"] = each not in self.given.tools
        return {
            "tools": tools,
            "answers": [
                {"call": number, "used": number in self._answered} for number in sorted(self.overrides.answers)
            ],
            "seen": list(self._seen)[:_NAMED],
            "requests": self.requests,
            "llm_calls": self.llm_calls,
            "parent": self.parent[0],
            "parent_sample": self.parent[1],
            "fork": fork and {"cassette": fork.cassette or None, "step": fork.step, "why": fork.why, "path": fork.path},
        }


class ForkInterceptor(SessionCallInterceptor[Exchange]):
    sees_whole = rewrites = True

    def __init__(self, parts: EngineParts, session: Session, forking: ForkState) -> None:
        self._parts, self._session, self.forking = parts, session, forking
        self.leased_cassette = None if forking.child is None else (forking.child, 1)

    def on_restart(self) -> None:
        self.forking.restart()

    def before_reset(self) -> None:
        if self.forking.is_forked:
            name = self._session.name
            raise SessionInUse(f"llmproxy: session {name!r} has forked, so it cannot start again.", hint="Close it.")

    def find_unstored_call(self, seq: int) -> Interaction | None:
        return self.forking.made.get(seq)

    def build_report(self) -> Mapping[str, Any]:
        return {"overrides": self.forking.to_json()}

    def before_key(self, call: Exchange, body: bytes) -> bytes:
        if not _is_agent_request(call):
            return body
        try:
            return self._override_results(call, body)
        except (RefusedError, OverrideNeedsCallArgumentsError) as error:
            call.mark_refused(error)
            return body

    def _override_results(self, call: Exchange, body: bytes) -> bytes:
        """Return the new body, the original if nothing is overridden. Raises RefusedError: mocks over a WebSocket."""
        forking = self.forking
        if forking.mocks and (header(call.request.headers, "upgrade") or "").lower() == "websocket":
            raise RefusedError(
                "llmproxy: this run mocks results of tools, which is done in requests;"
                " over a WebSocket they are not swapped.",
                hint="Let the agent ask its model over HTTP, or take `mock` out of the scenario.",
            )
        coding = get_content_encoding(call.request.headers)
        try:
            plain = decode_body(body, coding, self._parts.state.config.max_request)
        except ValueError:
            return body

        def find_place(call_id: str) -> NthCallOfTool | None:
            for each in call.session.calls.list_calls_after(forking.scanned):
                forking.scanned += each.seq == forking.scanned + 1  # not past one that has not ended
                if each.seq in forking.learned:
                    continue
                forking.learned.add(each.seq)
                found = self._parts.builder.load_call_interaction(call.session, each) if each.party == AGENT else None
                if found is not None:
                    forking.learn_tool_calls(found)
            return forking.calls.get(call_id)

        changed = forking.override_results(call, plain, find_place)
        return changed if call.request.rewritten else body

    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        if not _is_agent_question(call):
            return found
        assign_call_occurrence(call, found)
        forking, opened = self.forking, self._parts.state.stores.opened
        call.answer.made = forking.build_overridden_answer(call, forking.assign_llm_call_number(call))
        if call.answer.made is None:
            return found
        call.decision = Decision.REPLAY
        made = self._parts.builder.build(call, call.answer.made, Usage(input=0, output=0), redacted=False)
        forking.made[call.progress.seq] = made
        if forking.is_forked and opened is not None:  # overrides are few: no need to wait for the writer
            call.kept.interaction = opened.add_interaction(made, supersede=False)
            call.session.served.add(call.kept.interaction)
        return found

    def preview_answer(self, call: Exchange) -> Response | None:
        if not _is_agent_question(call):
            return None
        return self.forking.write_overridden_answer(call, self.forking.peek_number(call).llm_call)

    def goes_live(self, call: Exchange, *, hit: bool) -> bool:
        """Return whether the run will fork with a call that is not counted yet; never with a tool's call."""
        return _is_agent_question(call) and self.forking.should_fork_at(self.forking.peek_number(call), hit=hit)

    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        forking, recording = self.forking, decided.recording
        if _is_agent_question(call) and forking.should_fork_at(_get_numbered_request(call), hit=recording is not None):
            call.decision = Decision.RECORD
            refuse_if_unsendable(call)
            if call.error is not None:
                return Decided(Decision.REFUSE)
            self._fork_run(call, decided.reason, len(found.recordings))
            return Decided(Decision.RECORD)
        if forking.live and recording is not None:
            forking.shared.append(CopiedRecording(recording.id, call.nth))
        return decided

    def _fork_run(self, call: Exchange, why: MissReason | None, recordings: int) -> None:
        """Begin the child with the recordings shared with its parent. Blocks for two short transactions per run."""
        parts, forking, session = self._parts, self.forking, call.session
        if (store := parts.state.stores.opened) is None:
            raise AssertionError("a fork without a store")
        miss, now = None, parts.state.now()
        if why is not None:
            wanted = parts.keying.build_canonical(call, call.request.data)
            miss = parts.misses.explain_miss(call, why, recordings, wanted)
        forking.fork = fork = forking.build_fork(call, miss, forking.child or "", now)
        session.superseded.update(session.position.counts)  # shared recordings are not replaced when their keys repeat
        overrides = forking.overrides.redact_texts(parts.state.redactor.text)
        session.served.update(store_fork_with_copies(store, replace(fork, overrides=overrides), forking.shared, now))
        for made in forking.made.values():
            session.served.add(store.add_interaction(replace(made, cassette=fork.cassette, sample=1), supersede=False))
        session.cassette, session.sample = fork.cassette, 1
        session.settings = replace(session.settings, mode=Mode.RECORD)
        call.note = "; ".join(note for note in (call.note, f"fork: {fork.cassette}") if note)

    def on_miss_message(self, call: Exchange, miss: ExplainedMiss, text: str) -> str:
        stops = self.forking.asked_for and _get_numbered_request(call).number
        return self.forking.record_stop(call, miss) if stops else text

    def on_end(self, call: Exchange, record: Call) -> Call:
        self.forking.mark_failed_for_retry(call, record.status)
        return record


def _is_agent_request(call: Exchange) -> bool:
    return call.party == AGENT and not call.route.row.not_llm


def _is_agent_question(call: Exchange) -> bool:
    return _is_agent_request(call) and call.channel is Channel.LLM


class ForkFeature(Feature):
    kind = ForkInterceptor

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        forking: ForkState | None = asked.get("forking")
        if forking is None:
            return
        if not forking.mocks and mode not in OFFLINE:
            msg = f"llmproxy: overrides and forks are for sessions in mode replay; this one is in {mode}."
            raise RefusedError(msg, hint="What differs from the recording can go on live, recorded in a fork.")
        if forking.live:
            self.parts.state.sessions.require_live_sessions_allowed("that forks")
            text, given = self.parts.state.redactor.text, forking.given
            if (hidden := given.redact_texts(text)) != given:
                pairs = zip(given.tools, hidden.tools, strict=True)
                name = next((f"the result of {a.tool}" for a, b in pairs if a != b), "an overridden answer")
                msg = f"llmproxy: {name} looks like a secret. No fork stores one, so it could not be replayed."
                raise RefusedError(msg, hint="Override it with another value.")

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> ForkInterceptor | None:
        forking: ForkState | None = asked.get("forking")
        sessions, inherited = self.parts.state.sessions, AnswerOverrides()
        parent = session.cassette, session.sample
        store = sessions.store(session.settings.mode)
        if store is not None and (fork := find_fork(store, *parent)) is not None:
            inherited = AnswerOverrides(fork.overrides.tools)  # overridden answers are recorded in it
        if forking is None:
            forking = ForkState(inherited, parent=parent)
            return ForkInterceptor(self.parts, session, forking) if inherited.tools else None
        forking.overrides = forking.given.with_fallback(inherited)
        forking.asked_for, forking.parent = not forking.mocks, parent
        if forking.live:
            forking.child = sessions.lease_child_cassette(session.cassette, asked.get("child"))[1]
        return ForkInterceptor(self.parts, session, forking)
