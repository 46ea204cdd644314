"""What records a cassette that is not there yet, with everything that was typed for the command that needs it."""

from __future__ import annotations

from llmproxy.settings import Loaded


def record_first(loaded: Loaded, cassette: str = "") -> str:
    """Return the command line for a cassette, by default the settings'; it fits under the user's own command, which stands for COMMAND."""
    from llmproxy.core.misses.again import Again
    from llmproxy.settings import shown_path

    again = Again("llmproxy run", " -- COMMAND", loaded.list_typed(environment=False))
    return again.command("record", cassette or loaded.settings.cassette, store=shown_path(loaded.settings.store))
