"""Edits of an agent's history before sending (condenser, pruner, token limiter), inferred from the wire.

    declared      the provider reports it in its answer (context editing, compaction)
    proven        a pure difference of two requests; a summary that is the output of an earlier call of the run
    inferred      messages are missing and others replace them, but no call of the run wrote them
    unobservable  the history is not in the requests (kept by the provider), or cannot be aligned

A processor is inactive (``proven``) only if every request of the step carries its whole history, aligned with the one
before it. Sources (read 2026-11): Claude's API, "Context editing" and "Compaction"; OpenAI, "Compaction" of the
Responses API (its summary is encrypted) and ``previous_response_id``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonpath
from typing import Any

from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import as_dict, as_list, as_str, extract_content_text
from llmproxy.core.dialects.stream_events import list_stream_events
from llmproxy.trace.observing.agent_activity import AgentActivity
from llmproxy.trace.observing.expected_vs_sent_history import (
    History,
    HistoryItem,
    MissingHistoryMessages,
    SentHistoryDeviation,
    compare_expected_and_sent_history,
    count_common_head_and_tail,
    join_system_text,
    list_history_items_without_system,
)
from llmproxy.trace.observing.tool_calls import SeenModelCall
from llmproxy.trace.reading.conversations import remove_whitespace
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, list_ids_of_continued_state

_ALIKE = 0.8
"""Least common share of two versions of one system prompt."""
_LEAST = 8
"""Least characters of a summary whose occurrence proves something."""
EVIDENCE = ("unobservable", "inferred", "proven", "declared")
"""From the weakest to the strongest."""


@dataclass(frozen=True, slots=True)
class ProviderHistoryEdit:
    processor: str
    reason: str
    values: Mapping[str, int | None] = field(default_factory=dict)
    summaries: list[str] | None = field(default_factory=list)
    """None: there is one, but it is encrypted."""


def read_provider_edits_from_answer(exchange: DecodedExchange) -> Iterator[ProviderHistoryEdit]:
    response = exchange.interaction.response
    kind = response.mime_type
    compactions: dict[int, str] = {}
    for event in list_stream_events(kind, response.body):
        value = as_dict(event)
        for place in (value, as_dict(value.get("message")), as_dict(value.get("delta"))):
            for edit in as_list(as_dict(place.get("context_management")).get("applied_edits")):
                yield from _read_applied_edit(as_dict(edit))
        for number, block in _list_answer_blocks(value):
            if block.get("type") == "compaction":
                compactions[number] = extract_content_text(block.get("content"))
        delta = as_dict(value.get("delta"))
        if delta.get("type") == "compaction_delta":
            index = value.get("index")
            at = index if isinstance(index, int) else 0
            compactions[at] = compactions.get(at, "") + as_str(delta.get("content"))
    for text in compactions.values():
        unknown: dict[str, int | None] = {"condensedMessages": None, "recentMessages": None, "totalMessages": None}
        yield ProviderHistoryEdit(
            "condenser", "the provider compacted the conversation", unknown, [text] if text else None
        )


def _read_applied_edit(edit: dict[str, Any]) -> Iterator[ProviderHistoryEdit]:
    kind = as_str(edit.get("type"))
    for prefix, member in (("clear_tool_uses", "cleared_tool_uses"), ("clear_thinking", "cleared_thinking_turns")):
        if kind.startswith(prefix):
            count = edit.get(member)
            parts = count if isinstance(count, int) and not isinstance(count, bool) else None
            yield ProviderHistoryEdit("pruner", f"the provider applied {kind}", {"partsRemoved": parts})


def _list_answer_blocks(value: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    response = as_dict(value.get("response")) or value
    for number, part in enumerate((*as_list(response.get("content")), *as_list(response.get("output")))):
        yield number, as_dict(part)
    for place, block in (("index", "content_block"), ("output_index", "item")):
        index = value.get(place)
        yield (index if isinstance(index, int) else 0), as_dict(value.get(block))


def explain_unobservable_history(exchange: DecodedExchange) -> str:
    if list_ids_of_continued_state(exchange.tree):
        return "the provider keeps the history (previous_response_id or conversation), so it is not in the request"
    if exchange.tree.get("truncation") == "auto":
        return "truncation: auto lets the provider drop messages without saying so"
    return ""


@dataclass(slots=True)
class HistoryProcessing:
    activated: bool | None
    """None: unknown."""
    evidence: str
    reason: str = ""
    where: str = ""
    values: dict[str, int | None] = field(default_factory=dict)
    """``condensedMessages`` ...; None for an unknown number."""
    summaries: list[str] | None = field(default_factory=list)
    """Texts that replace the condensed messages; None if encrypted."""


@dataclass(frozen=True, slots=True)
class HistoryEditFindings:
    condenser: HistoryProcessing
    pruner: HistoryProcessing
    tokenLimiter: HistoryProcessing  # noqa: N815 - the name that suites use


def find_history_cuts(
    step: AgentActivity, before: Sequence[SeenModelCall] = (), *, continues: bool = False, spoken: Sequence[str] = ()
) -> HistoryEditFindings:
    """Find edits in a step after the exchanges `before`; `spoken`: the users' texts in the run, empty if unknown."""
    all_seen = [*before, *step.seen]
    found: dict[str, list[HistoryProcessing]] = {"condenser": [], "pruner": [], "tokenLimiter": []}
    doubts: list[str] = []
    for seen in (each for each in step.seen if each.call.operation in CHAT and not _is_failed_exchange(each)):
        if seen.exchange is None:
            doubts.append(f"{seen.label} was not recorded, so what it carried is not known")
            continue
        for each in read_provider_edits_from_answer(seen.exchange):
            finding = _build_activated_finding("declared", each.reason, seen, dict(each.values), each.summaries)
            found[each.processor].append(finding)
        if reason := explain_unobservable_history(seen.exchange):
            doubts.append(f"{seen.label}: {reason}")
            continue
        link = find_continued_request(seen, all_seen, continues=continues, spoken=spoken)
        later = (each.exchange for each in all_seen if each.call.seq > seen.call.seq and each.exchange is not None)
        doubtful = isinstance(link, str) or (link is not None and link.lacks_only_latest)
        if doubtful and is_answer_quoted_later(seen.exchange, later):
            continue  # it wrote a summary: what it was told is no history of the conversation
        if isinstance(link, str):
            doubts.append(f"{seen.label}: {link}")
        elif link is not None:
            for name, finding in _find_shown_edits(link):
                found[name].append(finding)
    if not step.seen:
        doubts.append("the agent sent no request in this step")
    return HistoryEditFindings(**{name: _combine_findings(name, each, doubts) for name, each in found.items()})


