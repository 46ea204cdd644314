"""What is said when an agent that was run has ended, and the exit code: the child's own, unless the proxy knows better."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.cli.parts.telling.lines import tell_lines
from llmproxy.errors import ENDED_BY_USER, Exit, LLMProxyError, MachineError
from llmproxy.protocol import UnknownTool

if TYPE_CHECKING:
    from llmproxy.client.environment.build import EnvironmentPlan
    from llmproxy.client.process import Attached
    from llmproxy.client.reports import Report
    from llmproxy.settings import Loaded

_SUMMARY = re.compile(r"^[0-9][0-9,]* hits?(?: \([^)\n]*\))?, .*$", re.MULTILINE)
_CALLS = re.compile(r"^[0-9:]{8}\s+(REPLAY|RECORD|PASS|MISS|FAULT)\b", re.MULTILINE)
_MISSES = re.compile(r"([0-9][0-9,]*) miss(?:es)?\b")


def write_result(path: Path, told: Mapping[str, object]) -> None:
    """Write a run's result. Raises MachineError."""
    try:
        path.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"--json {path} cannot be written: {error.strerror or error}") from error


LONGEST_SHUT = 61.0
"""Seconds; longer than a fault may close the port."""
LOOKED_AT = 500
"""Calls that are looked at for refusals: each comes with its recording, and a long session has many."""


