"""Replacement of recordings by newer ones, all at once, when the session that recorded these is closed.

Its answers are stored in `NAME@new`. If nothing failed, one transaction supersedes the old recordings at its close;
otherwise `NAME` is unchanged: a wrong key, a bad day or a kill at any moment loses no recording. Recordings of several
sessions of one proxy in one cassette accumulate. `--update all`: a session in mode `record` replaces all. `changed`: a
replay requests anew the calls that the trial (`engine.carried_answers`) finds changed, and those that depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, override

from llmproxy.core.changes.change import Change, RefusalReason
from llmproxy.core.dialects.conversation import read_interaction_message, read_request_messages
from llmproxy.core.dialects.messages import Message
from llmproxy.core.dialects.usage_and_cost import MARGIN
from llmproxy.core.engine.carried_answers import CarryOutcome
from llmproxy.core.engine.cost_limit import CostMeter
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_identification import refuse_if_unsendable
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Interceptor, Lookup
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import Place
from llmproxy.core.store.rows import to_sql
from llmproxy.core.store.store import UNFINISHED, Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import RefusedError
from llmproxy.protocol import CHOSEN_RECORDING, OFFLINE, Decision, Mode, Update
from llmproxy.proxy_calls import Call

STAGED = "@new"
"""Suffix of the name of a cassette with recordings that will replace another one's."""


class ReplacementInterceptor(Interceptor[Exchange]):
    """Stages a session's recordings, and replaces its cassette's recordings with them when it is closed."""

    def __init__(self, parts: EngineParts, session: Session, ours: dict[Place, set[int]]) -> None:
        """Begin with an empty stage; `ours`: recordings that this proxy put in place before. Raises CassetteBusy."""
        self._state, self._session, self._ours = parts.state, session, ours
        self.replaced = False
        self.staged: Place = f"{session.cassette}{STAGED}", session.sample
        self.save_target = self.leased_cassette = self.staged
        store = self._state.sessions.store(Mode.RECORD)
        if store is None:
            raise AssertionError("a recording session without a store")
        store.begin_writing(*self.staged, exclusive=True, holder=self._state.sessions.holder)
        if left := [row.id for row in store.list_keys(*self.staged)]:  # left by a session that failed or was killed
            store.delete_interactions(left)
            store.begin_writing(*self.staged, exclusive=True, holder=self._state.sessions.holder)

    @property
    def old_cassette_place(self) -> Place:
        return self._session.cassette, self._session.sample

    def on_session_end(self) -> None:
        store = self._state.stores.opened
        if store is None or not self._session.is_over or self._explain_no_replacement(store):
            return
        made = store.list_keys(*self.staged)
        asked = {(row.party, row.key) for row in made}
        ours = self._ours.setdefault(self.old_cassette_place, set())
        gone = [
            row.id
            for row in store.list_keys(*self.old_cassette_place)
            if self.replaces_recording(row.id) and (row.id not in ours or (row.party, row.key) in asked)
        ]
        holder, clean = self._state.sessions.holder, self.will_be_complete(store)
        store.promote_staged(self.staged, self.old_cassette_place, gone, holder=holder, clean=clean)
        self.replaced = True
        if self._session.sealed is not False:  # an attempt that failed makes room for the next one
            ours.update(row.id for row in made)

    def will_be_complete(self, store: Store) -> bool:
        return self._session.sealed is not False

    def replaces_recording(self, recording: int) -> bool:
        return True

    def _explain_no_replacement(self, store: Store) -> str:
        totals = self._session.calls.totals
        if not store.list_keys(*self.staged):
            return "nothing was recorded"
        if totals.failed or totals.refused:
            return "an answer could not be recorded, or its provider not be reached"
        failed = store.query(UNFINISHED, (to_sql(self.staged[0]), self.staged[1]))
        return "an answer had failed, or was cut" if failed else ""

    def build_report(self) -> Mapping[str, Any]:
        store = self._state.stores.opened
        why = self._explain_no_replacement(store) if store is not None else "nothing was recorded"
        replaced: dict[str, Any] = {} if why else {"unused": [], "unused_total": 0}  # no old recording is left
        return {"replacement": {"cassette": self.staged[0], "why_not": why}} | replaced


