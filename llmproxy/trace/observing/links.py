"""Links of requests to the earlier request that they continue, with the changes in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath

from llmproxy.core.dialects.codecs import CHAT
from llmproxy.trace.observing.thread_diff import (
    HistoryChange,
    HistoryItem,
    compare_histories,
    count_common_ends,
    join_system_text,
    list_history_items,
)
from llmproxy.trace.observing.tool_calls import WireCall
from llmproxy.trace.reading.conversations import strip_spaces
from llmproxy.trace.reading.decoded_exchange import DecodedExchange

_ALIKE = 0.8
"""Least common share of two versions of one system prompt."""
_LEAST = 8
"""Least characters of a summary whose occurrence proves something."""


@dataclass(frozen=True, slots=True)
class HistoryLink:
    """A request, and the changes of the history that it continues."""

    seen: WireCall
    change: HistoryChange
    proof: bool
    """Whether an inserted text is the output of an earlier call."""

    @property
    def lacks_only_latest(self) -> bool:
        """Whether only the latest messages are missing."""
        return bool(self.change.gaps) and not any(gap.kept or gap.inserted for gap in self.change.gaps)


def find_parent(
    seen: WireCall, all_seen: Sequence[WireCall], *, continues: bool, spoken: Sequence[str] = ()
) -> HistoryLink | str | None:
    """Find the request that this continues; None: first of its thread; a text: reason of failure. `spoken`: users'
    texts.
    """
    exchange = seen.exchange
    if exchange is None:
        return None
    sent = list_history_items(exchange.messages)
    earlier = {
        each.call.seq: each.exchange for each in all_seen
        if each.call.seq < seen.call.seq and each.exchange is not None and not each.exchange.failed
        and each.call.operation in CHAT
    }  # fmt: skip
    system = join_system_text(exchange.messages)
    writers = {n: each for n, each in earlier.items() if _is_answer_quoted(each, sent, system)}
    goes_on = continues or bool(writers)
    alike = {n: each for n, each in earlier.items() if _is_same_agent(each, exchange, goes_on=goes_on)}
    # Who wrote a summary is no turn of the conversation.
    family = {n: each for n, each in alike.items() if n not in writers}
    histories = ([item.key for item in _expect_history(each)] for each in family.values())
    keys = [item.key for item in sent]
    if not continues and any(len(keys) < len(each) and keys == each[: len(keys)] for each in histories):
        # the same words once more: a new conversation, or a request that was sent again; nothing is missing from it
        return None
    parent = _choose_parent(sent, system, family, writers.values())
    if parent is None:
        return _explain_missing_parent(sent, earlier, continues=False)
    written = [strip_spaces(each.answer.text) for each in writers.values() if each.answer]
    before = join_system_text(parent.messages)
    change = compare_histories(_expect_history(parent), sent, before=before, after=system, written=written)
    proof = _is_insertion_summary(change, writers.values())
    anchored = not {item.key for item in _expect_history(parent)}.isdisjoint(keys)
    asked = any(n in alike and _may_end_with_user_text(each, spoken) for n, each in writers.items())
    if proof and not anchored and not change.grown and asked:
        proof = False  # it may have been the user who asked for the summary, and went on with it
    elif not proof and not anchored:
        return _explain_missing_parent(sent, family, continues=continues)
    lost = any(not gap.inserted and not all(map(has_only_tools, gap.missing)) for gap in change.gaps)
    if lost and not system_summary(change, proof=proof) and not _sends_whole_history(family.values()):
        return "no earlier request carried a whole history, so nothing can be said to be missing from this one"
    return HistoryLink(seen, change, proof)


def _choose_parent(
    sent: Sequence[HistoryItem],
    system: str,
    family: Mapping[int, DecodedExchange],
    writers: Collection[DecodedExchange],
) -> DecodedExchange | None:
    """Return the best of the possible parents, given by call number: most in common, and the same summaries.

    In a repetitive conversation several are possible; then the writer of a summary is excluded, and the summarised
    request preferred.
    """
    known: dict[int, tuple[int, bool, bool]] = {}
    for n, each in family.items():
        items, text = list_history_items(each.messages), join_system_text(each.messages)
        common = sum(count_common_ends(_expect_history(each), sent[:-1] or sent))
        known[n] = common, all(_is_answer_quoted(writer, items, text) for writer in writers), text == system
    best = [n for n, one in known.items() if one == max(known.values())]
    if len(best) > 1:
        later = {n: [family[m] for m in family if m > n] for n in best}
        best = [n for n in best if not is_quoted_later(family[n], later[n])] or best
    told = {n: _count_told_to_summarizer(writers, _expect_history(family[n])) for n in best}
    return family[max(best, key=lambda n: (told[n], n))] if best else None


def _is_same_agent(one: DecodedExchange, other: DecodedExchange, *, goes_on: bool) -> bool:
    """Return whether two requests are of one agent: the same tools, and similar system prompts.

    `goes_on`: the conversation is expected to continue; then the same tools are enough, for a summary may replace the
    prompt.
    """
    if goes_on and one.tools and one.tools == other.tools:
        return True
    first, second = join_system_text(one.messages), join_system_text(other.messages)
    related = first == second or (bool(first) and bool(second) and _is_same_prompt(first, second))
    return one.tools == other.tools and (related or (not first) != (not second))


def _is_same_prompt(one: str, other: str) -> bool:
    """Return whether two system prompts are one: equal beginnings or ends, or a few letters off (a date, a clock)."""
    length = min(len(one), len(other), 40)
    if one[:length] == other[:length] or one[-length:] == other[-length:]:
        return True
    head = len(commonpath([one, other]))
    tail = len(commonpath([one[head:][::-1], other[head:][::-1]]))
    return (head + tail) >= _ALIKE * max(len(one), len(other))


def _expect_history(exchange: DecodedExchange) -> list[HistoryItem]:
    """Return the expected history of the next request: this request's messages, and the answer."""
    items = list_history_items(exchange.messages)
    if exchange.answer is None:
        return items
    answer = list_history_items([exchange.answer])
    return items + [
        HistoryItem(each.role, each.text, each.calls, None, reasoning=False, alike=each.alike) for each in answer
    ]


