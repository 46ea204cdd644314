"""Terminal output of runs: for a suite a line per ended run, all failures, and the totals; for a scenario in Python
each message as it arrives, then the outcome. Control characters in agents' texts are made visible.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from textwrap import indent
from typing import TextIO

from llmproxy.amount_formatting import format_count, format_seconds
from llmproxy.lazy_regex import late
from llmproxy.report.events import Completed, Event, Finished, Message, Selected, Started, Status, Step
from llmproxy.report.run_tree import Run, format_message_content, format_run_facts, show_value
from llmproxy.report.scenario_rows import format_case_table

_LINES = 5
_NAMED = 2
_COLOURS = {"green": "32", "blue": "34", "magenta": "35", "yellow": "33", "red": "31"}


class ScenarioConsole:
    """Prints to a stream, with colours on a terminal; lines name their run if several, at verbose 2 the scenario."""

    def __init__(self, verbose: int = 1, stream: TextIO | None = None) -> None:
        self._verbose = verbose
        self._stream = stream
        self._prefix = ""
        self._alone = True

    def handle(self, event: Event) -> None:
        if isinstance(event, Started):
            self._alone = event.runs == 1
            which = f"{event.sample}/{event.runs}" if event.runs > 1 else ""
            named = f"Scenario: {event.name}" if self._verbose >= _NAMED else ""
            self._prefix = f"[{' '.join(filter(None, (named, which)))}] " if named or which else ""
            self._print_flushed("")
        elif isinstance(event, Message):
            self._print_message(event)
        elif isinstance(event, Finished):
            if event.bound:
                names = ", ".join(event.bound_names)
                self._print("yellow", "Bound:", f"{event.bound} replayed with this run's {names}")
            if event.carried:
                self._print("yellow", "Carried:", f"{event.carried} under {', '.join(event.carried_names)}")
            if event.error:
                # A run by itself raises its error: a miss is explained there, over many lines.
                short = bool(event.misses) and self._alone
                self._print("red", "Error:", event.error.partition("\n")[0] if short else event.error)

    def close(self) -> None:
        """Do nothing: no output is buffered."""

    def _print_message(self, event: Message) -> None:
        said = event.message
        role, content = said.get("role"), said.get("content")
        if role == "user":
            self._print("green", "User:", content)
        elif role == "assistant":
            if content:
                self._print("blue", "Agent:", content)
            for call in said.get("tool_calls") or ():
                function = call.get("function") or {}
                arguments = _cut_lines(function.get("arguments", "{}"))
                self._print("magenta", f"ToolCall({function.get('name')}):", f"\n\n{indent(arguments, '    ')}\n")
        elif role == "tool":
            self._print("magenta", "ToolResult:", f"\n\n{indent(_cut_lines(content or said), '    ')}\n")
        elif role != "system" or not event.author:
            self._print("magenta", f"{str(role).capitalize()}:", content)

    def _print(self, colour: str, title: str, text: object) -> None:
        prefix = self._paint_text("yellow", self._prefix) if self._prefix else ""
        self._print_flushed(f"{prefix}{self._paint_text(colour, title)} {text}")

    def _paint_text(self, colour: str, text: str) -> str:
        stream = self._stream or sys.stdout
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if stream.isatty() else text

    def _print_flushed(self, text: str) -> None:
        print(text, file=self._stream or sys.stdout, flush=True)


def _cut_lines(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    with suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    lines = text.split("\n")
    return "\n".join([*lines[:_LINES], "..."] if len(lines) > _LINES else lines)


_WORD = {
    Status.PASSED: ("PASS", "32"),
    Status.FAILED: ("FAIL", "31"),
    Status.AGENT_ERROR: ("ERROR", "31"),
    Status.ENVIRONMENT_ERROR: ("ERROR", "35"),
    Status.SKIPPED: ("SKIP", "33"),
    Status.FLAKY: ("FLAKY", "33"),
}
_UNSEEN = late(r"[^\x20-\x7e\xa0-\U0010ffff]")
_BAR = 24
_MARK = {Status.PASSED: "ok", Status.SKIPPED: "--"}


class SuiteConsole:
    def __init__(
        self, write: Callable[[str], object], *, colour: bool = False, live: bool = False, verbose: bool = False
    ) -> None:
        """Write to `write`; `live`: it is a terminal; `verbose`: also conversations and passed assertions."""
        self._write, self._colour, self._live, self._verbose = write, colour, live, verbose
        self._runs: dict[str, Run] = {}
        self._total = self._done = 0
        self._bar = ""
        self._errors: dict[str, str] = {}

    def handle(self, event: Event) -> None:
        if isinstance(event, Selected):
            self._total = event.runs
            mode = f", mode {event.mode}" if event.mode else ""
            counts = f"{format_count(event.scenarios, 'scenario')}, {format_count(event.runs, 'run')}"
            self._print_line(f"{event.title}: {counts}{mode}")
        elif isinstance(event, Started):
            self._runs[event.run_id] = Run(event)
        elif isinstance(event, Completed):
            self._print_test_summary(event)
        elif (run := self._runs.get(event.run_id)) is not None:
            if isinstance(event, Finished):
                self._print_finished(run, event)
            else:
                run.parts.append(event)
        self._draw_bar()

    def close(self) -> None:
        self._clear_bar()

    def _print_finished(self, run: Run, event: Finished) -> None:
        self._done += 1
        del self._runs[event.run_id]
        start = run.started
        if event.unrecorded:
            return  # said once, at the end
        number = f" [{start.sample}/{start.runs}]" if start.runs > 1 else ""
        about = ", ".join(filter(None, [format_seconds(event.total_seconds), *format_run_facts(event)]))
        # A case without a name of its own has its id as name.
        named = start.name.replace(" [", "[") not in ("", start.scenario)
        title = f"{start.scenario}{number}" + (f"  {start.name}" if named else "")
        word, code = _WORD[event.status]
        status = f"\x1b[{code}m{word:<5}\x1b[0m" if self._colour else f"{word:<5}"
        self._print_line(f"{status} {title}" + (f"  ({about})" if about else ""))
        bad = event.status not in (Status.PASSED, Status.SKIPPED)
        if bad and not self._verbose and (before := self._find_run_with_same_error(event, start, number)):
            self._print_line(f"      the same as {before}")
            return
        if self._verbose or bad:
            for step in run.steps:
                self._print_step(step, everything=self._verbose)
        if event.reasoning and (event.status is Status.SKIPPED or event.xfail):
            self._print_line(f"      {event.reasoning.partition('\n')[0]}")
        if event.error and not any(step.message == event.error for step in run.steps):
            self._print_indented("      ", event.error)
        messages = [each.message for each in run.messages]
        last = messages[-1] if messages else {}
        if bad and last.get("role") == "assistant" and not self._verbose:
            self._print_line(f"      the agent said last: {show_value(format_message_content(last))}")
        if bad and (rerun := event.rerun or start.rerun):
            self._print_line(f"      run it again: {rerun}")

    def _find_run_with_same_error(self, event: Finished, start: Started, number: str) -> str:
        """Return an earlier run with the same error, apart from cassette, sample and numbers."""
        if event.status is not Status.ENVIRONMENT_ERROR or not event.error:
            return ""
        what = event.error.replace(f"sample {start.sample}, ", "").replace(start.cassette, "")
        what = re.sub(r"~?\d+", "", what)
        known = self._errors.get(what, "")
        self._errors.setdefault(what, f"{start.scenario}{number}")
        return known

    def _print_step(self, step: Step, *, everything: bool) -> None:
        failed = [each for each in step.assertions if each.status is not Status.PASSED]
        if not everything and not failed and step.status in (Status.PASSED, Status.SKIPPED):
            return
        label = f" {step.label!r}" if step.label else ""
        held = len(step.assertions) - len(failed)
        counts = f", {held} of {format_count(len(step.assertions), 'assertion')} held" if step.assertions else ""
        self._print_line(f"    step {step.index + 1} {step.kind}{label}: {step.status.value}{counts}")
        if step.message:
            self._print_indented("      ", step.message)
        for each in step.assertions if everything else failed:
            mark = _MARK.get(each.status, "!!" if each.status is Status.FAILED else "??")
            tail = ", ".join(filter(None, [f"evidence: {each.evidence}" if each.evidence else "", each.where]))
            message = each.message or f"{show_value(each.actual)}"
            self._print_indented(f"      {mark} {each.name}: ", message + (f"  ({tail})" if tail else ""))

    def _print_test_summary(self, event: Completed) -> None:
        counts = Counter(str(row.get("status")) for row in event.scenarios)
        for row in event.scenarios:
            if row.get("rate") is not None and int(row.get("runs") or 0) > 1:
                self._print_line(f"  {row['scenario']}: {row.get('told') or row['rate']}")
        for line in format_case_table(event.scenarios):
            self._print_line(line)
        for note in event.notes:
            self._print_indented("", note)
        told = ", ".join(_format_status_count(number, status) for status, number in counts.items())
        self._print_line(f"{told or 'no results'} in {format_seconds(event.seconds)}")

    def _print_indented(self, prefix: str, text: str) -> None:
        first, *rest = text.splitlines() or [""]
        self._print_line(prefix + first)
        for line in rest:
            self._print_line(" " * len(prefix) + line)

    def _print_line(self, text: str) -> None:
        self._clear_bar()
        shown = _escape_unprintable(text) if self._colour else _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)
        self._write(f"{shown}\n")

    def _draw_bar(self) -> None:
        if not self._live or not self._total:
            return
        full = _BAR * self._done // self._total
        names = ", ".join(run.started.scenario for run in list(self._runs.values())[:2])
        bar = f"[{'#' * full}{'.' * (_BAR - full)}] {self._done}/{self._total} {names}"[:79]
        if bar != self._bar:
            self._write(f"\r\x1b[K{bar}")
            self._bar = bar

    def _clear_bar(self) -> None:
        if self._bar:
            self._write("\r\x1b[K")
            self._bar = ""


def _escape_unprintable(text: str) -> str:
    pieces = re.split(r"(\x1b\[(?:32|31|35|33|0)m)", text)
    pieces[::2] = [_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _format_status_count(number: int, status: str) -> str:
    words = status.replace("_", " ")
    return f"{number:,} {words}" + ("s" if number != 1 and words.endswith("error") else "")