class _AnswerBeforeReask(NamedTuple):
    before: Message | None
    """Recorded answer at the call's place."""


def _compute_maximum_prompt_tokens(body: bytes, recorded: Interaction | None, looked: CarryOutcome | None) -> int:
    """Return a prompt's maximum tokens: recorded ones plus one per new byte; one per byte if those are unknown."""
    tokens = None if recorded is None else recorded.usage.input
    if recorded is None or tokens is None:
        return len(body)
    if looked is None:
        return int(tokens * MARGIN) + 1
    if looked.refusal is not None:  # further changes are unknown
        return tokens + len(body)
    new = sum(len(text.encode()) for each in looked.changes for hunk in each.hunks for text in hunk.after)
    return int(tokens * MARGIN) + 1 + max(new, len(body) - len(recorded.request.body))


class ReaskInterceptor(ReplacementInterceptor):
    def __init__(self, parts: EngineParts, session: Session, ours: dict[Place, set[int]], spending: CostMeter) -> None:
        super().__init__(parts, session, ours)
        self._spending, self._keying = spending, parts.keying
        names = parts.state.config.change
        self._chosen = {int(name.removeprefix(CHOSEN_RECORDING)) for name in names if name.startswith(CHOSEN_RECORDING)}
        self._asked: set[Key] = set()
        self._gone: set[int] = set()
        self._lost: list[Message] = []
        """Recorded answers that got a different replacement."""
        self._stopped = False
        """Whether a call was not sent, since --max-cost might not be enough."""
        self._new: list[Message] = []

    @override
    def on_lookup(self, call: Exchange, found: Lookup) -> Lookup:
        looked, store = call.state.get(CarryOutcome), self._state.stores.current
        again = next((each for each in found.recordings if each.id in self._chosen), None)
        if call.key is None or not (again or (looked is not None and self._must_ask_live(call, looked))):
            return found
        placed = None if looked is None else looked.placed
        at = placed.recorded if again is None and placed is not None else again
        recorded = store.load(at.id) if at is not None and store else None
        body = self._keying.redact(call, call.request.body or b"").body
        if why := self._spending.reserve_cost_or_explain(
            call, body, _compute_maximum_prompt_tokens(body, recorded, looked)
        ):
            self._stopped = True
            hint = "What was recorded before stays as it was."
            call.mark_refused(RefusedError(f"llmproxy: nothing more is asked: {why}.", hint=hint))
            return found
        if recorded is not None and store is not None:
            slots = store.find_keyed(
                *self.old_cassette_place, call.party, found.key if again is not None else recorded.key
            )
            self._gone.update(slot.id for slot in slots)
        self._asked.add(call.key)
        call.state.put(_AnswerBeforeReask(None if recorded is None else read_interaction_message(recorded)))
        call.nth = call.session.count_arrival(call.party_and_key, 1)
        call.session.keep_recording_key(call.party_and_key)
        call.decision = Decision.RECORD
        refuse_if_unsendable(call)
        self._state.pending.reserve_occurrence(call, ())
        return found

    def _must_ask_live(self, call: Exchange, looked: CarryOutcome) -> bool:
        if call.key in self._asked:
            return True
        if looked.refusal is None:
            return any(map(self._is_change_chosen, looked.pending))
        if looked.refusal.why in {RefusalReason.NO_PLACE, RefusalReason.NOT_LOOKED_AT, RefusalReason.AMBIGUOUS}:
            follows_refused = looked.refusal.why is RefusalReason.NOT_LOOKED_AT and bool(self._asked)
            return follows_refused or _has_answer_in_history(call.request.body or b"", self._new)
        return not self._state.config.change or any(self._is_change_chosen(each) for each in looked.changes)

    def _is_change_chosen(self, change: Change) -> bool:
        return not self._state.config.change or change.name in self._state.config.change

    def on_stored(self, call: Exchange, made: Interaction) -> None:
        asked, answer = call.state.get(_AnswerBeforeReask), read_interaction_message(made)
        if asked is None or answer is None:
            return
        self._new.append(answer)
        if asked.before is not None and _get_answer_content(asked.before) != _get_answer_content(answer):
            self._lost.append(asked.before)

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        self._spending.on_call_end(call, record)
        return record

    def on_session_end(self) -> None:
        store = self._state.stores.opened
        if store is None or not self._session.is_over or self._explain_no_replacement(store):
            return
        self._gone.update(self._find_dependents(store))
        super().on_session_end()
        self._state.stores.write_cassette_file(self._session)

    def _find_dependents(self, store: Store) -> Iterator[int]:
        for row in store.list_summaries(*self.old_cassette_place) if self._lost else ():
            if row.id in self._session.served or row.id in self._gone:
                continue
            if _has_answer_in_history(store.load(row.id).request.body, self._lost):
                yield row.id

    @override
    def replaces_recording(self, recording: int) -> bool:
        return recording in self._gone

    @override
    def will_be_complete(self, store: Store) -> bool:
        return super().will_be_complete(store) and store.last_session_ended_cleanly(*self.old_cassette_place)

    @override
    def _explain_no_replacement(self, store: Store) -> str:
        if self._session.sealed is False:
            return "what ran in it failed"
        if self._stopped:
            return "--max-cost might not be enough"
        missed = "a request was never recorded" if self._session.calls.totals.misses else ""
        return super()._explain_no_replacement(store) or missed

    @override
    def build_report(self) -> Mapping[str, Any]:
        store = self._state.stores.opened
        if self.replaced or store is None or not (self._asked or self._stopped):
            return {"replaced": True} if self.replaced else {}
        replacement = super().build_report()["replacement"]
        if replacement["why_not"]:
            return {"replacement": replacement}
        gone = {*self._gone, *self._find_dependents(store), *self._session.served}
        left = [row for row in store.list_summaries(*self.old_cassette_place) if row.id not in gone]
        rows = [row.to_unused_json() for row in left]
        return {"replacement": replacement, "unused": rows, "unused_total": len(rows)}


