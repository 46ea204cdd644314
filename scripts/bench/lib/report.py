"""Figures become a table with a verdict, a JSON file, and for one of them a picture."""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def svg(series: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw requests a second over the number of recordings, both axes logarithmic."""
    width, height, left, top, right, bottom = 720, 380, 64, 40, 170, 48
    xs = sorted({x for points in series.values() for x in points})
    highest = 10 ** math.ceil(math.log10(max(y for points in series.values() for y in points.values())))
    across = max(1.0, math.log10(xs[-1] or 1))

    def at(x: float, y: float) -> tuple[float, float]:
        """Return where a point lies."""
        u, v = math.log10(x) / across, math.log10(max(y, 1)) / math.log10(highest)
        return left + u * (width - left - right), height - bottom - v * (height - top - bottom)

    ink = ["#d7263d", "#1b6ca8", "#2e933c", "#8d5a97", "#c57b00", "#4d5359", "#00838a", "#a33b20"]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">Requests a second, one processor, by number of recordings</text>',
    ]
    for power in range(int(math.log10(highest)) + 1):
        x, y = at(1, 10**power)
        out.append(
            f'<path d="M{x:.0f} {y:.1f}H{width - right}" stroke="#ddd"/><text x="{x - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
        )
    for x in xs:
        u, _ = at(x, 1)
        out.append(f'<text x="{u:.0f}" y="{height - bottom + 18}" text-anchor="middle">{x:,}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">recordings</text>')
    labels: list[tuple[float, float, str, str]] = []
    for (name, points), colour in zip(series.items(), ink * 3, strict=False):
        spots = [at(x, y) for x, y in sorted(points.items())]
        out.append(
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        labels.append((spots[-1][1], spots[-1][0], name, colour))
    lowest = -math.inf
    for y, x, name, colour in sorted(labels):
        lowest = max(y, lowest + 14)
        out.append(f'<text x="{x + 9:.0f}" y="{lowest + 4:.1f}" fill="{colour}">{name}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")
