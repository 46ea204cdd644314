"""What a client reads whose WebSocket message was never recorded: a close reason of 123 bytes, and the whole story for `llmproxy why`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from llmproxy.core.traffic.advice import look
from llmproxy.core.traffic.differences import printable, short

if TYPE_CHECKING:
    from llmproxy.core.misses.context import MissContext
    from llmproxy.core.websocket.play import FrameMismatch

MISMATCH = 4404
"""Close code: 4000-4999 are for applications (RFC 6455 section 7.4.2), and 404 is what a miss is over HTTP."""
LONGEST_REASON = 123
"""Bytes of a close reason (RFC 6455 section 5.5: a control frame has 125, two of them are the code)."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FrameMiss:
    """A message that was not recorded, explained."""

    reason: str
    """For the close frame."""
    text: str
    data: dict[str, object]
    """For the journal."""


def explain(context: MissContext, recording: int, mismatch: FrameMismatch, *, records: bool = False) -> FrameMiss:
    """Explain a mismatch with recording number `recording`; everything handed in is redacted.

    `records`: this session records what it misses, so the next conversation of this kind.
    """
    text = "\n".join(_lines(context, recording, mismatch, records=records))
    nearest = {
        "id": recording,
        "message": mismatch.nearest,
        "differences": [each.to_dict() for each in mismatch.differences],
    }
    data = {**asdict(context), "reason": "message", "message": mismatch.number, "nearest": nearest, "text": text}
    return FrameMiss(_reason(recording, mismatch), text, data)


def _reason(recording: int, mismatch: FrameMismatch) -> str:
    end = "; see llmproxy why"
    start = f"llmproxy: message {mismatch.number} is not in recording #{recording}"
    if mismatch.nearest is None:
        return cut(f"{start}, which has none{end}", LONGEST_REASON)
    if not mismatch.differences:
        where = f"; equals its message {mismatch.nearest} of {mismatch.expected}"
        return cut(start + where + end, LONGEST_REASON)
    near = f"; nearest {mismatch.nearest} of {mismatch.expected} differs at "
    room = LONGEST_REASON - len((start + near + end).encode())
    return start + near + cut(printable(mismatch.differences[0].path), room) + end


def cut(text: str, size: int) -> str:
    """Return the start of a text, at most `size` bytes of UTF-8, whole characters."""
    data = text.encode()
    return text if len(data) <= size else data[: max(0, size - 3)].decode(errors="ignore") + "…"


def _cause(recording: int, mismatch: FrameMismatch) -> str:
    if mismatch.nearest is None:
        return f"the recorded client (#{recording}) said nothing"
    if not mismatch.differences:
        return f"recording #{recording} has it as message {mismatch.nearest}"
    first = mismatch.differences[0]
    looks = f", which looks like {first.looks}" if first.looks else ""
    which = "its message" if mismatch.nearest == mismatch.number else "the nearest is message"
    more = (
        ""
        if mismatch.number <= mismatch.expected
        else f", after {mismatch.expected} messages recording #{recording} has no more"
    )
    return f"{which} {mismatch.nearest} of recording #{recording} differs at {short(first.path, 80)}{looks}{more}"


def _lines(context: MissContext, recording: int, mismatch: FrameMismatch, *, records: bool) -> list[str]:
    what = " ".join(short(part, 60) for part in (context.provider, context.operation, context.model or "") if part)
    anew = context.again.command("record", context.cassette, store=context.store, upstreams=context.upstreams)
    lines = [
        (
            f'llmproxy: message {mismatch.number} of this WebSocket ({what}) in cassette "{short(context.cassette, 60)}" is not'
            f" as recorded: {_cause(recording, mismatch)}."
        ),
        (
            f'mode {context.mode}, session "{short(context.session, 60)}", store {short(context.store, 120)},'
            f" key {context.key[:15]}; nothing was sent to the provider."
        ),
    ]
    for each in mismatch.differences[:_SHOWN]:
        old, new = (short(value, 90) or "(absent)" for value in (each.old, each.new))
        lines.append(
            f"  {short(each.path, 100)}: {old} -> {new}" + (f"  [looks like {each.looks}]" if each.looks else "")
        )
    if len(mismatch.differences) > _SHOWN:
        lines.append(f"  and {len(mismatch.differences) - _SHOWN} more")
    todo = [
        *(["connect again: the conversation that follows is recorded"] if records else []),
        f"record the conversation anew: {anew}",
        "if that changes by itself, let it not count: [tool.llmproxy.normalize] in pyproject.toml, ignore or scrub",
        f"look closer: {look('why', context.store)}   {look(f'show {recording}', context.store)}",
    ]
    return [*lines, "What to do:", *(f"  {n}. {step}" for n, step in enumerate(todo, 1))]
