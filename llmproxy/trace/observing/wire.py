"""Calls of a run -> what the agent did: tools it asked for and executed, tokens, retries. Pure; the proxy is asked elsewhere.

    a call (as the proxy tells it) + Interaction (as it was recorded) -> Seen, of all of a run -> Observed, of a stretch of it

What a provider did not report is None, never 0, and a sum with an unknown part is a lower bound (`Tokens.complete`), never a number to
compare with. Nothing is opened before somebody asks what was seen: most agents have no tools, and most runs say nothing about tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.calls import Call
from llmproxy.core.dialects.messages import as_dict, as_list
from llmproxy.core.providers.table import MCP_PREFIX
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT, Decision
from llmproxy.trace.observing.pending import Waiting, find_new_results
from llmproxy.trace.observing.results import Result, results_of
from llmproxy.trace.observing.retries import Sent, find_replaced
from llmproxy.trace.observing.seen import Seen
from llmproxy.trace.observing.servers import Served, read_served
from llmproxy.trace.observing.tokens import Tokens, usage_of
from llmproxy.trace.observing.tools import AskingExchange, ToolUse
from llmproxy.trace.reading.conversations import MessagePlace, Pending, RecordedConversation, RecordedConversations
from llmproxy.trace.reading.exchange import OpenedExchange, open_exchange
from llmproxy.trace.reading.history import History
from llmproxy.trace.reading.told import interactions

_WORDS = re.compile(r"tool|call|function|execut|code|search|fetch|ground|\\u00", re.IGNORECASE)
"""Every name of a tool call, or of a provider's own tool, holds one of these; or its letters are escaped."""


def recorded_at(calls: Iterable[Call]) -> float | None:
    """Return when the first of the replayed exchanges was recorded, Unix time; None if none was replayed, or nobody knows."""
    replayed = [call.recording for call in calls if call.decision == Decision.REPLAY and call.recording]
    times = [each.get("recorded", {}).get("started_at") for each in replayed]
    return min((at for at in times if isinstance(at, (int, float))), default=None)


def latency_of(calls: Iterable[Call], party: str = AGENT) -> float | None:
    """Return how long a party's calls of models took together, in milliseconds, as they were recorded.

    None where there are none, or where nobody recorded one of them: a replay's own pace says nothing.
    """
    ends = [_recorded_ms(call.recording) for call in calls if call.party == party]
    return None if not ends or None in ends else sum(each for each in ends if each is not None)


