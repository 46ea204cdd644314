"""The one format in which a terminal shows counts, money, durations, times and foreign texts (`ui/static/format.js` is
its twin in a browser). Unknown values are shown as unknown, never as 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from decimal import Decimal

SHOWN = 4


def number(value: int | None) -> str:
    """Return ``12,345``; ``?`` for None."""
    return "?" if value is None else f"{value:,}"


def format_count(many: int, one: str, plural: str = "") -> str:
    return f"{many:,} {one if many == 1 else plural or one + 's'}"


def format_times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def name_some(names: Iterable[str], between: str = ", ", shown: int = SHOWN) -> str:
    all_ = [*names]
    more = f" and {len(all_) - shown} more" if len(all_) > shown else ""
    return f"{between.join(all_[:shown])}{more}"


def sum_if_all_known[Number: (int, float, Decimal)](values: Iterable[Number | None]) -> Number | None:
    """Return the sum; None if one of them is unknown, or there is none."""
    total: Number | None = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def sum_known[Number: (int, float, Decimal)](values: Iterable[Number | None]) -> Number | None:
    """Return the sum of what is known; None if nothing is."""
    return sum_if_all_known(each for each in values if each is not None)


def mean_if_all_known[Number: (float, Decimal)](values: Sequence[Number | None]) -> Number | None:
    total = sum_if_all_known(values)
    return None if total is None else total / len(values)


def align_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return rows as lines with aligned cells, without empty columns; `right` lists right-aligned columns."""
    columns = [(">" if n in right else "<", max(map(len, cells))) for n, cells in enumerate(zip(*rows, strict=True))]
    cells = [[f"{cell:{side}{size}}" for cell, (side, size) in zip(row, columns, strict=True) if size] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]


def format_tokens_in_out(read: int | None, written: int | None) -> str:
    """Return tokens as ``412>38``, with ``?`` for unknown; empty if both are unknown."""
    return "" if read is None and written is None else f"{number(read)}>{number(written)}"


def dollars(cost: Decimal | float) -> str:
    """Return dollars to a cent from 1 on, else to a hundredth of a cent, or two digits if smaller; no exponent."""
    if cost == 0 or cost >= 1:
        return f"${cost:,.2f}" if cost else "$0"
    return f"${cost:.4f}" if cost >= Decimal("0.0001") else f"${Decimal(f'{cost:.1e}'):f}"


def format_milliseconds(ms: float | None) -> str:
    """Return a duration, given in milliseconds, rounded to significant digits; empty for None."""
    if ms is None:
        return ""
    if round(ms) < 1000:
        return f"{ms:.0f} ms" if ms >= 1 else f"{ms:.1f} ms"
    if round(ms / 1000, 1) < 60:
        return f"{ms / 1000:.1f} s"
    if (whole := round(ms / 1000)) < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(ms / 60_000)
    return f"{minutes // 60:,} h {minutes % 60} min"


def format_seconds(value: float | None) -> str:
    return format_milliseconds(None if value is None else value * 1000)


def format_clock(unix: float, zone: tzinfo | None = None) -> str:
    return f"{_to_local_time(unix, zone):%H:%M:%S}"


def format_local_time(unix: float, zone: tzinfo | None = None) -> str:
    """Return date and time of a Unix time; empty for 0 (missing in the file), the number if it is out of range."""
    try:
        return f"{_to_local_time(unix, zone):%Y-%m-%d %H:%M:%S}" if unix else ""
    except (OverflowError, ValueError, OSError):
        return str(unix)


def _to_local_time(unix: float, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(unix, UTC).astimezone(zone)