def _is_failed_exchange(seen: SeenModelCall) -> bool:
    return seen.exchange.failed if seen.exchange is not None else not seen.has_counted_answer


def _find_shown_edits(link: ParentRequestLink) -> list[tuple[str, HistoryProcessing]]:
    told: list[tuple[str, HistoryProcessing]] = []
    pruned = link.change.pruned
    for gap in link.change.gaps:
        if texts := [item.text for item in gap.inserted] or find_summary_in_system(link.change, proof=link.proof):
            told.append(("condenser", _build_condenser_finding(link, gap, texts)))
            if not link.proof:
                reason = (
                    f"tokenLimiter cannot be observed: {len(gap.missing)} messages are missing, and it is not proven "
                    "that the new text is a summary of them"
                )
                told.append(("tokenLimiter", HistoryProcessing(None, "unobservable", reason, link.seen.label)))
        elif all(is_tool_result_or_textless_call(item) for item in gap.missing):
            pruned += sum(max(len(item.calls), 1) for item in gap.missing)
        else:
            values: dict[str, int | None] = {"droppedMessages": len(gap.missing)}
            reason = f"{len(gap.missing)} messages of the history are missing, and nothing stands in their place"
            told.append(("tokenLimiter", _build_activated_finding("proven", reason, link.seen, values, [])))
    if pruned:
        reason = f"{pruned} parts of earlier messages are gone"
        told.append(("pruner", _build_activated_finding("proven", reason, link.seen, {"partsRemoved": pruned}, [])))
    return told


def _build_condenser_finding(
    link: ParentRequestLink, gap: MissingHistoryMessages, texts: list[str]
) -> HistoryProcessing:
    values: dict[str, int | None] = {
        "condensedMessages": len(gap.missing),
        "recentMessages": gap.kept if gap.sure else None,
        "totalMessages": link.change.expected,
    }
    evidence = "proven" if link.proof else "inferred"
    source = "an earlier call of the run wrote it" if link.proof else "it is not proven that a call of the run did"
    reason = f"{len(gap.missing)} messages are missing and a text stands in their place ({source})"
    if not gap.sure:
        reason += "; the conversation repeats itself, so that which of them stayed is not known"
    return _build_activated_finding(evidence, reason, link.seen, values, texts)


