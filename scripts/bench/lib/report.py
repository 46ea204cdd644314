"""Figures become a table with a verdict, a JSON file, and for one of them a picture."""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib.machine import ROOT, facts

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Row:
    """One figure: what was measured, several times, and what it should be."""

    what: str
    values: Sequence[float]
    unit: str
    target: str = ""
    limit: float | None = None
    at_most: bool = True
    note: str = ""

    @property
    def median(self) -> float:
        """The figure itself."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Say ``met`` or ``MISSED``; nothing where nothing was promised."""
        if self.limit is None:
            return ""
        return "met" if (self.median <= self.limit if self.at_most else self.median >= self.limit) else "MISSED"


@dataclass
class Report:
    """Everything that one bench found."""

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    machine: str = field(default_factory=facts)

    def add(
        self, what: str, values: Iterable[float], unit: str, target: str = "", *, most: float | None = None,
        least: float | None = None, note: str = "",
    ) -> Row:  # fmt: skip
        """Add a figure and print it; `most` or `least` is what it may be."""
        limit = most if most is not None else least
        row = Row(what, list(values), unit, target, limit, at_most=least is None, note=note)
        self.rows.append(row)
        print("  " + line(row), flush=True)
        return row

    def ratio(
        self, what: str, ours: Sequence[float], theirs: Sequence[float], target: str = "", *, most: float | None = None,
        least: float | None = None, note: str = "",
    ) -> Row:  # fmt: skip
        """Add the ratio of two figures that were measured in turn, round by round."""
        pairs = [a / b for a, b in zip(ours, theirs, strict=True) if b]
        return self.add(what, pairs or [math.nan], "x", target, most=most, least=least, note=note)

    def say(self, note: str) -> None:
        """Add a remark."""
        self.notes.append(note)
        print(f"  {note}", flush=True)

    def end(self, where: Path | None) -> int:
        """Print the whole table, write it down, and return 1 if a target was missed."""
        print(f"\n{self.name}: {self.machine}, {time.time() - self.began:.0f} s")
        for row in self.rows:
            print("  " + line(row))
        for note in self.notes:
            print(f"  note: {note}")
        path = where or RESULTS / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = [{**asdict(row), "median": row.median, "verdict": row.verdict} for row in self.rows]
        path.write_text(
            json.dumps({"machine": self.machine, "at": self.began, "rows": found, "notes": self.notes}, indent=1)
        )
        print(f"  written to {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
        return int(any(row.verdict == "MISSED" for row in self.rows))


def number(value: float) -> str:
    """Return a figure with three digits that count."""
    if value != value:  # noqa: PLR0124 - not a number
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value) or 1)))}f}"


def line(row: Row) -> str:
    """Return a row as text: median, spread, target, verdict."""
    low, high = number(min(row.values)), number(max(row.values))
    spread = f"({low} .. {high}, n={len(row.values)})" if len(row.values) > 1 else ""
    target = f"target {row.target}: {row.verdict}" if row.verdict else row.target
    return f"{row.what:<66} {number(row.median):>9} {row.unit:<6} {spread:<34} {target} {row.note}".rstrip()


def options(description: str, more: Callable[[argparse.ArgumentParser], object] = lambda _: None) -> argparse.Namespace:
    """Parse what every bench takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured, in turn (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement of throughput (default 2)")
    parser.add_argument("--peers", default="all", help="all, none, or names with commas between")
    parser.add_argument("--tree", type=Path, default=ROOT, help="source tree of llmproxy (default: this one)")
    parser.add_argument(
        "--also", action="append", default=[], metavar="NAME=FOLDER", help="another source tree of llmproxy, as a peer"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny, without other people's peers: does the bench still run?"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures (default scripts/bench/results/)")
    more(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers are stopped on the way out
    if given.quick:
        given.rounds, given.seconds, given.peers = 1, 0.2, "none"
    return given
