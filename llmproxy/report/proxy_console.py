"""The proxy's terminal output: one line per ended request, and the totals.

A pipe (or NO_COLOR) gets plain lines with every column; a terminal the columns that fit, and the beginning of prompt
and answer in the remaining width. Text from the wire is made printable first, so that a model's name cannot move the
cursor. A console never raises into the proxy: after a closed pipe it is silent. Lines are collected for 20 ms and
written together: separately, each costs more than three times as much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from shlex import quote
from typing import Any, NamedTuple, TextIO
from unicodedata import combining, east_asian_width

from llmproxy import protocol
from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import dollars, format_clock, format_count, format_milliseconds, format_tokens_in_out
from llmproxy.calls_and_totals import (
    Call,
    Totals,
    UsageSums,
    describe_replay_hits,
    describe_replayed_failures,
    describe_stubbed_calls,
)
from llmproxy.errors import printable
from llmproxy.protocol import AGENT, DEFAULT_SESSION, DEFAULT_STORE, OFFLINE, Channel, Decision, Mode

_BORDERS = " /:,-"


def count_terminal_cells(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_count_char_cells, text))


def clip_to_terminal_cells(text: str, room: int) -> str:
    """Return the part of a text that fits into `room` cells, with a mark if cut."""
    if count_terminal_cells(text) <= room:
        return text
    return text[: _count_fitting_chars(text, room - 1)].rstrip() + "…" if room > 0 else ""


def clip_middle(text: str, room: int) -> str:
    """Return a name cut in the middle to fit: long names often differ only at the end."""
    if count_terminal_cells(text) <= room:
        return text
    front = clip_to_terminal_cells(text, (room + 2) // 3)
    return front + text[len(text) - _count_fitting_chars(text[::-1], room - count_terminal_cells(front)) :]


def wrap_to_terminal_cells(text: str, room: int, borders: str = _BORDERS) -> list[str]:
    """Return all lines of a text in a column of `room` cells, broken after a border if one is near."""
    lines = []
    while count_terminal_cells(text) > room:
        most = max(_count_fitting_chars(text, room), 1)
        near = max(text.rfind(border, 0, most) for border in borders) + 1
        end = near if near > most // 2 else most
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]


def pad_to_terminal_cells(text: str, room: int, *, right: bool = False) -> str:
    spaces = " " * (room - count_terminal_cells(text))
    return spaces + text if right else text + spaces


def _count_fitting_chars(text: str, room: int) -> int:
    if text.isascii():
        return min(len(text), max(room, 0))
    taken = 0
    for n, char in enumerate(text):
        taken += _count_char_cells(char)
        if taken > room:
            return n
    return len(text)


def _count_char_cells(char: str) -> int:
    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1


_COLOURS = {
    "REPLAY": "32", "REPLAY~": "32", "CARRIED": "33", "STUB": "36", "RECORD": "36", "PASS": "33", "REFUSE": "31",
    "MISS": "1;31", "FAULT": "35", "note": "33", "dim": "2",
}  # fmt: skip
_LONGEST = 100
"""Maximum characters shown of a name from the wire."""
_NOTE = 300
"""Maximum characters of a note: an address and a reason."""
_TEXT = 60
"""Characters of prompt and answer each in a pipe."""
_FEWEST = 8
"""Least useful width of a text."""
_SESSION = 20
"""Width reserved for a session's name before any text."""
_REMEMBERED = 512
"""Size of the cache of lines that differ only in time and duration."""


class _Column(NamedTuple):
    head: str
    cells: int
    narrow: int
    """Width on a terminal narrower than `_WIDE`."""
    since: int = 0
    """Least terminal width that shows it."""
    right: bool = False

    def is_shown(self, room: int | None) -> bool:
        return room is None or room >= self.since


