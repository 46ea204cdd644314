"""The terminal: one line per interaction as it ends, and what it all came to.

Lines are aligned, plain when piped (or with NO_COLOR) and coloured on a terminal. Everything that came over the wire
is made printable first, so that a model's name cannot move the cursor. A console never raises into the proxy: when
nobody reads any more (a closed pipe), it falls silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from shlex import quote
from typing import TextIO

from llmproxy.core.misses.again import store_words
from llmproxy.core.sessions.outcome import Outcome, ProxyStarted, Summary
from llmproxy.protocol import AGENT, BUNDLES, DEFAULT_SESSION, NODE_CA, NODE_PROXY, PROXIES, Decision, Mode

__all__ = ["Console", "line", "summary_lines", "wants_colour"]

_COLOURS = {
    "REPLAY": "32",
    "RECORD": "36",
    "PASS": "33",
    "REFUSE": "31",
    "MISS": "1;31",
    "FAULT": "35",
    "note": "33",
    "dim": "2",
}
"""ANSI attributes of a word."""
_LONGEST = 100
"""Characters of a name from the wire that are shown."""
_NOTE = 300
"""Characters of a note: an address and a reason."""


def wants_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Tell whether to colour: a terminal that can, and nobody said NO_COLOR (https://no-color.org)."""
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty()


class Console:
    """A reporter that writes to a terminal or a pipe."""

    def __init__(
        self, stream: TextIO, *, colour: bool = False, quiet: bool = False, zone: tzinfo | None = None
    ) -> None:
        """Write to `stream`; `quiet` leaves out everything but misses, losses and the summary."""
        self._stream = stream
        self._colour = colour
        self._quiet = quiet
        self._zone = zone
        self._gone = False
        self._store = ""

    def started(self, info: ProxyStarted) -> None:
        """Say where it listens, and what to type."""
        self._store = store_words(info.store)
        if not self._quiet:
            self._write(*started_lines(info))

    def outcome(self, outcome: Outcome) -> None:
        """Write the line of one request."""
        if not self._quiet or outcome.lost or outcome.decision is Decision.REFUSE:
            self._write(line(outcome, colour=self._colour, zone=self._zone))

    def note(self, text: str) -> None:
        """Write a remark."""
        self._write(_paint(f"llmproxy: {_clean(text, None)}", "note", colour=self._colour))

    def finished(self, summary: Summary) -> None:
        """Write the sum."""
        first, *others = summary_lines(summary, self._store)
        self._write(first, *(_paint(text, "MISS", colour=self._colour) for text in others))

    def _write(self, *lines: str) -> None:
        """Write whole lines at once, and at once."""
        if self._gone:
            return
        text = "".join(f"{text}\n" for text in lines)
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the reader left, or the stream was closed
            self._gone = True


def started_lines(info: ProxyStarted) -> list[str]:
    """Return what to say once the proxy can serve."""
    what = f"llmproxy: {info.url}  mode {info.mode}  store {_clean(info.store)}  cassette {_clean(info.cassette)}"
    upstreams = [f"  upstream {name} = {_clean(url)} ({_clean(source)})" for name, url, source in info.upstreams]
    lines = [what, *upstreams, f"  export OPENAI_BASE_URL={info.url}/v1 ANTHROPIC_BASE_URL={info.url}"]
    if info.ca:
        lines.append(f"  HTTPS of LLM hosts is intercepted; clients must trust {_clean(info.ca, None)}")
        proxied = dict.fromkeys(PROXIES, info.url) | {NODE_PROXY: "1"}
        trusting = dict.fromkeys(BUNDLES, str(info.ca_bundle)) | {NODE_CA: info.ca}
        for variables in (proxied, trusting):
            words = (f"{name}={quote(_clean(value, None))}" for name, value in variables.items())
            lines.append(f"  export {' '.join(words)}")
        lines.append(f'  or all of them, Java\'s and NO_PROXY too: eval "$(llmproxy env --intercept --url {info.url})"')
    if info.mode is Mode.REPLAY:
        lines.append("  No API key is needed; where an SDK insists on one, any text will do.")
    return lines


