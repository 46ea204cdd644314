"""Carried answers: a request with changed segments gets the answer that was recorded at its place.

In a session whose cassette has accepted changes, the answer is served if every change is accepted, literally; in a
session on trial, under any changes that may be offered, and reported. Calls that follow a refusal in its thread are
skipped, since the program diverged there. One recording answers one request of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import batched
from typing import Any, NamedTuple, override

from llmproxy.amount_formatting import name_some
from llmproxy.calls_and_totals import Call
from llmproxy.core.bindings import (
    Bindings,
    Mismatch,
    deserialize_run_variables,
    find_volatile_matches,
    mask_bound_values_in_tool_args,
    match_requests_with_bindings,
    rewrite_answer,
    rewrite_request_to_this_run,
)
from llmproxy.core.bindings.leaf_places import ToolInvocation
from llmproxy.core.bindings.run_variables import PATHS
from llmproxy.core.bindings.session_bindings import BoundAnswer
from llmproxy.core.changes.accepted_change_model import AcceptedChange
from llmproxy.core.changes.recordings_by_position import (
    RecordedCall,
    RecordingsByConversationPlace,
    RecordingWithParsedRequest,
)
from llmproxy.core.changes.request_diff import ReadVolatile, diff_requests
from llmproxy.core.changes.request_parsing import RequestInSegments, list_history_call_ids
from llmproxy.core.changes.segment_change import (
    CarriedAnswerAttempt,
    CarriedAnswerRefusal,
    RefusalReason,
    SegmentChange,
)
from llmproxy.core.dialects.conversation import parse_model_response_message
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import Message
from llmproxy.core.engine.bound_hits import BindingInterceptor
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.forking import ForkState
from llmproxy.core.engine.partly_live_sessions import MixedLiveReplayInterceptor
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.keys.server_state_in_keys import is_success
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.providers.provider_table import ClientProgram, parse_user_agent_client
from llmproxy.core.sessions.call_interceptor import Decided, MissReason, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import (
    canonicalize_stored,
    list_request_keys_of_party,
    list_run_variables,
    read_cassette_accepted_changes,
    read_interaction_summary,
)
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.canonical_json import dump, parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, Interaction, Key, Response, header
from llmproxy.errors import CassetteError, RefusedError
from llmproxy.protocol import CARRIED_HEADER, OFFLINE, THREAD_FIELD, Channel, Decision, Mode, ReplayablePolicy

_KEPT = 10_000
"""Maximum calls of a trial that are reported."""
_MOST_RUNS = 20
Thread = tuple[str, ...]


class CarriedAnswerOutcome(NamedTuple):
    placed: RecordingWithParsedRequest | None
    changes: tuple[SegmentChange, ...] = ()
    pending: tuple[SegmentChange, ...] = ()
    """Changes that nobody accepted, or whose acceptance has expired; only in a session on trial."""
    refusal: CarriedAnswerRefusal | None = None
    bindings: Bindings | None = None
    """Bindings with which the request was rewritten to the recorded run's values."""

    @property
    def has_no_place(self) -> bool:
        return self.refusal is not None and self.refusal.why is RefusalReason.NO_PLACE


@dataclass(slots=True)
class CarriedAnswerRunState:
    results: dict[str, set[str]] = field(default_factory=dict)
    given: dict[Key, Key] = field(default_factory=dict)
    """Key of the request that got a carried recording, by the recording's key."""
    refused: dict[tuple[str, ...], Key] = field(default_factory=dict)
    """Key of the request that was refused, by thread."""


class CarriedAnswerInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts, accepted: Sequence[AcceptedChange], *, trial: bool, barred: str) -> None:
        self._parts, self._accepted, self._trial, self._barred = parts, accepted, trial, barred
        self._places: dict[str, tuple[object, RecordingsByConversationPlace]] = {}
        """The store's generation and the recordings, by party."""
        self._run = CarriedAnswerRunState()
        self._told: list[CarriedAnswerAttempt] = []

    def on_restart(self) -> None:
        self._run = CarriedAnswerRunState()

    @override
    def build_report(self) -> Mapping[str, Any]:
        return {"trial": [each.to_json() for each in self._told]} if self._trial else {}

    @override
    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        store = self._parts.state.stores.current
        if found.recordings or store is None or call.route.row.not_llm:
            return found
        looked = self._find_carried_answer(call, store, found)
        call.state.put(looked)
        if looked.refusal is not None or looked.placed is None:
            return found
        key = looked.placed.recorded.key
        session = call.session
        slots = store.find_keyed(session.cassette, session.sample, call.party, key)
        return found._replace(key=key, recordings=tuple(each for each in slots if each.is_good_answer))

    @override
    def on_explain(self, call: Exchange, context: MissContext) -> MissContext:
        if (looked := call.state.get(CarriedAnswerOutcome)) is None or looked.refusal is None or context.state:
            return context
        reason = f"not carried ({looked.refusal.why}): {looked.refusal.text}"
        return replace(context, not_carried=reason, on_trial=self._trial)

    @override
    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        looked, store = call.state.get(CarriedAnswerOutcome), self._parts.state.stores.current
        if looked is None or looked.refusal is not None or decided.decision is not Decision.REPLAY:
            return decided
        if looked.bindings is not None and store is not None and decided.recording is not None:
            answer = _rewrite_carried_answer(call, looked, store.response(decided.recording.id))
            if isinstance(answer, Mismatch):
                refusal = CarriedAnswerRefusal(RefusalReason.IMPOSSIBLE, f"its answer: {answer}")
                call.state.put(looked._replace(refusal=refusal))
                if call.session.policy.writes:
                    return Decided(Decision.RECORD)
                return Decided(Decision.REFUSE, reason=MissReason.UNBOUND)
            call.answer.made = answer
        if call.key is not None:
            self._run.given[found.key] = call.key
        call.state.drop(BoundAnswer)  # its folders may have been rewritten, but it is no bound hit
        call.answer.told = ((CARRIED_HEADER, ", ".join(_list_distinct_names(looked.changes))),)
        return decided

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        if (looked := call.state.get(CarriedAnswerOutcome)) is None:
            return record
        if self._trial and len(self._told) < _KEPT:
            self._told.append(self._summarize_trial_call(call, looked))
        if looked.refusal is not None or record.decision is not Decision.REPLAY:
            return record
        names = _list_distinct_names(looked.changes)
        note = f"carried{' on trial' if self._trial else ''}: {name_some(names)}"
        return record._replace(carried=names, note=", ".join(filter(None, (note, record.note))))

    def _summarize_trial_call(self, call: Exchange, looked: CarriedAnswerOutcome) -> CarriedAnswerAttempt:
        store, id_ = self._parts.state.stores.current, None
        if looked.placed is not None:
            id_ = call.slot.id if call.slot is not None else looked.placed.recorded.id
        place = (call.progress.seq, call.session.cassette, call.session.sample, call.party, call.operation)
        if id_ is None or store is None:
            return CarriedAnswerAttempt(*place, changes=looked.changes, refusal=looked.refusal)
        row = read_interaction_summary(store, id_)
        pending = _list_distinct_names(looked.pending)
        used = (row.tokens_in, row.tokens_out, row.cost_usd, row.duration_ms)
        return CarriedAnswerAttempt(*place, id_, looked.changes, looked.refusal, pending, *used)

    def _find_carried_answer(self, call: Exchange, store: Store, found: RecordingLookup) -> CarriedAnswerOutcome:
        if call.channel is not Channel.LLM or call.operation not in CHAT:
            why = f"a call of {call.operation or call.channel} is not part of a conversation"
            return _refuse(RefusalReason.NO_PLACE, why)
        if self._barred:
            return _refuse(RefusalReason.REQUEST, self._barred)
        if call.request.rewritten or call.kept.into is not None:
            return _refuse(RefusalReason.REQUEST, "another feature of the session has changed the request")
        tried = list[tuple[CarriedAnswerOutcome, Thread]]()
        for said in self._list_runs(call, store):  # each recording is compared in the values of its own run
            looked, thread = self._find_in_run(call, store, found.canonical(), said)
            if looked.refusal is None:
                return looked
            tried.append((looked, thread))
        looked, thread = min(tried, key=lambda each: each[0].has_no_place)
        if thread and call.key is not None:
            self._run.refused.setdefault(thread, call.key)
        return looked

    @staticmethod
    def _list_runs(call: Exchange, store: Store) -> Sequence[str]:
        """Return the run variables of recordings, newest first; an empty one if nothing has to be restated."""
        if call.session.find_interceptor(BindingInterceptor) is None:
            return [""]
        return list_run_variables(store, call.session.cassette, call.session.sample)[:_MOST_RUNS] or [""]

    def _find_in_run(
        self, call: Exchange, store: Store, wanted: Canonical, said: str
    ) -> tuple[CarriedAnswerOutcome, Thread]:
        if (restated := self._restate_with_recorded_values(call, wanted, said)) is None:
            return _refuse(RefusalReason.REQUEST, "it names a folder or a day of the recorded run"), ()
        wanted, bindings = restated
        places = self._load_model_call_positions(call, store)
        ids = _read_history_call_ids(wanted, self._parts.keying.redact(call, call.request.body or b"").body)
        request = places.parse_recorded_request(wanted, ids, parse_user_agent_client(call.request.headers))
        for tool, text in request.tool_results:
            self._run.results.setdefault(tool, set()).add(text)
        named = header(call.request.headers, THREAD_FIELD) or ""
        thread = (call.party, named, *request.first_user_texts, request.first_system_text)
        if self._trial and call.key is not None and self._run.refused.get(thread, call.key) != call.key:
            return _refuse(RefusalReason.NOT_LOOKED_AT, "it follows a call of its thread that was refused"), ()
        return self._choose_by_place(call, store, places, request, bindings, said), thread

    @staticmethod
    def _restate_with_recorded_values(
        call: Exchange, wanted: Canonical, said: str
    ) -> tuple[Canonical, Bindings | None] | None:
        """Return a request with the recorded run's values, and bindings; None if it has a recorded value already."""
        if (binding := call.session.find_interceptor(BindingInterceptor)) is None or not said:
            return wanted, None
        then, now, scope = deserialize_run_variables(said), binding.bound.declared.values(), binding.bound.scope
        forward = Bindings(then, now, scope=scope)
        if not forward.changed:
            return wanted, None
        if rewrite_request_to_this_run(forward, wanted.tree) != wanted.tree:
            return None
        tree = rewrite_request_to_this_run(Bindings(now, then, scope=scope), wanted.tree)
        return replace(wanted, tree=tree, body=dump(tree)), forward

    def _choose_by_place(
        self, call: Exchange, store: Store, places: RecordingsByConversationPlace, request: RequestInSegments,
        bindings: Bindings | None, said: str,
    ) -> CarriedAnswerOutcome:  # fmt: skip
        if isinstance(placed := places.find_recordings(request), CarriedAnswerRefusal):
            return CarriedAnswerOutcome(None, refusal=placed)
        session, client, looked = call.session, parse_user_agent_client(call.request.headers), None
        for each in placed:
            key = each.recorded.key
            if said and (own := store.read_run_variables(each.recorded.id)) and own != said:
                continue
            if session.position.counts[(call.party, key)] and self._run.given.get(key) != call.key:
                looked = looked or _refuse(RefusalReason.NO_PLACE, "another request had the recording at its place")
                continue
            if bindings is not None and (named := _find_variable_in_answer(bindings, each.recorded.answer)):
                why = f"the recorded answer names {named}, which is another one now"
                looked = looked or _refuse(RefusalReason.IMPOSSIBLE, why)
                continue
            changes = diff_requests(
                each, request, client, recorded=places.results, present=self._run.results,
                output=read_interaction_summary(store, each.recorded.id).tokens_out,
                read_volatile=_build_volatile_reader(session, bindings),
            )  # fmt: skip
            if isinstance(changes, CarriedAnswerRefusal):
                looked = looked or CarriedAnswerOutcome(each, refusal=changes)
            elif (refusal := self._check_accepted(changes, client)) is not None and not self._trial:
                looked = looked or CarriedAnswerOutcome(each, tuple(changes), refusal=refusal)
            else:
                pending = tuple(change for change in changes if self._check_accepted([change], client) is not None)
                return CarriedAnswerOutcome(each, tuple(changes), pending, bindings=bindings)
        return looked or _refuse(RefusalReason.NO_PLACE, "no recording has its place in the run")

    def _check_accepted(
        self, changes: Sequence[SegmentChange], client: ClientProgram | None
    ) -> CarriedAnswerRefusal | None:
        today = datetime.fromtimestamp(self._parts.state.now(), UTC).date()
        for change in changes:
            covering = [each for each in self._accepted if each.covers_change(change, client)]
            if not covering:
                return CarriedAnswerRefusal(RefusalReason.NOT_ACCEPTED, f"{change.name} is not accepted: {change}")
            if all(each.has_expired(today) for each in covering):
                last = max(each.until for each in covering if each.until is not None)
                return CarriedAnswerRefusal(RefusalReason.ENDED, f"{change.name} was accepted until {last}: {change}")
        return None

    def _load_model_call_positions(self, call: Exchange, store: Store) -> RecordingsByConversationPlace:
        opened, written = store.generation
        # The session's own recordings have no place.
        generation = opened, written if call.session.settings.mode in OFFLINE else 0
        if (known := self._places.get(call.party)) is not None and known[0] == generation:
            return known[1]
        config, session = self._parts.state.config, call.session
        place = session.cassette, session.sample
        found = list_recorded_model_calls(store, place, call.party, config.rules, config.upstreams)
        own = session.position.recorded_here
        made = RecordingsByConversationPlace(each for each in found if (call.party, each.key) not in own)
        self._places[call.party] = generation, made
        return made