def _recorded_ms(recording: Mapping[str, Any] | None) -> float | None:
    chunks = str(((recording or {}).get("recorded") or {}).get("chunks") or "").split()
    return int(chunks[-1].partition(":")[0]) / 1000 if chunks else None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the agent did on the wire in a stretch of its calls."""

    seen: Sequence[Seen] = ()
    tools: Sequence[ToolUse] = ()
    """The calls of tools that count, in the order in which models asked for them."""
    usage: Mapping[str, Tokens] = field(default_factory=dict)
    """By the names that suites use: ``inputTokens``, ``cacheReadTokens``, ``costUsd`` ..."""
    replayed: bool = False
    """Whether every exchange was answered from a recording."""

    @property
    def exchanges(self) -> int:
        """How many requests of the agent arrived."""
        return len(self.seen)

    @property
    def readable(self) -> bool:
        """Whether a model was seen to answer, at least once, in words that can be read whole."""
        return any(each.readable for each in self.seen)

    @property
    def retries(self) -> tuple[Seen, ...]:
        """Exchanges that came to nothing: failed answers, and whole ones that the client asked for again."""
        return tuple(
            each
            for each in self.seen
            if each.replaced or (each.exchange is not None and each.exchange.failed and not each.went_on)
        )

    @property
    def unread(self) -> tuple[Seen, ...]:
        """Answers of which it is not known what they asked for; `Seen.unread` says why."""
        return tuple(each for each in self.seen if each.unread)

    @property
    def unrecorded(self) -> tuple[Seen, ...]:
        """Answers whose content nobody kept (mode passthrough)."""
        return tuple(each for each in self.seen if each.exchange is None and each.answered)

    @property
    def recordings(self) -> tuple[str, ...]:
        """What was recorded of each exchange, by :func:`reference_of`; empty for one of which nothing is kept."""
        return tuple("" if each.call.recording is None else reference_of(each.call.recording) for each in self.seen)

    @property
    def interactions(self) -> tuple[int, ...]:
        """Recorded interactions, as `llmproxy show` names them."""
        return tuple(each.call.interaction for each in self.seen if each.call.interaction is not None)


class Wire:
    """Everything that a party of one run said to models so far; feed it in order of arrival."""

    def __init__(self, party: str | None = AGENT) -> None:
        """Know nothing yet. Calls of other parties (user simulator, judges) are no behaviour of the agent; None takes everybody's."""
        self._party = party
        self._fed: list[tuple[Call, Interaction | None]] = []
        self._of_tools: list[tuple[Call, Interaction | None]] = []
        """Messages to servers of tools."""
        self._opened: list[Seen] = []
        self._may_call = False
        self._history, self._conversations = History(), RecordedConversations()
        self._waiting = Waiting()
        self._heard: set[tuple[RecordedConversation, str | None]] = set()
        """In which conversation which request was sent."""
        self._origins: dict[str | None, set[str | None]] = {}
        """Of each request that told results, which requests had asked for those calls."""
        self._keys: dict[int, str | None] = {}
        """Of each call, by its number."""
        self._approvals: dict[str, ToolUse] = {}

    def read(self, calls: Iterable[Call]) -> None:
        """Take calls that are new, with the recordings that they bring."""
        self.feed((call, None) for call in calls)

    def feed(self, calls: Iterable[tuple[Call, Interaction | None]]) -> None:
        """Take calls that are new, and what was recorded of them if they do not bring it."""
        for call, interaction in calls:
            if call.operation.startswith(MCP_PREFIX):
                if self._party in (None, call.party):
                    self._of_tools.append((call, interaction))
                continue  # a server of tools is no model: what was called is in the model's own words
            if self._party in (None, call.party):
                self._fed.append((call, interaction))
                self._may_call = self._may_call or interaction is not None or _may_call(call.recording)

    @property
    def seen(self) -> Sequence[Seen]:
        """Every exchange so far. Raises CassetteCorrupt for a recording that no proxy of this version tells."""
        for call, interaction in self._fed[len(self._opened) :]:
            made = interaction or next(iter(interactions([call])), None)
            self._opened.append(
                self._place_exchange(Seen(call, None if made is None else open_exchange(made, self._history)))
            )
        return self._opened

    def step(self, after: int, until: int | None = None) -> Observed:
        """Return what happened in calls after number `after`, up to `until`. Raises as `seen`."""
        self._mark_replaced()
        chosen = [each for each in self.seen if each.call.seq > after and (until is None or each.call.seq <= until)]
        return Observed(
            seen=tuple(chosen),
            tools=tuple(tool for each in chosen for tool in _find_counted(each)),
            usage=usage_of(chosen),
            replayed=bool(chosen) and all(str(each.call.decision) == Decision.REPLAY for each in chosen),
        )

    def read_served(self, after: int = 0, until: int | None = None) -> Served:
        """Return what servers of tools got in calls after number `after`, up to `until`. Raises as `seen`."""
        for number, (call, made) in enumerate(self._of_tools):
            if made is None and call.recording is not None:
                self._of_tools[number] = call, next(iter(interactions([call])), None)
        return read_served(self._of_tools, after, until)

    def tools(self) -> Sequence[ToolUse]:
        """Return every call of a tool so far that counts; results may have come with a later call. Raises as `seen`."""
        if not self._may_call:
            return []  # reading whole conversations after each message adds up
        self._mark_replaced()
        return [tool for each in self.seen for tool in _find_counted(each)]

    def _mark_replaced(self) -> None:
        asked = [each for each in self.seen if each.chat]
        replaced = find_replaced(
            Sent(each.call.seq, each.call.key, each.call.attempt, each.whole or each.went_on, each.went_on)
            for each in asked
        )
        for each in asked:
            each.replaced = each.call.seq in replaced.sure
        alike = [each for each in asked if each.call.seq in replaced.unclear]
        matters = {each.call.key for each in alike if each.tools}
        for each in asked:
            each.unclear = each.call.seq in replaced.unclear and each.call.key in matters

    # -- one exchange

    def _place_exchange(self, seen: Seen) -> Seen:
        exchange = seen.exchange
        if exchange is None or not seen.chat:
            return seen
        place = self._conversations.place(exchange)
        seen.conversation = place.conversation or RecordedConversation(
            str(len(self._opened)), "", exchange.tools, place.system
        )
        self._hear_results(seen, exchange, place, seen.conversation)
        self._conversations.note(exchange, place, seen.conversation)
        self._take_calls(seen, exchange, seen.conversation)
        return seen

    def _hear_results(
        self, seen: Seen, exchange: OpenedExchange, place: MessagePlace, conversation: RecordedConversation
    ) -> None:
        """Give the results that are new in a request to the calls that wait for them."""
        for item in map(as_dict, as_list(exchange.tree.get("input"))):
            asked = self._approvals.get(str(item.get("approval_request_id")))
            if asked is not None and item.get("type") == "mcp_approval_response" and item.get("approve") is False:
                asked.denied = True
        again = (conversation, seen.call.key)
        if again in self._heard:  # the same request once more brings nothing new
            return
        self._heard.add(again)
        # In the words of another conversation it tells what was asked for in those words, or nothing new.
        origins = self._origins.get(seen.call.key) if seen.call.key else None
        found = self._origins[seen.call.key] = set(origins or ())
        said = results_of(exchange)
        for told in find_new_results(exchange.messages):
            result, call_id = said[told.place], exchange.messages[told.place].tool_call_id
            self._conversations.answer(conversation, call_id)
            if result is None or not told.sure or told.place < place.known:
                continue
            if (tool := self._waiting.take(conversation, call_id, told, of=origins)) is not None:
                found.add(self._keys[tool.seq])
                tool.executed, tool.output, tool.errored = True, result.text, result.errored
                tool.heard = seen.call.seq

    def _take_calls(self, seen: Seen, exchange: OpenedExchange, conversation: RecordedConversation) -> None:
        """Note what an answer asks for."""
        answer = exchange.answer
        if answer is None:
            return
        asking = _asking(seen, exchange)
        self._keys[seen.call.seq] = seen.call.key
        for asked in (*answer.tool_calls, *answer.beside):
            known = self._approvals.get(asked.id or "") if asked.hosted else None
            tool = known or ToolUse(
                asked.name,
                asked.arguments,
                asked.id,
                seen.call.seq,
                seen.call.interaction,
                hosted=asked.hosted,
                asking=asking,
            )
            if asked.pending:
                self._approvals[asked.id or ""] = tool
            elif asked.hosted:
                result = None if asked.output is None else Result.of(asked.output, declared=asked.failed)
                tool.executed = True
                tool.output, tool.errored = (result.text, result.errored) if result else (None, False)
            elif not exchange.failed:
                self._conversations.wait(conversation, Pending(tool.id, tool.name, tool, None))
            if known is None:
                seen.tools.append(tool)
        own = [tool for tool in seen.tools if not tool.hosted]
        self._waiting.add(conversation, own, asked=seen.call.key, cut=exchange.failed)