def line(outcome: Outcome, *, colour: bool = False, zone: tzinfo | None = None) -> str:
    """Return the line of one request; `zone` is the machine's own unless given."""
    word = "MISS" if outcome.miss and outcome.decision is Decision.REFUSE else outcome.decision.value
    bound = outcome.bound and outcome.decision is Decision.REPLAY
    at = datetime.fromtimestamp(outcome.at, UTC).astimezone(zone)
    columns = [
        _paint(f"{at:%H:%M:%S}", "dim", colour=colour),
        _paint("REPLAY~" if bound else f"{word:<6}", word, colour=colour),
        f"{_clean(outcome.provider or '-'):<{8 if bound else 9}}",
        f"{_clean(outcome.model or '-'):<24}",
        f"{_clean(outcome.operation or f'{outcome.method} {outcome.target}'):<16}",
        f"{outcome.status or '-':>3}",
        f"{_duration(outcome.ms):>8}",
        f"{_tokens(outcome):>12}",
        *_extras(outcome),
    ]
    return "  ".join(columns).rstrip()


def _extras(outcome: Outcome) -> list[str]:
    """Return what stands at the end of a line, where there is something to say."""
    row = f"#{outcome.interaction}" if outcome.interaction is not None else ""
    key = outcome.key.partition(":")[2][:8] if outcome.key else ""
    nearest = f"nearest #{outcome.nearest}" if outcome.nearest is not None else ""
    session = _clean(outcome.session) if outcome.session != DEFAULT_SESSION else ""
    party = f"({_clean(outcome.party)})" if outcome.party != AGENT else ""
    return [text for text in (row or key, session, party, nearest, _clean(outcome.note, _NOTE)) if text]


def _tokens(outcome: Outcome) -> str:
    """Return ``412>38``, with ``?`` for what is unknown."""
    counts = (outcome.usage.input, outcome.usage.output)
    return ">".join("?" if count is None else f"{count}" for count in counts) if counts != (None, None) else ""


def _duration(ms: float) -> str:
    """Return a duration with three digits that say something."""
    second = 1000
    if ms >= 10 * second:
        return f"{ms / second:.1f} s"
    return f"{ms:.0f} ms" if ms >= 1 else f"{ms:.1f} ms"


def summary_lines(summary: Summary, store: str = "") -> list[str]:
    """Return the sum in one line, and one more for each thing that somebody must look at; `store` as a command names it."""
    hits = counted(summary.hits, "hit") + (
        f" ({summary.bound:,} bound: {_clean(', '.join(summary.bound_names), None)})" if summary.bound else ""
    )
    counts = [hits, counted(summary.misses, "miss", "misses"), f"{summary.recorded} recorded"]
    optional = {"passed": summary.passed, "refused": summary.refused, "unused": summary.unused}
    counts += [f"{number} {word}" for word, number in optional.items() if number]
    counts += [f"{counted(summary.faults, 'fault')} on purpose"] if summary.faults else []
    lines = ["; ".join(filter(None, [", ".join(counts), _not_spent(summary)]))]
    if summary.misses:
        lines.append(f"`llmproxy why{store}` says what each miss asked for and which recording is nearest.")
    if summary.served_failures:
        what = counted(summary.served_failures, "answer")
        lines.append(f"{what} had failed, or was cut, when it was recorded; to ask again for such: --mode auto")
    if summary.failed:
        lines.append(f"{counted(summary.failed, 'answer')} could not be recorded: this recording is incomplete.")
    return lines


def _not_spent(summary: Summary) -> str:
    """Return what the hits saved; nothing if there was nothing to save."""
    tokens = summary.tokens_in + summary.tokens_out
    saved = [f"{counted(tokens, 'token')}"] if tokens else []
    if summary.cost_not_spent is not None:
        saved.append(_dollars(summary.cost_not_spent))
    unknown = f"({counted(summary.unpriced, 'call')} of unknown price)" if summary.unpriced else ""
    return " ".join(filter(None, [", ".join(saved) + " not spent" if saved else "", unknown]))


def _dollars(cost: Decimal) -> str:
    """Return dollars to a hundredth of a cent, and finer where that would read 0."""
    return f"${cost:.4f}" if cost == 0 or cost >= Decimal("0.0001") else f"${cost:.2g}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 miss``, ``2 misses``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _clean(text: str, longest: int | None = _LONGEST) -> str:
    """Make text of unknown origin fit for a terminal: on one line, without control characters."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _paint(text: str, what: str, *, colour: bool) -> str:
    """Put text between ANSI escapes."""
    return f"\x1b[{_COLOURS[what]}m{text}\x1b[0m" if colour else text
