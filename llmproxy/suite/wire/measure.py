"""Calls of a run -> what the agent did: tools it asked for and executed, tokens, retries. Pure; the proxy is asked elsewhere.

    Call (as the proxy tells it) + Interaction (as it was recorded) -> Seen, of all of a run -> Measured, of one step

A tool call is an entry in an *answer* of a model, never in the history that a request carries. It is executed if a later request of
the same conversation carries its result. An answer that a client asked for again is counted once: where both were whole, the one
that the conversation goes on with, else the last. What a provider did not report is None, never 0, and a sum with an unknown part
is a lower bound (`Tokens.complete`), never a number to compare with.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmproxy.core.traffic.interaction import header
from llmproxy.protocol import AGENT, Decision
from llmproxy.scenario.proxy.wire import hosted_calls
from llmproxy.suite.wire.results import Result, results_of
from llmproxy.suite.wire.tokens import Tokens, usage_of
from llmproxy.trace.reading.conversations import Conversation, Conversations
from llmproxy.trace.reading.exchange import CHAT, Exchange, opened
from llmproxy.trace.reading.history import History

if TYPE_CHECKING:
    from llmproxy.client.control.client import Call
    from llmproxy.core.traffic.interaction import Interaction

__all__ = ["Measured", "Seen", "ToolUse", "Wire", "recorded_at"]

_OK = range(200, 300)
_RETRY_HEADERS = ("x-stainless-retry-count",)
"""With these the SDKs made by Stainless (OpenAI's, Anthropic's) say how often a request was sent before; 0 is the first time."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool that a model asked for."""

    name: str
    arguments: Any
    """Parsed; the raw text where it is no JSON."""
    raw: str
    """As the model wrote it."""
    id: str | None
    seq: int
    """Of the call in the session whose answer asked for it."""
    interaction: int | None
    hosted: bool = False
    """Whether the provider runs it itself (web search, code interpreter)."""
    executed: bool = False
    """Whether a later request carries a result."""
    result: str | None = None
    errored: bool = False
    """Whether the result says that the tool failed."""

    @property
    def parsed(self) -> bool:
        """Whether the arguments are JSON."""
        return not (isinstance(self.arguments, str) and self.arguments == self.raw)

    @property
    def where(self) -> str:
        """Where it was seen."""
        return place_of(self.interaction, self.seq)


@dataclass(slots=True, eq=False)
class Seen:
    """One exchange of the agent."""

    call: Call
    exchange: Exchange | None
    """None where nothing is recorded: passed through, refused, cut short."""
    conversation: Conversation | None = None
    superseded: bool = False
    """Whether the client asked again and went on with another answer."""
    results: Mapping[str, Result] = field(default_factory=dict)
    """Results of tools in this request, by call id (or tool name where the dialect has no ids)."""
    continued: bool = False
    """Whether a later request of the same conversation goes on after this answer."""

    @property
    def answered(self) -> bool:
        """Whether a model answered, and the answer counts."""
        if self.superseded or self.call.operation not in CHAT:
            return False
        return self.call.status in _OK if self.exchange is None else not self.exchange.failed

    @property
    def where(self) -> str:
        """Where it was seen."""
        return place_of(self.call.interaction, self.call.seq)


def recorded_at(calls: Iterable[Call]) -> float | None:
    """Return when the first of the replayed exchanges was recorded, Unix time; None if none was replayed, or nobody knows."""
    replayed = [call.recording for call in calls if call.decision == Decision.REPLAY and call.recording]
    times = [each.get("recorded", {}).get("started_at") for each in replayed]
    return min((at for at in times if isinstance(at, (int, float))), default=None)


def place_of(interaction: int | None, seq: int) -> str:
    """Name an exchange, as `llmproxy show` does where it is stored."""
    return f"call {seq} of the session" if interaction is None else f"interaction {interaction}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the agent did on the wire in one step."""

    seen: Sequence[Seen] = ()
    tools: Sequence[ToolUse] = ()
    usage: Mapping[str, Tokens] = field(default_factory=dict)
    """By the names that suites use: ``inputTokens``, ``cacheReadTokens``, ``costUsd`` ..."""
    replayed: bool = False
    """Whether every exchange was answered from a recording."""

    @property
    def exchanges(self) -> int:
        """How many requests of the agent arrived."""
        return len(self.seen)

    @property
    def retries(self) -> tuple[Seen, ...]:
        """Exchanges that were asked for again: failed answers, and whole ones that the client did not go on with."""
        return tuple(
            each for each in self.seen if each.superseded or (each.exchange is not None and each.exchange.failed)
        )

    @property
    def unread(self) -> tuple[Seen, ...]:
        """Answers whose content nobody kept (mode passthrough): what they asked for is not known."""
        return tuple(each for each in self.seen if each.exchange is None and each.answered)

    @property
    def interactions(self) -> tuple[int, ...]:
        """Recorded interactions, as `llmproxy show` names them."""
        return tuple(each.call.interaction for each in self.seen if each.call.interaction is not None)


