"""Edits of an agent's history before sending (condenser, pruner, token limiter), inferred from the wire.

    declared      the provider reports it in its answer (context editing, compaction)
    proven        a pure difference of two requests; a summary that is the output of an earlier call of the run
    inferred      messages are missing and others replace them, but no call of the run wrote them
    unobservable  the history is not in the requests (kept by the provider), or cannot be aligned

A processor is reported inactive only if every request of the step carries its whole history, aligned with the one
before it (``proven``). Everything else is ``unobservable``, with the reason.

Sources (read 2026-11): Claude's API, "Context editing" (``context_management.applied_edits``) and "Compaction"; OpenAI,
"Compaction" of the Responses API (its summary is encrypted) and ``previous_response_id``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.dialects.codecs import CHAT
from llmproxy.core.dialects.messages import as_dict, as_list, as_str, to_text
from llmproxy.core.dialects.streams import list_events
from llmproxy.trace.observing.agent_activity import AgentStep
from llmproxy.trace.observing.links import HistoryLink, find_parent, has_only_tools, is_quoted_later, system_summary
from llmproxy.trace.observing.thread_diff import HistoryGap
from llmproxy.trace.observing.tool_calls import WireCall
from llmproxy.trace.reading.decoded_exchange import DecodedExchange, list_earlier_ids


@dataclass(frozen=True, slots=True)
class ProviderEdit:
    """A processor that the provider reports."""

    processor: str
    reason: str
    values: Mapping[str, int | None] = field(default_factory=dict)
    summaries: list[str] | None = field(default_factory=list)
    """None: there is one, but it is encrypted."""


def read_provider_edits(exchange: DecodedExchange) -> Iterator[ProviderEdit]:
    response = exchange.interaction.response
    kind = response.mime_type
    compactions: dict[int, str] = {}
    for event in list_events(kind, response.body):
        value = as_dict(event)
        for place in (value, as_dict(value.get("message")), as_dict(value.get("delta"))):
            for edit in as_list(as_dict(place.get("context_management")).get("applied_edits")):
                yield from _read_applied_edit(as_dict(edit))
        for number, block in _list_numbered_blocks(value):
            if block.get("type") == "compaction":
                compactions[number] = to_text(block.get("content"))
        delta = as_dict(value.get("delta"))
        if delta.get("type") == "compaction_delta":
            index = value.get("index")
            at = index if isinstance(index, int) else 0
            compactions[at] = compactions.get(at, "") + as_str(delta.get("content"))
    for text in compactions.values():
        unknown: dict[str, int | None] = {"condensedMessages": None, "recentMessages": None, "totalMessages": None}
        yield ProviderEdit("condenser", "the provider compacted the conversation", unknown, [text] if text else None)


def _read_applied_edit(edit: dict[str, Any]) -> Iterator[ProviderEdit]:
    kind = as_str(edit.get("type"))
    for prefix, member in (("clear_tool_uses", "cleared_tool_uses"), ("clear_thinking", "cleared_thinking_turns")):
        if kind.startswith(prefix):
            count = edit.get(member)
            parts = count if isinstance(count, int) and not isinstance(count, bool) else None
            yield ProviderEdit("pruner", f"the provider applied {kind}", {"partsRemoved": parts})


def _list_numbered_blocks(value: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the parts of an answer with their number: of `content` or `output`, whole or in events."""
    response = as_dict(value.get("response")) or value
    for number, part in enumerate((*as_list(response.get("content")), *as_list(response.get("output")))):
        yield number, as_dict(part)
    index = value.get("index")
    yield (index if isinstance(index, int) else 0), as_dict(value.get("content_block"))
    output_index = value.get("output_index")
    yield (output_index if isinstance(output_index, int) else 0), as_dict(value.get("item"))


def explain_hidden_history(exchange: DecodedExchange) -> str:
    """Describe why a request does not contain its history; empty if it does."""
    if list_earlier_ids(exchange.tree):
        return "the provider keeps the history (previous_response_id or conversation), so it is not in the request"
    if exchange.tree.get("truncation") == "auto":
        return "truncation: auto lets the provider drop messages without saying so"
    return ""


EVIDENCE = ("unobservable", "inferred", "proven", "declared")
"""From the weakest to the strongest."""


@dataclass(slots=True)
class HistoryEditFinding:
    """Finding about one processor in one step."""

    activated: bool | None
    """None: unknown."""
    evidence: str
    reason: str = ""
    """Reason why it is unknown, or the evidence."""
    where: str = ""
    values: dict[str, int | None] = field(default_factory=dict)
    """``condensedMessages`` ...; None for an unknown number."""
    summaries: list[str] | None = field(default_factory=list)
    """Texts that replace the condensed messages; None if encrypted."""


@dataclass(frozen=True, slots=True)
class HistoryEditFindings:
    """Findings about the processors of a step."""

    condenser: HistoryEditFinding
    pruner: HistoryEditFinding
    tokenLimiter: HistoryEditFinding  # noqa: N815 - the name that suites use


