"""``llmproxy learn CASSETTE -- COMMAND``: find the values in tool results that vary from run to run.

A trial runs the agent on its recording, offline, to its end; without a command, consecutive recorded runs are compared.
Nothing is written before the user has confirmed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from llmproxy.amount_formatting import align_rows, format_count
from llmproxy.calls_and_totals import Miss
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.options import CliRunArguments, CommandWithoutLiveOptions, load_settings, refuse_live_channels
from llmproxy.cli.parts.printing import write_stderr_lines
from llmproxy.cli.parts.session_setup import build_start_flags, open_session, plan_environment
from llmproxy.cli.parts.store_arguments import (
    VolatileFieldLearningRunResult,
    build_cassette_not_recorded_error,
    learn_fields_from_recorded_runs,
    open_given_store,
    require_store_exists_or_dir_given,
)
from llmproxy.client.child_env import detect_cwd_home_date_variables, find_zone_with_other_date
from llmproxy.client.proxy_process import ensure_proxy, find_command_path, read_llmproxy_url, run_child
from llmproxy.client.session_reports import list_shortened_misses_with_counts
from llmproxy.core.bindings import KINDS, VolatileField, deserialize_run_variables
from llmproxy.core.bindings.volatile_learning import LearnedField, find_unused_name, widen_volatile_fields_to_any_args
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.engine.learn_fields_from_recordings import (
    PairEqualUpToVolatileFields,
    find_pairs_equal_up_to_volatiles,
)
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import read_newest_run_variables, read_volatile_fields, save_cassette_volatile_fields
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.postgres_store_paths import store_exists
from llmproxy.settings import Loaded

_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "BUILDKITE", "TEAMCITY_VERSION")
_FOREIGN = "  from outside of this machine (a page, a service, another host): is it not a part of what is asked?"
_WIDEST = 34
_WIDE = 240
_SHOWN = 5


def register(app: typer.Typer) -> None:
    app.command("learn", cls=CommandWithoutLiveOptions, context_settings={"allow_interspersed_args": True})(learn)


def learn(
    ctx: typer.Context,
    recording: str = typer.Argument(
        ..., metavar="CASSETTE", autocompletion=complete_cassette_names, help="The cassette to learn from."
    ),
    command: list[str] = typer.Argument(None, metavar="-- COMMAND", help="The agent's command, as it was recorded."),
    accept: bool = typer.Option(
        False, "--accept", help="Accept obvious values without asking. They are of the kinds uuid, hex, time, duration."
    ),
    take: list[str] = typer.Option([], "--take", metavar="NAME", help="Also accept this number or name. Repeatable."),
    keep_timezone: bool = typer.Option(
        False, "--keep-timezone", help="Run the trial in this machine's time zone, even on the day of the recording."
    ),
    drop: list[str] = typer.Option(
        [], "--drop", metavar="NAME", help="Remove a volatile field of the cassette. Repeatable."
    ),
) -> None:
    """Learn which values in tool results vary from run to run, from a trial run or from two recordings."""
    if found := next((name for name in _CI if os.environ.get(name)), ""):
        msg = f"learn asks a person what may vary, and this is CI ({found} is set)."
        raise SettingsError(msg, hint="Learn on your machine; the volatile fields are part of the cassette.")
    asked = CliRunArguments.from_context(ctx, command, cassette=recording, mode="replay")
    loaded = load_settings(asked.flags)
    refuse_live_channels(loaded, "llmproxy learn")
    require_store_exists_or_dir_given(loaded)
    if drop:
        before = _read_cassette_fields(loaded)
        if unknown := sorted(set(drop) - {field.name for field in before}):
            had = ", ".join(field.name for field in before) or "none"
            msg = f"--drop {unknown[0]}: cassette {loaded.settings.cassette} has no such volatile field."
            raise SettingsError(msg, hint=f"It has: {had}.")
        _save_cassette_fields(loaded, [field for field in before if field.name not in drop])
        write_stderr_lines(f"llmproxy: dropped: {', '.join(drop)}.")
    if asked.command:
        tried = _run_learn_trial(loaded, asked, keep_timezone=keep_timezone)
    else:
        tried = learn_fields_from_recorded_runs(loaded)
    raise typer.Exit(_ask_and_save_fields(loaded, tried, accept=accept, take=take))


def _run_learn_trial(loaded: Loaded, asked: CliRunArguments, *, keep_timezone: bool) -> VolatileFieldLearningRunResult:
    if read_llmproxy_url(os.environ):
        raise SettingsError("LLMPROXY_URL is set: a trial has a proxy of its own.", hint="Unset LLMPROXY_URL.")
    find_command_path(asked.command, os.environ)
    zone = "" if keep_timezone else _choose_zone_of_other_date(loaded)
    env = {**os.environ, "TZ": zone} if zone else dict(os.environ)
    since, options = time.time(), build_start_flags(asked.flags)
    with (
        tempfile.TemporaryDirectory(prefix="llmproxy-learn-") as folder,
        ensure_proxy(options, env, log=Path(folder) / "proxy.log", started_by="llmproxy run") as proxy,
    ):
        opened = open_session(proxy, load_settings(asked.flags), env, asked.list_run_variables(env))
        if not opened.unused:
            proxy.control.close_session(opened.name)
            raise build_cassette_not_recorded_error(loaded)
        proxy.control.start_learning_trial(opened.name)
        code = run_child(asked.command, plan_environment(proxy, opened, env, asked, Path(folder)).apply_to(env))
        lessons = proxy.control.read_learned_fields(opened.name)
        report = proxy.control.close_session(opened.name)
        misses = tuple(miss for miss in proxy.control.misses() if miss.at >= since)
    if not report.calls:
        hint = "llmproxy doctor -- COMMAND says why."
        raise MachineError("the command never used the proxy: nothing was tried.", hint=hint)
    ended = f"{format_count(report.hits, 'hit')}, {format_count(report.misses, 'miss', 'misses')}"
    write_stderr_lines(f"llmproxy: trial: {ended}; the command ended with {code}")
    return VolatileFieldLearningRunResult(lessons, code, misses)


def _choose_zone_of_other_date(loaded: Loaded) -> str:
    """Return a time zone with another date if the recording is of today; else empty."""
    if not store_exists(loaded.settings.store):  # the folder of cassettes has not been read yet
        return ""
    with open_given_store(loaded.settings.store) as store:
        newest = read_newest_run_variables(store, loaded.settings.cassette)
    recorded = next((each.value for each in deserialize_run_variables(newest) if each.name == "date"), "")
    here = next(
        each["value"] for each in detect_cwd_home_date_variables(os.environ, Path.cwd()) if each["name"] == "date"
    )
    zone = find_zone_with_other_date(recorded) if recorded == here else ""
    if zone:
        where = f"the time zone {zone}, where days and hours are others (--keep-timezone: in yours)"
        write_stderr_lines(f"llmproxy: it was recorded today: tried in {where}")
    return zone


def _ask_and_save_fields(
    loaded: Loaded, tried: VolatileFieldLearningRunResult, *, accept: bool, take: Sequence[str]
) -> int:
    name = loaded.settings.cassette
    lessons = widen_volatile_fields_to_any_args(tried.lessons)
    varied = sorted({lesson.field.name for lesson in lessons})
    if unknown := sorted(set(take) - set(varied)):
        if tried.misses:
            _print_unservable_misses(tried.misses)
        hint = f"These did: {', '.join(varied) or 'none'}. Nothing was written."
        raise SettingsError(f"--take {unknown[0]}: nothing of that name varied.", hint=hint)
    if lessons:
        many = format_count(len(lessons), "value varies", "values vary")
        write_stderr_lines(f"llmproxy: {many} from run to run in cassette {name}:", *_format_field_rows(lessons))
    else:
        write_stderr_lines(f"llmproxy: nothing varies in cassette {name} that a volatile field could hold.")
    merges = _find_newly_merged_recordings(loaded, lessons)
    refused = {field for merge in merges for field in merge.volatile}
    for merge in merges[:5]:
        why = f"with it recording #{merge.first} would answer what #{merge.second} asked"
        write_stderr_lines(f"  refused: {', '.join(merge.volatile)}: {why}, and they answered differently.")
    free = [lesson for lesson in lessons if lesson.field.name not in refused]
    if wrong := sorted(refused & set(take)):
        raise SettingsError(f"--take {wrong[0]}: it would merge two answers.", hint="Nothing was written.")
    if taken := _choose_fields(free, accept=accept, take=take):
        _add_fields_to_cassette(loaded, [lesson.field for lesson in taken])
        named = ", ".join(lesson.field.name for lesson in taken)
        write_stderr_lines(f"llmproxy: {format_count(len(taken), 'volatile field')} written: {named}.")
    if left := [lesson for lesson in free if lesson not in taken]:
        names = ", ".join(each.field.name for each in left)
        typed = dict.fromkeys("--accept" if each.is_bulk_acceptable else f"--take {each.field.name}" for each in left)
        kinds = ", ".join(name for name, kind in KINDS.items() if kind.accepted)
        write_stderr_lines(
            f"llmproxy: not taken: {names}. If they may be anything of their kind: {' '.join(typed)}",
            f"  --accept takes {kinds} that a tool of this machine answered; all else is taken by name.",
        )
    if tried.misses:
        _print_unservable_misses(tried.misses)
    elif left:
        write_stderr_lines(f"llmproxy: exit code {Exit.MISS} because a replay in which they differ again will miss.")
    return Exit.MISS if tried.misses or left else tried.code


def _print_unservable_misses(misses: Sequence[Miss]) -> None:
    write_stderr_lines(
        "llmproxy: these could not be served, even on trial:",
        *list_shortened_misses_with_counts([miss.text for miss in misses], prefix="  miss: "),
    )
    told = dict.fromkeys(miss.unbound for miss in misses if miss.unbound)
    write_stderr_lines(*(f"  {_shorten_text(line, _WIDE)}" for line in [*told][:_SHOWN]))


def _choose_fields(lessons: Sequence[LearnedField], *, accept: bool, take: Sequence[str]) -> list[LearnedField]:
    if not accept and not take and lessons and sys.stdin.isatty() and sys.stderr.isatty():
        texts = [f"May {each.field.name} ({each.field.kind}) vary?" for each in lessons]
        asked = zip(texts, lessons, strict=True)
        return [each for text, each in asked if typer.confirm(text, default=each.is_bulk_acceptable, err=True)]
    return [lesson for lesson in lessons if (accept and lesson.is_bulk_acceptable) or lesson.field.name in take]


def _format_field_rows(lessons: Sequence[LearnedField]) -> list[str]:
    rows: list[tuple[str, ...]] = [("name", "kind", "where", "recorded", "now")]
    for lesson in sorted(lessons, key=lambda each: (each.comes_from_other_machine, not each.is_bulk_acceptable)):
        field = lesson.field
        where = f"{field.tool}: {field.before}..." if field.before else f"{field.tool} {field.at}"
        mark = "" if lesson.is_bulk_acceptable else " (by name)"
        texts = map(_shorten_text, (where, lesson.recorded, lesson.present))
        rows.append((f"{field.name}{mark}", field.kind, *texts))
    lines = [f"  {text}" for text in align_rows(rows)]
    if foreign := sum(lesson.comes_from_other_machine for lesson in lessons):
        lines.insert(len(lines) - foreign, _FOREIGN)
    return lines


def _shorten_text(text: str, most: int = _WIDEST) -> str:
    flat = "".join(char if char.isprintable() else " " for char in text)
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."


def _find_newly_merged_recordings(loaded: Loaded, lessons: Sequence[LearnedField]) -> list[PairEqualUpToVolatileFields]:
    if not lessons:
        return []
    settings = loaded.settings
    rules = Rules.from_settings(settings.normalize)
    with open_given_store(settings.store) as store:
        fields = [each.field for each in lessons]
        merges = find_pairs_equal_up_to_volatiles(store, settings.cassette, fields, rules, settings.upstream)
    new = {each.field.name for each in lessons}
    return [each for each in merges if not each.alike and new & set(each.volatile)]


def _add_fields_to_cassette(loaded: Loaded, fields: Sequence[VolatileField]) -> None:
    kept = list(_read_cassette_fields(loaded))
    names = {field.name for field in kept}
    for field in fields:
        name = find_unused_name(field.name, names)
        names.add(name)
        kept.append(replace(field, name=name))
    _save_cassette_fields(loaded, kept)


def _read_cassette_fields(loaded: Loaded) -> tuple[VolatileField, ...]:
    with open_given_store(loaded.settings.store) as store:
        return read_volatile_fields(store, loaded.settings.cassette)


def _save_cassette_fields(loaded: Loaded, fields: Sequence[VolatileField]) -> None:
    settings = loaded.settings
    with open_store(settings.store, writable=True, now=time.time) as store:
        save_cassette_volatile_fields(store, settings.cassette, fields)
        if settings.cassette_dir is not None:
            CassetteDir(settings.cassette_dir, now=time.time).save_cassette(store, settings.cassette)