def list_recorded_model_calls(
    store: Store, place: tuple[str, int], party: str, rules: Rules, upstreams: Mapping[str, str]
) -> Iterator[RecordedCall]:
    for id_, key, _ in list_request_keys_of_party(store, place, party):
        try:
            each = store.load(id_)
            canonical = canonicalize_stored(store, each, rules, upstreams)
        except (CassetteError, RefusedError):  # damaged, or of a provider that has no route today
            continue
        if each.operation in CHAT:
            ids = _read_history_call_ids(canonical, each.request.body)
            client = parse_user_agent_client(each.request.headers)
            yield RecordedCall(id_, key, canonical, ids, _read_answer(each, canonical), client)


def find_recordings_equated_by_change(
    store: Store, cassette: str, accepted: Sequence[AcceptedChange], rules: Rules, upstreams: Mapping[str, str]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of recordings with different answers to a request that accepted changes make equal: refused."""
    for info in store.cassettes(cassette) if accepted else ():
        place = (cassette, info.sample)
        for party in dict.fromkeys(each.party for each in store.list_keys(*place)):
            recorded = list_recorded_model_calls(store, place, party, rules, upstreams)
            yield from RecordingsByConversationPlace(recorded).find_conflicts_under_changes(accepted)


def _read_history_call_ids(canonical: Canonical, body: bytes) -> list[str]:
    return list_history_call_ids(canonical.operation, parse_json_or_none(body)) if canonical.kind == "json" else []


def _read_answer(each: Interaction, canonical: Canonical) -> Message | None:
    response = each.response
    if not is_success(response.status) or response.ending is not Ending.COMPLETE:
        return None
    return parse_model_response_message(canonical.operation, response)


def _rewrite_carried_answer(call: Exchange, looked: CarriedAnswerOutcome, response: Response) -> Response | Mismatch:
    binding, bindings = call.session.find_interceptor(BindingInterceptor), looked.bindings
    if binding is None or bindings is None or looked.placed is None:
        return response
    recorded = looked.placed.recorded.canonical.tree
    fit = match_requests_with_bindings(
        bindings, recorded, rewrite_request_to_this_run(bindings, recorded), binding.bound.known
    )
    return fit if isinstance(fit, Mismatch) else rewrite_answer(bindings, fit, response, binding.bound.known)


def _build_volatile_reader(session: Session, bindings: Bindings | None) -> ReadVolatile | None:
    if (binding := session.find_interceptor(BindingInterceptor)) is None:
        return None
    declared = [*binding.bound.declared.values()]
    bindings = bindings or Bindings(declared, declared, scope=binding.bound.scope)
    bound = partial(mask_bound_values_in_tool_args, bindings)

    def read(tool: str, arguments: object, text: str) -> tuple[str, Sequence[str]]:
        found = find_volatile_matches(binding.bound.fields, ToolInvocation(tool, arguments), text, (), bound)
        ends = [0, *(end for each in found for end in (each.start, each.end)), len(text)]
        values = [each.value for each in found if each.field.is_id]
        return "\0".join(text[at:to] for at, to in batched(ends, 2)), values

    return read


def _find_variable_in_answer(bindings: Bindings, answer: Message | None) -> str:
    """Return the name of a changed run variable in an answer, except folders, which are rewritten; empty if none."""
    texts = [] if answer is None else [answer.text, *(call.arguments for call in answer.tool_calls)]
    spots = (spot for text in texts for spot in bindings.forms_in_system_text.find_matches(text))
    found = (form.name for spot in spots for form in spot.forms)
    return next((name for name in found if name in bindings.changed and name not in PATHS), "")


def _refuse(why: RefusalReason, text: str) -> CarriedAnswerOutcome:
    return CarriedAnswerOutcome(None, refusal=CarriedAnswerRefusal(why, text))


def _list_distinct_names(changes: Sequence[SegmentChange]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in changes))


class AcceptedChangesFeature(Feature):
    kind = CarriedAnswerInterceptor

    @override
    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        if asked.get("trial") and mode not in OFFLINE:
            msg = f"llmproxy: only a replay can be on trial; this session is in mode {mode}."
            raise RefusedError(msg, hint="What changed is found out without asking anybody.")

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> CarriedAnswerInterceptor | None:
        config, given = self.parts.state.config, asked.get("trial")
        trial = config.trial and session.settings.mode in OFFLINE if given is None else bool(given)
        if session.policy.plays is ReplayablePolicy.NOTHING:
            return None
        forking: ForkState | None = asked.get("forking")
        is_live = session.find_interceptor(MixedLiveReplayInterceptor) is not None
        barred = "a session with live channels carries nothing" if is_live else ""
        barred = "a session that may fork carries nothing" if forking is not None and forking.live else barred
        store = self.parts.state.sessions.store(session.settings.mode)
        accepted: Sequence[AcceptedChange] = ()
        if store is not None and asked.get("carry") is not False:
            accepted = read_cassette_accepted_changes(store, session.cassette)
        trial = trial and not barred
        return CarriedAnswerInterceptor(self.parts, accepted, trial=trial, barred=barred) if accepted or trial else None
