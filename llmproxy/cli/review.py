"""``llmproxy review`` and ``llmproxy accept``: decide on the changes found by `llmproxy changes`.

Pending changes are in the journal (`core.sessions.trial_results`). An accepted change is written into the cassettes in
which it was seen, and covers only the segments that were seen: nothing unseen is accepted.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import typer

from llmproxy.advice import format_command
from llmproxy.amount_formatting import format_count, name_some
from llmproxy.cli.changes import (
    read_accepted_changes_by_cassette,
    require_dir_for_filed_cassettes,
    write_accepted_changes,
)
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import print_line, to_line
from llmproxy.cli.parts.store_arguments import STORE
from llmproxy.core.changes.accepted_changes import (
    AcceptedChange,
    Condition,
    build_accepted_changes,
    client_slug,
    merge_accepted,
)
from llmproxy.core.changes.change import Author
from llmproxy.errors import SettingsError, printable
from llmproxy.report.change_summary import ChangeGroup, summarize_recent_trials
from llmproxy.settings import Loaded

_CASSETTES = typer.Option(None, "--cassette-dir", metavar="DIR", help="Folder of the cassette files.")
_UNTIL = typer.Option("", "--until", metavar="DAY", help="Last day of the acceptance, such as 2027-01-31.")
_WHEN = typer.Option(
    "", "--when", metavar="CLIENT>=VERSION", help="Only for requests of this client, such as claude-code>=2.1.332."
)
_KEYS = "k keep the recorded answers   r record anew   s skip   d the whole difference   q stop"


def review(
    store: Path | None = STORE, cassette_dir: Path | None = _CASSETTES, until: str = _UNTIL, when: str = _WHEN
) -> None:
    """Decide on each pending change at the terminal: keep the answers, record again, skip, or show the difference."""
    loaded, pending = _load_pending_changes(store, cassette_dir)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        typed = format_command(f"accept {pending[0].name}", loaded.settings.store)
        raise SettingsError("review asks at a terminal, and this is none.", hint=f"Without questions: {typed}")
    kept, anew, origin = list["ChangeGroup"](), list[str](), ""
    for group in pending:
        if group.origin != origin:
            origin = group.origin
            print_line(f"\n{to_line(origin)}")
        calls = f"{format_count(group.calls, 'call')} in {to_line(name_some(group.cassettes, ' '))}"
        print_line(f"{group.name}  {to_line(group.text)}\n    {calls}")
        key = _ask_decision(group)
        if key == "q":
            break
        kept += [group] if key == "k" else []
        anew += [group.name] if key == "r" else []
    if kept:
        _write_accepted_changes(loaded, kept, _parse_date(until), _parse_client_condition(when))
    if anew:
        which = "".join(f" --change {name}" for name in anew)
        print_line(f"next: {format_command(f'rerecord --changed{which} -- COMMAND', loaded.settings.store)}")


def accept(
    names: list[str] = typer.Argument(None, metavar="NAME...", help="Changes, as `llmproxy changes` names them."),
    client: str = typer.Option("", "--client", metavar="NAME", help="Accept all changes that this client itself made."),
    store: Path | None = STORE,
    cassette_dir: Path | None = _CASSETTES,
    until: str = _UNTIL,
    when: str = _WHEN,
    whole: bool = typer.Option(False, "--all", help="With --client: print each change, not only their groups."),
) -> None:
    """Accept changes: keep the recorded answers. llmproxy writes the acceptance into the affected cassettes."""
    loaded, pending = _load_pending_changes(store, cassette_dir)
    if bool(names) == bool(client):
        raise SettingsError("say which changes: NAME..., or --client NAME for all that a client itself changed.")
    known = {group.name: group for group in pending}
    if unknown := [name for name in names or () if name not in known]:
        raise SettingsError(
            f"no change {to_line(unknown[0])} is pending.", hint=f"Pending: {', '.join(known)}. Nothing was written."
        )
    chosen = [known[name] for name in names or ()] or _select_changes_by_client(pending, client)
    if client:
        for text in (
            _format_change_counts_by_kind(chosen) if not whole else (f"{each.name}  {each.text}" for each in chosen)
        ):
            print_line(f"  {to_line(text)}")
    _write_accepted_changes(loaded, chosen, _parse_date(until), _parse_client_condition(when))


def _load_pending_changes(store: Path | None, cassette_dir: Path | None) -> tuple[Loaded, list[ChangeGroup]]:
    loaded = load_settings({"store": store, "cassette_dir": cassette_dir})
    done = {
        name: {each.name: each.exactly for each in some}
        for name, some in read_accepted_changes_by_cassette(loaded).items()
    }
    pending = [
        group
        for group in summarize_recent_trials(loaded.settings.store).groups
        if any(not seen <= done.get(name, {}).get(group.name, frozenset()) for name, seen in group.cassettes.items())
    ]
    if not pending:
        typed = format_command("changes -- COMMAND", loaded.settings.store)
        raise SettingsError("nothing is pending: no trial saw a change that is not decided.", hint=f"First: {typed}")
    require_dir_for_filed_cassettes(loaded, (name for group in pending for name in group.cassettes))
    return loaded, pending


def _ask_decision(group: ChangeGroup) -> str:
    while True:
        print_line(f"    {_KEYS}")
        typed = (sys.stdin.readline() or "q").strip().lower()[:1]
        if typed == "d":
            for text in group.change.difference_text.splitlines():
                print_line(f"    {printable(text)}")
        elif typed in ("k", "r", "s", "q"):
            return typed


def _select_changes_by_client(pending: Sequence[ChangeGroup], client: str) -> list[ChangeGroup]:
    ours = [group for group in pending if group.change.origin.source is Author.CLIENT]
    found = [group for group in ours if client_slug(group.change.origin.name) == client_slug(client)]
    if not found:
        names = ", ".join(dict.fromkeys(client_slug(group.change.origin.name) for group in ours)) or "none"
        raise SettingsError(f"nothing is pending that {to_line(client)} itself changed.", hint=f"Clients: {names}.")
    return found


def _format_change_counts_by_kind(groups: Iterable[ChangeGroup]) -> list[str]:
    """Return the number of changes by kind: ``tool: 16 gone, 3 new, 7 reworded``."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for change in (group.change for group in groups):
        counts[change.kind]["new" if change.before is None else "gone" if change.after is None else "reworded"] += 1
    return [f"{kind}: {', '.join(f'{n} {how}' for how, n in row.items())}" for kind, row in counts.items()]


