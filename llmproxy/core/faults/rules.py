"""Kinds of faults, rules, and the selection of the fault that a call meets: by rules, seed, call and earlier faults.

Probabilities use a digest of seed, session, rule, party, key, occurrence and attempt. So the same run meets the same
faults in another process, on another machine and with any concurrent runs, and a retry is another attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmproxy.core.dialects.conversation import parse_model_response_message
from llmproxy.core.mcp_answer_replay import read_mcp_called_tool
from llmproxy.core.providers.provider_table import MCP_PREFIX, Family, get_call_channel
from llmproxy.core.providers.routing import get_operation_dialect
from llmproxy.core.traffic.interaction import Interaction, Response, header
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.protocol import AGENT, STDIO_PREFIX, Channel

ALWAYS = 1 << 30
"""Value of `times: always`: no retry of the request gets its recorded answer."""


class FaultParameter(NamedTuple):
    name: str
    default: float
    about: str
    low: float = 0
    high: float = 3600
    whole: bool = False


class FaultyAnswer(NamedTuple):
    response: Response | None
    """Its offsets are the microseconds after which its pieces are sent; None: nothing is sent."""
    reset: bool = False
    """Whether the connection then ends with a reset (RST), as after a host's crash."""
    shut: float = 0
    """Seconds for which the port refuses new connections."""


class CallSeenByFaultRules(NamedTuple):
    session: str
    party: str
    provider: str
    model: str
    operation: str
    channel: str
    """``llm``, ``mcp`` or ``http``; see `protocol.Channel`."""
    transport: str
    """``http``, ``websocket``, ``stdio``, or ``tls`` for the handshake of an intercepted connection."""
    key: str
    nth: int
    """Occurrence of its key, from 1: a retry of a faulty call has the same number."""
    family: Family = "generic"
    recording: int | None = None
    """Row of the recording that would answer; 0: a written answer; None: the provider would answer."""
    stream: bool = False
    target: str = ""
    body: bytes = b""
    speed: float = 0
    """Replay speed of the session: recorded times are kept at 1 and dropped at 0."""
    now: int = 0
    """Unix time in whole seconds."""
    answer: Callable[[], Response | None] = lambda: None
    """Returns the answer; None while there is none."""
    tools: Callable[[], tuple[str, ...]] = tuple
    """Returns the tools that the answer calls; for MCP, the tool that the request calls."""
    in_session: bool = False
    """Whether it is an MCP request that names a session of its server."""
    rpc: bool = False
    """Whether it is a gRPC call, whose failures are reported in `grpc-status`."""


Values = Mapping[str, float]
"""Values of a kind's parameters, defaults included."""
Break = Callable[[CallSeenByFaultRules, Values], FaultyAnswer | None]
"""Applies a fault; None if the answer is unsuitable, for example without text or tool calls."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    name: str
    about: str
    sound: str
    """Expected behaviour of a correct agent."""
    do: Break
    takes: tuple[FaultParameter, ...] = ()
    needs_answer: bool = False
    """Whether it changes the answer, recorded or the provider's; False: it replaces it, and none is sent for."""
    channels: tuple[str, ...] = (Channel.LLM, Channel.HTTP)
    """Channels to which it applies; MCP only if a rule names it, unless there is no other."""
    transports: tuple[str, ...] = ("http",)
    again: bool = True
    """Whether a correct agent recovers by retrying; False: giving up with a message is as good."""
    sweep: Values | None = field(default_factory=dict)
    """Parameters in a sweep, in addition to the defaults; None: a sweep includes it only by name."""
    shared: bool = False
    """Whether it affects every client of the proxy, not only the call that meets it."""

    @property
    def default_channels(self) -> tuple[str, ...]:
        """Channels if a rule names none: MCP is excluded, so that tools work while a model's provider fails."""
        return tuple(each for each in self.channels if each != Channel.MCP) or self.channels

    @property
    def defaults(self) -> dict[str, float]:
        return {each.name: each.default for each in self.takes}


@dataclass(frozen=True, slots=True)
class FaultRule:
    kind: FaultKind
    values: Values = field(default_factory=dict)
    numbers: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Numbers by `call` or `recording`; see `NUMBERS`."""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns with ``*`` and ``?``; see `TEXTS`."""
    probability: float = 1.0
    times: int = 1
    """Number of attempts of one request that meet a fault, of this rule and all others, before it succeeds."""

    def to_json(self) -> dict[str, object]:
        words = {n: sorted(each) for n, each in self.numbers.items()} | {n: list(t) for n, t in self.texts.items()}
        chosen = {name: value[0] if len(value) == 1 else value for name, value in words.items() if value}
        given = {one.name: self.values[one.name] for one in self.kind.takes if self.values[one.name] != one.default}
        chance: dict[str, object] = {} if self.probability == 1 else {"probability": self.probability}
        often = "always" if self.times == ALWAYS else self.times
        times: dict[str, object] = {} if self.times == 1 else {"times": often}
        return {"kind": self.kind.name, **given, **chosen, **chance, **times}


