"""``llmproxy audit``: effects of the key rules on recordings and replayed requests."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import typer

from llmproxy.cli.parts.binding_texts import find_recordings_merged_by_fields, merges_to_json, print_merged_recordings
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import print_json, print_line, to_line
from llmproxy.cli.parts.store_arguments import STORE, open_given
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.journal import read_replayed_requests
from llmproxy.core.store.integrity_checks import (
    SameKeyPair,
    diff_journal_requests_with_recordings,
    find_merged,
    list_ignored_fields_by_service,
)
from llmproxy.errors import Exit
from llmproxy.server_store_copies import show_store

_SHOWN = 20


def audit(
    store: Path | None = STORE,
    as_json: bool = typer.Option(False, "--json", help="Print every pair and every difference, as JSON."),
) -> None:
    """List recordings that count as one request, and how served requests differed from recorded ones, with reasons."""
    settings = load_settings({"store": store}).settings
    rules = Rules.from_settings(settings.normalize)
    with open_given(store) as database:
        path, total = database.path, len(database.list_summaries())
        pairs = list(find_merged(database, rules, settings.upstream))
        merges = find_recordings_merged_by_fields(database, rules, settings.upstream)
        services = list_ignored_fields_by_service(database, rules, settings.upstream)
        answers = list(
            diff_journal_requests_with_recordings(
                database, read_replayed_requests(Path(f"{path}.state.db")), rules, settings.upstream
            )
        )
    unexplained = [pair for pair in (*pairs, *answers) if pair.unexplained_differences]
    if as_json:
        found = {"merged": [_pair_to_json(p) for p in pairs], "served": [_pair_to_json(p) for p in answers]}
        others = [{"service": each.provider, "fields": dict(each.fields), "alike": each.alike} for each in services]
        print_json({"recordings": total, **found, "services": others, "volatile": merges_to_json(merges)})
    else:
        print_line(f"{show_store(path)}: {total} live recordings.")
        print_line(f"{len(pairs)} of them have the key of an earlier one and differ from it{':' if pairs else '.'}")
        _print_ignore_reason_counts(pairs)
        differed = [pair for pair in answers if pair.differences]
        print_line(
            f"{len(answers)} questions that the journal kept were served; {len(differed)} differed from what was "
            f"recorded."
        )
        _print_ignore_reason_counts(differed)
        for pair in unexplained[:_SHOWN]:
            other = "a question that was served" if pair.other is None else f"recording {pair.other}"
            print_line(f"  unexplained: recording {pair.recording} ({to_line(pair.operation)}) and {other}:")
            for each in pair.unexplained_differences[:_SHOWN]:
                print_line(f"    {to_line(each.place)}: {to_line(each.old)} -> {to_line(each.new)}")
        for service in services:
            if service.fields:
                print_line(f"{to_line(service.provider)}: these fields of its requests did not count:")
            for name, why in service.fields.items():
                print_line(f"  {to_line(name)}: {to_line(why)}")
            for one, two in service.alike[:_SHOWN]:
                print_line(
                    f"  recordings {one} and {two} have other answers, and their requests differ in nothing that counts"
                )
        print_merged_recordings(merges)
        print_line(
            f"{len(unexplained)} unexplained." if unexplained else "0 unexplained: each difference has its reason."
        )
    if unexplained:
        raise typer.Exit(int(Exit.FAILED))


def _print_ignore_reason_counts(pairs: list[SameKeyPair]) -> None:
    count: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        count.update({(re.sub(r"\[\d+\]", "[*]", each.place), each.why): 1 for each in pair.differences if each.why})
    for (place, why), times in count.most_common():
        print_line(f"  {times:>5} x  {to_line(place)}: {to_line(why)}")


def _pair_to_json(pair: SameKeyPair) -> dict[str, object]:
    return {
        "recording": pair.recording,
        "other": pair.other,
        "operation": pair.operation,
        "differences": [each._asdict() for each in pair.differences],
    }