def _explain_missing_parent(
    sent: Sequence[HistoryItem], family: Mapping[int, DecodedExchange], *, continues: bool
) -> str | None:
    """Classify a request that continues none of the observed ones."""
    if any(item.role == "assistant" for item in sent):
        return "it carries history that the wire has not seen"
    if continues and family:
        return "it shares no message with the conversation so far: its history was replaced, or the agent keeps none"
    return None


def _sends_whole_history(family: Iterable[DecodedExchange]) -> bool:
    """Return whether an earlier request had a user message after an answer: the agent sends its history."""
    for exchange in family:
        roles = [item.role for item in list_history_items(exchange.messages)]
        if "assistant" in roles and "user" in roles[roles.index("assistant") :]:
            return True
    return False


def _is_answer_quoted(exchange: DecodedExchange, sent: Sequence[HistoryItem], system: str) -> bool:
    """Return whether a request quotes an earlier answer in another role: a summary was written for it."""
    if exchange.answer is None:
        return False
    output = strip_spaces(exchange.answer.text)
    if len(output) < _LEAST or any(item.role == "assistant" and output in item.alike for item in sent):
        return False
    return any(output in item.alike for item in sent if item.role != "assistant") or output in strip_spaces(system)


def is_quoted_later(exchange: DecodedExchange, later: Iterable[DecodedExchange]) -> bool:
    """Return whether a later request quotes an answer in another role."""
    sent = ((list_history_items(each.messages), join_system_text(each.messages)) for each in later)
    return any(_is_answer_quoted(exchange, items, system) for items, system in sent)


def _may_end_with_user_text(writer: DecodedExchange, spoken: Sequence[str]) -> bool:
    """Return whether a request may end with the user's text: similar to one, or users' texts are unknown."""
    known = [strip_spaces(text) for text in spoken]
    users = [each.alike for each in _expect_history(writer) if each.role == "user"]
    return not (known and users) or any(each in users[-1] or users[-1] in each for each in known)


def _count_told_to_summarizer(writers: Iterable[DecodedExchange], items: Sequence[HistoryItem]) -> int:
    """Return the number of these messages in the summary writer's request; equal texts count once."""
    different = {item.alike or item.calls: item for item in items}.values()
    return max((sum(_contains_message(each, item) for item in different) for each in writers), default=0)


def _contains_message(writer: DecodedExchange, item: HistoryItem) -> bool:
    """Return whether a request contains or quotes a message."""
    if item.alike:
        return any(item.alike in strip_spaces(message.text) for message in writer.messages)
    said = [call for each in list_history_items(writer.messages) for call in each.calls]
    return all(call in said for call in item.calls)


def _is_insertion_summary(change: HistoryChange, writers: Iterable[DecodedExchange]) -> bool:
    """Return whether an inserted text is the output of an earlier call that got the missing messages."""
    inserted = "".join(strip_spaces(item.text) for gap in change.gaps for item in gap.inserted)
    inserted += strip_spaces(change.grown)
    sources = (each for each in writers if each.answer is not None and strip_spaces(each.answer.text) in inserted)
    missing = [item for item in change.missing if item.alike]
    return any(_contains_message(each, item) for each in sources for item in missing)


def has_only_tools(item: HistoryItem) -> bool:
    """Return whether a message is only tool calls or a tool result, without text."""
    return item.role == "tool" or (item.role == "assistant" and bool(item.calls) and not item.alike)


def system_summary(change: HistoryChange, *, proof: bool) -> list[str]:
    """Return a possible summary in the system prompt: new text other than a date."""
    return [change.grown] if change.grown and (change.other or proof) else []