TEXTS = ("provider", "model", "operation", "party", "channel", "transport", "tool")
"""Text filters of a rule; their defaults are in `_get_default_filter`."""
NUMBERS = ("call", "recording")
"""Numeric filters of a rule: number of the call in the session, from 1 in order of arrival; number of the recording."""


@dataclass(frozen=True, slots=True)
class Faults:
    rules: tuple[FaultRule, ...] = ()
    seed: int = 0
    name: str = ""
    """Name in the settings: a file, a preset, ``reset@3``."""

    @property
    def summary(self) -> str:
        kinds = ", ".join(dict.fromkeys(rule.kind.name for rule in self.rules)) or "none"
        return f"injected faults: {self.name} ({kinds}; seed {self.seed})"

    def to_json(self) -> dict[str, object]:
        return {"seed": self.seed, "faults": [rule.to_json() for rule in self.rules]}


class ChosenFault(NamedTuple):
    rule: FaultRule
    number: int
    """Number of the rule, from 1."""

    @property
    def kind(self) -> FaultKind:
        return self.rule.kind

    def __str__(self) -> str:
        return f"fault {self.kind.name} (rule {self.number})"


CHUNK = FaultParameter("chunk", 0, "events of a stream before the fault; 0: half of the answer", 0, 1 << 20, whole=True)


KEPT = 1_000
Request = tuple[str, str, int]
"""Party, key, occurrence: a request including all its retries."""


class InjectedFault(NamedTuple):
    call: CallSeenByFaultRules
    fault: ChosenFault
    broken: FaultyAnswer | None
    """The client's view of the call; None until the provider has answered, if the fault needs the answer."""


@dataclass(slots=True)
class FaultInjector:
    faults: Faults
    injected: Counter[int] = field(default_factory=Counter)
    """Number of injected faults by rule (from 1), over all restarts."""
    total: Counter[int] = field(default_factory=Counter)
    """The same for all sessions that use the proxy's faults."""
    made: OrderedDict[int, Interaction] = field(default_factory=OrderedDict)
    """Latest faulty answers by number of the call in the session; in memory only."""
    _meets_fault: Counter[Request] = field(default_factory=Counter)
    _handshakes: Counter[str] = field(default_factory=Counter)
    _numbers: dict[int, dict[Request, int]] = field(default_factory=dict)

    def restart(self) -> None:
        self._meets_fault.clear()
        self._handshakes.clear()
        self._numbers.clear()

    def inject_fault(self, call: CallSeenByFaultRules) -> InjectedFault | None:
        request = (call.party, call.key, call.nth)
        injected = self._meets_fault.get(request, 0)
        for fault in choose_faults_for_call(
            self.faults, call, injected=injected, numbers=self._number_call(call, request)
        ):
            later = fault.kind.needs_answer and call.recording is None
            broken = None if later else fault.kind.do(call, fault.rule.values)
            if later or broken is not None:
                self._meets_fault[request] += 1
                self._add_injected_count(fault, 1)
                return InjectedFault(call, fault, broken)
        return None

    def count_call_without_fault(self, call: CallSeenByFaultRules) -> None:
        """Count a call without injecting a fault, so that numbers of later calls stay right."""
        self._number_call(call, (call.party, call.key, call.nth))

    def inject_tls_fault(self, session: str, provider: str, host: str) -> InjectedFault | None:
        key = f"tls {host}"
        channel = Channel.LLM if provider else Channel.HTTP
        call = CallSeenByFaultRules(session, AGENT, provider, "", "", channel, "tls", key, self._handshakes[key] + 1)
        if (injected := self.inject_fault(call)) is None:
            self._handshakes[key] += 1
        return injected

    def undo_injection(self, injected: InjectedFault) -> None:
        call, fault, _ = injected
        self._meets_fault[call.party, call.key, call.nth] -= 1
        self._add_injected_count(fault, -1)

    def keep_faulty_answer_for_report(self, seq: int, made: Interaction) -> None:
        self.made[seq] = made
        if len(self.made) > KEPT:
            self.made.popitem(last=False)

    def _add_injected_count(self, fault: ChosenFault, times: int) -> None:
        self.injected[fault.number] += times
        self.total[fault.number] += times

    def _number_call(self, call: CallSeenByFaultRules, request: Request) -> dict[int, int]:
        """Return this call's number among each rule's calls, from 1, if the rule has `call`; retries share a number."""
        found = {}
        for index, rule in enumerate(self.faults.rules):
            if rule.numbers.get("call") and can_fault_occur(rule, call) and matches_rule_filters(rule, call):
                known = self._numbers.setdefault(index, {})
                found[index] = known.setdefault(request, len(known) + 1)
        return found

    def to_json(self) -> dict[str, object]:
        rules = [{**rule.to_json(), "injected": self.injected[n]} for n, rule in enumerate(self.faults.rules, 1)]
        head: dict[str, object] = {"name": self.faults.name, "seed": self.faults.seed}
        return {**head, "faults": rules, "injected": sum(self.injected.values())}


