"""Assignment of requests to conversations by their content, in order of evidence.

    the same key after a failed answer        a retry of it
    an id of an earlier answer                continues that (`previous_response_id`)
    prefix ends with an observed answer       continues
    answers a pending tool call               continues (the history was cut or rewritten)
    prefix is an earlier request              continues, with the answer changed (without successor: a new run of it)
    none of these                             a new conversation

Prefixes are compared by a running digest over messages, each reduced to what clients preserve: white space, ids of
calls, reasoning and the layout of arguments do not count, nor digits in a system prompt (today's date).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.traffic.canonical_json import sort_json_members
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, list_ids_of_continued_state

Digest = bytes
_DIGITS = re.compile(r"\d+")
_START: Digest = b""


@dataclass(slots=True, eq=False)
class PendingToolCall:
    call_id: str | None
    name: str
    kept: Any = None


@dataclass(slots=True, eq=False)
class RecordedConversation:
    id: str
    tools: frozenset[str]
    system: Digest
    step: str = ""
    """Id of its `agent_step` span; empty at first."""
    last: Digest = _START
    latest: DecodedExchange | None = None
    ended: float | None = None
    """Unix time of the last answer's end, None if unknown."""
    pending: list[PendingToolCall] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    """Ids of answered calls -> ids of their spans."""
    failed: Any = None
    """Pending work for a failed last answer (`span_builder.FailedCallSpansAwaitingRetry`)."""


@dataclass(frozen=True, slots=True)
class RequestPlaceInConversation:
    conversation: RecordedConversation
    known: int
    """Number of the request's messages that were sent before."""
    digest: Digest
    retry: bool = False


class RecordedConversations:
    def __init__(self) -> None:
        self._count = 0
        self._answered: dict[Digest, list[RecordedConversation]] = {}
        self._asked: dict[Digest, RecordedConversation] = {}
        self._failed: dict[str, RecordedConversation] = {}
        self._ids: dict[str, tuple[RecordedConversation, Digest]] = {}
        self._waiting: dict[str, RecordedConversation] = {}

    def place_exchange(self, exchange: DecodedExchange) -> RequestPlaceInConversation:
        messages = exchange.messages
        known = (self._ids.get(name) for name in list_ids_of_continued_state(exchange.tree))
        found, start = next(filter(None, known), (None, _START))
        marks = list(digest_message_prefixes(start, messages))
        digest = marks[-1][0] if marks else start
        if (failed := self._failed.get(exchange.interaction.key)) is not None:
            return RequestPlaceInConversation(failed, len(messages), digest, retry=True)
        if found is not None:
            return RequestPlaceInConversation(found, 0, digest)
        if (longest := next((each for each in reversed(marks) if each[0] in self._answered), None)) is not None:
            mark, count = longest
            # Of equal ones: not continued yet, then with the same tools, then the first.
            best = min(self._answered[mark], key=lambda each: (each.last != mark, each.tools != exchange.tools))
            return RequestPlaceInConversation(best, count, digest)
        answered = next((n for n in range(len(messages), 0, -1) if messages[n - 1].role == "assistant"), 0)
        results = (message.tool_call_id for message in reversed(messages[answered:]) if message.role == "tool")
        waiting = next((self._waiting[call_id] for call_id in results if call_id in self._waiting), None)
        if waiting is not None:
            return RequestPlaceInConversation(waiting, answered, digest)
        for mark, count in reversed(marks[:-1]):
            earlier = self._asked.get(mark)
            if earlier is not None and (not earlier.tools or not exchange.tools or earlier.tools & exchange.tools):
                return RequestPlaceInConversation(earlier, max(count, answered), digest)
        prompt = [message for message in messages if message.role == "system"]
        system, _ = next(iter(digest_message_prefixes(_START, prompt)), (_START, 0))
        self._count += 1
        return RequestPlaceInConversation(
            RecordedConversation(str(self._count), exchange.tools, system), answered, digest
        )

    def add_turn(self, exchange: DecodedExchange, place: RequestPlaceInConversation) -> None:
        key, conversation = exchange.interaction.key, place.conversation
        self._failed.pop(key, None)
        if exchange.failed:
            self._failed[key] = conversation
        self._asked[place.digest] = conversation
        conversation.tools = exchange.tools or conversation.tools
        after = place.digest
        if exchange.answer is not None and not exchange.failed:
            for after, _ in digest_message_prefixes(place.digest, [exchange.answer]):  # noqa: B007 - the last one stays
                pass
            self._answered.setdefault(after, []).append(conversation)
        conversation.last = after
        for name in exchange.interaction.made_ids:
            self._ids[name] = conversation, after

    def add_pending_tool_call(self, conversation: RecordedConversation, call: ToolCall, kept: Any = None) -> None:
        conversation.pending.append(PendingToolCall(call.id, call.name, kept))
        if call.id:
            self._waiting[call.id] = conversation

    def take_pending_call_of_result(
        self, conversation: RecordedConversation, call_id: str | None
    ) -> PendingToolCall | None:
        pending = conversation.pending
        found = next((each for each in pending if call_id and each.call_id == call_id), None)
        found = found or next((each for each in pending if each.name == call_id), None)
        found = found or (pending[0] if pending and call_id is None else None)
        if found is None:
            return None
        pending.remove(found)
        if found.call_id:
            self._waiting.pop(found.call_id, None)
        return found


def digest_message_prefixes(start: Digest, messages: Iterable[Message]) -> Iterable[tuple[Digest, int]]:
    """Yield (digest, number of messages so far) after each message with content; answers in pieces are one."""
    digest, n = start, 0
    said: list[str] = []
    calls: list[str] = []
    for message in messages:
        if message.role != "assistant" and (said or calls):
            digest = _chain_digest(digest, "assistant", "".join(said) + "\0" + "\0".join(calls))
            said, calls = [], []
            yield digest, n
        n += 1
        if message.role == "assistant":
            said.append(remove_whitespace(message.text))
            calls += [f"{call.name} {sort_json_members(call.arguments)}" for call in message.tool_calls]
            continue
        text = _strip_numbers(message.text) if message.role == "system" else remove_whitespace(message.text)
        if text or message.role == "tool":
            digest = _chain_digest(digest, message.role, text)
            yield digest, n
    if any(said) or calls:
        yield _chain_digest(digest, "assistant", "".join(said) + "\0" + "\0".join(calls)), n


def _chain_digest(digest: Digest, role: str, text: str) -> Digest:
    return blake2b(digest + f"{role}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def remove_whitespace(text: str) -> str:
    return "".join(text.split())


@lru_cache(maxsize=16)
def _strip_numbers(text: str) -> str:
    """Return a system prompt without white space, and without the numbers of dates or times."""
    return _DIGITS.sub("0", remove_whitespace(text))
