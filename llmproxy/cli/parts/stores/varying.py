"""What varies between recorded runs of a cassette."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llmproxy.core.bindings.lessons import Lesson
    from llmproxy.settings import Loaded


class Tried(NamedTuple):
    """What a trial, or a comparison, came to."""

    lessons: Sequence[Lesson]
    code: int = 0
    """Of the command."""
    misses: tuple[str, ...] = ()
    """What could not be served, even on trial."""


def compare(loaded: Loaded) -> Tried:
    """Hold the runs that were recorded against each other. Raises CassetteError."""
    from llmproxy.cli.parts.stores.naming import find
    from llmproxy.cli.parts.stores.opening import open_given
    from llmproxy.cli.parts.telling.progress import Working
    from llmproxy.core.engine.recorded.learning import find_varying
    from llmproxy.core.keys.scrub import Rules

    settings = loaded.settings
    rules = Rules.from_config(settings.normalize.as_config())
    with open_given(settings.store) as store, Working(f"comparing the runs of {settings.cassette}"):
        find(store, settings.cassette)
        return Tried(find_varying(store, settings.cassette, rules, settings.upstream))
