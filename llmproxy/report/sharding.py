"""Assignment of scenarios to shards of a test: ``3/10`` + {id: weight} -> {id: part}.

The heaviest first, each to the lightest shard so far; equal ones in the order of their ids. So the shards depend on
nothing that differs between machines: no clock, no order of files, no hash of Python's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.files import read_bounded_text

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str, flag: str = "--shard") -> Shard:
    """Parse ``3/10``. Raises SettingsError naming `flag`."""
    found = _SHARD.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"{flag} is {text!r}; it is a part and how many there are, such as 3/10.")
    shard = Shard(int(found[1]), int(found[2]))
    if not 1 <= shard.of <= MOST:
        raise SettingsError(f"{flag} is {text!r}: there can be 1 to {MOST:,} parts.")
    if not 1 <= shard.number <= shard.of:
        counted = f"they are counted 1/{shard.of} to {shard.of}/{shard.of}"
        raise SettingsError(f"{flag} is {text!r}: there is no part {shard.number} of {shard.of}; {counted}.")
    return shard


def read_test_times(path: Path, flag: str = "--shard-times") -> dict[str, int]:
    """Return the durations of scenarios or tests in milliseconds from a JSON report. Raises SettingsError."""
    try:
        times = json.loads(read_bounded_text(path))["times"]
        return {str(name): max(int(ms), 0) for name, ms in times.items()}
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "llmproxy test --report json=FILE writes one, pytest --scenario-report json=FILE as well."
        why = "is no JSON report of a test that says how long its parts took."
        raise SettingsError(f"{flag} {path} {why}", hint=hint) from error


def check_shard_split_json(shard: Any) -> None:
    """Check the form of `shard_split_to_json`. Raises TypeError."""
    shard = shard if isinstance(shard, dict) else {}
    number, of, items, parts = (shard.get(name) for name in ("number", "of", "items", "parts"))
    if shard.get("by") not in ("test", "pytest") or not _is_list_of([number, of], int) or not 1 <= number <= of <= MOST:
        raise TypeError("it does not say which part of a test it is")
    cut = _is_list_of(items, str) and _is_list_of(parts, int) and len(parts) == len(items) == len(set(items))
    runs = shard.get("runs", {})
    named = isinstance(runs, dict) and _is_list_of([*runs, *runs.values()], str)
    if not (cut and named and all(1 <= part <= of for part in parts)):
        raise TypeError("it does not say how its test was cut")


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) and not isinstance(each, bool) for each in values)


def weigh_items(runs: Mapping[str, int], times: Mapping[str, int]) -> dict[str, int]:
    """Return each item's weight: its time if known, else its runs times the usual time of a run, if any is known."""
    known = sorted(times[name] // max(many, 1) for name, many in runs.items() if times.get(name))
    usual = max(known[(len(known) - 1) // 2], 1) if known else 1
    return {name: times.get(name) or usual * max(many, 1) for name, many in runs.items()}


def split_items(weighed: Mapping[str, int], of: int) -> dict[str, int]:
    load, held = [0] * of, [0] * of
    found: dict[str, int] = {}
    for name in sorted(weighed, key=lambda each: (-weighed[each], each)):
        at = min(range(of), key=lambda n: (load[n], held[n], n))
        load[at] += weighed[name]
        held[at] += 1
        found[name] = at + 1
    return {name: found[name] for name in weighed}


def shard_split_to_json(shard: Shard, parts: Mapping[str, int], by: str, **more: Any) -> dict[str, Any]:
    """Return a shard report's description of the split: all items in order with shards; `by`: ``test``, ``pytest``."""
    return {
        "number": shard.number,
        "of": shard.of,
        "by": by,
        "items": list(parts),
        "parts": list(parts.values()),
        **more,
    }
