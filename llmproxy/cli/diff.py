"""``llmproxy diff``: compare two interactions, or two cassettes by the agent's behaviour."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli.parts.binding_texts import (
    bindings_to_json,
    format_run_variables_line,
    format_volatile_fields,
    iter_recorded_variable_lines,
    parse_stored_run_variables,
)
from llmproxy.cli.parts.import_files import load_file_or_cassette
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import print_json, print_line, to_line
from llmproxy.cli.parts.store_arguments import STORE, is_id, open_given
from llmproxy.core.bindings import Fit, Mismatch, VolatileField
from llmproxy.core.bindings.volatile_field_matching import list_builtin
from llmproxy.core.dialects.conversation import compare_requests, read_interaction_message
from llmproxy.core.engine.learn_fields_from_recordings import fit_request_to_other_recording, restate_run
from llmproxy.core.forks.fork_rows import Fork, find_fork
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.session import split_cassette_sample
from llmproxy.core.store.queries import read_volatile_fields
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.core.traffic.json_diff import Difference, build_difference, list_differences
from llmproxy.errors import Exit, SettingsError
from llmproxy.trace.comparing.diff import FailOn
from llmproxy.trace.comparing.recording_diff import RunAndAllRequestsDiff
from llmproxy.trace.comparing.render import diff_to_dict, render

_PLACES = 100
_FORMS = ("text", "json", "markdown")


def diff(
    old: str = typer.Argument(..., metavar="OLD", help="Number of an interaction; or a cassette, or a cassette file."),
    new: str = typer.Argument(..., metavar="NEW", help="The same for the newer one."),
    store: Path | None = STORE,
    form: str = typer.Option("text", "--format", metavar="FORM", help="text (side by side), json or markdown."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    fail_on: str | None = typer.Option(
        None, "--fail-on", metavar="WHAT", help="End with 1 if tool calls changed (contract), or anything (any)."
    ),
) -> None:
    """Show where two interactions differ, by prompt, tool or message; or two cassettes, by tools, texts, tokens, cost,
    time and requests.
    """
    form = "json" if as_json else form
    for value, known, flag in ((form, _FORMS, "--format"), (fail_on, ("contract", "any", None), "--fail-on")):
        if value not in known:
            raise SettingsError(f"{flag} {value}: it can be {', '.join(filter(None, known))}.")
    if is_id(old) and is_id(new):
        with open_given(store) as database:
            pair = database.load(int(old)), database.load(int(new))
            changed = _print_interaction_diff(*pair, _would_answer_other(database, *pair), as_json=form == "json")
        failed = changed and fail_on is not None
    else:
        files = Path(old).is_file() and Path(new).is_file()  # two files need no store, and in a clone there may be none
        with nullcontext() if files else open_given(store) as looked_into:
            found = compare_cassettes(looked_into, old, new)
            if form == "json":
                print_json(_to_json(found))
            elif form == "markdown":
                print_line("\n".join(_format_markdown(found)))
            else:
                for text in _format_for_terminal(found):
                    typer.echo(text)
        failed = found.diff.fails(cast("FailOn | None", fail_on))
    if failed:
        raise typer.Exit(Exit.FAILED)


@dataclass(frozen=True, slots=True)
class CassetteComparison:
    names: tuple[str, str]
    diff: RunAndAllRequestsDiff
    forks: tuple[Fork, ...]
    exchanged: tuple[str, ...]
    """Run variables and volatile fields with different values; the old run is compared with the new values."""
    bound: tuple[tuple[list[str], tuple[VolatileField, ...]], ...]
    """Of both: run variables of their runs, and volatile fields."""

    @property
    def reasons(self) -> list[str]:
        alike = len(set(self.names)) > 1 and self.bound[0] == self.bound[1]
        told = [("both", self.bound[0])] if alike else list(zip(self.names, self.bound, strict=True))
        lines = [
            to_line(text)
            for name, (said, fields) in told
            for text in (*iter_recorded_variable_lines(name, said), *format_volatile_fields(name, fields))
        ]
        if self.exchanged:
            lines.append(to_line(f"exchanged before comparing: {', '.join(self.exchanged)}"))
        for fork in self.forks:
            lines.append(to_line(f"{fork.cassette} is a {fork.describe_origin()}"))
            overrides = [f"{each.name_as_typed} returns {each.text[:_PLACES]}" for each in fork.overrides.tools]
            answers = sorted(fork.overrides.answers.items())
            overrides += [f"LLM call {n} answers {said.text[:_PLACES]!r}" for n, said in answers]
            lines += [f"  {to_line(text)}" for text in overrides]
        return lines


def compare_cassettes(database: Store | None, old: str, new: str) -> CassetteComparison:
    loaded = load_settings({})
    rules, upstreams = Rules.from_settings(loaded.settings.normalize), loaded.settings.upstream
    sides = [load_file_or_cassette(name, database, rules, upstreams) for name in (old, new)]
    kept = {name: database for name in (old, new) if database is not None and not Path(name).is_file()}
    fields = [
        read_volatile_fields(kept[name], split_cassette_sample(name)[0]) if name in kept else () for name in (old, new)
    ]
    said = [list(dict.fromkeys(filter(None, (each.run_variables for each in side)))) for side in sides]
    sides[0], exchanged = restate_run(sides[0], sides[1], (*fields[0], *fields[1], *list_builtin()), rules, upstreams)
    found = (find_fork(store, *split_cassette_sample(name)) for name, store in kept.items())
    return CassetteComparison(
        (old, new),
        RunAndAllRequestsDiff.compare(*sides, names=(old, new)),
        tuple(each for each in found if each is not None),
        exchanged,
        tuple(zip(said, fields, strict=True)),
    )


def _to_json(found: CassetteComparison) -> dict[str, Any]:
    plain: dict[str, Any] = found.diff.requests.to_dict()
    bound = [bindings_to_json(*each) for each in found.bound]
    told = {"forks": [each.to_json() for each in found.forks], "bindings": bound, "exchanged": list(found.exchanged)}
    return {**plain, "trace": diff_to_dict(found.diff.trace), **told}


def _format_for_terminal(found: CassetteComparison) -> Iterator[str]:
    """Yield lines for a terminal. Recorded text is escaped; the colours are ours."""
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    yield from found.reasons
    if found.diff.trace.has_changes or not found.diff.pairs_beyond_run_diff:
        yield render(found.diff.trace, color=color, width=shutil.get_terminal_size().columns)
    for pair in found.diff.pairs_beyond_run_diff:
        number = " -> ".join(dict.fromkeys(str(n) for n in (pair.old, pair.new) if n is not None))
        yield f"Request {number} {pair.what}: {to_line(pair.title)}  {pair.asked}"
        for each in pair.changes_beyond_run_diff:
            yield f"  {each.what}"
            yield from (f"    {mark} {value}" for mark, value in (("-", each.old), ("+", each.new)) if value)
    yield f"Requests: {found.diff.requests.summarize()}"


def _format_markdown(found: CassetteComparison) -> Iterator[str]:
    yield f"### `{to_line(found.names[0])}` → `{to_line(found.names[1])}`\n"
    yield from (f"> {to_line(text)}  " for text in found.reasons)
    if found.reasons:
        yield ""
    yield render(found.diff.trace, "markdown")
    for pair in found.diff.pairs_beyond_run_diff:
        changes = ", ".join(each.what for each in pair.changes_beyond_run_diff)
        yield f"\n- request {pair.new or pair.old} {pair.what}: {to_line(pair.title)} ({to_line(changes)})"
    yield f"\nRequests: {found.diff.requests.summarize()}"


def _would_answer_other(database: Store, a: Interaction, b: Interaction) -> Fit | Mismatch | None:
    own = {field: None for one in (a, b) for field in read_volatile_fields(database, one.cassette)}
    if a.key == b.key or not (own or (a.run_variables and b.run_variables)):
        return None
    settings = load_settings({}).settings
    rules = Rules.from_settings(settings.normalize)
    return fit_request_to_other_recording(a, b, (*own, *list_builtin()), rules, settings.upstream)


def _print_interaction_diff(a: Interaction, b: Interaction, fit: Fit | Mismatch | None, *, as_json: bool) -> bool:
    found = {
        "requests": _diff_two_requests(a, b),
        "answers": list_differences(*_decode_answers_for_diff(a, b), _PLACES),
    }
    changed = any(found.values())
    if as_json:
        plain = {part: [each.to_dict() for each in places] for part, places in found.items()}
        said = [parse_stored_run_variables(each.run_variables) for each in (a, b)]
        told = {"run_variables": said, "bound": None if fit is None else _describe_would_answer(fit)}
        print_json({"same_key": a.key == b.key, **told, **plain})
        return changed
    print_line(f"keys: {'the same' if a.key == b.key else 'different'}")
    declared = [
        (mark, format_run_variables_line(x.run_variables)) for mark, x in (("- ", a), ("+ ", b)) if x.run_variables
    ]
    if len(declared) > len({text for _, text in declared}):
        declared = [("", declared[0][1])]
    for mark, text in declared:
        print_line(f"declared {mark}{text}")
    if fit is not None:
        print_line(f"bound: {to_line(_describe_would_answer(fit))}")
    for part, places in found.items():
        print_line(f"{part}: {format_count(len(places), 'difference') if places else 'equal'}")
        for each in places:
            path = each.path.replace("$.body", "$", 1) if part == "requests" else each.path  # as misses name it
            print_line(
                f"  {to_line(f'{each.where} at {path}' if each.where else path)}"
                + (f"   (looks like {each.looks})" if each.looks else "")
            )
            print_line(f"    - {to_line(each.old)}\n    + {to_line(each.new)}")
    return changed


def _describe_would_answer(fit: Fit | Mismatch) -> str:
    if isinstance(fit, Mismatch):
        return f"the first would not answer the second: {fit}"
    return f"the first would answer the second ({', '.join(fit.names) or 'nothing differs'})"


def _parse_body(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "backslashreplace")


def _diff_two_requests(a: Interaction, b: Interaction) -> list[Difference]:
    outside = [
        {"provider": each.provider, "method": each.request.method, "target": each.request.target} for each in (a, b)
    ]
    places = compare_requests(b.operation, _parse_body(a.request.body), _parse_body(b.request.body), _PLACES)
    found = [build_difference(f"$.body{path[1:]}", old, new, where) for where, path, old, new, _ in places]
    return [*list_differences(outside[0], outside[1], _PLACES), *found]


def _decode_answers_for_diff(a: Interaction, b: Interaction) -> tuple[object, object]:
    """Return both answers as JSON trees; if one is a stream, the decoded content of both."""
    bodies = [_parse_body(one.response.body) for one in (a, b)]
    if any(isinstance(body, str) for body in bodies):
        said = [read_interaction_message(one) for one in (a, b)]
        if None not in said:
            bodies = [asdict(message) for message in said if message is not None]
    statuses = [{"status": one.response.status, "ending": one.response.ending.value} for one in (a, b)]
    old, new = ({**status, "body": body} for status, body in zip(statuses, bodies, strict=True))
    return old, new