_WIDE = 120
_WIDEST = 160
_TOOK = _Column("took", 8, 8, right=True)
_COLUMNS = (
    _Column("time", 8, 8), _Column("what", 7, 7), _Column("provider", 9, 9, since=_WIDE), _Column("model", 24, 16),
    _Column("operation", 16, 16, since=_WIDEST), _Column("status", 6, 6), _TOOK,
    _Column("tokens", 12, 10, since=100, right=True),
)  # fmt: skip


_format_clock = lru_cache(4)(format_clock)


def format_console_call_table_header(room: int | None = None) -> str:
    texts = {column.head: column.head for column in _COLUMNS}
    head = "  ".join([*_format_columns(texts, room), "recording, session", "prompt -> answer"])
    return head if room is None else clip_to_terminal_cells(head, room)


def format_console_call_line(
    call: Call, *, colour: bool = False, zone: tzinfo | None = None, room: int | None = None
) -> str:
    """Return the line of one request; `zone`: the machine's own by default, `room`: terminal width, None for a pipe."""
    before, after = _format_around_duration(call.fields_without_timing, colour, room)
    took = format_milliseconds(call.ms)
    took = took if room is None else clip_to_terminal_cells(took, _TOOK.cells)
    took = pad_to_terminal_cells(took, _TOOK.cells, right=True)
    return f"{paint(_format_clock(int(call.at), zone), 'dim', colour=colour)}  {before}  {took}{after}"


@lru_cache(_REMEMBERED)
def _format_around_duration(alike: tuple[Any, ...], colour: bool, room: int | None) -> tuple[str, str]:  # noqa: FBT001
    """Return the parts of a line between time and duration, and after that, for calls that differ only in these."""
    call = Call(*alike)
    replayed = call.decision is Decision.REPLAY
    word = "MISS" if call.miss and call.decision is Decision.REFUSE else call.decision.value
    word = "CARRIED" if call.carried and replayed else "REPLAY~" if call.bound and replayed else word
    word = "STUB" if call.stub else word
    cells = {
        "time": "",
        "what": word,
        "provider": make_printable(call.provider or "-"),
        "model": make_printable(call.model or "-"),
        "operation": make_printable(call.operation or f"{call.method} {call.target}"),
        "status": str(call.status or "-"),
        "took": "",
        "tokens": format_tokens_in_out(call.input, call.output),
    }
    columns = list(_format_columns(cells, room))
    left = None if room is None else room - count_terminal_cells("  ".join(columns))
    extras = [*_list_trailing_details(call, left, key=room is None or room >= _WIDEST)]
    plain = "  ".join([*columns, *extras])
    said = _fit_prompt_and_answer(call, None if room is None else room - count_terminal_cells(plain) - 3)
    columns[1] = paint(columns[1], word, colour=colour)
    at = [column for column in _COLUMNS if column.is_shown(room)].index(_TOOK)
    behind = [*columns[at + 1 :], *extras, *([paint(said, "dim", colour=colour)] if said else [])]
    return "  ".join(columns[1:at]), "".join(f"  {each}" for each in behind).rstrip()


def _format_columns(cells: dict[str, str], room: int | None) -> Iterator[str]:
    for column in _COLUMNS:
        if not column.is_shown(room):
            continue
        size = column.cells if room is None or room >= _WIDE else column.narrow
        text = cells[column.head] if room is None else clip_to_terminal_cells(cells[column.head], size)
        yield pad_to_terminal_cells(text, size, right=column.right)


