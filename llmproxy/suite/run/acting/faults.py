"""Faults on purpose of a scenario, and of a step in their place: set, taken back, and held to have happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.client.reports import find_unstruck
from llmproxy.errors import SuiteError
from llmproxy.report.events import Assertion, Status

if TYPE_CHECKING:
    from llmproxy.suite.run.acting.stage import Done, Stage

NAME = "faults"


def asked_faults(value: object, folder: Path) -> Mapping[str, Any] | None:
    """Return what `faults:` asks for as a session takes it; a file lies beside the suite. Raises SuiteError."""
    if value is None:
        return None
    from llmproxy.core.faults import BadFaults, faults_for_session

    try:
        return faults_for_session(value, folder if isinstance(value, str) else None).to_json()
    except BadFaults as error:
        raise SuiteError(f"faults: {error.message.removeprefix('faults: ')}", hint=error.hint) from error


@asynccontextmanager
async def meet_faults(stage: Stage, value: object, done: Done) -> AsyncIterator[None]:
    """Let a step meet faults of its own; one that was sure to strike and did not is an error of the step, put into `done`."""
    if value is None:
        yield
        return
    if stage.session is None:
        raise SuiteError("faults: this scenario has no proxy, so nothing can be broken on purpose.")
    await stage.session.meet(asked_faults(value, stage.case.folder))
    try:
        yield
    finally:
        met = await stage.session.meet(asked_faults(stage.case.scenario.faults, stage.case.folder), again=True)
        done.rest += [
            Assertion(name=NAME, status=Status.ENVIRONMENT_ERROR, message=text) for text in find_unstruck(met)
        ]
