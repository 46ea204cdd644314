"""A whole cassette as a conversation at the terminal: what the viewer's first screen says, in text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.amounts import dollars, duration, format_count, number, when
from llmproxy.cli.parts.stores.naming import find
from llmproxy.cli.parts.stores.opening import open_given
from llmproxy.cli.parts.telling.printing import dump, line, paragraphs, room, say, wrap_text
from llmproxy.core.traffic.advice import look, quote_word
from llmproxy.errors import SettingsError

if TYPE_CHECKING:
    from llmproxy.core.store.reading import Reading
    from llmproxy.core.traffic.interaction import Interaction

_HEADS = {"user": "asked", "answer": "answered", "says": "said", "failed": "failed", "call": "called", "tool": "did"}
_INDENT = 17
"""Cells before a text: the call, and what happened."""


def show_cassette(typed: str, store: Path | None, *, single: str, as_json: bool) -> None:
    """Print a cassette, or one sample of it.

    `single` is an option that makes sense for one interaction only, where it was typed. Raises CassetteNotFound, SettingsError.
    """
    from llmproxy.core.forks.table import fork_of

    with open_given(store) as database:
        named = find(database, typed)
        if single:
            raise SettingsError(
                f"{single} is for one interaction, by its number; {line(typed)} is a cassette.",
                hint=f"Its numbers: {look(f'ls --cassette {quote_word(named.cassette)}', database.path)}",
            )
        samples = [info.sample for info in database.cassettes(named.cassette) if named.sample in (None, info.sample)]
        if as_json:
            dump([_plain(database, named.cassette, sample) for sample in samples])
            return
        cells = room()
        for n, sample in enumerate(samples):
            told = _plain(database, named.cassette, sample)
            say(("\n" if n else "") + "\n".join(wrap_text(_sums(told), cells)))
            if (fork := fork_of(database, named.cassette, sample)) is not None:
                say(line(fork.describe()))
            for text in conversation(told["steps"], cells):
                say(text)
            if not told["steps"]:
                listed = look(f"ls {quote_word(named.cassette)}", database.path)
                say(f"It holds no conversation with a model; what was asked of tools: {listed}")
            for each in told["differences"]:
                say("\n".join(["", *wrap_text(paragraphs(f"differs: {each}"), cells)]))


def _plain(store: Reading, cassette: str, sample: int) -> dict[str, Any]:
    from llmproxy.core.providers.table import MCP_PREFIX
    from llmproxy.trace.observing.recorded_wire import find_kept_differences
    from llmproxy.ui.recordings.rows import WantedCalls, sums
    from llmproxy.ui.recordings.story import story

    of_tools = False

    def read_interactions() -> Iterator[Interaction]:
        nonlocal of_tools
        for each in store.interactions(cassette, sample):
            of_tools = of_tools or each.operation.startswith(MCP_PREFIX)
            yield each

    wanted = WantedCalls(cassette, sample)
    told = {"cassette": cassette, "sample": sample, **sums(store, wanted), "steps": story(read_interactions())}
    return told | {"differences": find_kept_differences(read_interactions()) if of_tools else []}


def _sums(told: Mapping[str, Any]) -> str:
    """Return what a recording comes to, in a line."""
    name = told["cassette"] if told["sample"] == 1 else f"{told['cassette']}~{told['sample']}"
    unpriced = f" ({format_count(told['unpriced'], 'call')} of unknown price)" if told["unpriced"] else ""
    cost = f"{dollars(told['cost'])}{unpriced}" if told["cost"] is not None else "cost unknown"
    parts = [
        format_count(told["calls"], "call"),
        f"{told['failed']} failed" if told["failed"] else "",
        f"{number(told['in'])} tokens in, {number(told['out'])} out",
        cost,
        duration(max(told["to"] - told["from"], 0) * 1000) if told["from"] else "",
        when(told["from"] or 0),
    ]
    return f"{line(name)}: {', '.join(filter(None, parts))}"


def conversation(steps: list[dict[str, Any]], room: int | None) -> Iterator[str]:
    """Yield the lines of a story for a terminal of `room` cells, None for a pipe, where no line is broken."""
    before: object = None
    for step in steps:
        call = step.get("call")
        mark = f"#{call}" if call is not None and call != before else ""
        if mark:
            yield ""
        before = call
        inside = "  " * min(step.get("depth", 0), 6)
        head = f"{mark:<7}{_HEADS.get(step['kind'], step['kind']):<9} {inside}"
        for n, text in enumerate(wrap_text(paragraphs(_format_step(step).rstrip()), room, _INDENT + len(inside))):
            yield (head if n == 0 else " " * (_INDENT + len(inside))) + text


def _format_step(step: Mapping[str, Any]) -> str:
    """Return the text of a step; of a tool's call what was given and what came back."""
    if step["kind"] != "tool":
        again = " (asked again)" if step.get("again") else ""
        error = f": {step['error']}" if step.get("error") else ""
        return f"{step.get('text') or '(nothing)'}{error}{again}"
    result = step.get("result")
    return f"{step.get('name') or '(no name)'} {step.get('given') or ''}\n-> {'(no result seen)' if result is None else result}"