def _build_activated_finding(
    evidence: str, reason: str, seen: SeenModelCall, values: dict[str, int | None], texts: list[str] | None
) -> HistoryProcessing:
    return HistoryProcessing(True, evidence, reason, seen.label, values, texts)  # noqa: FBT003 - it was at work


def _combine_findings(name: str, found: Sequence[HistoryProcessing], doubts: Sequence[str]) -> HistoryProcessing:
    """Combine the findings of a step's exchanges: the strongest evidence wins, summaries are concatenated."""
    if found:
        best = max(found, key=lambda each: EVIDENCE.index(each.evidence))
        texts = [each.summaries for each in found if each.activated]
        known = [text for each in texts if each is not None for text in each]
        best.summaries = known or (None if None in texts else [])
        return best
    if doubts:
        return HistoryProcessing(None, "unobservable", f"{name} cannot be observed: {'; '.join(doubts[:3])}")
    return HistoryProcessing(activated=False, evidence="proven", reason="every request carried its whole history")


@dataclass(frozen=True, slots=True)
class ParentRequestLink:
    seen: SeenModelCall
    change: SentHistoryDeviation
    proof: bool
    """Whether an inserted text is the output of an earlier call."""

    @property
    def lacks_only_latest(self) -> bool:
        return bool(self.change.gaps) and not any(gap.kept or gap.inserted for gap in self.change.gaps)


def find_continued_request(
    seen: SeenModelCall, all_seen: Sequence[SeenModelCall], *, continues: bool, spoken: Sequence[str] = ()
) -> ParentRequestLink | str | None:
    """Find the request that this continues; None: first of its thread; a text: reason of failure."""
    if (exchange := seen.exchange) is None:
        return None
    sent = list_history_items_without_system(exchange.messages)
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
    histories = ([item.key for item in _build_expected_history(each)] for each in family.values())
    keys = [item.key for item in sent]
    if not continues and any(len(keys) < len(each) and keys == each[: len(keys)] for each in histories):
        # the same words once more: a new conversation, or a request that was sent again; nothing is missing from it
        return None
    if (parent := _choose_parent(sent, system, family, writers.values())) is None:
        return _explain_missing_parent(sent, earlier, continues=False)
    written = [remove_whitespace(each.answer.text) for each in writers.values() if each.answer]
    before = join_system_text(parent.messages)
    expected = _build_expected_history(parent)
    change = compare_expected_and_sent_history(expected, sent, before=before, after=system, written=written)
    proof = _is_inserted_summary_proven(change, writers.values())
    anchored = not {item.key for item in expected}.isdisjoint(keys)
    asked = any(n in alike and _may_carry_users_latest_text(each, spoken) for n, each in writers.items())
    if proof and not anchored and not change.grown and asked:
        proof = False  # it may have been the user who asked for the summary, and went on with it
    elif not proof and not anchored:
        return _explain_missing_parent(sent, family, continues=continues)
    lost = any(not gap.inserted and not all(map(is_tool_result_or_textless_call, gap.missing)) for gap in change.gaps)
    if lost and not find_summary_in_system(change, proof=proof) and not _sends_whole_history(family.values()):
        return "no earlier request carried a whole history, so nothing can be said to be missing from this one"
    return ParentRequestLink(seen, change, proof)


def _choose_parent(
    sent: History, system: str, family: Mapping[int, DecodedExchange], writers: Collection[DecodedExchange]
) -> DecodedExchange | None:
    """Return the request with most in common; of several in a repetitive conversation the summarised one."""
    known: dict[int, tuple[int, bool, bool]] = {}
    for n, each in family.items():
        items, text = list_history_items_without_system(each.messages), join_system_text(each.messages)
        common = sum(count_common_head_and_tail(_build_expected_history(each), sent[:-1] or sent))
        known[n] = common, all(_is_answer_quoted(writer, items, text) for writer in writers), text == system
    top = max(known.values(), default=None)
    best = [n for n, one in known.items() if one == top]
    if len(best) > 1:
        best = [n for n in best if not is_answer_quoted_later(family[n], [family[m] for m in family if m > n])] or best
    told = {n: _count_told_to_summarizer(writers, _build_expected_history(family[n])) for n in best}
    return family[max(best, key=lambda n: (told[n], n))] if best else None


