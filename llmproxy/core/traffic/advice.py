"""The words of a command that advice prints: typed as it stands it looks into the store that the advice is about.

What starts a proxy again is `core.misses.again`. No other text of the product names a command that reads or makes
recordings: tests/test_advice.py reads every string and knows the few that need nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from llmproxy.core.traffic.differences import printable
from llmproxy.protocol import DEFAULT_STORE
from llmproxy.store_server import show_store


def suggest_command(command: str, store: str | Path) -> str:
    """Return the line that runs `command` (``show 12``) on a store."""
    return f"llmproxy {command}{store_words(store)}"


def store_words(store: str | Path) -> str:
    """Return `` --store PATH``; nothing for the default one, however it is written."""
    said = show_store(store)
    return "" if said in (DEFAULT_STORE, str(Path.cwd() / DEFAULT_STORE)) else f" --store {quote_word(said)}"


def quote_word(text: str) -> str:
    """Return one word of a shell, without what would move a terminal's cursor."""
    return shlex.quote(printable(text))