def find_history_edits(
    step: AgentStep, before: Sequence[WireCall] = (), *, continues: bool = False, spoken: Sequence[str] = ()
) -> HistoryEditFindings:
    """Find edits of the history in a step.

    Args:
        step: The step's exchanges.
        before: Those of the run before it, in order.
        continues: Whether the step continues a conversation, so that its first request should contain history.
        spoken: The users' texts in the run; empty if unknown.
    """
    all_seen = [*before, *step.seen]
    found: dict[str, list[HistoryEditFinding]] = {"condenser": [], "pruner": [], "tokenLimiter": []}
    doubts: list[str] = []
    for seen in (each for each in step.seen if each.call.operation in CHAT and not _is_failed_exchange(each)):
        if seen.exchange is None:
            doubts.append(f"{seen.label} was not recorded, so what it carried is not known")
            continue
        for each in read_provider_edits(seen.exchange):
            finding = _build_active_finding("declared", each.reason, seen, dict(each.values), each.summaries)
            found[each.processor].append(finding)
        if reason := explain_hidden_history(seen.exchange):
            doubts.append(f"{seen.label}: {reason}")
            continue
        link = find_parent(seen, all_seen, continues=continues, spoken=spoken)
        later = (each.exchange for each in all_seen if each.call.seq > seen.call.seq and each.exchange is not None)
        doubtful = isinstance(link, str) or (link is not None and link.lacks_only_latest)
        if doubtful and is_quoted_later(seen.exchange, later):
            continue  # it wrote a summary: what it was told is no history of the conversation
        if isinstance(link, str):
            doubts.append(f"{seen.label}: {link}")
        elif link is not None:
            for name, finding in _find_shown_edits(link):
                found[name].append(finding)
    if not step.seen:
        doubts.append("the agent sent no request in this step")
    return HistoryEditFindings(**{name: _join_findings(name, each, doubts) for name, each in found.items()})


def _is_failed_exchange(seen: WireCall) -> bool:
    return seen.exchange.failed if seen.exchange is not None else not seen.is_answered


# -- telling -----------------------------------------------------------------------------------------------------------


def _find_shown_edits(link: HistoryLink) -> list[tuple[str, HistoryEditFinding]]:
    """Return the processors that a difference proves."""
    told: list[tuple[str, HistoryEditFinding]] = []
    pruned = link.change.pruned
    for gap in link.change.gaps:
        texts = [item.text for item in gap.inserted] or system_summary(link.change, proof=link.proof)
        if texts:
            told.append(("condenser", _build_condenser_finding(link, gap, texts)))
            if not link.proof:
                reason = (
                    f"tokenLimiter cannot be observed: {len(gap.missing)} messages are missing, and it is not proven "
                    "that the new text is a summary of them"
                )
                told.append(("tokenLimiter", _build_unobservable_finding(reason, link.seen.label)))
        elif all(has_only_tools(item) for item in gap.missing):
            pruned += sum(max(len(item.calls), 1) for item in gap.missing)
        else:
            values: dict[str, int | None] = {"droppedMessages": len(gap.missing)}
            reason = f"{len(gap.missing)} messages of the history are missing, and nothing stands in their place"
            told.append(("tokenLimiter", _build_active_finding("proven", reason, link.seen, values, [])))
    if pruned:
        reason = f"{pruned} parts of earlier messages are gone"
        told.append(("pruner", _build_active_finding("proven", reason, link.seen, {"partsRemoved": pruned}, [])))
    return told


def _build_condenser_finding(link: HistoryLink, gap: HistoryGap, texts: list[str]) -> HistoryEditFinding:
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
    return _build_active_finding(evidence, reason, link.seen, values, texts)


def _build_active_finding(
    evidence: str, reason: str, seen: WireCall, values: dict[str, int | None], texts: list[str] | None
) -> HistoryEditFinding:
    return HistoryEditFinding(True, evidence, reason, seen.label, values, texts)  # noqa: FBT003 - it was at work


def _build_unobservable_finding(reason: str, where: str = "") -> HistoryEditFinding:
    return HistoryEditFinding(None, "unobservable", reason, where)


def _join_findings(name: str, found: Sequence[HistoryEditFinding], doubts: Sequence[str]) -> HistoryEditFinding:
    """Combine the findings of a step's exchanges: the strongest evidence wins, summaries are concatenated."""
    if found:
        best = max(found, key=lambda each: EVIDENCE.index(each.evidence))
        texts = [each.summaries for each in found if each.activated]
        known = [text for each in texts if each is not None for text in each]
        best.summaries = known or (None if None in texts else [])
        return best
    if doubts:
        return _build_unobservable_finding(f"{name} cannot be observed: {'; '.join(doubts[:3])}")
    return HistoryEditFinding(activated=False, evidence="proven", reason="every request carried its whole history")