class Wire:
    """Everything that the agent of one run said to models so far; feed it in order of arrival."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.seen: list[Seen] = []
        self._marks: list[int] = []
        self._history, self._conversations = History(), Conversations()

    def mark(self, after: int) -> None:
        """Note that the agent is asked something new after call number `after`: the same request after it is no retry of one before."""
        self._marks.append(after)

    def feed(self, calls: Iterable[tuple[Call, Interaction | None]]) -> None:
        """Take the calls that are new; those of other parties (user simulator, judges) are no behaviour of the agent."""
        for call, interaction in calls:
            if call.party == AGENT:
                exchange = None if interaction is None else opened(interaction, self._history)
                self.seen.append(self._placed(Seen(call, exchange)))

    def _placed(self, seen: Seen) -> Seen:
        exchange = seen.exchange
        if exchange is None or seen.call.operation not in CHAT:
            return seen
        seen.results = results_of(exchange)
        place = self._conversations.place(exchange)
        seen.conversation = place.conversation or Conversation(str(len(self.seen)), "", exchange.tools, place.system)
        self._conversations.note(exchange, place, seen.conversation)
        before = next(
            (each for each in reversed(self.seen) if each.conversation is seen.conversation and _whole(each)), None
        )
        if before is not None and before.call.key != seen.call.key:
            before.continued = True
        return seen

    def step(self, after: int, until: int | None = None) -> Measured:
        """Return what happened in calls after number `after`, up to `until`."""
        chosen = [each for each in self.seen if each.call.seq > after and (until is None or each.call.seq <= until)]
        _mark_retries(chosen, self._marks)
        return Measured(
            seen=tuple(chosen),
            tools=tuple(use for each in chosen for use in self._tools(each)),
            usage=usage_of(chosen),
            replayed=bool(chosen) and all(str(each.call.decision) == "REPLAY" for each in chosen),
        )

    def _tools(self, seen: Seen) -> Iterable[ToolUse]:
        exchange = seen.exchange
        if exchange is None or not seen.answered:
            return
        hosted = hosted_calls(exchange)
        given = {} if exchange.answer is None else {call.id or call.name: call for call in exchange.answer.tool_calls}
        calls = () if exchange.answer is None else exchange.answer.tool_calls
        for call in (*calls, *(each for name, each in hosted.items() if name not in given)):
            ours = (call.id or call.name) not in hosted
            result = self._result(seen, call.id, call.name) if ours else None
            yield ToolUse(
                name=call.name,
                arguments=_parsed(call.arguments),
                raw=call.arguments,
                id=call.id,
                seq=seen.call.seq,
                interaction=seen.call.interaction,
                hosted=not ours,
                executed=result is not None or not ours,
                result=result.text if result else None,
                errored=result is not None and result.errored,
            )

    def _result(self, seen: Seen, call_id: str | None, name: str) -> Result | None:
        """Find the result of a call: the first that a later request of its conversation carries.

        Where the history was rewritten so that the conversation is not recognised, an id tells it, if only one answer has that id: the
        same recording may be served twice.
        """
        later = [each for each in self.seen if each.call.seq > seen.call.seq]
        own = [each for each in later if each.conversation is seen.conversation]
        unique = call_id is not None and sum(call_id in _ids(each) for each in self.seen) == 1
        candidates: list[Seen] = own + (later if unique else [])
        for each in candidates:
            found = each.results.get(call_id or name) or each.results.get(name)
            if found is not None:
                return found
        return None


def _ids(seen: Seen) -> set[str | None]:
    answer = None if seen.exchange is None else seen.exchange.answer
    return set() if answer is None else {call.id for call in answer.tool_calls}


def _whole(seen: Seen) -> bool:
    return seen.exchange is not None and not seen.exchange.failed


def _mark_retries(chosen: Sequence[Seen], marks: Sequence[int]) -> None:
    """Of whole answers to one request that was sent again, let one count.

    A client that says how often it sent a request (`_RETRY_HEADERS`) is believed; of others, what the conversation goes on with counts,
    else the last. An agent that asks the same twice on purpose, each time going on with the answer, made two calls.
    """
    groups: dict[tuple[str, int], list[Seen]] = {}
    for seen in chosen:
        seen.superseded = False
        if seen.call.key is not None and _whole(seen) and seen.call.operation in CHAT:
            groups.setdefault((seen.call.key, bisect_left(marks, seen.call.seq)), []).append(seen)
    for group in (each for each in groups.values() if len(each) > 1):
        counts = [_sent_before(seen) for seen in group]
        if None not in counts:
            for seen, following in zip(group, counts[1:], strict=False):
                seen.superseded = bool(following)
            continue
        going_on = [seen for seen in group if seen.continued] or group[-1:]
        for seen in group:
            seen.superseded = seen not in going_on


def _sent_before(seen: Seen) -> int | None:
    """Return how often a request had been sent before, if the client says so."""
    if seen.exchange is None:
        return None
    headers = seen.exchange.interaction.request.headers
    said = next((value for name in _RETRY_HEADERS if (value := header(headers, name)) is not None), "")
    return int(said) if said.isdecimal() else None


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
