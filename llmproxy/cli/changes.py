"""``llmproxy changes``, ``review`` and ``accept``: what changed since a command was recorded, found offline."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import typer

from llmproxy.advice import SuggestedCommandTemplate, format_llmproxy_command
from llmproxy.amount_formatting import format_count, name_some
from llmproxy.cli.parts.options import LAST_REPORT, CliRunArguments, CommandWithoutLiveOptions, load_settings
from llmproxy.cli.parts.printing import print_line, to_safe_line
from llmproxy.cli.parts.store_arguments import STORE, open_given_store, require_store_exists_or_dir_given
from llmproxy.client.proxy_process import read_llmproxy_url
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.changes.accepted_change_model import (
    AcceptedChange,
    ClientVersionCondition,
    build_accepted_changes,
    client_slug,
    merge_accepted_change_lists,
)
from llmproxy.core.changes.segment_change import ChangeSource
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.journal import discard_played_ids_of_cut_trials
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import read_cassette_accepted_changes, store_accepted_changes
from llmproxy.errors import Exit, MachineError, SettingsError, printable
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, store_exists
from llmproxy.protocol import UPDATE_VARIABLE, UpdateMode
from llmproxy.report.json_report import read_report_runs
from llmproxy.report.request_change_summary import ChangedRequestsReport, ChangeGroup, build_changed_requests_report
from llmproxy.settings import Loaded, format_shown_path


class _ChangesArgumentParser(CommandWithoutLiveOptions):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = args[:1] in (["list"], ["drop"])
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command("changes", cls=_ChangesArgumentParser, context_settings={"allow_interspersed_args": False})(changes)
    app.command("review")(review)
    app.command("accept")(accept)


def changes(
    ctx: typer.Context,
    words: list[str] = typer.Argument(
        ..., metavar="-- COMMAND | list | drop NAME", help="The command to run; `list` or `drop` for accepted changes."
    ),
    markdown: Path | None = typer.Option(
        None, "--markdown", metavar="FILE", help="Add a table for a pull request to this file ($GITHUB_STEP_SUMMARY)."
    ),
) -> None:
    """List, offline, what has changed since a command was recorded, what it affects and what new recordings cost; or
    list accepted changes, and drop them.
    """
    asked = CliRunArguments.from_context(ctx, words, mode="replay")
    loaded = load_settings(asked.flags)
    if words[0] in ("list", "drop"):
        _load_cassette_dir_into_store(loaded)
    if words == ["list"]:
        _print_accepted_changes(loaded)
    elif words[0] == "drop":
        _drop_accepted_changes(loaded, words[1:])
    else:
        since, store = time.time(), loaded.settings.store
        typer.echo("llmproxy: changes: offline, with recorded answers; the command's own tools run", err=True)
        plain = replace(asked, options=replace(asked.options, json=None))
        code = run_command_in_replay(plain, loaded, {UPDATE_VARIABLE: UpdateMode.TRIAL.value})
        if code not in (Exit.OK, Exit.MISS):
            discard_played_ids_of_cut_trials(store, since)
        found = build_changed_requests_report(store, since, loaded.settings.cassette)
        rest, typed = f" -- {shlex.join(asked.command)}", loaded.list_typed(environment=False)
        again = SuggestedCommandTemplate(asked.run_command_prefix, rest, typed)
        record = again.command("auto", loaded.settings.cassette, store=format_shown_path(store))
        folder, file = loaded.settings.cassette_dir, asked.options.json
        final = print_changes_and_choose_exit(
            store, found, code, folder=folder, json_file=file, markdown=markdown, record=record
        )
        raise typer.Exit(final)


def run_command_in_replay(asked: CliRunArguments, loaded: Loaded, more: Mapping[str, str]) -> int:
    """Run a command in replay with `more` variables for its proxy. Raises LLMProxyError: nothing was run."""
    from llmproxy.cli.run import run_command_with_proxy

    if read_llmproxy_url(os.environ):
        raise SettingsError("LLMPROXY_URL is set: this needs a proxy of its own.", hint="Unset LLMPROXY_URL.")
    require_store_exists_or_dir_given(loaded)
    return run_command_with_proxy(asked, {**os.environ, **more})


def count_last_report_outcomes(since: float) -> dict[str, int]:
    """Return the outcomes of the last report's runs; their sessions do not know the results of later assertions."""
    counts = dict.fromkeys(("as_before", "carried", "failed"), 0)
    written = LAST_REPORT.exists() and LAST_REPORT.stat().st_mtime >= since
    for *_, ended in read_report_runs(LAST_REPORT) if written else ():
        passed = ended is not None and ended["status"] == "passed"
        counts["failed" if ended is None or not passed else "carried" if ended["carried"] else "as_before"] += 1
    return counts


