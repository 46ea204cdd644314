"""Shell completion of cassette names and models from the selected store.

It runs at each tab: an unreadable store completes nothing, and prints nothing into the command line. Bash splits words
at colons and inserts completions unquoted: :func:`adapt_bash_completion_words` handles both. Zsh evaluates completions,
and typer does not quote every character that a name may have: such a name is not offered there.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.errors import LLMProxyError
from llmproxy.protocol import append_sample_number_to_name

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store

_COLONS = re.compile(r"\n(:+)(?:\n|$)")
_ESCAPED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")
_NOT_FOR_ZSH = re.compile(r"[\\\"']|\s\s")
"""Unsafe characters: a backslash before a quote ends typer's quoting, and zsh would run the rest."""


@contextmanager
def adapt_bash_completion_words(env: MutableMapping[str, str]) -> Iterator[None]:
    """Adapt completions to bash: join words that it split at colons, and return only the missing part of each."""
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


def complete_cassette_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete_from_store(
        ctx,
        incomplete,
        lambda store: (append_sample_number_to_name(info.name, info.sample) for info in store.cassettes()),
    )


def complete_model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a recorded model by litellm's name: ``openai/gpt-4o-mini``."""
    query = "SELECT DISTINCT provider, model FROM interactions WHERE model IS NOT NULL"
    return _complete_from_store(ctx, incomplete, lambda store: map("/".join, store.query(query)))


def make_word_completer(words: Sequence[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _complete_from_store(ctx: typer.Context, incomplete: str, read: Callable[[Store], Iterable[str]]) -> list[str]:
    from llmproxy.core.store.file.store import open_store
    from llmproxy.settings import load

    with suppress(LLMProxyError, OSError):
        path = load({"store": ctx.params.get("store")}, os.environ, Path.cwd()).settings.store
        with open_store(path, writable=False, now=time.time) as store:
            known = dict.fromkeys(read(store))
        unfit = _NOT_FOR_ZSH.search if os.environ.get("_LLMPROXY_COMPLETE") == "complete_zsh" else lambda _: None
        return [name for name in known if name.startswith(incomplete) and name.isprintable() and not unfit(name)]
    return []