def build_fault_candidate_call(one: Interaction) -> CallSeenByFaultRules:
    socket = one.response.status == SWITCHING
    family = get_operation_dialect(one.provider, one.operation)
    answer = None if socket else one.response
    return CallSeenByFaultRules(
        session=one.cassette, party=one.party, provider=one.provider, model=one.model or "", operation=one.operation,
        channel=get_call_channel(one.provider, one.operation), key=one.key, nth=one.occurrence,
        transport="websocket" if socket else get_transport_name_from_provider(one.provider), family=family,
        recording=one.id, stream=one.stream, target=one.request.target, body=one.request.body,
        answer=lambda: answer, tools=lambda: list_tools_called_in_exchange(one.operation, one.request.body, answer),
        in_session=header(one.request.headers, "mcp-session-id") is not None,
    )  # fmt: skip


def get_transport_name_from_provider(provider: str) -> str:
    return "stdio" if provider.startswith(STDIO_PREFIX) else "http"


def list_tools_called_in_exchange(operation: str, request: bytes, answer: Response | None) -> tuple[str, ...]:
    if operation.startswith(MCP_PREFIX):
        return read_mcp_called_tool(request)
    said = None if answer is None else parse_model_response_message(operation, answer)
    return () if said is None else tuple(call.name for call in (*said.tool_calls, *said.beside))


def choose_faults_for_call(
    faults: Faults, call: CallSeenByFaultRules, *, injected: int, numbers: Mapping[int, int]
) -> Iterator[ChosenFault]:
    """Yield the faults that a call may meet, in order; the next one is tried if one cannot be applied to the answer.

    `injected`: attempts of this request that already met a fault. `numbers`: by index of each rule with `call`, the
    number of this call among those that the rule's other filters select, from 1.
    """
    for index, rule in enumerate(faults.rules):
        if not (can_fault_occur(rule, call) and matches_rule_filters(rule, call)):
            continue
        if (calls := rule.numbers.get("call")) and numbers.get(index) not in calls:
            continue
        if injected < rule.times and draw_seeded_random_number(faults.seed, call, index, injected) < rule.probability:
            yield ChosenFault(rule, index + 1)


def can_fault_occur(rule: FaultRule, call: CallSeenByFaultRules) -> bool:
    return call.channel in rule.kind.channels and call.transport in rule.kind.transports


def matches_rule_filters(rule: FaultRule, call: CallSeenByFaultRules) -> bool:
    """Return whether a rule's text and recording filters select a call; an answer's tools come last (slow)."""
    if (recordings := rule.numbers.get("recording")) and call.recording not in recordings:
        return False
    return all(matches_fault_rule_field(rule, name, call) for name in TEXTS)


def matches_fault_rule_field(rule: FaultRule, name: str, call: CallSeenByFaultRules) -> bool:
    patterns = rule.texts.get(name) or _get_default_filter(rule, name, call)
    if name == "tool":
        return not patterns or any(matches_any_glob_pattern(patterns, tool) for tool in call.tools())
    return matches_any_glob_pattern(patterns, getattr(call, name))


def _get_default_filter(rule: FaultRule, name: str, call: CallSeenByFaultRules) -> tuple[str, ...]:
    """Return the default filter: the agent's calls; the kind's usual channels; in MCP, tool calls only."""
    if name == "party":
        return (AGENT,)
    if name == "channel":
        return rule.kind.default_channels
    return (CALLS,) if name == "operation" and call.channel == Channel.MCP else ()


CALLS = f"{MCP_PREFIX}tools/call*"


def matches_any_glob_pattern(patterns: tuple[str, ...], text: str) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def draw_seeded_random_number(seed: int, call: CallSeenByFaultRules, rule: int, attempt: int) -> float:
    words = [seed, call.session, rule, call.party, call.key, call.nth, attempt]
    return int.from_bytes(hashlib.sha256(json.dumps(words).encode()).digest()[:8]) / (1 << 64)
