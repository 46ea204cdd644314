"""Bound hits: a request without its own recording is compared with candidate recordings, with this run's values.

The exact key is always looked up first. Candidates have the same bound key; each is compared
(`bindings.match_requests_with_bindings`). If two fit and their answers differ after binding, the replay position
decides, else nothing is served: the proxy never guesses one of two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, override

from llmproxy.amount_formatting import name_some
from llmproxy.calls_and_totals import Call
from llmproxy.core.bindings import (
    Bindings,
    Fit,
    MisfitReason,
    Mismatch,
    RunVariable,
    VolatileField,
    build_value_independent_key,
    dump_run_variables,
    find_fields_of_captured_value,
    match_requests_with_bindings,
    rewrite_answer,
    rewrite_exact_hit_answer,
)
from llmproxy.core.bindings.leaf_pairs import ON_TRIAL
from llmproxy.core.bindings.request_comparison import rewrite_chat_message_with_bindings, rewrite_request_to_this_run
from llmproxy.core.bindings.session_bindings import (
    BoundAnswer,
    FieldLearningResults,
    SessionBindings,
    read_last_user_text,
)
from llmproxy.core.bindings.volatile_learning import infer_volatile_fields_from_pair, rewrite_recorded_request_for_miss
from llmproxy.core.bindings.volatile_result_fields import load_builtin_volatile_fields
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_stages import list_replayable_recordings
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.misses.nearest_recording import (
    CandidateRewrittenForRun,
    RecordingToCurrentRunRewriter,
    find_messages_member,
)
from llmproxy.core.sessions.call_interceptor import Decided, MissReason, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.bodies import ByteLimitedCache
from llmproxy.core.store.queries import (
    canonicalize_stored,
    list_recordings_of_operation,
    list_request_keys_of_party,
    read_volatile_fields,
    save_cassette_volatile_fields,
)
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.canonical_json import dump
from llmproxy.core.traffic.interaction import Interaction, Key, Response
from llmproxy.core.traffic.json_diff import Difference, differ_only_in_numbers, format_clipped_json
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import CassetteError, RefusedError
from llmproxy.protocol import BOUND_HEADER, OFFLINE, BindingPolicy, Channel, Decision, ReplayablePolicy

REMEMBERED_KEYS = 100_000
"""Bound keys of recordings; about 150 bytes each."""
REMEMBERED_BYTES = 32 << 20
"""Bytes of recorded requests' bodies that are cached for comparisons."""
_MOST_COMPARED = 20_000
"""Maximum recordings that one request is compared with."""
_LOOKED_AT = 50
"""Maximum recordings of a session in which a captured value is searched for."""
_MOST_ADVISED = 3
"""Maximum recordings that a miss is compared with to advise on volatile fields, and values that are named."""


RESTATED = 4 << 20
"""Bytes of a canonical body above which it is not rewritten with this run's values."""

_MOST_KINDS = 64
_Kind = tuple[str, int, str, str, str, bool]
"""Cassette, sample, party, provider, operation, whether it streams."""
_Index = dict[str, dict[Key, list[int]]]
"""Recordings' ids by bound key, then by exact key, in the order in which they were requested."""


@dataclass(frozen=True, slots=True)
class BoundRecording:
    key: Key
    slots: tuple[RecordingHead, ...]
    fit: Fit
    table: Bindings


def _explain_unlearned(teaching: Sequence[int], outside: Sequence[tuple[int, Mismatch]]) -> str:
    if teaching:
        return (
            f"recordings #{teaching[0]} and #{teaching[1]} would both fit: nothing is learned where that is not clear"
        )
    rule = "a volatile field stands in what a tool answered, never in the question"
    if outside:
        id_, mismatch = outside[0]
        return f"{rule}; recording #{id_}, {mismatch}"
    return f"{rule}; no recording that is not used yet asks the like"


