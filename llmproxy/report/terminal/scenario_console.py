"""Print a scenario while it runs: each message as it comes, then how it ended. A handler of the events of `llmproxy.report.events`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from textwrap import indent
from typing import TextIO

from llmproxy.report.events import Event, Finished, Message, Started

_LINES = 5
"""Lines of a tool's arguments or result that are printed."""
_NAMED = 2
"""How verbose one is who wants the scenario's name on each line."""
_COLOURS = {"green": "32", "blue": "34", "magenta": "35", "yellow": "33", "red": "31"}


class ScenarioConsole:
    """Prints to a stream, in colours where that is a terminal. Each line says which of several runs it is of, from verbose 2 on its scenario."""

    def __init__(self, verbose: int = 1, stream: TextIO | None = None) -> None:
        """Print to `stream`, else to what is standard output then."""
        self._verbose = verbose
        self._stream = stream
        self._prefix = ""
        self._alone = True

    def handle(self, event: Event) -> None:
        """Print what of an event a reader wants to see."""
        if isinstance(event, Started):
            self._alone = event.runs == 1
            which = f"{event.sample}/{event.runs}" if event.runs > 1 else ""
            named = f"Scenario: {event.name}" if self._verbose >= _NAMED else ""
            self._prefix = f"[{' '.join(filter(None, (named, which)))}] " if named or which else ""
            self._print("")
        elif isinstance(event, Message):
            self._message(event)
        elif isinstance(event, Finished):
            if event.bound:
                self._line("yellow", "Bound:", f"{event.bound} replayed with this run's {', '.join(event.bound_names)}")
            if event.error:
                # A run by itself raises its error: a miss is explained there, over many lines.
                short = bool(event.misses) and self._alone
                self._line("red", "Error:", event.error.partition("\n")[0] if short else event.error)

    def close(self) -> None:
        """Nothing is kept back."""

    def _message(self, event: Message) -> None:
        said = event.message
        role, content = said.get("role"), said.get("content")
        if role == "user":
            self._line("green", "User:", content)
        elif role == "assistant":
            if content:
                self._line("blue", "Agent:", content)
            for call in said.get("tool_calls") or ():
                function = call.get("function") or {}
                arguments = _first_lines(function.get("arguments", "{}"))
                self._line("magenta", f"ToolCall({function.get('name')}):", f"\n\n{indent(arguments, '    ')}\n")
        elif role == "tool":
            self._line("magenta", "ToolResult:", f"\n\n{indent(_first_lines(content or said), '    ')}\n")
        elif role != "system" or not event.author:
            self._line("magenta", f"{str(role).capitalize()}:", content)

    def _line(self, colour: str, title: str, text: object) -> None:
        prefix = self._paint_text("yellow", self._prefix) if self._prefix else ""
        self._print(f"{prefix}{self._paint_text(colour, title)} {text}")

    def _paint_text(self, colour: str, text: str) -> str:
        stream = self._stream or sys.stdout
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if stream.isatty() else text

    def _print(self, text: str) -> None:
        print(text, file=self._stream or sys.stdout, flush=True)


def _first_lines(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    with suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    lines = text.split("\n")
    return "\n".join([*lines[:_LINES], "..."] if len(lines) > _LINES else lines)
