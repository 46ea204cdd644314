"""What a run is recorded as that says nothing itself.

A test runner says it where there is one (each test has its place). Else the name does; and scenarios of one name which are not the same
(another description, other fields, other scripted words), such as those of a loop over data, have recordings of their own: the second is
`NAME.2`. The same scenario run again is the same scenario, and meets its recording again. Numbers are given in the order in which a process
first runs them, which is the same whenever the program is.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmproxy.client.host import HOST, Host
from llmproxy.scenario.script import Step
from llmproxy.scenario.types import ScriptStep
from llmproxy.scenario.values.run import cassette_of

if TYPE_CHECKING:
    from llmproxy.scenario.values.run import RunOptions


class Namesakes:
    """Names that were given out, and to whom; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._given: dict[str, dict[str, int]] = {}

    def name(self, cassette: str, about: str) -> str:
        """Return the name of whoever is `about`: the same for the same, and numbered from the second on."""
        with self._guard:
            known = self._given.setdefault(cassette, {})
            number = known.setdefault(about, len(known) + 1)
        return cassette if number == 1 else f"{cassette}.{number}"


_NAMESAKES = Namesakes()
"""Of this process."""


def recorded_as(
    name: str,
    set_id: str | None,
    description: str,
    script: Sequence[ScriptStep] | None,
    options: RunOptions,
    *,
    host: Host = HOST,
    namesakes: Namesakes = _NAMESAKES,
) -> str:
    """Return the name of a scenario's recording."""
    if options.cassette:
        return options.cassette
    own = cassette_of(name, set_id)
    return (
        namesakes.name(own, _digest_scenario(description, script, options)) if host.place is None else host.place(own)
    )


def _digest_scenario(description: str, script: Sequence[ScriptStep] | None, options: RunOptions) -> str:
    """Return a digest of what tells two scenarios of one name apart and is the same in the next run."""
    steps = [[step.kind, step.said] if isinstance(step, Step) else _name_thing(step) for step in script or ()]
    given = [options.fields, options.parameters, options.history, options.mock]
    text = json.dumps([description, steps, given], sort_keys=True, skipkeys=True, default=_name_thing)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _name_thing(thing: object) -> str:
    """Return what is the same of an object in every process."""
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)