class RecordedRequestCache:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.declared_of = lru_cache(REMEMBERED_KEYS)(Store.read_run_variables)
        """Returns the run variables declared for the run that made a recording: equal text for equal run variables."""
        self._bound_key = lru_cache(REMEMBERED_KEYS)(self._read_bound_key)
        self._requests = ByteLimitedCache[Canonical](REMEMBERED_BYTES)
        self.find_cached = self._requests.get
        self.clear()

    def clear(self) -> None:
        self.declared_of.cache_clear()
        self._bound_key.cache_clear()
        self._requests.clear()
        self._shared: dict[tuple[str, bytes], object] = {}
        """Messages by the name of their list and their canonical JSON."""
        self._shared_bytes = 0
        self._indexes: dict[_Kind, tuple[tuple[int, int], _Index]] = {}

    def index_by_bound_key(self, store: Store, kind: _Kind) -> _Index:
        """Return the recordings of one kind of request by their bound keys; cached until the next commit."""
        generation = store.generation
        if (known := self._indexes.get(kind)) is not None and known[0] == generation:
            return known[1]
        made: _Index = {}
        cassette, sample, party, provider, operation, stream = kind
        found = list_recordings_of_operation(store, (cassette, sample), party, provider, operation, stream=stream)
        for id_, key in found:
            made.setdefault(self._bound_key(store, id_), {}).setdefault(key, []).append(id_)
        if len(self._indexes) >= _MOST_KINDS:
            self._indexes.clear()
        self._indexes[kind] = (generation, made)
        return made

    def _read_bound_key(self, store: Store, id_: int) -> str:
        canonical = self.load_canonical(store, id_)
        return "" if canonical is None else build_value_independent_key(canonical)

    def load_canonical(self, store: Store, id_: int) -> Canonical | None:
        """Return the canonical request of a recording; None if it is damaged, or no route matches it today."""
        if (known := self._requests.get(id_)) is not None:
            return known
        try:
            made = canonicalize_stored(store, store.load(id_), self._config.rules, self._config.upstreams)
        except (CassetteError, RefusedError):
            return None
        self._share_equal_messages(made.tree)
        self._requests.put(id_, made, len(made.body) + 1000)
        return made

    def _share_equal_messages(self, tree: object) -> None:
        """Let a conversation's requests share equal message objects, so that these are compared once."""
        for name, messages in tree.items() if isinstance(tree, dict) else ():
            for n, message in enumerate(messages if isinstance(messages, list) else ()):
                written = dump(message)
                self._shared_bytes += len(written)
                messages[n] = self._shared.setdefault((name, written), message)
        if self._shared_bytes > REMEMBERED_BYTES:
            self._shared.clear()
            self._shared_bytes = 0

    def save_captured_value_fields(self, session: Session, store: Store, run_variables: Sequence[RunVariable]) -> None:
        """Store volatile fields for captured values in recordings of this session that precede their declaration."""
        known = read_volatile_fields(store, session.cassette)
        ids = sorted(session.served)[-_LOOKED_AT:]
        trees = [made.tree for id_ in ids if (made := self.load_canonical(store, id_)) is not None]
        found = [slot for each in run_variables for slot in find_fields_of_captured_value(trees, each)]
        places = {(slot.tool, slot.at, slot.before) for slot in known}
        new = [slot for slot in dict.fromkeys(found) if (slot.tool, slot.at, slot.before) not in places]
        if new:
            save_cassette_volatile_fields(store, session.cassette, [*known, *new])