def _asking(seen: Seen, exchange: OpenedExchange) -> AskingExchange:
    """Return what tells which of two exchanges came first: in replay, where answers take no time, also when they were recorded."""
    call, began = seen.call, exchange.interaction.started_at
    live = (call.at, call.at + call.ms / 1000)
    recorded = (began, began + (exchange.duration_ms or 0.0) / 1000)
    return AskingExchange(live, recorded)


def _find_counted(seen: Seen) -> Iterable[ToolUse]:
    """Give the calls of an answer that count; of one that was cut off, those that were run all the same."""
    if not seen.answered:
        return ()
    return seen.tools if seen.whole else [tool for tool in seen.tools if tool.executed]


def reference_of(recording: Mapping[str, Any]) -> str:
    """Return what names a recording (in its JSON form) in every store that is made of the same cassettes.

    Key and occurrence, and a digest of the answer: after the cassette was recorded anew it names nothing.
    """
    known = recording["recorded"]
    answer = [recording.get(name) for name in ("status", "response_body")]
    digest = hashlib.sha256(json.dumps(answer, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return f"{known['key']}#{known['occurrence']}@{digest}"


def _may_call(recording: Mapping[str, Any] | None) -> bool:
    """Return whether there may be a tool call in an answer: whatever the dialect, its words are among these."""
    if recording is None:
        return False  # nothing to read, so nothing to find
    body = recording.get("response_body")
    return not isinstance(body, str) or _WORDS.search(body) is not None


def read_tools(calls: Iterable[Call], party: str | None = AGENT) -> Sequence[ToolUse]:
    """Return the tool calls in the answers to a party's calls; `party` None takes everybody's. Raises CassetteCorrupt."""
    wire = Wire(party)
    wire.read(call for call in calls if call.recording is not None)
    return wire.tools()