def _write_accepted_changes(
    loaded: Loaded, chosen: Sequence[ChangeGroup], until: date | None, when: Condition | None
) -> None:
    today = date.today()  # noqa: DTZ011 - the day of who accepts
    before, made = read_accepted_changes_by_cassette(loaded), dict[str, Sequence["AcceptedChange"]]()
    for group in chosen:
        for cassette, seen in group.cassettes.items():
            (taken,) = build_accepted_changes([group.change], today, until=until, when=when)
            known = made.get(cassette, before.get(cassette, ()))
            made[cassette] = merge_accepted(known, [taken._replace(exactly=frozenset(seen))])
    write_accepted_changes(loaded, made)
    print_line(f"accepted: {name_some(group.name for group in chosen)}, in {to_line(name_some(made, ' '))}")
    print_line("Answers are carried from now on, and every run says so; under --strict it ends with 4.")


def _parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise SettingsError(f"--until {text!r} is no day: 2027-01-31 is one.") from error


def _parse_client_condition(text: str) -> Condition | None:
    if not text:
        return None
    if not (found := re.fullmatch(r"([A-Za-z][\w./-]*)(?:>=([\w.+-]+))?", text)):
        raise SettingsError(f"--when {text!r} names a client: claude-code, or claude-code>=2.1.332.")
    return Condition(found[1], found[2] or "")
