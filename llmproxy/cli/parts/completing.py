"""What a shell completes beyond commands and options: names of cassettes and of models, out of the store that is meant.

Asked at each tab: a store that cannot be read completes nothing, and never says so into somebody's command line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.errors import LLMProxyError

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store

__all__ = ["cassettes", "choices", "models"]


def cassettes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a cassette, or of a sample of one."""
    return _known(ctx, incomplete, _cassettes)


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a model that was recorded, as litellm names it: ``openai/gpt-4o-mini``."""
    return _known(ctx, incomplete, _models)


def choices(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes one of these words."""
    known = list(words)
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def _known(ctx: typer.Context, incomplete: str, read: Callable[[Store], Iterator[str]]) -> list[str]:
    from llmproxy.core.store.opening import open_store
    from llmproxy.settings import load

    with suppress(LLMProxyError, OSError):
        path = load({"store": ctx.params.get("store")}, os.environ, Path.cwd()).settings.store
        with open_store(path, writable=False, now=time.time) as store:
            known = dict.fromkeys(read(store))
        return [name for name in known if name.startswith(incomplete) and name.isprintable()]
    return []


def _cassettes(store: Store) -> Iterator[str]:
    for info in store.cassettes():
        yield info.name if info.sample == 1 else f"{info.name}~{info.sample}"


def _models(store: Store) -> Iterator[str]:
    for provider, model in store.rows("SELECT DISTINCT provider, model FROM interactions WHERE model IS NOT NULL"):
        yield f"{provider}/{model}"
