"""The ways in which agents write a day."""

from __future__ import annotations

from datetime import date

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def write_dates(day: str) -> tuple[str, ...]:
    """Return a day, ``2026-11-22``, in every form that is bound; the n-th form of one day belongs to the n-th of another.

    Raises ValueError for what is no day.
    """
    on = date.fromisoformat(day)
    month, name, number = _MONTHS[on.month - 1], _DAYS[on.weekday()], on.day
    short, brief = month[:3], name[:3]
    return (
        on.isoformat(),
        f"{name}, {month} {number}, {on.year}",
        f"{brief} {short} {number:02} {on.year}",
        f"{brief} {short} {number} {on.year}",
        f"{brief}, {short} {number}, {on.year}",
        f"{month} {number}, {on.year}",
        f"{short} {number}, {on.year}",
        f"{number} {month} {on.year}",
        f"{number} {short} {on.year}",
        f"{on.month}/{number}/{on.year}",
        f"{on.month:02}/{number:02}/{on.year}",
        f"{on.year}/{on.month:02}/{number:02}",
        f"{month} {on.year}",
    )