class _RecordingRestater(RecordingToCurrentRunRewriter):
    def __init__(self, bound: SessionBindings, requests: RecordedRequestCache, store: Store, wanted: Canonical) -> None:
        self._bound, self._requests, self._store, self._wanted = bound, requests, store, wanted
        self._messages: dict[tuple[Bindings, int], tuple[object, object]] = {}
        """Messages by bindings and `id()` of the message (shared within a conversation): the message, kept alive, and
        its rewritten form."""

    def find_cached_request(self, id_: int) -> Canonical | None:
        return self._requests.find_cached(id_)

    def restate_message(self, id_: int, recorded: Canonical, n: int) -> object:
        member, said = find_messages_member(recorded.tree)
        table = self._build_recording_bindings(id_)
        if not table.changed:
            return said[n]
        which = table, id(said[n])
        if which not in self._messages:
            self._messages[which] = said[n], rewrite_chat_message_with_bindings(table, member, said[n])
        return self._messages[which][1]

    def restate_whole_recording(self, id_: int, recorded: Canonical) -> Canonical:
        """Return the rewritten recording; unchanged if it would then equal the request."""
        table = self._build_recording_bindings(id_)
        if not table.changed or recorded.tree is None:
            return recorded
        renamed = self._restate_tree(id_, recorded, table)
        return recorded if renamed == self._wanted.tree else replace(recorded, tree=renamed)

    def _restate_tree(self, id_: int, recorded: Canonical, table: Bindings) -> object:
        member, said = find_messages_member(recorded.tree)
        if not isinstance(recorded.tree, dict) or not isinstance(recorded.tree.get(member), list):
            return rewrite_request_to_this_run(table, recorded.tree)
        rest = rewrite_request_to_this_run(table, {**recorded.tree, member: []})
        messages = [self.restate_message(id_, recorded, n) for n in range(len(said))]
        return {**rest, member: messages} if isinstance(rest, dict) else rest

    def restate_nearest_recording(self, id_: int, recorded: Canonical, whole: Canonical) -> CandidateRewrittenForRun:
        table, bound, wanted = self._build_recording_bindings(id_), self._bound, self._wanted
        if not table or bound.scope is not BindingPolicy.ALL or len(wanted.body) > RESTATED:
            return CandidateRewrittenForRun(whole)
        said = rewrite_recorded_request_for_miss(table, recorded.tree, wanted.tree, bound.known)
        if said.tree is None or said.tree == wanted.tree:
            return CandidateRewrittenForRun(whole)
        varying = tuple(
            Difference(
                x.path, format_clipped_json(x.recorded), format_clipped_json(x.present), x.field.kind,
                only_numbers=differ_only_in_numbers(x.recorded, x.present),
            ) for x in said.varying
        )  # fmt: skip
        return CandidateRewrittenForRun(replace(whole, tree=said.tree), said.bound, varying)

    def _build_recording_bindings(self, id_: int) -> Bindings:
        return self._bound.build_bindings(self._requests.declared_of(self._store, id_))


@dataclass(slots=True)
class _UnboundReason:
    why: str = ""
    at: str = ""
    """JSON path of the different value, if that is the only reason."""


class BindingInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts, requests: RecordedRequestCache, bound: SessionBindings) -> None:
        self._parts, self._requests, self.bound = parts, requests, bound
        self._said: tuple[str, int, str] = ("", 0, "")
        """Run variables, number of credentials known at their redaction, and their redacted form, constant in a run."""

    def on_restart(self) -> None:
        self.bound.forget_id_pairs()

    def build_report(self) -> Mapping[str, Any]:
        text = self._parts.state.redactor.text
        declared = [json.loads(text(dump_run_variables([one])))[0] for one in self.bound.declared.values()]
        return {"bind": str(self.bound.scope), "run_variables": declared}

    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        store = self._parts.state.stores.current
        if found.recordings or store is None or (other := self._find_fitting_recording(call, store, found)) is None:
            return found
        call.state.put(other)
        return found._replace(key=other.key, recordings=other.slots)

    def on_decision(self, call: Exchange, found: RecordingLookup, decided: Decided) -> Decided:
        slot, store, other = decided.recording, self._parts.state.stores.current, call.state.get(BoundRecording)
        if slot is None or store is None:
            return decided
        if other is None:
            answer = self._rewrite_exact_hit_answer(call, store, slot, found)
        else:
            answer = self._write_bound_answer(store, other, slot)
        if answer is None:
            return decided
        if not isinstance(answer, Mismatch):
            call.state.put(answer)
            call.answer.made, call.answer.told = answer.response, ((BOUND_HEADER, ", ".join(answer.fit.names)),)
            return decided
        call.state.put(_UnboundReason(f"the answer of recording #{slot.id}: {answer}"))
        if call.session.policy.writes:
            return Decided(Decision.RECORD)
        return Decided(Decision.REFUSE, reason=MissReason.UNBOUND)

    def on_answer(self, call: Exchange, response: Response) -> Response:
        if (answer := call.state.get(BoundAnswer)) is not None:
            self.bound.add_id_pairs(answer.fit.identities, answer.fit.below)
        return response

    @override
    def on_interaction(self, call: Exchange, made: Interaction) -> Interaction:
        said, redactor = dump_run_variables(self.bound.declared.values()), self._parts.state.redactor
        if self._said[:2] != (said, redactor.epoch.count):
            self._said = said, redactor.epoch.count, redactor.text(said)
        return replace(made, run_variables=self._said[2])

    def on_end(self, call: Exchange, record: Call) -> Call:
        answer = call.state.get(BoundAnswer)
        if answer is None or record.decision is not Decision.REPLAY or not answer.fit.names:
            return record
        note = ", ".join(filter(None, (f"bound: {', '.join(answer.fit.names)}", record.note)))
        return record._replace(bound=answer.fit.names, note=note)

    @override
    def on_explain(self, call: Exchange, context: MissContext) -> MissContext:
        if (compared := call.state.get(_UnboundReason)) is None or context.state:
            return context
        return replace(context, unbound=compared.why, unbound_at=compared.at)

    def build_recording_rewriter(self, store: Store, wanted: Canonical) -> RecordingToCurrentRunRewriter:
        return _RecordingRestater(self.bound, self._requests, store, wanted)

    def _find_fitting_recording(self, call: Exchange, store: Store, found: RecordingLookup) -> BoundRecording | None:
        """Return the recording that fits a request without its own. Otherwise `_UnboundReason` states why none does."""
        session, bound, compared = call.session, self.bound, _UnboundReason()
        if session.policy.plays is ReplayablePolicy.NOTHING or call.route.row.not_llm:
            return None
        call.state.put(compared)
        wanted = found.canonical()
        fitting: list[BoundRecording] = []
        typed = None if len(bound.known) else read_last_user_text(wanted)
        for key, (id_, *_) in self._list_candidates(call, store, wanted):
            table = bound.build_bindings(self._requests.declared_of(store, id_))
            if not table or (recorded := self._requests.load_canonical(store, id_)) is None:
                continue
            if compared.why and typed is not None and not bound.may_match_last_user_text(id_, recorded, table, typed):
                continue
            result = match_requests_with_bindings(table, recorded.tree, wanted.tree, bound.known, bound.fitted[table])
            if isinstance(result, Mismatch):
                if not compared.why:
                    compared.why = f"recording #{id_}, bound: {result}"
                    compared.at = result.path if result.why is MisfitReason.DIFFERENT else ""
                continue
            slots = store.find_keyed(session.cassette, session.sample, call.party, key)
            if list_replayable_recordings(session.policy, slots):
                fitting.append(BoundRecording(key, slots, result, table))
        if not fitting and bound.trial is not None:
            return self._learn_from_miss(call, store, wanted, bound.trial)
        if not fitting and session.policy.on_miss is Decision.REFUSE:
            advice = self._suggest_volatile_fields(call, store, wanted)
            compared.why = "; ".join(filter(None, (compared.why, advice)))
            compared.at = "" if advice else compared.at
        return self._choose_between_fitting_recordings(call, store, fitting) if fitting else None

    def _suggest_volatile_fields(self, call: Exchange, store: Store, wanted: Canonical) -> str:
        session, bound = call.session, self.bound
        if bound.scope is not BindingPolicy.ALL:
            return ""
        for _, id_, recorded in islice(self._iter_unserved(call, store, wanted), _MOST_ADVISED):
            table = bound.build_bindings(self._requests.declared_of(store, id_))
            lessons = infer_volatile_fields_from_pair(table, recorded.tree, wanted.tree, bound.known)
            if not isinstance(lessons, Mismatch) and lessons:
                values = (f"{each.field.name} {each.recorded} -> {each.present}" for each in lessons)
                named = name_some(values, shown=_MOST_ADVISED)
                learn = self._parts.state.config.build_learn_command(session.cassette)
                return f"recording #{id_} would be a hit if what tools made were volatile fields ({named}): {learn}"
        return ""

    def _learn_from_miss(
        self, call: Exchange, store: Store, wanted: Canonical, trial: FieldLearningResults
    ) -> BoundRecording | None:
        session, bound = call.session, self.bound
        teaching = []
        typed = None if len(bound.known) else read_last_user_text(wanted)
        outside: list[tuple[int, Mismatch]] = []
        for key, id_, recorded in self._iter_unserved(call, store, wanted):
            table = bound.build_bindings(self._requests.declared_of(store, id_))
            if outside and typed is not None and not bound.may_match_last_user_text(id_, recorded, table, typed):
                continue
            lessons = infer_volatile_fields_from_pair(table, recorded.tree, wanted.tree, bound.known)
            if isinstance(lessons, Mismatch):
                outside.append((id_, lessons))
            else:
                teaching.append((key, id_, recorded, lessons))
        if len(teaching) != 1:
            call.state.put(_UnboundReason(ON_TRIAL + _explain_unlearned([each[1] for each in teaching], outside)))
            return None
        key, id_, recorded, lessons = teaching[0]
        bound.add_learned_fields(lessons)
        table = bound.build_bindings(self._requests.declared_of(store, id_))
        result = match_requests_with_bindings(table, recorded.tree, wanted.tree, bound.known)
        slots = store.find_keyed(session.cassette, session.sample, call.party, key)
        if isinstance(result, Mismatch) or not list_replayable_recordings(session.policy, slots):
            return None
        trial.served += 1
        call.state.drop(_UnboundReason)
        return BoundRecording(key, slots, result, table)

    def _list_candidates(self, call: Exchange, store: Store, wanted: Canonical) -> list[tuple[Key, list[int]]]:
        session, where = call.session, call.route
        if wanted.kind != "json":
            return []
        kind = (session.cassette, session.sample, call.party, where.provider.name, call.operation, wanted.stream)
        alike = self._requests.index_by_bound_key(store, kind).get(build_value_independent_key(wanted), {})
        fresh = ((key, ids) for key, ids in alike.items() if (call.party, key) not in session.position.recorded_here)
        return list(islice(fresh, _MOST_COMPARED))

    def _iter_unserved(self, call: Exchange, store: Store, wanted: Canonical) -> Iterator[tuple[Key, int, Canonical]]:
        for key, (id_, *_) in self._list_candidates(call, store, wanted):
            if id_ not in call.session.served and (recorded := self._requests.load_canonical(store, id_)) is not None:
                yield key, id_, recorded

    def _choose_between_fitting_recordings(
        self, call: Exchange, store: Store, fitting: Sequence[BoundRecording]
    ) -> BoundRecording | None:
        """Return the recording that fits; of several with different answers, the next in recorded order."""
        if len(fitting) == 1:
            return fitting[0]
        session = call.session
        answers = [self._write_bound_answer(store, each, each.slots[0]) for each in fitting]
        bodies = {each.response.body for each in answers if not isinstance(each, Mismatch)}
        if len(bodies) == 1 and not any(isinstance(each, Mismatch) for each in answers):
            return ([each for each in fitting if each.slots[0].id not in session.served] or fitting)[0]
        follows = self._find_next_recorded_key(call, store)
        if (found := next((each for each in fitting if each.key == follows), None)) is not None:
            return found
        named = " and ".join(f"#{each.slots[0].id}" for each in fitting[:2])
        why = f"recordings {named} both fit, their answers differ, and the order of the run does not say which is meant"
        call.state.put(_UnboundReason(why))
        return None

    @staticmethod
    def _find_next_recorded_key(call: Exchange, store: Store) -> Key | None:
        session = call.session
        order = list_request_keys_of_party(store, (session.cassette, session.sample), call.party)
        if (last := session.get_last_key_if_of_party(call.party)) is None:
            return order[0][1] if order else None
        nth = session.position.counts[(call.party, last)]
        at = next((n for n, (_, key, occurrence) in enumerate(order) if key == last and occurrence == nth), None)
        return order[at + 1][1] if at is not None and at + 1 < len(order) else None

    def _write_bound_answer(self, store: Store, found: BoundRecording, slot: RecordingHead) -> BoundAnswer | Mismatch:
        response = rewrite_answer(found.table, found.fit, store.response(slot.id), self.bound.known)
        return response if isinstance(response, Mismatch) else BoundAnswer(response, found.fit)

    def _rewrite_exact_hit_answer(
        self, call: Exchange, store: Store, slot: RecordingHead, found: RecordingLookup
    ) -> BoundAnswer | Mismatch | None:
        """Return an exact hit's rewritten answer if it has a recorded folder or tool value that the request lacks."""
        bound = self.bound
        if slot.id in bound.untouched or slot.status == SWITCHING:
            return None  # a WebSocket's frames are compared with its client's
        table = bound.build_bindings(self._requests.declared_of(store, slot.id))
        if not table.limited_to_run_paths.changed and not len(bound.known):
            bound.untouched.add(slot.id)
            return None
        recorded = store.response(slot.id)
        named = frozenset(bound.named) if call.channel is Channel.LLM else None
        result = rewrite_exact_hit_answer(table, found.canonical().tree, recorded, bound.known, named=named)
        if isinstance(result, Mismatch):
            return result
        if result is recorded:
            bound.untouched.add(slot.id)
            return None
        renamed = (each.name for each in bound.known if each.recorded != each.present)
        return BoundAnswer(result, Fit(tuple(sorted({*table.limited_to_run_paths.changed, *renamed})), ()))