def _is_same_agent(one: DecodedExchange, other: DecodedExchange, *, goes_on: bool) -> bool:
    """Return whether two requests are of one agent; `goes_on`: equal tools suffice, a summary may be the prompt."""
    if goes_on and one.tools and one.tools == other.tools:
        return True
    first, second = join_system_text(one.messages), join_system_text(other.messages)
    related = first == second or (bool(first) and bool(second) and _are_similar_prompts(first, second))
    return one.tools == other.tools and (related or (not first) != (not second))


def _are_similar_prompts(one: str, other: str) -> bool:
    """Return whether two system prompts are one: equal beginnings or ends, or a few letters off (a date, a clock)."""
    length = min(len(one), len(other), 40)
    if one[:length] == other[:length] or one[-length:] == other[-length:]:
        return True
    head = len(commonpath([one, other]))
    return head + len(commonpath([one[head:][::-1], other[head:][::-1]])) >= _ALIKE * max(len(one), len(other))


def _build_expected_history(exchange: DecodedExchange) -> list[HistoryItem]:
    answer = list_history_items_without_system([] if exchange.answer is None else [exchange.answer])
    return list_history_items_without_system(exchange.messages) + [
        replace(each, call_id=None, reasoning=False) for each in answer
    ]


def _explain_missing_parent(sent: History, family: Mapping[int, DecodedExchange], *, continues: bool) -> str | None:
    if any(item.role == "assistant" for item in sent):
        return "it carries history that the wire has not seen"
    if continues and family:
        return "it shares no message with the conversation so far: its history was replaced, or the agent keeps none"
    return None


def _sends_whole_history(family: Iterable[DecodedExchange]) -> bool:
    """Return whether an earlier request had a user message after an answer: the agent sends its history."""
    histories = ([item.role for item in list_history_items_without_system(exchange.messages)] for exchange in family)
    return any("assistant" in roles and "user" in roles[roles.index("assistant") :] for roles in histories)


def _is_answer_quoted(exchange: DecodedExchange, sent: History, system: str) -> bool:
    """Return whether a request quotes an earlier answer in another role: a summary was written for it."""
    if exchange.answer is None:
        return False
    output = remove_whitespace(exchange.answer.text)
    if len(output) < _LEAST or any(item.role == "assistant" and output in item.alike for item in sent):
        return False
    return any(output in item.alike for item in sent if item.role != "assistant") or output in remove_whitespace(system)


def is_answer_quoted_later(exchange: DecodedExchange, later: Iterable[DecodedExchange]) -> bool:
    sent = ((list_history_items_without_system(each.messages), join_system_text(each.messages)) for each in later)
    return any(_is_answer_quoted(exchange, items, system) for items, system in sent)


def _may_carry_users_latest_text(writer: DecodedExchange, spoken: Sequence[str]) -> bool:
    """Return whether a request may end with the user's text: similar to one, or users' texts are unknown."""
    known = [remove_whitespace(text) for text in spoken]
    users = [each.alike for each in _build_expected_history(writer) if each.role == "user"]
    return not (known and users) or any(each in users[-1] or users[-1] in each for each in known)


def _count_told_to_summarizer(writers: Iterable[DecodedExchange], items: History) -> int:
    """Return the number of these messages in the summary writer's request; equal texts count once."""
    different = {item.alike or item.calls: item for item in items}.values()
    return max((sum(_contains_message(each, item) for item in different) for each in writers), default=0)


def _contains_message(writer: DecodedExchange, item: HistoryItem) -> bool:
    if item.alike:
        return any(item.alike in remove_whitespace(message.text) for message in writer.messages)
    said = [call for each in list_history_items_without_system(writer.messages) for call in each.calls]
    return all(call in said for call in item.calls)


def _is_inserted_summary_proven(change: SentHistoryDeviation, writers: Iterable[DecodedExchange]) -> bool:
    """Return whether an inserted text is the output of an earlier call that got the missing messages."""
    inserted = "".join(remove_whitespace(item.text) for gap in change.gaps for item in gap.inserted)
    inserted += remove_whitespace(change.grown)
    sources = (each for each in writers if each.answer is not None and remove_whitespace(each.answer.text) in inserted)
    missing = [item for item in change.missing if item.alike]
    return any(_contains_message(each, item) for each in sources for item in missing)


def is_tool_result_or_textless_call(item: HistoryItem) -> bool:
    return item.role == "tool" or (item.role == "assistant" and bool(item.calls) and not item.alike)


def find_summary_in_system(change: SentHistoryDeviation, *, proof: bool) -> list[str]:
    """Return a possible summary in the system prompt: new text other than a date."""
    return [change.grown] if change.grown and (change.other or proof) else []