def _list_trailing_details(call: Call, room: int | None, *, key: bool) -> Iterator[str]:
    """Yield the details after the columns, in `room` cells; `key`: also of a miss."""
    found = f"#{call.interaction}" if call.interaction is not None else ""
    digest = call.key.partition(":")[2][:8] if call.key and key and not found else ""
    party = f"({make_printable(call.party)})" if call.party != AGENT else ""
    near = f"nearest #{call.nearest}" if call.nearest is not None else ""
    session = make_printable(call.session) if call.session != DEFAULT_SESSION else ""
    if session and room is not None:
        left = room - sum(count_terminal_cells(each) + 2 for each in (found or digest, party, near) if each) - 2
        session = clip_middle(session, max(min(left, _SESSION), left // 2, _FEWEST))
    note = make_printable(call.note, _NOTE) if call.note else ""
    yield from filter(None, (found or digest, session, party, near, note))


def _fit_prompt_and_answer(call: Call, room: int | None) -> str:
    """Return prompt and answer cut to `room`; a short one leaves its share to the other."""
    texts = [printable(" ".join(text.split())) for text in (call.asked, call.answered)]
    if not any(texts):
        return ""
    arrow = " -> " if texts[1] else ""
    if room is None:
        return arrow.join(clip_to_terminal_cells(text, _TEXT) for text in texts)
    if room < _FEWEST:
        return ""
    half = (room - len(arrow)) // 2
    first = max(half, room - len(arrow) - count_terminal_cells(texts[1])) if texts[1] else room
    asked = clip_to_terminal_cells(texts[0], first)
    return arrow.join([asked, clip_to_terminal_cells(texts[1], room - len(arrow) - count_terminal_cells(asked))])


def describe_how_call_was_handled(call: Call) -> list[str]:
    what = " ".join(filter(None, (call.provider, call.operation))) or "no provider"
    times = f", attempt {call.attempt + 1} of its client" if call.attempt else ""
    found = f"recording #{call.interaction}" if call.decision is Decision.REPLAY and call.interaction else ""
    near = f"nothing; recording #{call.nearest} is nearest" if call.nearest is not None else ""
    nth = f", its arrival {call.occurrence} in this session" if call.occurrence else ""
    first = f", first byte after {format_milliseconds(call.first_ms)}" if call.first_ms is not None else ""
    kept = f", kept as #{call.interaction}" if call.decision is Decision.RECORD and call.interaction else ""
    rows = {
        "came": f"{call.method} {call.target}{times}",
        "placed": f"call {call.seq or '-'} of session {call.session}, by {call.party}: {what}",
        "key": f"{call.key}{nth}" if call.key else "none was derived",
        "found": found or near or ("nothing" if call.miss else ""),
        "bound": ", ".join(call.bound),
        "carried": ", ".join(call.carried),
        "answer": f"{call.decision.value} {call.status or '-'}{first}, ended after "
        f"{format_milliseconds(call.ms)}{kept}",
    }
    return [f"    {name:<7} {make_printable(text, _NOTE)}" for name, text in rows.items() if text]


def make_printable(text: str, longest: int | None = _LONGEST) -> str:
    shown = text
    if not text.isprintable():
        shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"


def paint(text: str, what: str, *, colour: bool) -> str:
    return f"\x1b[{_COLOURS[what]}m{text}\x1b[0m" if colour else text


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
class ProxyStartInfo:
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


class ProxyConsole:
    """Writes to a terminal or a pipe what a proxy does. Never raises; does not block."""

    def __init__(
        self, stream: TextIO, *, colour: bool = False, quiet: bool = False, verbose: bool = False,
        room: Callable[[], int | None] = lambda: None, zone: tzinfo | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:  # fmt: skip
        """Write to `stream`; `quiet`: only misses, losses and the summary, `verbose`: also the steps of each request.

        `room` returns the terminal's current width, None for a pipe. `later` calls a function after this many seconds,
        so that lines of requests are written together (`flush` at the end); without it they are written at once.
        """
        self._later, self._waiting = later, list[Call]()
        self._stream, self._room, self._zone = stream, room, zone
        self._colour, self._quiet, self._verbose = colour, quiet, verbose
        self._lines = 0
        self._gone = False
        self._store = DEFAULT_STORE

    def on_start(self, info: ProxyStartInfo) -> None:
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
        self._write_lines(paint(f"llmproxy: {make_printable(text, None)}", "note", colour=self._colour))

    def on_end(self, totals: Totals, unused: int | None) -> None:
        first, *others = format_proxy_call_totals(totals, unused, self._store)
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
                yield paint(format_console_call_table_header(room), "dim", colour=self._colour)
            self._lines += 1
            yield format_console_call_line(call, colour=self._colour, zone=self._zone, room=room)
            if self._verbose:
                yield from describe_how_call_was_handled(call)


def format_start_lines(info: ProxyStartInfo) -> list[str]:
    store, cassette = make_printable(info.store), make_printable(info.cassette)
    what = f"llmproxy: {info.url}  mode {info.mode}  store {store}  cassette {cassette}"
    upstreams = [
        f"  upstream {name} = {make_printable(url)} ({make_printable(str(source))})"
        for name, url, source in info.upstreams
    ]
    from llmproxy.core.providers.provider_table import format_base_url_assignments  # late: commands only lay out text

    lines = [what, *upstreams, f"  export {format_base_url_assignments(info.url)}"]
    if info.ca:
        lines.append(f"  HTTPS of LLM hosts is intercepted; clients must trust {make_printable(info.ca, None)}")
        proxied = dict.fromkeys(protocol.PROXIES, info.url) | {protocol.NODE_PROXY: "1"}
        trusting = dict.fromkeys(protocol.BUNDLES, str(info.ca_bundle)) | {protocol.NODE_CA: info.ca}
        for variables in (proxied, trusting):
            words = (f"{name}={quote(make_printable(value, None))}" for name, value in variables.items())
            lines.append(f"  export {' '.join(words)}")
        lines.append(f'  or all of them, Java\'s and NO_PROXY too: eval "$(llmproxy env --intercept --url {info.url})"')
    if info.live:
        served = ", ".join(channel for channel in Channel if channel not in info.live) or "nothing"
        lines.append(f"  live: {', '.join(info.live)}; served from the recording: {served}")
    if info.mode in OFFLINE and Channel.LLM not in info.live:
        lines.append("  No API key is needed; where an SDK insists on one, any text will do.")
    return lines


def format_proxy_call_totals(totals: Totals, unused: int | None, store: str = DEFAULT_STORE) -> list[str]:
    """Return the totals on one line, and one more for each problem; `unused`: None if unknown, `store`: for display."""
    hits = describe_replay_hits(totals, lambda names: make_printable(names, None))
    counts = [hits, format_count(totals.misses, "miss", "misses"), f"{totals.recorded} recorded"]
    optional = {"passed": totals.passed, "refused": totals.refused, "unused": unused}
    counts += [f"{number} {word}" for word, number in optional.items() if number]
    counts += [format_count(totals.injected, "injected fault")] if totals.injected else []
    counts += filter(None, [describe_stubbed_calls(totals)])
    uses = _format_use(totals.saved, "not spent"), _format_use(totals.spent, "spent")
    lines = ["; ".join(filter(None, [", ".join(counts), *uses]))]
    if totals.misses:
        lines.append(
            f"`{format_llmproxy_command('why', store)}` says what each miss asked for and which recording is nearest."
        )
    lines += filter(None, [describe_replayed_failures(totals)])
    if totals.dealt:
        what = format_count(totals.dealt, "hit")
        lines.append(f"{what} of equal requests at the same time got their answers in the order of arrival")
    if totals.failed:
        lines.append(f"{format_count(totals.failed, 'answer')} could not be recorded: this recording is incomplete.")
    return lines


def _format_use(use: UsageSums, what: str) -> str:
    tokens = (use.input or 0) + (use.output or 0)
    amounts = [f"{format_count(tokens, 'token')}"] if tokens else []
    if use.cost is not None:
        amounts.append(dollars(use.cost))
    known = f"{', '.join(amounts)} {what}" if amounts else ""
    unknown = f"{format_count(use.unpriced, 'call')} whose price or tokens are not known" if use.unpriced else ""
    return f"{known} ({unknown})" if known and unknown else known or unknown
