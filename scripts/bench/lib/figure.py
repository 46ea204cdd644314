"""The picture of what `replay` measured: requests a second over the number of recordings, both axes logarithmic.

Drawn by hand as SVG: text is text, nothing is filled behind it, and the colours follow the reader's scheme, light or dark.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 720, 400
LEFT, TOP, RIGHT, BOTTOM = 70, 56, 150, 48
OURS, CEILING = "llmproxy", "bare server"
LINE = 15
"""Pixels from one label to the next."""
_ROW = re.compile(r"throughput, (.+), ([\d,]+) recordings")
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #59636e }
.title { font-size: 15px; font-weight: 600; fill: #1f2328 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.line { fill: none; stroke: #818b98; stroke-width: 1.5 }
.dot { fill: #818b98 }
.ceiling { stroke-dasharray: 5 4 }
.ours { stroke: #0969da; stroke-width: 3 }
.dot.ours { fill: #0969da; stroke: none }
.name { stroke: #ffffff; stroke-width: 4; paint-order: stroke }
.name.ours { fill: #0969da; stroke: #ffffff; stroke-width: 4; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .grid { stroke: #3d444d }
  .line { stroke: #767e89 }
  .dot { fill: #767e89 }
  .ours { stroke: #4493f8 }
  .name, .name.ours { stroke: #0d1117 }
  .dot.ours, .name.ours { fill: #4493f8 }
}
"""

Series = Mapping[str, Mapping[int, float]]
"""By name: recordings -> requests a second."""


def series(results: Mapping[str, Any]) -> Series:
    """Return what is drawn of a results file of `replay`. The bare server records nothing, so it is the same everywhere."""
    found: dict[str, dict[int, float]] = {}
    for row in results["rows"]:
        if match := _ROW.fullmatch(row["what"]):
            found.setdefault(match[1], {})[int(match[2].replace(",", ""))] = statistics.median(row["values"])
    counts = sorted({count for points in found.values() for count in points})
    if bare := found.get(CEILING):
        found[CEILING] = dict.fromkeys(counts, next(iter(bare.values())))
    return found


def draw(results: Path, picture: Path) -> None:
    """Draw a results file of `replay`."""
    drawn = series(json.loads(results.read_text()))
    if not drawn:
        raise SystemExit(f"{results} has no throughput in it")
    picture.write_text(svg(drawn))


def svg(drawn: Series) -> str:
    """Return the picture."""
    xs = sorted({x for points in drawn.values() for x in points})
    ys = [y for points in drawn.values() for y in points.values()]
    lowest, highest = (math.floor(math.log10(max(min(ys), 1))), math.ceil(math.log10(max(*ys, 10))))
    across = max(1.0, math.log10(xs[-1]))

    def at(x: float, y: float) -> tuple[float, float]:
        """Return where a point lies."""
        u, v = math.log10(x) / across, (math.log10(max(y, 1)) - lowest) / (highest - lowest)
        return LEFT + u * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - v * (HEIGHT - TOP - BOTTOM)

    said = "; ".join(
        f"{name} " + ", ".join(f"{y:,.0f} at {x:,}" for x, y in sorted(points.items()))
        for name, points in drawn.items()
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Replayed requests a second, by number of recordings</title><desc>{escape(said)}</desc>",
        f"<style>{_STYLE}</style>",
        '<text class="title" x="16" y="24">Replayed requests a second, one processor</text>',
    ]
    for power in range(lowest, highest + 1):
        _, y = at(1, 10**power)
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    out += [f'<text x="{at(x, 1)[0]:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{x:,}</text>' for x in xs]
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">recordings</text>')
    ends: list[tuple[float, float, str]] = []
    for name, points in sorted(drawn.items(), key=lambda each: each[0] == OURS):  # ours on top
        spots = [at(x, y) for x, y in sorted(points.items())]
        out.append(f'<path class="line{_kind(name)}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in spots)}"/>')
        out += [f'<circle class="dot{_kind(name)}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in spots]
        ends.append((spots[-1][0], spots[-1][1], name))
    out += [
        f'<text class="name{_kind(name)}" x="{x + 10:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
        for x, y, name in apart(ends)
    ]
    return "\n".join([*out, "</svg>"]) + "\n"


def apart(ends: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Move labels that end a line in the same column down, until none lies over another."""
    placed: list[tuple[float, float, str]] = []
    for x, y, name in sorted(ends, key=lambda end: (end[0], end[1])):
        above = placed[-1][1] + LINE if placed and placed[-1][0] == x else -math.inf
        placed.append((x, max(y, above), name))
    return placed


def _kind(name: str) -> str:
    return {OURS: " ours", CEILING: " ceiling"}.get(name, "")
