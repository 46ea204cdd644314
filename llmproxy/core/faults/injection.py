"""The faults of one session: which calls met one so far, and what to say of it at the end."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from llmproxy.core.faults.choosing import choose, covers, is_chosen
from llmproxy.core.faults.values import Broken, Fault, Faults, FaultTarget, Needs
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT, Channel

KEPT = 1_000
"""Answers that faults made and are told in the walk of a session."""
Request = tuple[str, str, int]
"""Party, key, occurrence: a request with all its retries."""


class InjectedFault(NamedTuple):
    call: FaultTarget
    fault: Fault
    broken: Broken | None
    """What its client sees; None where that is known when the provider has answered."""


@dataclass(slots=True)
class Faulting:
    """The state of one session with faults."""

    faults: Faults
    injected: Counter[int] = field(default_factory=Counter)
    """By rule, from 1: how many calls met it, over all restarts."""
    total: Counter[int] = field(default_factory=Counter)
    """The same, of all sessions with the proxy's faults."""
    made: OrderedDict[int, Interaction] = field(default_factory=OrderedDict)
    """By number of the call in the session: what the client got instead, the last ones; in memory only."""
    _meets_fault: Counter[Request] = field(default_factory=Counter)
    _handshakes: Counter[str] = field(default_factory=Counter)
    _numbers: dict[int, dict[Request, int]] = field(default_factory=dict)

    def restart(self) -> None:
        """Stand before the first call again."""
        self._meets_fault.clear()
        self._handshakes.clear()
        self._numbers.clear()

    def inject(self, call: FaultTarget) -> InjectedFault | None:
        """Return the fault that this call meets, counted; None if none does."""
        request = (call.party, call.key, call.nth)
        injected = self._meets_fault.get(request, 0)
        for fault in choose(self.faults, call, injected=injected, numbers=self._number(call, request)):
            later = fault.kind.needs is Needs.ANSWER and call.recording is None
            broken = None if later else fault.kind.do(call, fault.rule.values)
            if later or broken is not None:
                self._meets_fault[request] += 1
                self._add(fault, 1)
                return InjectedFault(call, fault, broken)
        return None

    def pass_by(self, call: FaultTarget) -> None:
        """Count a call that came while other faults were met: the third call of the session is the third."""
        self._number(call, (call.party, call.key, call.nth))

    def inject_handshake(self, session: str, provider: str, host: str) -> InjectedFault | None:
        """Return the fault of an intercepted connection's TLS handshake; each connection counts."""
        key = f"tls {host}"
        channel = Channel.LLM if provider else Channel.HTTP
        call = FaultTarget(session, AGENT, provider, "", "", channel, "tls", key, self._handshakes[key] + 1)
        if (injected := self.inject(call)) is None:
            self._handshakes[key] += 1
        return injected

    def spare(self, injected: InjectedFault) -> None:
        """Take back a fault that the provider's answer gave no hold to."""
        call, fault, _ = injected
        self._meets_fault[call.party, call.key, call.nth] -= 1
        self._add(fault, -1)

    def keep(self, seq: int, made: Interaction) -> None:
        """Remember what the client of a call got, for whoever asks what the session was told."""
        self.made[seq] = made
        if len(self.made) > KEPT:
            self.made.popitem(last=False)

    def _add(self, fault: Fault, times: int) -> None:
        self.injected[fault.number] += times
        self.total[fault.number] += times

    def _number(self, call: FaultTarget, request: Request) -> dict[int, int]:
        """Return for each numbered rule the how-manieth this is of its calls, from 1; a retry is what it retries."""
        found = {}
        for index, rule in enumerate(self.faults.rules):
            if rule.numbers.get("call") and covers(rule, call) and is_chosen(rule, call):
                known = self._numbers.setdefault(index, {})
                found[index] = known.setdefault(request, len(known) + 1)
        return found

    def to_json(self) -> dict[str, object]:
        """Return plain values, for the report of the session."""
        rules = [
            {**rule.to_json(), "injected": self.injected[number]} for number, rule in enumerate(self.faults.rules, 1)
        ]
        return {
            "name": self.faults.name,
            "seed": self.faults.seed,
            "faults": rules,
            "injected": sum(self.injected.values()),
        }
