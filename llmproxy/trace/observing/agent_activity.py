"""Activity of an agent from the calls of a run: tools requested and executed, tokens, retries. Pure.

Only a request whose first answer was an error, or incomplete, is retried. Equal requests with complete answers count as
separate calls: an agent in a loop, a card charged three times. Two complete answers count as one only if the client's
SDK says so in the request (`Call.attempt`): the first was complete here, but came too late for the client.

New results in a request come after the last answer with tool calls; the request itself says which call of that answer
each is for. Ids alone are not enough: servers number the calls of each answer anew, and a recording may be replayed
twice. For ``estimate: true`` four characters are a token: within a third for English prose, worse for code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from llmproxy.amount_formatting import sum_if_all_known
from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.messages import Message, ToolCall, as_dict, as_list, as_str
from llmproxy.core.providers.provider_table import MCP_PREFIX
from llmproxy.core.traffic.canonical_json import parse_json_or_none, sort_json_members
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT, Decision
from llmproxy.trace.observing.tool_calls import (
    ExchangeTimesForOrdering,
    PossiblyIncompleteSum,
    SeenModelCall,
    ToolCallsAtMcpServers,
    ToolUse,
    diff_asked_and_served_tool_calls,
    read_calls_received_by_mcp_servers,
    sum_usage_of_model_calls,
)
from llmproxy.trace.reading.conversations import RecordedConversation, RecordedConversations, RequestPlaceInConversation
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, RequestMessageCache, decode_interaction_to_messages
from llmproxy.trace.reading.recording_spans import parse_recording_json_of_call

_FAILED = re.compile(
    r"(?:errors?|exception)(?![a-z])|an error occurred|traceback \(most recent call "
    r"last\)|[\w.]*(?:error|exception)\b\s*[:(]",
    re.IGNORECASE,
)
"""Beginnings of texts of failed tools: our own, and those of frameworks."""
_ERRORS = ("error", "errors", "exception")
"""Members of an object that hold an error, if not empty."""
_FLAGS = (("isError", True), ("is_error", True), ("success", False), ("ok", False))
"""Members of an object that say whether it failed."""
_MS = 1000
CHARACTERS = 4  # of a token, as an estimate


def mark_calls_replaced_by_retries(asked: Iterable[SeenModelCall]) -> None:
    """Set which requests to models are `replaced`, since a later one repeats them, and where that is `unclear`."""
    questions: dict[str | None, list[SeenModelCall]] = defaultdict(list)
    for each in asked:
        each.replaced = each.unclear = False
        questions[each.call.key].append(each)
    questions.pop(None, None)  # unknown ones are equal to nothing
    for group in questions.values():
        _mark_retries_in_group(group)


def _mark_retries_in_group(group: Sequence[SeenModelCall]) -> None:
    """Find the calls that equal requests repeat.

    First requests that name their attempt: they repeat one with one attempt less, preferably a failed and unused one.
    Then the others, which can only repeat failed calls.
    """
    for place, again in enumerate(group):
        if attempt := again.call.attempt:
            before = [each for each in group[:place] if each.call.attempt == attempt - 1 and not each.replaced]
            chosen = [each for each in before if not each.has_usable_answer] or [
                each for each in before if not each.agent_ran_tool
            ]
            chosen = chosen or before
            for each in chosen[-1:]:
                each.replaced = True
            if len(chosen) > 1 and chosen[-1].has_usable_answer:
                for each in chosen:
                    each.unclear = True
    for place, again in enumerate(group):
        if not again.call.attempt:
            failed = [each for each in group[:place] if not each.has_usable_answer and not each.replaced]
            for each in failed[-1:]:
                each.replaced = True
    if not any(each.tools for each in group if each.unclear):  # nothing depends on which it was
        for each in group:
            each.unclear = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    text: str
    errored: bool

    @classmethod
    def classify(cls, text: str, *, declared: bool) -> ToolResult:
        """Build a result. Also failed: an object with an error, a text that begins like frameworks' errors."""
        stripped = text.lstrip()
        if stripped[:1] != "{":
            return cls(text, declared or _FAILED.match(stripped) is not None)
        value = as_dict(parse_json_or_none(stripped))
        errors = any(map(value.get, _ERRORS)) or any(value.get(name) is flag for name, flag in _FLAGS)
        return cls(text, declared or errors)


