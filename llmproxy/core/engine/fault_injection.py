"""Injection of faults: which calls get one, and which answer their clients then get.

A fault is chosen before the arrival is counted, so its retry gets the recorded answer. A call that the session would
refuse gets no fault: a miss stays a miss. A fault that changes an answer needs the provider's if none is recorded; that
answer is not recorded either (PASS), but its retry is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import takewhile
from typing import Any, override

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_identification import refuse_if_unsendable
from llmproxy.core.engine.request_stages import decide_by_mode, list_replayable_recordings
from llmproxy.core.faults.kinds import MICROSECONDS, replace_response_chunks, split_answer_into_timed_pieces
from llmproxy.core.faults.parsing import PRESETS
from llmproxy.core.faults.rules import (
    CallSeenByFaultRules,
    FaultInjector,
    FaultRule,
    Faults,
    InjectedFault,
    build_fault_candidate_call,
    can_fault_occur,
    get_transport_name_from_provider,
    list_tools_called_in_exchange,
    matches_fault_rule_field,
    matches_rule_filters,
)
from llmproxy.core.providers.upstreams_and_rate_limits import provider_of_host
from llmproxy.core.sessions.call_interceptor import Decided, RecordingLookup, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.traffic.interaction import Ending, Interaction, Response, Usage, header, is_grpc
from llmproxy.core.traffic.response_plan import AnswerSendingPlan
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.protocol import FAULT_HEADER, Decision

MOST_READ = 1_000
"""Maximum recordings that are read to explain why a rule met no call."""
READ_FIRST = MICROSECONDS // 20
"""Microseconds between the last piece and a reset after it: some systems discard data that was not read by then."""
MOST_ASIDE = 3
"""Sets of faults, in addition to the last one, that a session keeps."""


class FaultInterceptor(SessionCallInterceptor[Exchange]):
    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.faulting: FaultInjector | None = None
        self.aside: list[FaultInjector] = []
        """Earlier sets of faults of this session, which continue at their state if they are set again."""

    def on_restart(self) -> None:
        for each in (self.faulting, *self.aside):
            if each is not None:
                each.restart()

    def find_unstored_call(self, seq: int) -> Interaction | None:
        known = (each.made.get(seq) for each in (self.faulting, *self.aside) if each is not None)
        return next((each for each in known if each is not None), None)

    def build_report(self) -> Mapping[str, Any]:
        return {} if self.faulting is None else {"faults": self.faulting.to_json()}

    def set_faults(self, faults: FaultInjector | None) -> None:
        if self.faulting is not None:
            self.aside = [*self.aside[-MOST_ASIDE:], self.faulting]
        self.aside = [each for each in self.aside if each is not faults]
        self.faulting, self.sees_whole = faults, faults is not None

    def on_lookup(self, call: Exchange, found: RecordingLookup) -> RecordingLookup:
        session, party_key = call.session, (call.party, found.key)
        if self.faulting is None:
            return found
        if session.is_new_run(party_key, len(list_replayable_recordings(session.policy, found.recordings))):
            session.restart()
        nth = session.position.counts[party_key] + 1
        verdict = decide_by_mode(call, found, nth)
        made = next((made for each in call.interceptors if (made := each.preview_answer(call)) is not None), None)
        slot = verdict.recording
        if made is None and any(each.goes_live(call, hit=slot is not None) for each in call.interceptors):
            slot = None
        elif verdict.decision is Decision.REFUSE and made is None:
            return found
        target = self._build_fault_target(call, found, nth, slot, made)
        for each in self.aside:
            each.count_call_without_fault(target)
        if (injected := self.faulting.inject_fault(target)) is None:
            return found
        call.state.put(injected)
        call.answer.told = ((FAULT_HEADER, injected.fault.kind.name),)
        if injected.broken is None:
            call.decision, call.answer.withheld = Decision.PASS, True
        else:
            call.decision, call.answer.made = Decision.FAULT, injected.broken.response
        refuse_if_unsendable(call)
        self._keep_faulty_answer_for_report(call)
        return found

    def _build_fault_target(
        self, call: Exchange, found: RecordingLookup, nth: int, slot: RecordingHead | None, made: Response | None
    ) -> CallSeenByFaultRules:
        provider = call.route.provider.name
        upgrade = (header(call.request.headers, "upgrade") or "").lower() == "websocket"

        @cache
        def answer() -> Response | None:
            replayed = made is None and slot is not None and slot.status != SWITCHING
            return self._read_hit_answer(call, found, slot) if replayed and slot is not None else made

        return CallSeenByFaultRules(
            session=call.session.name,
            party=call.party,
            provider=provider,
            model=call.identity.model or "",
            operation=call.operation,
            channel=call.channel,
            transport="websocket" if upgrade else get_transport_name_from_provider(provider),
            key=found.key,
            nth=nth,
            family=call.family,
            recording=slot.id if slot is not None else None if made is None else 0,
            stream=call.identity.stream,
            target=call.route.target,
            body=call.request.data,
            speed=0 if slot is None else call.session.settings.speed,  # a provider's answer has taken its real time
            now=int(self._parts.state.now()),
            answer=answer,
            tools=lambda: list_tools_called_in_exchange(call.operation, call.request.data, answer()),
            in_session=header(call.request.headers, "mcp-session-id") is not None,
            rpc=is_grpc(call.request.headers),
        )

    def _read_hit_answer(self, call: Exchange, found: RecordingLookup, slot: RecordingHead) -> Response | None:
        """Return the answer that a hit would get, with this run's values; None if it would be a miss."""
        if (store := self._parts.state.stores.current) is None:
            return None
        hit, kept, told, state = Decided(Decision.REPLAY, slot), call.answer.made, call.answer.told, call.state
        call.state = state.copy()  # the decisions below are only previews
        try:
            for each in takewhile(lambda each: each is not self, call.interceptors):
                if each.on_decision(call, found, hit) is not hit:
                    return None
            return call.answer.made or store.response(slot.id)
        finally:
            call.answer.made, call.answer.told, call.state = kept, told, state

    def _keep_faulty_answer_for_report(self, call: Exchange) -> None:
        injected, response = call.state.get(InjectedFault), call.answer.made
        if self.faulting is not None and injected is not None and response is not None:
            response, redacted = self._parts.state.redactor.redact_response(response, call.method)
            made = self._parts.builder.build(call, response, Usage(input=0, output=0), redacted=redacted)
            self.faulting.keep_faulty_answer_for_report(call.progress.seq, replace(made, occurrence=injected.call.nth))

    def on_withheld_answer(self, call: Exchange, response: Response) -> None:
        """Apply the fault to a provider's answer; if the fault cannot be applied, the answer is sent as it came."""
        if (injected := call.state.get(InjectedFault)) is None:
            return
        broken = injected.fault.kind.do(injected.call._replace(answer=lambda: response), injected.fault.rule.values)
        if broken is not None:
            call.state.put(injected._replace(broken=broken))
            call.answer.made = broken.response
            self._keep_faulty_answer_for_report(call)
            return
        call.state.drop(InjectedFault)
        cut = response.ending in (Ending.CUT, Ending.LEFT)
        call.answer.told = ()
        call.answer.made = replace_response_chunks(response, split_answer_into_timed_pieces(response, 0), 0, cut=cut)
        call.note = f"{injected.fault} found nothing in this answer to be done to; not recorded"
        if self.faulting is not None:
            self.faulting.undo_injection(injected)

    def on_send_plan(self, call: Exchange, laid: AnswerSendingPlan) -> AnswerSendingPlan:
        if (injected := call.state.get(InjectedFault)) is None or injected.broken is None:
            return laid
        laid = laid._replace(crash=injected.broken.reset, shut=injected.broken.shut)
        if injected.broken.reset and laid.pieces:
            return laid._replace(pieces=(*laid.pieces, (laid.pieces[-1][0] + READ_FIRST, b"")), close=True)
        return laid

    def on_end(self, call: Exchange, record: Call) -> Call:
        if (injected := call.state.get(InjectedFault)) is None:
            return record
        cost = Decimal(0) if record.decision is Decision.FAULT else record.cost
        note = ", ".join(filter(None, (str(injected.fault), record.note)))
        return record._replace(note=note, fault=injected.fault.kind.name, cost=cost)


