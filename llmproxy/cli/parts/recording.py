"""What records a cassette that is not there yet, with everything that was typed for the command that needs it."""

from __future__ import annotations

from llmproxy.settings import Loaded


def record_first(loaded: Loaded) -> str:
    """Return the command line; it fits under the user's own command, which stands for COMMAND."""
    from llmproxy.core.misses.again import Again
    from llmproxy.settings import shown_path

    again = Again("llmproxy run", " -- COMMAND", loaded.typed(environment=False))
    return again.command("record", loaded.settings.cassette, store=shown_path(loaded.settings.store))
