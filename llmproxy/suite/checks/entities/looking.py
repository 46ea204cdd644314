"""What a step says about rows: setup inserts them, `created` finds new ones, `verify` looks at what is there, `wait` polls.

    setup     insert -> the row as the store has it, under its name
    created   rows that were not there when the step started; at least one (or `count`) has all the fields
    verify    what is there now: the row of an id, or the rows that filters select, each with all the fields
    wait      `verify` again and again until it holds, or the time is over

One `Entities` is one run of one scenario: its store, its names, its user. It emits nothing: it returns what it found as assertions,
all of them, and what cannot be evaluated is one of them, an ENVIRONMENT_ERROR. It raises only in `insert`: without its setup a
scenario must not run. Calls block (databases do, waits do): an event loop calls them in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from llmproxy.errors import LLMProxyError
from llmproxy.report.events import Assertion
from llmproxy.suite.checks.entities.baseline import Baseline, take_baseline
from llmproxy.suite.checks.entities.created import check_created
from llmproxy.suite.checks.entities.ids import row_id
from llmproxy.suite.checks.entities.items import CreatedEntity, Looking, VerifyItem, WaitSpec
from llmproxy.suite.checks.entities.rows import build_broken
from llmproxy.suite.checks.entities.verified import check_verify, check_wait
from llmproxy.suite.stores.protocol import Row


class Entities:
    """The rows of one run."""

    def __init__(
        self,
        run: Looking,
        *,
        scenario: str = "",
        sample: int = 1,
        deterministic: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        """Begin a run that may touch the entities `names`.

        With `deterministic` setup's rows get ids made of the scenario's id, the number of the run and their names.
        """
        self._run = run
        self._names = names
        self._sample = (scenario, sample)
        self._deterministic = deterministic
        self._inserted = 0

    def list_counted(self) -> list[str]:
        """Return the entities of the store's description whose keys it counts up, as far as it says so."""
        store = self._run.adapter
        if store is None:
            return []
        with suppress(LLMProxyError):
            return [name for name in self._names if store.describe(name).counted]
        return []

    def insert(self, entity: str, data: Mapping[str, object], alias: str = "", *, overwrite: bool = False) -> Row:
        """Insert a row as setup says, for the run's user, and capture it.

        Raises:
            StoreError, SuiteError, StepError: it could not be inserted; the scenario must not run.

        """
        run, store = self._run, self._run.store
        self._inserted += 1
        info = store.describe(entity)
        values: dict[str, Any] = dict(run.scope.resolve(dict(data)))
        if info.user is not None and run.user is not None and info.user not in values:
            values = {info.user: run.user, **values}
        if self._deterministic and values.get(info.key) is None:
            name = alias.removeprefix("$") or f"{entity}[{self._inserted}]"
            made = row_id(*self._sample, name, info.columns[info.key].kind)
            store.delete(entity, made)  # left by a run that was killed: nobody else makes this id
            values = {info.key: made, **values}
        row = store.insert(entity, values)
        if run.cleaner:
            run.cleaner.add(entity, row[info.key])
        run.scope.note_row(alias or f"{entity}[{self._inserted}]", entity, row, info.key)
        if alias:
            run.scope.capture(alias, row, primary=info.key, overwrite=overwrite)
        return row

    def baseline(self, entities: Sequence[str]) -> Baseline | LLMProxyError:
        """Remember what is there when a step starts; the error, for `created` to report, if it could not be looked at."""
        try:
            return take_baseline(self._run, entities)
        except LLMProxyError as error:
            return error

    def check_created(self, before: Baseline | LLMProxyError, wanted: Sequence[CreatedEntity]) -> list[Assertion]:
        """Check what a step created; every item is checked, whatever the others said."""
        made: list[Assertion] = []
        for number, item in enumerate(wanted):
            name = f"created[{number}]"
            if isinstance(before, LLMProxyError):
                made.append(build_broken(name, before))
            else:
                made += check_created(self._run, name, before, item)
        return made

    def verify(self, wanted: VerifyItem, name: str = "verify") -> list[Assertion]:
        """Check what is there now."""
        return check_verify(self._run, name, wanted)

    def wait(self, wanted: WaitSpec, name: str = "wait") -> list[Assertion]:
        """Look until it holds, or the time is over."""
        return check_wait(self._run, name, wanted)