class FaultFeature(Feature):
    kind = FaultInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._strikes: Counter[int] = Counter()
        """Number of injections by rule of the proxy's faults, over all sessions."""

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> FaultInterceptor | None:
        faults = self.parts.state.config.faults if asked.get("faults") is None else asked["faults"]
        if faults is None or not faults.rules:
            return None
        made = FaultInterceptor(self.parts)
        made.set_faults(self._start_injector(faults))
        return made

    def _start_injector(self, faults: Faults) -> FaultInjector:
        ours = faults is self.parts.state.config.faults
        return FaultInjector(faults, total=self._strikes) if ours else FaultInjector(faults)

    def change_faults(self, session: Session, faults: Faults | None, *, again: bool = False) -> None:
        """Replace a session's faults from its next call on (None: by the proxy's). Raises RefusedError.

        With `again`, a set that the session had before (a scenario's, after those of a step) continues at its state.
        """
        faults = self.parts.state.config.faults if faults is None else faults
        known = session.find_interceptor(FaultInterceptor)
        if faults is None or not faults.rules:
            if known is not None:
                known.set_faults(None)
            return
        if known is None:
            self.parts.state.sessions.add_interceptor_to_session(session, known := FaultInterceptor(self.parts))
        before = [each for each in (*known.aside, known.faulting) if each is not None and each.faults == faults]
        known.set_faults(before[-1] if again and before else self._start_injector(faults))

    def on_tls_handshake(self, host: str, port: int, user: str | None) -> Call | None:
        """Return the record of a connection without TLS, `user` its session. Raises RefusedError, CassetteBusy."""
        state = self.parts.state
        name = user or state.config.cassette
        if (session := state.sessions.find_open(name)) is None and state.config.faults is not None:
            session = state.sessions.get_or_open(name)
        known = None if session is None else session.find_interceptor(FaultInterceptor)
        if session is None or known is None or known.faulting is None:
            return None
        provider = provider_of_host(host, port)
        named = "" if provider is None else provider.name
        if (injected := known.faulting.inject_tls_fault(session.name, named, f"{host}:{port}")) is None:
            return None
        call = Call(
            decision=Decision.FAULT, method="CONNECT", target=state.redactor.redact_target(f"{host}:{port}"), status=0,
            session=session.name, provider=named, note=str(injected.fault), fault=injected.fault.kind.name,
            at=state.now(), seq=session.calls.begin(),
        )  # fmt: skip
        self.parts.accounting.record_call(session, call)
        return call

    def explain_idle_rules(self, session: Session | None = None) -> dict[int, str]:
        state = self.parts.state
        faults, strikes, walks = state.config.faults, self._strikes, list(state.sessions.open_sessions.values())
        if session is not None:
            known = session.find_interceptor(FaultInterceptor)
            faulting = None if known is None else known.faulting
            faults, strikes = (None, strikes) if faulting is None else (faulting.faults, faulting.injected)
            walks = [session]
        if faults is None or all(strikes.get(number) for number in range(1, len(faults.rules) + 1)):
            return {}
        closed = state.sessions.served_before
        came = sum(each.calls.arrived for each in walks) + sum(strikes.values()) + len(closed)
        places = {(each.cassette, each.sample) for each in walks} | (closed.keys() if session is None else set())
        store = state.stores.current
        calls = []
        if store is not None:
            rows = [sorted(row.id for row in store.list_summaries(*each, limit=MOST_READ)) for each in sorted(places)]
            calls = [build_fault_candidate_call(store.load(row)) for some in rows for row in some]
        return explain_unused_fault_rules(faults, strikes, calls, came=came)


