"""What an agent itself says about its history, where the suite names the place in its answers; and how that goes with the wire.

    {"condenser": {"activated": true, "condensedMessages": 8, "summary": "..."}, "pruner": {"activated": false}}

also as the value of ``processors``. The wire decides wherever it can tell: what the agent says fills in what cannot be seen (evidence
``declared``), and where the two contradict each other nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from llmproxy.core.dialects.messages import as_dict
from llmproxy.trace.observing.histories.processing import Processing, ProcessingFinding

_NAMES = tuple(each.name for each in fields(Processing))
_COUNTS = ("condensedMessages", "recentMessages", "totalMessages", "partsRemoved", "droppedMessages")
_WHERE = "the agent's answer"


def said_by(answers: Iterable[object]) -> dict[str, ProcessingFinding]:
    """Read what the answers of one step say; a processor that was at work in one of them was at work. Nothing odd raises."""
    found: dict[str, ProcessingFinding] = {}
    for answer in answers:
        tree = as_dict(answer)
        tree = as_dict(tree.get("processors")) or tree
        for name in _NAMES:
            if name in tree:
                said = _finding(name, tree[name])
                before = found.get(name)
                if before is None or before.activated is not True:
                    found[name] = said
    return found


def _finding(name: str, said: object) -> ProcessingFinding:
    part: Mapping[str, Any] = {"activated": said} if isinstance(said, bool) else as_dict(said)
    activated = part.get("activated")
    if not isinstance(activated, bool):
        reason = f"the agent speaks of the {name} and does not say `activated: true` or `false`: {said!r:.100}"
        return ProcessingFinding(activated=None, evidence="unobservable", reason=reason, where=_WHERE)
    counts = {key: part[key] for key in _COUNTS if isinstance(part.get(key), int) and not isinstance(part[key], bool)}
    summary = part.get("summary")
    was = "was" if activated else "was not"
    return ProcessingFinding(
        activated=activated,
        evidence="declared",
        reason=f"the agent says that the {name} {was} at work",
        where=_WHERE,
        values=dict(counts),
        summaries=[summary] if isinstance(summary, str) and summary else [],
    )


def with_agent(seen: Processing, said: Mapping[str, ProcessingFinding]) -> Processing:
    """Put what the agent says beside what the wire shows."""
    return Processing(**{name: _together(getattr(seen, name), said.get(name)) for name in _NAMES})


def _together(seen: ProcessingFinding, said: ProcessingFinding | None) -> ProcessingFinding:
    if said is None:
        return seen
    if seen.activated is None:
        return said if said.activated is not None else seen
    if said.activated is seen.activated:
        known = {key: value for key, value in seen.values.items() if value is not None}
        evidence = "declared" if seen.evidence == "inferred" else seen.evidence
        return replace(
            seen,
            evidence=evidence,
            values={**seen.values, **said.values, **known},
            summaries=seen.summaries or said.summaries or seen.summaries,
        )
    if said.activated is None or (seen.activated and seen.evidence != "inferred"):
        return seen
    reason = f"{said.reason}, and the wire says otherwise: {seen.reason}"
    return ProcessingFinding(activated=None, evidence="unobservable", reason=reason, where=seen.where)