def print_changes_and_choose_exit(
    store: Path, found: ChangedRequestsReport, code: int, *, record: str, folder: Path | None = None,
    json_file: Path | None = None, markdown: Path | None = None,
) -> int:  # fmt: skip
    """Print changes; return the exit code (`code`: the command's; `record`: `list_next_steps`). Raises MachineError."""
    for text in [*found.format_lines(), *found.list_next_steps(store, folder, record)]:
        print_line(printable(text))
    final = Exit.CHANGED if found.has_changes and code in (Exit.OK, Exit.MISS, Exit.FAILED) else code
    try:
        if json_file is not None:
            told = found.to_json() | {"command_exit_code": code, "exit_code": int(final)}
            json_file.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if markdown is not None:
            with markdown.open("a", encoding="utf-8") as file:
                file.write("\n".join([*found.to_markdown(), ""]))
    except OSError as error:
        raise MachineError(f"{error.filename} cannot be written: {error.strerror or error}") from error
    return final


def read_accepted_changes_by_cassette(loaded: Loaded) -> dict[str, tuple[AcceptedChange, ...]]:
    if not store_exists(loaded.settings.store):
        return {}
    with open_given_store(loaded.settings.store) as store:
        names = dict.fromkeys(info.name for info in store.cassettes())
        found = {name: read_cassette_accepted_changes(store, name) for name in names}
    return {name: each for name, each in found.items() if each}


def require_dir_for_filed_cassettes(loaded: Loaded, cassettes: Iterable[str]) -> None:
    """Raise SettingsError if a cassette has a file in an unknown folder: a fresh clone would lack the change."""
    settings = loaded.settings
    if settings.cassette_dir is None and find_postgres_of_local_copy(settings.store) is None:
        with open_given_store(settings.store) as store:
            filed = next(filter(store.read_synced_file, cassettes), "")
        if filed:
            msg = f"cassette {to_safe_line(filed)} is also in a file that must be updated; its folder is unknown."
            raise SettingsError(msg, hint="Add --cassette-dir DIR, as in your tests. Nothing was written.")


def save_accepted_changes_to_cassettes(loaded: Loaded, made: Mapping[str, Sequence[AcceptedChange]]) -> None:
    settings = loaded.settings
    with open_store(settings.store, writable=True, now=time.time) as store:
        for cassette, accepted in made.items():
            store_accepted_changes(store, cassette, accepted)
            if settings.cassette_dir is not None:
                files = CassetteDir(settings.cassette_dir, now=time.time)
                files.save_cassette(store, cassette, remember=store.record_synced_file)


def _load_cassette_dir_into_store(loaded: Loaded) -> None:
    folder = loaded.settings.cassette_dir
    if folder is not None and folder.is_dir():
        with open_store(loaded.settings.store, writable=True, now=time.time) as store:
            rules, files = Rules.from_settings(loaded.settings.normalize), CassetteDir(folder, now=time.time)
            files.load_into(store, rules=rules, upstreams=dict(loaded.settings.upstream), wait=time.sleep)


def _print_accepted_changes(loaded: Loaded) -> None:
    found = read_accepted_changes_by_cassette(loaded)
    rows: dict[AcceptedChange, list[str]] = {}
    for cassette, accepted in found.items():
        for each in accepted:
            rows.setdefault(each._replace(exactly=frozenset()), []).append(cassette)
    if not rows:
        print_line("No change is accepted.")
    for each, cassettes in rows.items():
        until = f", until {each.until}" if each.until else ""
        when = f", for {each.when.client} {each.when.since}".rstrip() if each.when else ""
        where = to_safe_line(name_some(cassettes, " "))
        print_line(f"{each.name}  {to_safe_line(each.segment)}  accepted {each.accepted}{until}{when}  {where}")
        for text in each.difference.splitlines():
            print_line(f"    {printable(text)}")


def _drop_accepted_changes(loaded: Loaded, names: Sequence[str]) -> None:
    found = read_accepted_changes_by_cassette(loaded)
    known = {each.name for accepted in found.values() for each in accepted}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        msg = f"no change {unknown} is accepted." if names else "drop needs the name of an accepted change."
        raise SettingsError(msg, hint=f"Accepted: {', '.join(sorted(known)) or 'none'}. Nothing was written.")
    left = {
        cassette: [each for each in accepted if each.name not in names]
        for cassette, accepted in found.items()
        if any(each.name in names for each in accepted)
    }
    require_dir_for_filed_cassettes(loaded, left)
    save_accepted_changes_to_cassettes(loaded, left)
    print_line(
        f"dropped: {', '.join(names)}, in {to_safe_line(name_some(left, ' '))}; what it covered is a miss again."
    )


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
        typed = format_llmproxy_command(f"accept {pending[0].name}", loaded.settings.store)
        raise SettingsError("review asks at a terminal, and this is none.", hint=f"Without questions: {typed}")
    kept, anew, origin = list["ChangeGroup"](), list[str](), ""
    for group in pending:
        if group.origin != origin:
            origin = group.origin
            print_line(f"\n{to_safe_line(origin)}")
        calls = f"{format_count(group.calls, 'call')} in {to_safe_line(name_some(group.cassettes, ' '))}"
        print_line(f"{group.name}  {to_safe_line(group.text)}\n    {calls}")
        key = _ask_decision(group)
        if key == "q":
            break
        kept += [group] if key == "k" else []
        anew += [group.name] if key == "r" else []
    if kept:
        _write_accepted_changes(loaded, kept, _parse_date(until), _parse_client_condition(when))
    if anew:
        which = "".join(f" --change {name}" for name in anew)
        print_line(f"next: {format_llmproxy_command(f'rerecord --changed{which}', loaded.settings.store)} -- COMMAND")


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
    loaded, pending = _load_pending_changes(store, cassette_dir, again=names or ())
    if bool(names) == bool(client):
        raise SettingsError("say which changes: NAME..., or --client NAME for all that a client itself changed.")
    known = {group.name: group for group in pending}
    if unknown := [name for name in names or () if name not in known]:
        hint = f"Pending: {', '.join(known)}. Nothing was written."
        raise SettingsError(f"no change {to_safe_line(unknown[0])} is pending.", hint=hint)
    chosen = [known[name] for name in names or ()] or _select_changes_by_client(pending, client)
    if client:
        texts = [f"{each.name}  {each.text}" for each in chosen] if whole else _format_change_counts_by_kind(chosen)
        for text in texts:
            print_line(f"  {to_safe_line(text)}")
    _write_accepted_changes(loaded, chosen, _parse_date(until), _parse_client_condition(when))