def _has_answer_in_history(body: bytes, answers: Sequence[Message]) -> bool:
    return any(_is_message_this_answer(answer, sent) for sent in read_request_messages(body) for answer in answers)


def _is_message_this_answer(answer: Message, message: Message) -> bool:
    """Return whether a message of a history is this answer: by the ids of its tool calls, else by its text."""
    ids = {call.id for call in answer.tool_calls if call.id}
    if ids:
        return bool(ids & {call.id for call in message.tool_calls})
    return message.role in ("assistant", "model") and bool(answer.text) and message.text == answer.text


def _get_answer_content(answer: Message) -> object:
    return answer.text, [(call.name, call.arguments) for call in answer.tool_calls]


class ReplacementFeature(Feature):
    kind = ReplacementInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._ours: dict[Place, set[int]] = {}
        self._spending = CostMeter(parts.state.config.max_cost)

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        if self.parts.state.config.update is Update.CHANGED and mode in OFFLINE:
            self.parts.state.sessions.require_live_sessions_allowed("that asks what has changed")

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> ReplacementInterceptor | None:
        update = self.parts.state.config.update
        if update is Update.CHANGED and session.settings.mode in OFFLINE:
            return ReaskInterceptor(self.parts, session, self._ours, self._spending)
        replaces = update is Update.ALL and session.policy.anew
        return ReplacementInterceptor(self.parts, session, self._ours) if replaces else None
