"""The proxy's terminal output: one line per ended request, and the totals.

Lines are aligned under headings, plain in a pipe (or with NO_COLOR) and coloured on a terminal, where the beginning of
prompt and answer fills the width. Text from the wire is made printable first, so that a model's name cannot move the
cursor. A console never raises into the proxy: after a closed pipe it is silent. Lines are collected for 20 ms and
written together: separately, each costs more than three times as much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from shlex import quote
from typing import TextIO

from llmproxy.advice import format_command
from llmproxy.amount_formatting import dollars, format_count
from llmproxy.core.providers.provider_table import format_base_url_assignments
from llmproxy.protocol import BUNDLES, DEFAULT_STORE, NODE_CA, NODE_PROXY, OFFLINE, PROXIES, Channel, Decision, Mode
from llmproxy.proxy_calls import Call, Totals, Use, describe_replay_hits, describe_served_failures, describe_stubs
from llmproxy.report.request_line import (
    describe_request_handling,
    escape,
    format_column_headings,
    format_request_line,
    paint,
)

_HEADS_AGAIN = 40
"""Lines after which a terminal gets the column headings again."""
_TOGETHER = 0.02
"""Seconds for which lines of requests are collected."""


def wants_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Return whether to use colours: a capable terminal without NO_COLOR (https://no-color.org)."""
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty()


def get_width_if_terminal(stream: TextIO) -> int | None:
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStarted:
    url: str
    mode: Mode
    store: str
    cassette: str
    upstreams: tuple[tuple[str, str, object], ...] = ()
    """Providers with another address than in the table: name, base URL, source."""
    live: tuple[Channel, ...] = ()
    ca: str = ""
    """Certificate of the authority that intercepted clients must trust; empty without interception."""
    ca_bundle: str = ""
    """The same with all other trusted certificates."""


class Console:
    """Writes to a terminal or a pipe what a proxy does. Never raises; does not block."""

    def __init__(
        self, stream: TextIO, *, colour: bool = False, quiet: bool = False, verbose: bool = False,
        room: Callable[[], int | None] = lambda: None, zone: tzinfo | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:  # fmt: skip
        """Write to `stream`.

        `quiet` shows only misses, losses and the summary, `verbose` adds the steps of each request. `room` returns the
        terminal's current width, None for a pipe. `later` calls a function after this many seconds, so that lines of
        requests are written together (`flush` at the end); without it they are written at once.
        """
        self._later, self._waiting = later, list[Call]()
        self._stream, self._room, self._zone = stream, room, zone
        self._colour, self._quiet, self._verbose = colour, quiet, verbose
        self._lines = 0
        self._gone = False
        self._store = DEFAULT_STORE

    def on_start(self, info: ProxyStarted) -> None:
        self._store = info.store
        if not self._quiet:
            self._write_lines(*format_start_lines(info))

    def on_call(self, call: Call) -> None:
        if self._quiet and not call.lost and call.decision is not Decision.REFUSE:
            return
        self._waiting.append(call)
        if self._later is None:
            self.flush()
        elif len(self._waiting) == 1:
            self._later(_TOGETHER, self.flush)

    def note(self, text: str) -> None:
        self._write_lines(paint(f"llmproxy: {escape(text, None)}", "note", colour=self._colour))

    def on_end(self, totals: Totals, unused: int | None) -> None:
        first, *others = format_totals(totals, unused, self._store)
        self._write_lines(first, *(paint(text, "MISS", colour=self._colour) for text in others))

    def flush(self) -> None:
        self._write_lines()

    def _write_lines(self, *lines: str) -> None:
        calls, self._waiting = self._waiting, []
        if self._gone:
            return
        text = "".join(f"{text}\n" for text in (*self._format_call_lines(calls), *lines))
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the reader left, or the stream was closed
            self._gone = True

    def _format_call_lines(self, calls: Iterable[Call]) -> Iterator[str]:
        room = self._room()
        for call in calls:
            # Heads stand above the first line; on a terminal they scroll away, so again and again.
            if not self._quiet and (self._lines == 0 or (room is not None and self._lines % _HEADS_AGAIN == 0)):
                yield paint(format_column_headings(room), "dim", colour=self._colour)
            self._lines += 1
            yield format_request_line(call, colour=self._colour, zone=self._zone, room=room)
            if self._verbose:
                yield from describe_request_handling(call)


def format_start_lines(info: ProxyStarted) -> list[str]:
    what = f"llmproxy: {info.url}  mode {info.mode}  store {escape(info.store)}  cassette {escape(info.cassette)}"
    upstreams = [f"  upstream {name} = {escape(url)} ({escape(str(source))})" for name, url, source in info.upstreams]
    lines = [what, *upstreams, f"  export {format_base_url_assignments(info.url)}"]
    if info.ca:
        lines.append(f"  HTTPS of LLM hosts is intercepted; clients must trust {escape(info.ca, None)}")
        proxied = dict.fromkeys(PROXIES, info.url) | {NODE_PROXY: "1"}
        trusting = dict.fromkeys(BUNDLES, str(info.ca_bundle)) | {NODE_CA: info.ca}
        for variables in (proxied, trusting):
            words = (f"{name}={quote(escape(value, None))}" for name, value in variables.items())
            lines.append(f"  export {' '.join(words)}")
        lines.append(f'  or all of them, Java\'s and NO_PROXY too: eval "$(llmproxy env --intercept --url {info.url})"')
    if info.live:
        served = ", ".join(channel for channel in Channel if channel not in info.live) or "nothing"
        lines.append(f"  live: {', '.join(info.live)}; served from the recording: {served}")
    if info.mode in OFFLINE and Channel.LLM not in info.live:
        lines.append("  No API key is needed; where an SDK insists on one, any text will do.")
    return lines


def format_totals(totals: Totals, unused: int | None, store: str = DEFAULT_STORE) -> list[str]:
    """Return the totals on one line, and one more for each problem.

    `unused`: number of unused recordings, None if unknown; `store` is its path for display.
    """
    hits = describe_replay_hits(totals, lambda names: escape(names, None))
    counts = [hits, format_count(totals.misses, "miss", "misses"), f"{totals.recorded} recorded"]
    optional = {"passed": totals.passed, "refused": totals.refused, "unused": unused}
    counts += [f"{number} {word}" for word, number in optional.items() if number]
    counts += [format_count(totals.injected, "injected fault")] if totals.injected else []
    counts += filter(None, [describe_stubs(totals)])
    uses = _format_use(totals.saved, "not spent"), _format_use(totals.spent, "spent")
    lines = ["; ".join(filter(None, [", ".join(counts), *uses]))]
    if totals.misses:
        lines.append(f"`{format_command('why', store)}` says what each miss asked for and which recording is nearest.")
    lines += filter(None, [describe_served_failures(totals)])
    if totals.dealt:
        what = format_count(totals.dealt, "hit")
        lines.append(f"{what} of equal requests at the same time got their answers in the order of arrival")
    if totals.failed:
        lines.append(f"{format_count(totals.failed, 'answer')} could not be recorded: this recording is incomplete.")
    return lines


def _format_use(use: Use, what: str) -> str:
    """Return what hits saved, or live calls spent; empty if there is nothing."""
    tokens = (use.input or 0) + (use.output or 0)
    amounts = [f"{format_count(tokens, 'token')}"] if tokens else []
    if use.cost is not None:
        amounts.append(dollars(use.cost))
    known = f"{', '.join(amounts)} {what}" if amounts else ""
    unknown = f"{format_count(use.unpriced, 'call')} whose price or tokens are not known" if use.unpriced else ""
    return f"{known} ({unknown})" if known and unknown else known or unknown