class BindingFeature(Feature):
    kind = BindingInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self.requests = RecordedRequestCache(parts.state.config)

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> BindingInterceptor | None:
        """Return one if the cassette has volatile fields, variables are declared, or the scope is not the proxy's."""
        ours, variables = self.parts.state.config.bind, tuple(asked.get("run_variables") or ())
        scope: BindingPolicy = asked.get("bind") or ours
        fields = self._list_fields(session) if scope in {BindingPolicy.ALL, ours} else ()
        if not variables and scope is ours and not (fields and scope is BindingPolicy.ALL):
            return None
        made = self._build_interceptor(scope, fields)
        made.bound.declare_variables(variables)
        return made

    def _list_fields(self, session: Session) -> tuple[VolatileField, ...]:
        store = self.parts.state.sessions.store(session.settings.mode)
        return read_volatile_fields(store, session.cassette) if store is not None else ()

    def _build_interceptor(self, scope: BindingPolicy, fields: Sequence[VolatileField]) -> BindingInterceptor:
        bound = SessionBindings(scope, fields=(*fields, *load_builtin_volatile_fields()))
        return BindingInterceptor(self.parts, self.requests, bound)

    def _get_or_create_bindings(self, session: Session) -> SessionBindings:
        if (known := session.find_interceptor(BindingInterceptor)) is None:
            known = self._build_interceptor(self.parts.state.config.bind, self._list_fields(session))
            self.parts.state.sessions.add_interceptor_to_session(session, known)
        return known.bound

    def declare_variables(self, session: Session, run_variables: Sequence[RunVariable]) -> None:
        if run_variables:
            self._get_or_create_bindings(session).declare_variables(run_variables)
        store = self.parts.state.stores.opened
        if session.policy.writes and session.served and store is not None:
            self.requests.save_captured_value_fields(session, store, run_variables)

    def enable_learning_in_session(self, session: Session) -> None:
        """Let a session learn from its misses. Raises RefusedError if it does not replay, or binds no fields."""
        if session.settings.mode not in OFFLINE:
            raise RefusedError("llmproxy: only a replay can be tried: nothing is learned from answers that are new.")
        if (bound := self._get_or_create_bindings(session)).scope is not BindingPolicy.ALL:
            raise RefusedError("llmproxy: what varies can be learned only with --bind all.")
        bound.trial = FieldLearningResults()
