"""What ``llmproxy replay`` says when the agent has ended: what was overridden, where the run forked, what is different, and its exit code.

4   a request was not in the recording: the run stopped at its fork
2   an override matched nothing
3   an answer could not be recorded, the proxy was gone
else the agent's own
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmproxy.amounts import duration
from llmproxy.cli.parts.telling.lines import tell_lines
from llmproxy.cli.parts.telling.printing import line
from llmproxy.errors import ENDED_BY_USER, Exit, LLMProxyError

if TYPE_CHECKING:
    from llmproxy.calls import Call
    from llmproxy.client.process import Attached
    from llmproxy.client.reports import Report
    from llmproxy.settings import Loaded

SHOWN_RESULT = 60
"""Characters of a result."""


@dataclass(slots=True)
class ReplayEnding:
    """What is said and returned after the agent."""

    proxy: Attached
    session: str
    loaded: Loaded
    command: tuple[str, ...]
    live: bool
    report: Report | None = None
    calls: tuple[Call, ...] = ()
    trouble: str = ""
    start: str = "llmproxy replay"
    """How the command began that is to be typed again."""

    def close(self) -> None:
        """Ask for everything, close the session and end the proxy, if it is ours; what goes wrong is told later."""
        from llmproxy.client.control import ControlError

        try:
            self.calls = self.proxy.control.walk(self.session)
            self.report = self.proxy.control.close(self.session)
        except ControlError as error:
            self.trouble = str(error)
        self.proxy.end()

    def tell(self, code: int, seconds: float) -> int:
        """Say what became of the run, and return the exit code."""
        from llmproxy.client.reports import one_line

        report = self.report
        if report is None or report.overrides is None:
            tell_lines(f"llmproxy: the proxy ended before the command did: {self.trouble}")
            return code or Exit.ENVIRONMENT
        said = report.overrides
        tell_lines(f"llmproxy: {one_line(report)}  (replay of {said['parent']}, {duration(seconds * 1000)})")
        tell_lines(*(f"  {line(text)}" for text in self.describe_overrides(said)))
        tell_lines(*(f"  {line(text)}" for text in self.describe_fork(said, report)))
        unmatched = [] if code in ENDED_BY_USER else list(self.describe_unmatched(said))
        tell_lines(*unmatched)
        if report.failed or self.proxy.exit_code == Exit.ENVIRONMENT:
            tell_lines("llmproxy: an answer could not be recorded: this recording is incomplete.")
            return code or Exit.ENVIRONMENT
        if report.misses:
            tell_lines(*(f"{text}" for text in report.miss_texts[:1]))
            return Exit.MISS
        if said["fork"] is not None or any(each["used"] for each in (*said["tools"], *said["answers"])):
            tell_lines(*self.describe_changes())
        return Exit.USAGE if unmatched else code

    def describe_overrides(self, said: Mapping[str, Any]) -> list[str]:
        lines = []
        for each in said["tools"]:
            if each["used"]:
                name = each["tool"] if each["nth"] is None else f"{each['tool']}#{each['nth']}"
                of = f" (recorded with {said['parent']})" if each["inherited"] else ""
                lines.append(f"{name}: returned {each['result'][:SHOWN_RESULT]}, swapped {_times(each['used'])}{of}")
        return lines + [f"LLM call {each['call']}: answer overridden" for each in said["answers"] if each["used"]]

    def describe_fork(self, said: Mapping[str, Any], report: Report) -> list[str]:
        fork = said["fork"]
        if fork is None:
            return [f"no fork: every request is in {said['parent']}, so nothing was recorded"] if self.live else []
        path = f", first at {fork['path']}" if fork["path"] else ""
        if fork["cassette"] is None:
            return [f"STOPPED at the fork, request {fork['step']}: {fork['why']}{path}"]
        from llmproxy.core.misses.again import Again
        from llmproxy.core.traffic.advice import look
        from llmproxy.settings import shown_path

        store = shown_path(self.loaded.settings.store)
        again = Again(self.start, f" -- {shlex.join(self.command)}", self.loaded.list_typed(environment=False))
        compared = look(f"diff {shlex.quote(said['parent'])} {shlex.quote(fork['cassette'])}", store)
        return [
            f"forked from {said['parent']} at request {fork['step']}: {fork['why']}{path}",
            f"recorded {report.recorded} new; replay it: {again.command('', fork['cassette'], store=store)}",
            f"compare: {compared}",
        ]

    def describe_unmatched(self, said: Mapping[str, Any]) -> list[str]:
        """Say which overrides matched nothing."""
        seen = ", ".join(said["seen"]) or "none"
        lines = [
            f"llmproxy: --override-tool {each['tool']}{'' if each['nth'] is None else '#' + str(each['nth'])}: no such result was in"
            f" the agent's requests. Tools seen: {seen}."
            for each in said["tools"]
            if not each["used"] and not each["inherited"]
        ]
        calls = said["llm_calls"]
        return lines + [
            f"llmproxy: --override-llm {each['call']}: the agent called the model {_times(calls)}"
            + (f" (0 to {calls - 1})." if calls else ".")
            for each in said["answers"]
            if not each["used"]
        ]

    def describe_changes(self) -> list[str]:
        """Say what the run did otherwise than its parent."""
        from llmproxy.trace import Cassette, ReplayDiff, render
        from llmproxy.trace.files.told import cassette

        report = self.report
        if report is None or report.overrides is None:
            return []
        run = cassette(self.calls, report.cassette)
        try:
            parent = Cassette.from_store(
                self.loaded.settings.store,
                cassette=report.overrides["parent"],
                sample=report.overrides["parent_sample"],
            )
        except LLMProxyError:  # a proxy elsewhere, with a store of its own
            return []
        diff = ReplayDiff.compute(parent, run)
        if not diff.has_changes:
            return [f"  nothing is different from {line(parent.name)}"]
        return ["What is different:", *(f"  {row}" for row in render(diff, color=False, width=_width()).splitlines())]


def _width() -> int:
    import shutil

    return min(shutil.get_terminal_size().columns - 2, 160)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