_HOSTS = "; hosts that are no model provider's are met where --record-host names them"
_SHOWN = 5


def explain_unused_fault_rules(
    faults: Faults, injected: Mapping[int, int], calls: Sequence[CallSeenByFaultRules], *, came: int
) -> dict[int, str]:
    met = {
        n
        for n, rule in enumerate(faults.rules, 1)
        for call in calls
        if can_fault_occur(rule, call)
        and (not rule.texts.get("channel") or matches_fault_rule_field(rule, "channel", call))
    }
    # The user did not choose each rule of a preset.
    told = met if met and faults.name in PRESETS else range(1, len(faults.rules) + 1)
    return {
        number: f"fault {rule.kind.name} (rule {number}) met no call: {_explain_idle_rule(rule, calls, came)}"
        for number, rule in enumerate(faults.rules, 1)
        if number in told and not injected.get(number)
    }


def _explain_idle_rule(rule: FaultRule, calls: Sequence[CallSeenByFaultRules], came: int) -> str:
    if not came:
        return "no call came"
    if not calls:
        return f"no call came that it chooses, and nothing is recorded to compare it with{_HOSTS}"
    if rule.kind.transports == ("tls",):
        return "no intercepted connection began that it chooses"
    if not (left := [call for call in calls if can_fault_occur(rule, call)]):
        met = f"{' and '.join(rule.kind.channels)} over {' and '.join(rule.kind.transports)}"
        return f"it meets calls of {met} only, and none is recorded"
    if not [call for call in left if matches_fault_rule_field(rule, "channel", call)] and not rule.texts.get("channel"):
        usual = ", ".join(rule.kind.default_channels)
        return f"no recording is of a channel that it meets unless one is named: {usual}"
    for name, patterns in rule.texts.items():
        found = [call for call in left if matches_fault_rule_field(rule, name, call)]
        if patterns and not found:
            values = (call.tools() if name == "tool" else (getattr(call, name),) for call in left)
            there = _join_names(sorted({each for some in values for each in some if each})) or "none with any"
            return f"no recording has {name} {_join_names(patterns)}; there is {there}"
    if (recordings := rule.numbers.get("recording")) and not recordings & {call.recording for call in left}:
        return f"there is no recording {', '.join(f'#{each}' for each in sorted(recordings))} in this cassette"
    chosen = [call for call in left if matches_rule_filters(rule, call)]
    if not chosen:
        return "no recording is chosen by all of its words together"
    if rule.kind.needs_answer and all(rule.kind.do(call, rule.values) is None for call in chosen):
        return "no recorded answer has anything to do it to"
    if numbers := rule.numbers.get("call"):
        which = ", ".join(map(str, sorted(numbers)))
        return (
            f"no call came that is its number {which}, or an earlier rule was used for that one,"
            " or it found nothing there to be done to"
        )
    if rule.probability < 1:
        return f"a probability of {rule.probability:g} spared every call that came"
    return "none of the calls that it chooses came"


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