def _load_pending_changes(
    store: Path | None, cassette_dir: Path | None, again: Sequence[str] = ()
) -> tuple[Loaded, list[ChangeGroup]]:
    """Return the settings and the last trials' changes that are not accepted, or `again`. Raises SettingsError."""
    loaded = load_settings({"store": store, "cassette_dir": cassette_dir})
    accepted = read_accepted_changes_by_cassette(loaded)
    today = date.today()  # noqa: DTZ011 - the day of who accepts
    done = {name: {x.name: x.exactly for x in some if not x.has_expired(today)} for name, some in accepted.items()}
    pending = [
        group
        for group in build_changed_requests_report(loaded.settings.store).groups
        if group.name in again
        or any(not seen <= done.get(name, {}).get(group.name, frozenset()) for name, seen in group.cassettes.items())
    ]
    if not pending:
        typed = f"{format_llmproxy_command('changes', loaded.settings.store)} -- COMMAND"
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
    """Return the changes made by the client itself. Raises SettingsError."""
    ours = [group for group in pending if group.change.origin.source is ChangeSource.CLIENT]
    found = [group for group in ours if client_slug(group.change.origin.name) == client_slug(client)]
    if not found:
        names = ", ".join(dict.fromkeys(client_slug(group.change.origin.name) for group in ours)) or "none"
        msg = f"nothing is pending that {to_safe_line(client)} itself changed."
        raise SettingsError(msg, hint=f"Clients: {names}.")
    return found


def _format_change_counts_by_kind(groups: Iterable[ChangeGroup]) -> list[str]:
    """Return the number of changes by kind: ``tool: 16 gone, 3 new, 7 reworded``."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for change in (group.change for group in groups):
        counts[change.kind]["new" if change.before is None else "gone" if change.after is None else "reworded"] += 1
    return [f"{kind}: {', '.join(f'{n} {how}' for how, n in row.items())}" for kind, row in counts.items()]


def _write_accepted_changes(
    loaded: Loaded, chosen: Sequence[ChangeGroup], until: date | None, when: ClientVersionCondition | None
) -> None:
    today = date.today()  # noqa: DTZ011 - the day of who accepts
    before, made = read_accepted_changes_by_cassette(loaded), dict[str, Sequence["AcceptedChange"]]()
    for group in chosen:
        for cassette, seen in group.cassettes.items():
            (taken,) = build_accepted_changes([group.change], today, until=until, when=when)
            same = (taken.name, taken.segment, taken.when)
            known = [
                each._replace(until=until) if (each.name, each.segment, each.when) == same else each
                for each in made.get(cassette, before.get(cassette, ()))
            ]
            made[cassette] = merge_accepted_change_lists(known, [taken._replace(exactly=frozenset(seen))])
    save_accepted_changes_to_cassettes(loaded, made)
    print_line(f"accepted: {name_some(group.name for group in chosen)}, in {to_safe_line(name_some(made, ' '))}")
    print_line(f"Carried until {until or 'further notice'}; every run says so, and ends with 4 under --strict.")


def _parse_date(text: str) -> date | None:
    try:
        day = date.fromisoformat(text) if text else None
    except ValueError as error:
        raise SettingsError(f"--until {text!r} is no day: 2027-01-31 is one.") from error
    if day is not None and day < date.today():  # noqa: DTZ011 - the day of who accepts
        raise SettingsError(f"--until {text} is past.")
    return day


def _parse_client_condition(text: str) -> ClientVersionCondition | None:
    if not text:
        return None
    if not (found := re.fullmatch(r"([A-Za-z][\w./-]*)(?:>=([\w.+-]+))?", text)):
        raise SettingsError(f"--when {text!r} names a client: claude-code, or claude-code>=2.1.332.")
    return ClientVersionCondition(found[1], found[2] or "")
