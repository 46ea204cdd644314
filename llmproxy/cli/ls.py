"""``llmproxy ls`` lists the contents of a store, ``why`` explains refused requests, ``audit`` equal keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import format_count, format_local_time, number
from llmproxy.cli.parts import binding_formatting as bindings
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import (
    escape_all_but_line_breaks,
    format_table_lines,
    get_terminal_width_or_none,
    print_json,
    print_line,
    to_safe_line,
)
from llmproxy.cli.parts.store_arguments import STORE, describe_stored_cassette_names, get_chosen_store, open_given_store
from llmproxy.core.forks.fork_rows import Fork, list_all_forks_in_store
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.journal import read_faulted_calls, read_last_misses_from_journal, read_replayed_requests
from llmproxy.core.store.file.connect import build_missing_store_file_hint
from llmproxy.core.store.queries import list_run_variables, read_volatile_fields
from llmproxy.core.store.reader import CassetteInfo
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.traffic.interaction import Ending
from llmproxy.errors import Exit, SettingsError
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.protocol import Channel, append_sample_number_to_name

if TYPE_CHECKING:
    from llmproxy.core.store import integrity_checks

_FAILED = 400
_JSON = typer.Option(False, "--json", help="Print JSON.")


def ls_command(
    what: str | None = typer.Argument(
        None, metavar="CASSETTE", autocompletion=complete_cassette_names, help="Only this cassette, like --cassette."
    ),
    store: Path | None = STORE,
    cassette: str | None = typer.Option(
        None, "--cassette", metavar="NAME", autocompletion=complete_cassette_names, help="Only this cassette."
    ),
    channel: Channel | None = typer.Option(
        None, "--channel", help="Only calls to models (llm), MCP servers (mcp), or other services (http)."
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="Number of interactions to show, the last ones; 0 for all."),
    superseded: bool = typer.Option(False, "--superseded", help="Also show recordings that a newer one replaced."),
    as_json: bool = _JSON,
) -> None:
    """List cassettes and the interactions recorded in them."""
    if what is not None and cassette not in (None, what):
        raise SettingsError(f"one cassette at a time: {to_safe_line(what)} or {to_safe_line(cassette or '')}.")
    cassette = what if what is not None else cassette
    with open_given_store(store) as database:
        few = limit if limit and cassette is None and not as_json else None
        infos = database.cassettes(cassette, latest=few)
        total = database.count_interactions(cassette, superseded=superseded)
        rows = database.list_summaries(cassette, superseded=superseded, limit=limit or None, channel=channel)
        bound = {
            (info.name, info.sample): (
                list_run_variables(database, info.name, info.sample),
                read_volatile_fields(database, info.name),
            )
            for info in infos
        }
        there = "" if infos else describe_stored_cassette_names(database)
        failed = Counter(
            (each.cassette, each.sample)
            for info in infos
            if not (info.closed_cleanly or info.holder)
            for each in database.list_summaries(info.name, info.sample, limit=None)
            if (each.status or 0) >= _FAILED or each.ending in (Ending.CUT, Ending.UNTERMINATED, Ending.FAILED)
        )
        children = {(each.cassette, each.sample): each for each in list_all_forks_in_store(database)}
    if as_json:
        plain = {
            "cassettes": [
                asdict(info) | bindings.convert_bindings_to_json(*bound[info.name, info.sample]) for info in infos
            ],
            "interactions": [asdict(row) | {"channel": row.channel} for row in rows],
        }
        forks = [each.to_json() for each in children.values() if cassette in (None, each.cassette)]
        print_json(plain | {"forks": forks})
        return
    if not infos:
        print_line(f"Nothing is recorded in cassette {to_safe_line(cassette)}." if cassette else "Nothing is recorded.")
        if there:
            print_line(there)
        return
    _print_cassettes(infos, children, failed)
    for (name, sample), (_, fields) in bound.items():
        for text in bindings.format_volatile_fields(to_safe_line(name), fields if sample == 1 else ()):
            print_line(text)
    print_line()
    _print_columns(INTERACTION_COLUMNS, rows)
    if channel and len(rows) < (limit or len(rows) + 1):
        total = len(rows)
    if len(rows) < total:
        typer.echo(f"(the last {len(rows)} of {total}; --limit 0 shows all)", err=True)
    if few == len(infos):
        typer.echo(f"(the last {few} cassettes; --limit 0 shows all)", err=True)


@dataclass(frozen=True, slots=True)
class PrintedTableColumn[T]:
    head: str
    cell: Callable[[T], str]
    alike: bool = False
    """Whether it is dropped first if space is short and all rows have the same value."""
    measure: bool = False
    """Whether it is dropped after those."""
    narrowest: int = 0
    """Least width to which it may be narrowed at a space."""
    if_any: Callable[[T], bool] = lambda _: True


def _print_columns[T](columns: Sequence[PrintedTableColumn[T]], rows: Sequence[T]) -> None:
    shown = [each for each in columns if not rows or any(map(each.if_any, rows))]
    lines = format_table_lines(
        [each.head for each in shown],
        [[each.cell(row) for each in shown] for row in rows],
        get_terminal_width_or_none(),
        alike=[each.head for each in shown if each.alike],
        measures=[each.head for each in shown if each.measure],
        breaks={each.head: each.narrowest for each in shown if each.narrowest},
    )
    for text in lines:
        print_line(text)


def _print_cassettes(
    infos: Sequence[CassetteInfo], children: Mapping[tuple[str, int], Fork], failed: Mapping[tuple[str, int], int]
) -> None:
    """Print a row for each cassette; `children` are forks, `failed` counts calls, both by name and sample."""

    def describe_state(info: CassetteInfo) -> str:
        fork, lost = children.get((info.name, info.sample)), failed.get((info.name, info.sample), 0)
        left = f"incomplete, {lost} failed" if lost else "incomplete: interrupted, or its test failed"
        state = "complete" if info.closed_cleanly else f"recorded by {info.holder}" if info.holder else left
        return state if fork is None else f"{state}, {fork.describe_origin()}"

    _print_columns([*CASSETTE_COLUMNS, PrintedTableColumn("state", describe_state)], infos)


CASSETTE_COLUMNS: Sequence[PrintedTableColumn[CassetteInfo]] = (
    PrintedTableColumn("cassette", lambda info: append_sample_number_to_name(info.name, info.sample)),
    PrintedTableColumn("live", lambda info: number(info.live)),
    PrintedTableColumn("replaced", lambda info: number(info.stored - info.live), measure=True),
    PrintedTableColumn("tokens in", lambda info: number(info.tokens_in), measure=True),
    PrintedTableColumn("out", lambda info: number(info.tokens_out), measure=True),
    PrintedTableColumn("last", lambda info: format_local_time(info.last_at)),
)


def _format_operation(row: StoredCallSummary) -> str:
    if row.channel is Channel.HTTP:
        return f"{row.method} {row.provider.removeprefix('http:')}{row.target}"
    return row.operation


def _format_http_status(row: StoredCallSummary) -> str:
    status = str(row.status) if row.ending.value == "complete" else f"{row.status} {row.ending.value}"
    return f"{status} replaced" if row.superseded else status


def _format_optional(value: int | None) -> str:
    return "" if value is None else number(value)


INTERACTION_COLUMNS: Sequence[PrintedTableColumn[StoredCallSummary]] = (
    PrintedTableColumn("id", lambda row: str(row.id)),
    PrintedTableColumn("recorded", lambda row: format_local_time(row.recorded_at), narrowest=len("2027-01-15 ")),
    PrintedTableColumn("cassette", lambda row: append_sample_number_to_name(row.cassette, row.sample)),
    PrintedTableColumn("party", lambda row: row.party, alike=True),
    PrintedTableColumn(
        "channel", lambda row: row.channel.value, alike=True, if_any=lambda row: row.channel is not Channel.LLM
    ),
    PrintedTableColumn("model", lambda row: row.model or "", alike=True),
    PrintedTableColumn("operation", _format_operation, alike=True),
    PrintedTableColumn("client", lambda row: row.client, alike=True, if_any=lambda row: bool(row.client)),
    PrintedTableColumn("status", _format_http_status),
    PrintedTableColumn("ms", lambda row: "" if row.duration_ms is None else f"{row.duration_ms:,.0f}", measure=True),
    PrintedTableColumn("in", lambda row: _format_optional(row.tokens_in), measure=True),
    PrintedTableColumn("out", lambda row: _format_optional(row.tokens_out), measure=True),
    PrintedTableColumn("text", lambda row: " -> ".join(text for text in (row.last_user_text, row.answer_text) if text)),
)
"""Columns of interactions; the last one gets the remaining width."""
SHOWN_FAULTS = 20


def why_command(
    number: int = typer.Option(1, "-n", min=1, help="Number of misses to show, the last ones."),
    store: Path | None = STORE,
    as_json: bool = _JSON,
) -> None:
    """Explain why the last requests were refused: the nearest recording, the differences, and what to type."""
    path = Path(f"{get_chosen_store(store)}.state.db")
    found, injected = read_last_misses_from_journal(path, number), read_faulted_calls(path, SHOWN_FAULTS)
    if as_json:
        names = ("at", "session", "provider", "operation", "model", "note", "status")
        print_json(
            [{"at": missed.at, **missed.data} for missed in found]
            + [{"fault": each.note, **{name: getattr(each, name) for name in names}} for each in injected]
        )
        return
    if injected:
        print_line("The last run met injected faults, which are no misses:")
    for each in injected:
        asked = f"{each.provider} {each.operation} {each.model}"
        print_line(f"  {format_local_time(each.at)}  {asked}  {each.status or '-'}  {each.note}")
    if not found:
        if path.is_file():
            print_line(f"No request was refused, as far as {path} knows.")
        else:
            print_line(f"Nothing is known: there is no {path}, so nothing has run with this store.")
            print_line(build_missing_store_file_hint(get_chosen_store(store)))
    for n, missed in enumerate(found):
        print_line(("\n" if n else "") + f"--- {format_local_time(missed.at)}")
        here = f"{format_llmproxy_command('why', str(missed.data.get('store', '')))}   "  # before the next command
        print_line(escape_all_but_line_breaks(missed.text.replace(here, "")))


_SHOWN = 20


def audit_command(
    store: Path | None = STORE,
    as_json: bool = typer.Option(False, "--json", help="Print every pair and every difference, as JSON."),
) -> None:
    """List recordings that count as one request, and how served requests differed from recorded ones, with reasons."""
    from llmproxy.core.store import integrity_checks  # late: `ls` compares no requests

    settings = load_settings({"store": store}).settings
    rules = Rules.from_settings(settings.normalize)
    with open_given_store(store) as database:
        path, total = database.path, len(database.list_summaries())
        pairs = list(integrity_checks.find_key_collisions(database, rules, settings.upstream))
        merges = bindings.find_recordings_merged_by_fields(database, rules, settings.upstream)
        services = integrity_checks.list_ignored_fields_by_service(database, rules, settings.upstream)
        answers = list(
            integrity_checks.diff_journal_requests_with_recordings(
                database, read_replayed_requests(Path(f"{path}.state.db")), rules, settings.upstream
            )
        )
    unexplained = [pair for pair in (*pairs, *answers) if pair.unexplained_differences]
    if as_json:
        found = {"merged": list(map(_pair_to_json, pairs)), "served": list(map(_pair_to_json, answers))}
        others = [{"service": each.provider, "fields": dict(each.fields), "alike": each.alike} for each in services]
        volatile = {name: [each._asdict() for each in some] for name, some in merges.items()}
        print_json({"recordings": total, **found, "services": others, "volatile": volatile})
    else:
        print_line(f"{format_store_location(path)}: {format_count(total, 'live recording')}.")
        print_line(f"{len(pairs)} of them have the key of an earlier one and differ from it{':' if pairs else '.'}")
        _print_ignore_reason_counts(pairs)
        differed = [pair for pair in answers if pair.differences]
        served = f"The journal kept {format_count(len(answers), 'answered question')}"
        print_line(f"{served}; {len(differed)} differed from what was recorded.")
        _print_ignore_reason_counts(differed)
        for pair in unexplained[:_SHOWN]:
            other = "a question that was served" if pair.other is None else f"recording {pair.other}"
            print_line(f"  unexplained: recording {pair.recording} ({to_safe_line(pair.operation)}) and {other}:")
            for each in pair.unexplained_differences[:_SHOWN]:
                print_line(f"    {to_safe_line(each.place)}: {to_safe_line(each.old)} -> {to_safe_line(each.new)}")
        for service in services:
            if service.fields:
                print_line(f"{to_safe_line(service.provider)}: these fields of its requests did not count:")
            for name, why in service.fields.items():
                print_line(f"  {to_safe_line(name)}: {to_safe_line(why)}")
            for one, two in service.alike[:_SHOWN]:
                answers_differ = f"recordings {one} and {two} have other answers"
                print_line(f"  {answers_differ}, and their requests differ in nothing that counts")
        bindings.print_pairs_equal_up_to_volatiles(merges)
        print_line(f"{len(unexplained)} unexplained" + ("." if unexplained else ": each difference has its reason."))
    if unexplained:
        raise typer.Exit(int(Exit.FAILED))


def _print_ignore_reason_counts(pairs: list[integrity_checks.KeyCollision]) -> None:
    count: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        count.update({(re.sub(r"\[\d+\]", "[*]", each.place), each.why): 1 for each in pair.differences if each.why})
    for (place, why), times in count.most_common():
        print_line(f"  {times:>5} x  {to_safe_line(place)}: {to_safe_line(why)}")


def _pair_to_json(pair: integrity_checks.KeyCollision) -> dict[str, object]:
    about = {"recording": pair.recording, "other": pair.other, "operation": pair.operation}
    return {**about, "differences": [each._asdict() for each in pair.differences]}