@dataclass(slots=True)
class RunEnding:
    """What is said and returned after the child."""

    proxy: Attached
    session: str
    since: float
    """Unix time when the run began: older misses in the journal are not ours."""
    loaded: Loaded
    command: tuple[str, ...] = ()
    report: Report | None = None
    misses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Why requests were refused, other than misses: an upstream that could not be reached."""
    trouble: str = ""

    def close(self, *, failed: bool = False, last: bool = True) -> None:
        """Close the session and, after the last run, end the proxy, if it is ours; what goes wrong is told later, it must not hide the child's code.

        A command that `failed`, or was interrupted, leaves its cassette open: mode `once` records what is missing the next time.
        """
        from llmproxy.client.control import ControlError

        self._wait_for_port()
        try:
            self.refused += self._read_refusals()
            self.report = self.proxy.control.close(self.session, complete=False if failed else None)
            if self.proxy.process is None or self.report.live is not None:
                self.misses += self.report.miss_texts  # the journal has those that the model is told of, too
            else:
                self.misses = tuple(miss.text for miss in self.proxy.control.misses() if miss.at >= self.since)
        except ControlError as error:
            self.trouble = str(error)
        if last or self.trouble:
            self.proxy.end()

    def _wait_for_port(self) -> None:
        """Wait for the proxy to listen again, where a fault on purpose may have closed its port."""
        from llmproxy.client.control import ProxyGone

        process, until = self.proxy.process, time.monotonic() + LONGEST_SHUT
        while self.loaded.settings.faults and process is not None and process.alive and time.monotonic() < until:
            try:
                self.proxy.control.health()
            except ProxyGone:
                time.sleep(0.05)
            else:
                return

    def _read_refusals(self) -> tuple[str, ...]:
        """Return the words of the last refusals, as far as they can be had: nothing else of the ending depends on them."""
        from llmproxy.client.control import ControlError
        from llmproxy.protocol import Decision

        found: list[str] = []
        with suppress(ControlError):
            if self.proxy.process is not None:  # of one that others use too, nobody knows whose such a request was
                strays = self.proxy.control.read_refused()
                found += [f"{each.method} {each.target}: {each.text}" for each in strays if each.at >= self.since]
            told = self.proxy.control.report(self.session)
            if told.refused:
                calls = self.proxy.control.walk(self.session, max(0, told.arrived - LOOKED_AT))
                found += [call.note for call in calls if call.decision == Decision.REFUSE and not call.miss]
        return tuple(found)

    def tell(self, code: int, log: str, plan: EnvironmentPlan) -> int:
        """Say what it came to, and return the exit code."""
        from llmproxy.client.reports import first_lines, one_line
        from llmproxy.settings import shown_path

        if self.trouble or self.report is None:
            tell_lines(f"llmproxy: the proxy ended before the command did: {self.trouble}", log[-2000:].rstrip())
            return code or Exit.ENVIRONMENT
        sums: list[str] = _SUMMARY.findall(log)
        line = sums[-1] if sums else one_line(self.report)
        store = self.loaded.settings.store
        where = f", store {shown_path(store)}" if self.report.recorded else ""
        tell_lines(f"llmproxy: {line}  ({self.report.mode}, cassette {self.report.cassette}{where})")
        tell_lines(*first_lines(self.misses, prefix="  miss: "))
        tell_lines(*first_lines(self.refused, prefix="  refused: "))
        tell_lines(*(f"  {text}" for text in (self.report.faults or {}).get("idle", ())))
        if self.misses:
            tell_lines(self._next_step(shown_path(store)))
        certified = self.report.calls - self.report.refused  # what was refused alone is no use of the proxy
        used = certified or _CALLS.search(log) or code in ENDED_BY_USER
        if not used:
            refused = bool(self.report.refused or self.refused)
            tell_lines(*never_used(plan, self.proxy.url, self.command, refused=refused))
        if self.report.recorded:
            tell_lines(*self._varying())
        lost = self.report.failed or self.proxy.exit_code == Exit.ENVIRONMENT
        if lost:
            tell_lines("llmproxy: an answer could not be recorded: this recording is incomplete.")
        if doubts := self._doubts(self.report, line, used=bool(used)):
            failing = self.loaded.settings.unknown_tool is UnknownTool.FAIL and not self.loaded.settings.fail_on_miss
            named = (
                "--unknown-tool fail" if failing else "--strict" if self.loaded.settings.strict else "--fail-on-miss"
            )
            tell_lines(f"llmproxy: {named}: {', '.join(doubts)}: exit code {Exit.MISS}.")
            return Exit.MISS
        return code or (Exit.ENVIRONMENT if lost else Exit.OK)

    def _next_step(self, store: str) -> str:
        """Say what to type after misses: where nothing is recorded, `why` knows no more than that."""
        from llmproxy.core.misses.explain import read_record_command
        from llmproxy.core.traffic.advice import look

        commands = {read_record_command(text) for text in self.misses}
        if len(commands) == 1 and (command := commands.pop()):
            return f"  Nothing is recorded yet: {command}"
        return f"  `{look('why', store)}` says what each asked for and which recording is nearest."

    def to_json(self, log: str, code: int, final: int) -> dict[str, object]:
        """Return what it came to as plain values: the session's report, the proxy's own sum, and both exit codes."""
        sums: list[str] = _SUMMARY.findall(log)
        told = {} if self.report is None else self.report.to_json()
        counted = max(int(told.get("misses", 0)), _count_misses(sums[-1]) if sums else 0)
        return told | {
            "misses": counted,
            "miss_texts": list(self.misses),
            "refused_texts": list(self.refused),
            "summary": sums[-1] if sums else "",
            "trouble": self.trouble,
            "command_exit_code": code,
            "exit_code": int(final),
        }

    def _varying(self) -> list[str]:
        """Say how many values vary between this run and earlier ones of the cassette; what goes wrong there is no matter of this run."""
        from llmproxy.cli.parts.stores.naming import compare
        from llmproxy.core.misses.again import Again
        from llmproxy.settings import shown_path

        settings = self.loaded.settings
        learn = Again(f"llmproxy learn {shlex.quote(settings.cassette)}", "", self.loaded.list_typed(environment=False))
        typed = learn.command("", store=shown_path(settings.store))
        try:
            number = len(compare(self.loaded).lessons)
        except LLMProxyError:
            return []
        return (
            [f"llmproxy: {number} value{'s vary' if number > 1 else ' varies'} from run to run: {typed}"]
            if number
            else []
        )

    def _doubts(self, report: Report, line: str, *, used: bool) -> tuple[str, ...]:
        """Return why this run proves nothing, where a proof was asked for."""
        from llmproxy.core.sessions.outcomes.certify import Came, find_doubts

        settings = self.loaded.settings
        unused = None if report.unused is None else len(report.unused)
        came = Came(
            requests=int(used),
            refused=report.refused or len(self.refused),
            misses=report.misses or _count_misses(line),
            unused=unused,
            bound=report.bound,
        )
        fails = settings.fail_on_miss or (bool(settings.live) and settings.unknown_tool is UnknownTool.FAIL)
        return find_doubts(came, fail_on_miss=fails, strict=settings.strict)


def _count_misses(line: str) -> int:
    """Return the misses of a summary, those of other sessions among them."""
    found = _MISSES.search(line)
    return int(found[1].replace(",", "")) if found else 0


NAMED = 6
"""Variables that are named before the rest is only counted."""


def never_used(plan: EnvironmentPlan, url: str, command: tuple[str, ...] = (), *, refused: bool = False) -> list[str]:
    """Return what to say when no request arrived, or only such as were `refused`."""
    from llmproxy.client.environment.clients import PROJECTS, advise, find_clients, is_configured
    from llmproxy.protocol import PROXIES

    files = {name: Path(name).read_text("utf-8", "replace") for name in PROJECTS if Path(name).is_file()}
    clients = [each for each in find_clients(command, files) if not is_configured(each, command)]

    names = [*plan.base_urls, *(name for name in PROXIES if name in plan.others)]
    given = " ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    if refused:
        return [
            "llmproxy: THE COMMAND NEVER USED THE PROXY but for what was refused; nothing was replayed or recorded."
        ]
    return [
        f"llmproxy: THE COMMAND NEVER USED THE PROXY: no request arrived at {url}; nothing was replayed or recorded.",
        f"  It was given: {given}",
        *advise(clients),
        "  A client whose base URL stands in code or in a file does not read them. Next:",
        "    llmproxy doctor -- COMMAND      says which program went past the proxy, and what to do about it",
        "    llmproxy run --intercept -- ... catches clients whose base URL cannot be changed",
    ]
