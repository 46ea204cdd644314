"""What a shell completes beyond commands and options: names of cassettes and of models, out of the store that is meant.

Asked at each tab: a store that cannot be read completes nothing, and never says so into somebody's command line. Bash
takes a colon for the end of a word and inserts what it gets as it is, and names of pytest have colons, brackets and
spaces: :func:`adapt_to_bash` sees to both. Zsh runs what it gets, and typer does not quote for it whatever a name may
hold: such a name is not offered there.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.errors import LLMProxyError
from llmproxy.protocol import join_name

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store

_COLONS = re.compile(r"\n(:+)(?:\n|$)")
_ESCAPED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")
_NOT_FOR_ZSH = re.compile(r"[\\\"']|\s\s")
"""A backslash before a quote ends typer's quoting of a name, and the rest would be run; others arrive changed."""


@contextmanager
def adapt_to_bash(env: MutableMapping[str, str]) -> Iterator[None]:
    """Answer bash as it asks: words parted at colons are one, and it gets only what is missing of what is printed."""
    if env.get("_LLMPROXY_COMPLETE") != "complete_bash":
        yield
        return
    words = env.get("COMP_WORDS", "")
    joined = _COLONS.sub(r"\1", words)
    env["COMP_WORDS"] = joined
    env["COMP_CWORD"] = str(int(env["COMP_CWORD"]) - words.count("\n") + joined.count("\n"))
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        there = _ESCAPED.sub(r"\1", joined.rpartition("\n")[2]).rfind(":") + 1
        for name in offered.getvalue().splitlines():
            typer.echo(_SPECIAL.sub(r"\\\g<0>", name[there:]))


def complete_cassettes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete_from_store(ctx, incomplete, _list_cassette_names)


def complete_models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a model that was recorded, as litellm names it: ``openai/gpt-4o-mini``."""
    return _complete_from_store(ctx, incomplete, _list_model_names)


def complete_words(words: Iterable[str]) -> Callable[[str], list[str]]:
    known = list(words)
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def _complete_from_store(ctx: typer.Context, incomplete: str, read: Callable[[Store], Iterator[str]]) -> list[str]:
    from llmproxy.core.store.file.store import open_store
    from llmproxy.settings import load

    with suppress(LLMProxyError, OSError):
        path = load({"store": ctx.params.get("store")}, os.environ, Path.cwd()).settings.store
        with open_store(path, writable=False, now=time.time) as store:
            known = dict.fromkeys(read(store))
        unfit = _NOT_FOR_ZSH.search if os.environ.get("_LLMPROXY_COMPLETE") == "complete_zsh" else lambda _: None
        return [name for name in known if name.startswith(incomplete) and name.isprintable() and not unfit(name)]
    return []


def _list_cassette_names(store: Store) -> Iterator[str]:
    for info in store.cassettes():
        yield join_name(info.name, info.sample)


def _list_model_names(store: Store) -> Iterator[str]:
    for provider, model in store.query("SELECT DISTINCT provider, model FROM interactions WHERE model IS NOT NULL"):
        yield f"{provider}/{model}"
