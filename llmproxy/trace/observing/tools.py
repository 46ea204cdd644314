"""One call of a tool that a model asked for: what, with which arguments, whether it was run, and what it answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmproxy.trace.reading.parts import result_value


@dataclass(frozen=True, slots=True)
class AskingExchange:
    """The exchange in which a tool was asked for, as far as it tells what came first."""

    live: _Span = (0.0, 0.0)
    """From when to when it went on, seconds."""
    recorded: _Span = (0.0, 0.0)
    """From when to when it went on as it was recorded: a replay takes no time, so what was at once may be one after the other in it."""

    def is_over_before(self, other: AskingExchange) -> bool:
        """Tell whether its answer had come when the other request was sent, and they were not at once when they were recorded."""
        apart = self.recorded == other.recorded or _is_over(self.recorded, other.recorded)
        return _is_over(self.live, other.live) and (apart or _is_over(other.recorded, self.recorded))


def _is_over(one: _Span, other: _Span) -> bool:
    return one[1] <= other[0] + _SAME


type _Span = tuple[float, float]
_SAME = 0.001
"""Seconds that clocks and their rounding may be wrong by."""


@dataclass(slots=True, eq=False)
class ToolUse:
    """One call of a tool. Its result may come with a later request, so it changes while a run goes on."""

    name: str
    raw: str
    """The arguments as the model wrote them."""
    id: str | None
    seq: int
    """Number in the session of the call whose answer asked for it."""
    interaction: int | None
    """Row of that answer in the store."""
    hosted: bool = False
    """Whether the provider runs it itself (web search, code interpreter)."""
    executed: bool = False
    """Whether a later request carries its result, or the provider ran it. False where nobody has seen that it was."""
    output: str | None = None
    """What the tool answered, as it was passed on; None if nobody has seen it."""
    errored: bool = False
    """Whether the result says that the tool failed."""
    asking: AskingExchange = AskingExchange()
    """Of the answer that asked for it."""
    heard: int | None = None
    """Number in the session of the call whose request brought the result: whatever was asked for from then on was asked for later."""
    denied: bool = False
    """Whether it waited for an approval, which was denied: it was not executed."""

    @property
    def arguments(self) -> Any:  # noqa: ANN401 - JSON
        """Parsed; the text as the model wrote it where that is no JSON, {} where it wrote nothing."""
        try:
            return json.loads(self.raw) if self.raw.strip() else {}
        except (ValueError, RecursionError):
            return self.raw

    @property
    def parsed(self) -> bool:
        """Whether the arguments are JSON."""
        arguments = self.arguments
        return not (isinstance(arguments, str) and arguments == self.raw)

    @property
    def result(self) -> Any:  # noqa: ANN401 - JSON
        """The output, parsed where it is an object or a list; None if no result was seen."""
        return None if self.output is None else result_value(self.output)

    @property
    def settled(self) -> bool:
        """Whether it is known if it was executed: a call whose result nobody has seen may have been, unless it was denied."""
        return self.executed or self.denied

    def comes_after(self, other: ToolUse) -> bool:
        """Tell whether it was asked for when the other one had been; calls of one answer, or of answers that came at the same time, are at once."""
        if other.heard is not None and other.heard <= self.seq:
            return True
        return self.seq > other.seq and other.asking.is_over_before(self.asking)

    @property
    def where(self) -> str:
        return place_of(self.interaction, self.seq)

    def to_message(self) -> dict[str, Any]:
        """Return it in the form in which a message lists tool calls."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.raw}}


def place_of(interaction: int | None, seq: int) -> str:
    """Name an exchange, as `llmproxy show` does where it is stored."""
    return f"call {seq} of the session" if interaction is None else f"interaction {interaction}"
