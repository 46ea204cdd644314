"""``llmproxy cache``: the contents of cache.db, written by `@scenario.cache` and by scenarios without a proxy."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli import make_default_typer
from llmproxy.cli.parts.printing import (
    format_size,
    format_table_lines,
    get_terminal_width_or_none,
    print_json,
    print_line,
    to_safe_line,
)
from llmproxy.errors import SettingsError
from llmproxy.scenario.cache_store import CacheStore

_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NAME = typer.Argument(None, metavar="NAME", help="Only results of functions with NAME in their name.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    group = make_default_typer(help="List or clear the cache of @scenario.cache.", no_args_is_help=True)
    group.command("stats")(print_scenario_cache_size_and_hits)
    group.command("list")(print_scenario_cache_entries)
    group.command("clear")(delete_cached_scenario_results)
    app.add_typer(group, name="cache")


def print_scenario_cache_size_and_hits(as_json: bool = _JSON) -> None:
    """Show the cache's size and number of hits."""
    store = _open_cache()
    found = store.list()
    names = dict(sorted(Counter(each.name for each in found).items()))
    sums = {"entries": len(found), "size": sum(each.size for each in found), "hits": sum(each.hits for each in found)}
    if as_json:
        print_json({"path": str(store.path), **sums, "by_name": names, "mode": str(store.mode)})
        return
    there = "" if store.path.exists() else " (not made yet)"
    kept = f"{format_count(sums['entries'], 'value')}, {format_size(sums['size'])}, {format_count(sums['hits'], 'hit')}"
    print_line(f"{store.path}{there}: {kept}")
    if store.mode != "auto":
        print_line(f"mode: {store.mode} (SCENARIO_CACHE_MODE)")
    for name, count in names.items():
        print_line(f"  {count:>6}  {to_safe_line(name)}")


def print_scenario_cache_entries(
    name: str | None = _NAME,
    limit: int = typer.Option(50, "--limit", "-n", min=1, help="Number of results, newest first."),
    values: bool = typer.Option(False, "--values", help="Also print the values."),
    as_json: bool = _JSON,
) -> None:
    """List cached results, newest first."""
    store = _open_cache()
    found = store.list(name, limit)
    if as_json:
        plain = [asdict(each) for each in found]
        print_json([{name: each for name, each in row.items() if values or name != "value"} for row in plain])
        return
    if not found:
        print_line(f"{store.path}: nothing is kept" + (f" of {to_safe_line(name)}." if name else "."))
        return
    rows = [
        [
            each.key[:17],
            f"{datetime.fromtimestamp(each.created_at, UTC):%Y-%m-%d %H:%M}",
            str(each.hits),
            format_size(each.size),
            each.cache_key,
            str(each.sample),
            each.name,
        ]
        for each in found
    ]
    heads = ["KEY", "MADE", "HITS", "SIZE", "CACHE KEY", "SAMPLE", "NAME"]
    for text in format_table_lines(heads, rows, get_terminal_width_or_none()):
        print_line(text)
    for each in found if values else ():
        shown = each.value
        with suppress(ValueError):
            shown = json.dumps(json.loads(shown), ensure_ascii=False)
        print_line(f"\n{each.key}\n{to_safe_line(shown)}")


def delete_cached_scenario_results(
    name: str | None = _NAME,
    cache_key: str | None = typer.Option(None, "--cache-key", help="Only results with this cache key."),
    older_than: str | None = typer.Option(
        None, "--older-than", metavar="AGE", help="Only older results: 90m, 12h, 30d, 2w."
    ),
) -> None:
    """Delete cached results: all, or those that options select."""
    before = None
    if older_than is not None:
        if not (found := re.fullmatch(r"(\d+)([mhdw])", older_than.strip())):
            raise SettingsError(f"--older-than {older_than!r} is no age.", hint="Write 90m, 12h, 30d or 2w.")
        before = time.time() - float(found[1]) * _SECONDS[found[2]]
    store = _open_cache()
    count = store.clear(name, cache_key=cache_key, before=before)
    print_line(f"{store.path}: {format_count(count, 'value')} forgotten.")


def _open_cache() -> CacheStore:
    if (store := CacheStore.from_environment()) is None:
        msg = "the cache is switched off: SCENARIO_CACHE_DIR is empty, or SCENARIO_CACHE_MODE=off."
        raise SettingsError(msg, hint="SCENARIO_CACHE_DIR=<folder> llmproxy cache ...")
    return store
