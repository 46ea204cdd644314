"""Suites run for real in tests: the fixture agent, a proxy, a scripted provider, and a handler that keeps what was told."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.report.events import Assertion, Completed, Finished, Message, Status, Step
from llmproxy.suite.reading.load import SuiteCase, load_suites
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.runner import SuiteResult, run_cases
from tests.scenario.people import Ear
from tests.support.process import ROOT, python


class Meeting:
    """Where agents of this process wait for each other: who goes on at the same time is asked of them, not of a clock."""

    def __init__(self) -> None:
        self.most = self._here = 0
        self._guard = threading.Lock()
        self._all = threading.Barrier(1)

    @contextmanager
    def expect(self, number: int) -> Iterator[Meeting]:
        self.most, self._all = 0, threading.Barrier(number)
        yield self

    def come(self) -> str:
        with self._guard:
            self._here += 1
            self.most = max(self.most, self._here)
        self._all.wait(60)
        with self._guard:
            self._here -= 1
        return "x"


MEETING = Meeting()
AGENT = ROOT / "fixtures" / "agents" / "tasks.py"


class Told(Ear):
    @property
    def finished(self) -> list[Finished]:
        return [each for each in self.events if isinstance(each, Finished)]

    @property
    def steps(self) -> list[Step]:
        return [each for each in self.events if isinstance(each, Step)]

    @property
    def completed(self) -> Completed:
        return next(each for each in self.events if isinstance(each, Completed))

    @property
    def said(self) -> list[str]:
        return [str(each.message["content"]) for each in self.events if isinstance(each, Message)]

    @property
    def wrong(self) -> list[Assertion]:
        return [each for step in self.steps for each in step.assertions if each.status is not Status.PASSED]

    def assertion(self, name: str) -> Assertion:
        every = [each for step in self.steps for each in step.assertions]
        found = next((each for each in every if each.name == name), None)
        assert found is not None, f"no {name} among {[each.name for each in every]}"
        return found


@dataclass
class Result:
    tested: SuiteResult
    told: Told

    @property
    def statuses(self) -> list[str]:
        return [each.status.value for each in self.told.finished]

    @property
    def why(self) -> str:
        return "\n".join(
            [f"{each.name}: {each.message}" for each in self.told.wrong] + [each.error for each in self.told.finished]
        )


def run(
    cases: Iterable[SuiteCase],
    *,
    proxy: str | None = None,
    agent: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    **options: Any,
) -> Result:
    told = Told()
    world = SuiteRunContext(
        options=SuiteCommandOptions(**options),
        proxy=proxy,
        handlers=[told],
        agent=agent,
        store=store,
        folder=folder or Path.cwd(),
    )
    try:
        tested = asyncio.run(run_cases(world, list(cases)))
        world.save_snapshots()
    finally:
        world.close()
    return Result(tested, told)


def cases_of(folder: Path, text: str, name: str = "t.suite.yaml") -> Sequence[SuiteCase]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_suites([path]).scenarios


def lines(db: Path, *options: str, **env: str) -> dict[str, Any]:
    """Return the `agent:` of the fixture agent, started by the run."""
    words = [python(), str(AGENT), "--lines", "--db", str(db), *options]
    return {"command": {"run": words, "env": env} if env else words}


def echo(folder: Path, body: str = 'return "you said " + message') -> str:
    """Write an agent in Python that asks no model; returns the `agent:` of it."""
    name = f"echo_{hashlib.sha256(body.encode()).hexdigest()[:8]}.py"  # a module is loaded once
    (folder / name).write_text(f"def answer(message, messages, thread_id):\n    {body}\n", encoding="utf-8")
    return f'{{"python": "{name}:answer"}}'