def list_tool_result_of_each_message(exchange: DecodedExchange) -> list[ToolResult | None]:
    declared: dict[str, deque[bool]] = defaultdict(deque)
    for call_id, failed in _read_failure_marks_by_id(exchange.tree):
        declared[call_id].append(failed)
    found: list[ToolResult | None] = []
    for message in exchange.messages:
        if message.role != "tool":
            found.append(None)
            continue
        flags = declared[message.tool_call_id or ""]  # an id may come again with each turn
        found.append(ToolResult.classify(message.text, declared=bool(flags) and flags.popleft()))
    return found


def _read_failure_marks_by_id(tree: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield ids of results, and whether the dialect marks them as failed: by `is_error` or `status`."""
    for message in as_list(tree.get("messages")):
        for part in as_list(as_dict(message).get("content")):
            block = as_dict(part)
            inner = as_dict(block.get("toolResult"))
            if as_str(block.get("type")).endswith("tool_result"):
                yield as_str(block.get("tool_use_id")), block.get("is_error") is True
            elif inner:
                yield as_str(inner.get("toolUseId")), inner.get("status") == "error"


def find_oldest_replayed_answer_time(calls: Iterable[Call]) -> float | None:
    """Return when the first replayed exchange was recorded, Unix time; None if none was, or if unknown."""
    replayed = [call.recording for call in calls if call.decision == Decision.REPLAY and call.recording]
    times = [each.get("recorded", {}).get("started_at") for each in replayed]
    return min((at for at in times if isinstance(at, (int, float))), default=None)


def sum_recorded_agent_call_times(calls: Iterable[Call]) -> float | None:
    """Return the agent's time in models, milliseconds, as recorded; None without calls, or if one is not recorded."""
    return sum_if_all_known(_read_recorded_ms(call.recording) for call in calls if call.party == AGENT)


def _read_recorded_ms(recording: Mapping[str, Any] | None) -> float | None:
    chunks = str(((recording or {}).get("recorded") or {}).get("chunks") or "").split()
    return int(chunks[-1].partition(":")[0]) / 1000 if chunks else None


@dataclass(frozen=True, slots=True)
class AgentActivity:
    seen: Sequence[SeenModelCall] = ()
    tools: Sequence[ToolUse] = ()
    """Tool calls that count, in the order in which models asked for them."""
    usage: Mapping[str, PossiblyIncompleteSum] = field(default_factory=dict)
    """Usage by the names in suites: ``inputTokens``, ``cacheReadTokens``, ``costUsd`` ..."""
    replayed: bool = False

    @property
    def request_count(self) -> int:
        return len(self.seen)

    @property
    def unreadable(self) -> tuple[SeenModelCall, ...]:
        return tuple(each for each in self.seen if each.unread_reason)

    @property
    def unrecorded_answers(self) -> tuple[SeenModelCall, ...]:
        """Answers whose content was not recorded (mode passthrough)."""
        return tuple(each for each in self.seen if each.exchange is None and each.has_counted_answer)

    @property
    def recordings(self) -> tuple[str, ...]:
        """Fingerprint of each exchange's recording by `build_store_independent_id`; empty if not recorded."""
        recordings = (each.call.recording for each in self.seen)
        return tuple("" if each is None else build_store_independent_id(each) for each in recordings)

    @property
    def interactions(self) -> tuple[int, ...]:
        return tuple(each.call.interaction for each in self.seen if each.call.interaction is not None)


class ModelCallObserver:
    """All model calls of a party in a run; feed it in order of arrival."""

    def __init__(self, party: str | None = AGENT) -> None:
        """Start empty. Other parties' calls (user simulator, judges) are skipped; None takes all."""
        self._party = party
        self._fed: list[tuple[Call, Interaction | None]] = []
        self._of_tools: list[tuple[Call, Interaction | None]] = []
        """Messages to MCP servers."""
        self._opened: list[SeenModelCall] = []
        self._history, self._conversations = RequestMessageCache(), RecordedConversations()
        self._waiting = ToolCallsAwaitingResults()
        self._heard: set[tuple[RecordedConversation, str | None]] = set()
        """Conversation of each request."""
        self._origins: dict[str | None, set[str | None]] = {}
        """By request with tool results: the requests that asked for those calls."""
        self._keys: dict[int, str | None] = {}
        """Key by call number."""
        self._approvals: dict[str, ToolUse] = {}

    def add_calls_with_recordings(self, calls: Iterable[Call]) -> None:
        self.add_calls((call, None) for call in calls)

    def add_calls(self, calls: Iterable[tuple[Call, Interaction | None]]) -> None:
        for call, interaction in calls:
            if self._party in (None, call.party):
                # A server of tools is no model: what was called is in the model's own words.
                kept = self._of_tools if call.operation.startswith(MCP_PREFIX) else self._fed
                kept.append((call, interaction))

    @property
    def calls(self) -> Sequence[SeenModelCall]:
        """All exchanges so far. Raises CassetteCorrupt for an invalid recording."""
        for call, interaction in self._fed[len(self._opened) :]:
            made = interaction or parse_recording_json_of_call(call)
            exchange = None if made is None else decode_interaction_to_messages(made, self._history)
            seen = SeenModelCall(call, exchange)
            if exchange is not None and seen.is_chat:
                place = self._conversations.place_exchange(exchange)
                self._attach_results(seen, exchange, place)
                self._conversations.add_turn(exchange, place)
                self._add_answer_tool_calls(seen, exchange, place.conversation)
            self._opened.append(seen)
        return self._opened

    def build_step(self, after: int, until: int | None = None) -> AgentActivity:
        """Return the activity in calls after number `after`, up to `until`. Raises as `calls`."""
        calls = self._list_calls_marking_retries()
        chosen = [each for each in calls if each.call.seq > after and (until is None or each.call.seq <= until)]
        return AgentActivity(
            seen=tuple(chosen),
            tools=tuple(tool for each in chosen for tool in _list_counted_tool_uses(each)),
            usage=sum_usage_of_model_calls(chosen),
            replayed=bool(chosen) and all(str(each.call.decision) == Decision.REPLAY for each in chosen),
        )

    def read_tool_server_calls(self, after: int = 0) -> ToolCallsAtMcpServers:
        """Return what servers of tools got in calls after number `after`. Raises as `calls`."""
        for number, (call, made) in enumerate(self._of_tools):
            if made is None and call.recording is not None:
                self._of_tools[number] = call, parse_recording_json_of_call(call)
        return read_calls_received_by_mcp_servers(self._of_tools, after)

    def list_tool_uses(self) -> Sequence[ToolUse]:
        """Return every tool call so far that counts; results may come later. Raises as `calls`."""
        return [tool for each in self._list_calls_marking_retries() for tool in _list_counted_tool_uses(each)]

    def _list_calls_marking_retries(self) -> Sequence[SeenModelCall]:
        """Return all calls so far, after marking the retried ones. Raises as `calls`."""
        calls = self.calls
        mark_calls_replaced_by_retries(each for each in calls if each.is_chat)
        return calls

    def _attach_results(
        self, seen: SeenModelCall, exchange: DecodedExchange, place: RequestPlaceInConversation
    ) -> None:
        for item in map(as_dict, as_list(exchange.tree.get("input"))):
            asked = self._approvals.get(str(item.get("approval_request_id")))
            if asked is not None and item.get("type") == "mcp_approval_response" and item.get("approve") is False:
                asked.denied = True
        conversation = place.conversation
        again = (conversation, seen.call.key)
        if again in self._heard:  # the same request once more brings nothing new
            return
        self._heard.add(again)
        # In the words of another conversation it tells what was asked for in those words, or nothing new.
        origins = self._origins.get(seen.call.key) if seen.call.key else None
        found = self._origins[seen.call.key] = set(origins or ())
        said = list_tool_result_of_each_message(exchange)
        for told in find_tool_results_awaiting_model(exchange.messages):
            result, call_id = said[told.place], exchange.messages[told.place].tool_call_id
            self._conversations.take_pending_call_of_result(conversation, call_id)
            if result is None or not told.sure or told.place < place.known:
                continue
            if (tool := self._waiting.take_call_of_result(conversation, call_id, told, origins)) is not None:
                found.add(self._keys[tool.seq])
                tool.executed, tool.output, tool.errored = True, result.text, result.errored
                tool.heard = seen.call.seq

    def _add_answer_tool_calls(
        self, seen: SeenModelCall, exchange: DecodedExchange, conversation: RecordedConversation
    ) -> None:
        if (answer := exchange.answer) is None:
            return
        call, began = seen.call, exchange.interaction.started_at
        asking = ExchangeTimesForOrdering(
            live=(call.at, call.at + call.ms / 1000), recorded=(began, began + (exchange.duration_ms or 0.0) / 1000)
        )
        self._keys[seen.call.seq] = seen.call.key
        for asked in (*answer.tool_calls, *answer.beside):
            known = self._approvals.get(asked.id or "") if asked.hosted else None
            tool = known or ToolUse(
                asked.name, asked.arguments, asked.id, call.seq, call.interaction, hosted=asked.hosted, asking=asking
            )
            if asked.pending:
                tool.approval = True
                self._approvals[asked.id or ""] = tool
            elif asked.hosted:
                result = None if asked.output is None else ToolResult.classify(asked.output, declared=asked.failed)
                tool.executed = True
                tool.output, tool.errored = (result.text, result.errored) if result else (None, False)
            elif not exchange.failed:
                self._conversations.add_pending_tool_call(conversation, asked)
            if known is None:
                seen.tools.append(tool)
        own = [tool for tool in seen.tools if not tool.hosted]
        self._waiting.add_calls(conversation, own, asked=seen.call.key, cut=exchange.failed)


def _list_counted_tool_uses(seen: SeenModelCall) -> Iterable[ToolUse]:
    """Return the tool calls of an answer that count; of a cut answer, those that were run anyway."""
    if not seen.has_counted_answer:
        return ()
    return seen.tools if seen.is_complete else [tool for tool in seen.tools if tool.executed]


def build_store_independent_id(recording: Mapping[str, Any]) -> str:
    """Return a recording's name in all stores of its cassettes: key, occurrence, a digest of the answer."""
    known = recording["recorded"]
    answer = [recording.get(name) for name in ("status", "response_body")]
    digest = hashlib.sha256(json.dumps(answer, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return f"{known['key']}#{known['occurrence']}@{digest}"


def list_model_vs_mcp_call_mismatches(made: Iterable[Interaction]) -> list[str]:
    """List mismatches of models' and servers' tool calls in a cassette; none if a model's answer cannot be read."""
    wire = ModelCallObserver()
    wire.add_calls((_interaction_to_call(number, each), each) for number, each in enumerate(made, 1))
    served = wire.read_tool_server_calls()
    if served.unknown_reason or not any(each.is_chat for each in wire.calls) or wire.build_step(0).unreadable:
        return []
    return diff_asked_and_served_tool_calls(wire.list_tool_uses(), served)


def _interaction_to_call(number: int, made: Interaction) -> Call:
    chunks = made.response.chunks
    return Call(
        decision=Decision.RECORD, status=made.response.status, party=made.party, operation=made.operation,
        key=made.key, interaction=made.id, at=made.started_at, ms=chunks[-1].offset / _MS if chunks else 0.0,
        occurrence=made.occurrence, seq=number,
    )  # fmt: skip


def estimate_tokens_used_by_step(key: str, step: AgentActivity) -> int | None:
    if key not in ("inputTokens", "outputTokens", "totalTokens") or step.unrecorded_answers:
        return None
    total = 0
    for seen in step.seen:
        if seen.exchange is None or not seen.has_counted_answer:
            continue
        usage, exchange = seen.exchange.interaction.usage, seen.exchange
        if key != "outputTokens":
            total += _estimate_tokens(exchange.messages) if usage.input is None else usage.input
        if key != "inputTokens":
            answer = () if exchange.answer is None else (exchange.answer,)
            total += _estimate_tokens(answer) if usage.output is None else usage.output
    return total


def _estimate_tokens(messages: Iterable[Message]) -> int:
    characters = 0
    for message in messages:
        characters += len(message.text) + len(message.reasoning)
        characters += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return -(-characters // CHARACTERS)


type _Mark = tuple[str | None, str | None, str, str]
type _Keys = Container[str | None]


class ToolCallsAwaitingResults:
    def __init__(self) -> None:
        self._calls: list[_WaitingCall] = []
        self._answers = 0
        self._ids: dict[str, int] = {}
        self._run: dict[_Mark, int] = {}
        """Calls with results, and the number of the latest such answer."""

    def add_calls(
        self, conversation: RecordedConversation, tools: Sequence[ToolUse], *, asked: str | None, cut: bool = False
    ) -> None:
        """Add the tool calls in the answer to request `asked`; `cut`: the answer was cut off."""
        self._answers += 1
        for tool in tools:
            self._calls.append(_WaitingCall(tool, tuple(tools), conversation, self._answers, cut, asked))
            if tool.id:
                self._ids[tool.id] = self._ids.get(tool.id, 0) + 1

    def take_call_of_result(
        self, conversation: RecordedConversation, call_id: str | None, told: ToolResultAwaitingModel, of: _Keys | None
    ) -> ToolUse | None:
        """Take the call of a result; `of`: only one requested in answer to one of these requests."""
        if (found := next(self._find_calls_for_result(conversation, call_id, told, of), None)) is None:
            return None
        self._calls.remove(found)
        self._run[found.repeat_key] = max(found.answer, self._run.get(found.repeat_key, 0))
        return found.tool

    def _find_calls_for_result(
        self, conversation: RecordedConversation, call_id: str | None, told: ToolResultAwaitingModel, of: _Keys | None
    ) -> Iterator[_WaitingCall]:
        asked = told.call
        # Of whole answers before those that were cut off, of the latest answer first, there in their order.
        # What an answer that was cut off asked for is over once the same call of a later one was run.
        waiting = [each for each in self._calls if not (each.cut and self._run.get(each.repeat_key, 0) > each.answer)]
        waiting = [each for each in waiting if of is None or each.asked in of]
        latest = sorted(waiting, key=lambda each: (each.cut, -each.answer))
        own = [each for each in latest if each.conversation is conversation]
        if asked is not None:
            alike = [each for each in latest if _is_same_tool_call(each.tool, asked)]
            answers = [each for each in alike if len(each.together) == len(told.together)]
            exact = [each for each in answers if all(map(_is_same_tool_call, each.together, told.together))] or alike
            yield from (each for each in own if each in exact)
            yield from exact
        by_id = [each for each in latest if call_id and each.tool.id == call_id]
        if self._ids.get(call_id or "") == 1:
            yield from by_id
        if asked is None:
            yield from (each for each in own if each in by_id)
            last = own[0].answer if own else 0
            yield from (each for each in own if each.answer == last and call_id in (None, each.tool.name))


class _WaitingCall(NamedTuple):
    tool: ToolUse
    together: tuple[ToolUse, ...]
    conversation: RecordedConversation
    answer: int
    cut: bool
    asked: str | None

    @property
    def repeat_key(self) -> _Mark:
        """Equal for the same call in another answer to the same request."""
        return self.asked, self.tool.id, self.tool.name, sort_json_members(self.tool.raw)


def _is_same_tool_call(tool: ToolUse, asked: ToolCall) -> bool:
    if tool.name != asked.name or (tool.id and asked.id and tool.id != asked.id):
        return False
    return tool.raw == asked.arguments or sort_json_members(tool.raw) == sort_json_members(asked.arguments)


class ToolResultAwaitingModel(NamedTuple):
    place: int
    call: ToolCall | None
    """The call that it is for by the history, None without one."""
    sure: bool
    """Whether that is certain: without ids, and with fewer results than calls of a name, it may be any of them."""
    together: tuple[ToolCall, ...]
    """All calls of its answer for the agent, by the history."""


def find_tool_results_awaiting_model(messages: Sequence[Message]) -> Iterator[ToolResultAwaitingModel]:
    """Yield the results that no model has answered yet."""
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1].tool_calls), 0)
    answered = [n for n in range(start, len(messages) - 1) if messages[n].role == "assistant"]
    if answered:
        start = answered[-1] + 1
    first = start  # of the answer's messages: in some dialects each of its calls is one
    while first and messages[first - 1].role == "assistant":
        first -= 1
    asked = [call for message in messages[first:start] for call in message.tool_calls if not call.hosted]
    together = tuple(asked)
    by_name = Counter(message.tool_call_id for message in messages[start:] if message.role == "tool")
    left = {name: sum(name in (None, each.name) for each in asked) - by_name[name] for name in by_name}
    for place, message in enumerate(messages[start:], start):
        if message.role != "tool":
            continue
        call = next((each for each in asked if message.tool_call_id and each.id == message.tool_call_id), None)
        sure = call is not None or left[message.tool_call_id] <= 0
        call = call or next((each for each in asked if message.tool_call_id in (None, each.name)), None)
        if call is not None:
            asked.remove(call)
        yield ToolResultAwaitingModel(place, call, sure, together)
