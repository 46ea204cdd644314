"""``llmproxy show`` and ``diff``: print an interaction or a cassette, compare two."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

import typer

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.amount_formatting import dollars, format_count, format_local_time, format_milliseconds, number
from llmproxy.cli.parts import binding_formatting as bindings
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import (
    escape_all_but_line_breaks,
    format_body_for_reading,
    get_terminal_width_or_none,
    print_json,
    print_line,
    to_safe_line,
    wrap_text,
)
from llmproxy.cli.parts.store_arguments import (
    STORE,
    find_cassette,
    is_interaction_number,
    open_given_store,
    suggest_option_for_numeric_name,
)
from llmproxy.core.bindings import Fit, Mismatch, VolatileField
from llmproxy.core.bindings.volatile_result_fields import load_builtin_volatile_fields
from llmproxy.core.dialects.conversation import compare_requests, parse_answer_as_message, read_request_messages
from llmproxy.core.dialects.messages import Message
from llmproxy.core.dialects.usage_and_cost import compute_cost, read_model_and_fingerprint
from llmproxy.core.engine.learn_fields_from_recordings import (
    match_recording_to_other_request,
    rewrite_recordings_to_new_run,
)
from llmproxy.core.forks.fork_rows import Fork, find_fork
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.mcp_answer_replay import read_mcp_call_with_result
from llmproxy.core.providers.provider_table import MCP_PREFIX, get_call_channel, parse_user_agent_client
from llmproxy.core.store.queries import list_run_variables, read_volatile_fields
from llmproxy.core.store.reader import StoreReader
from llmproxy.core.store.row_conversion import get_answer_date_or_start
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.grpc import GrpcDescriptors, format_grpc_messages
from llmproxy.core.traffic.interaction import TRAILER, Interaction, is_grpc
from llmproxy.core.traffic.json_diff import Difference, build_difference, list_differences
from llmproxy.core.traffic.websocket_frames import format_websocket_transcript, is_websocket_body
from llmproxy.errors import CassetteNotFound, Exit, SettingsError, printable
from llmproxy.protocol import append_sample_number_to_name
from llmproxy.trace.comparing.diff import FailOn, diff_to_dict, render

if TYPE_CHECKING:
    from llmproxy.trace.comparing.recording_diff import TraceAndRequestsDiff
from llmproxy.trace.observing.agent_activity import list_model_vs_mcp_call_mismatches
from llmproxy.ui.calls import build_step_list_of_run, encode_body_for_json

_HEAD = 12


def show_command(
    what: str = typer.Argument(
        ...,
        metavar="ID|CASSETTE",
        autocompletion=complete_cassette_names,
        help="Number of an interaction (see `llmproxy ls`), or a cassette; NAME~2 for its second sample.",
    ),
    store: Path | None = STORE,
    cassette: bool = typer.Option(False, "--cassette", help="Treat a number as a cassette's name."),
    raw: bool = typer.Option(False, "--raw", help="Write only the exact bytes of the response body."),
    request: bool = typer.Option(False, "--request", help="With --raw: write the request body instead."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    descriptor: Path | None = typer.Option(
        None, "--descriptor", metavar="FILE", help="Decode gRPC messages with this file (protoc --descriptor_set_out)."
    ),
) -> None:
    """Show an interaction (conversation, answer, tool calls, tokens, timing), or a whole cassette as a conversation."""
    if cassette or not is_interaction_number(what):
        show_cassette(what, store, single="--raw" if raw else "--request" if request else "", as_json=as_json)
        return
    _show_interaction(what, store, raw=raw, request=request, as_json=as_json, descriptor=descriptor)


def _show_interaction(
    typed: str, store: Path | None, *, raw: bool, request: bool, as_json: bool, descriptor: Path | None
) -> None:
    with open_given_store(store) as database:
        other = suggest_option_for_numeric_name(database, typed, "show")
        try:
            found = database.load(int(typed))
        except CassetteNotFound as error:
            raise CassetteNotFound(error.message, hint=other or error.hint) from None
        fork = find_fork(database, found.cassette, found.sample)
        settings = load_settings({"store": store}).settings
        rules = Rules.from_settings(settings.normalize)
        values = [] if raw else bindings.list_request_volatile_values(database, found, rules, settings.upstream)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(found.request.body if request else found.response.body)
        sys.stdout.buffer.flush()
        return
    if other:
        typer.echo(f"({other})", err=True)

    asked, answer = read_request_messages(found.request.body), parse_answer_as_message(found)
    if as_json:
        print_json(_to_json(found, asked, answer) | {"volatile": values})
        return
    volatile = dict.fromkeys(f"{each['name']} {each['value']}" for each in values)
    for text in [
        *_format_interaction_summary(found),
        *([f"declared    {bindings.format_run_variables_line(found.run_variables)}"] if found.run_variables else []),
        *([f"volatile fields       {', '.join(volatile)}"] if volatile else []),
        *([f"cassette    {fork.describe_origin()}"] if fork else []),
    ]:
        head, value = text[:_HEAD], printable(text[_HEAD:])
        print_line(head + f"\n{' ' * _HEAD}".join(wrap_text(value, get_terminal_width_or_none(), _HEAD)))
    if is_grpc(found.response.headers):
        _print_grpc(found, descriptor)
    elif request:
        print_line("\n" + format_body_for_reading(found.request.body))
    else:
        _print_interaction_messages(found, asked, answer)


def _print_grpc(found: Interaction, descriptor: Path | None) -> None:
    read, ending = GrpcDescriptors(descriptor) if descriptor else None, found.response.ending.value
    for title, body, answer in (
        ("--- request", found.request.body, False),
        ("=== answer" + ("" if ending == "complete" else f" ({ending})"), found.response.body, True),
    ):
        print_line(f"\n{title}")
        for text in format_grpc_messages(body, found.request.target, read, answer=answer):
            print_line(escape_all_but_line_breaks(text))
    print_line("\n=== end")
    for name, value in found.response.headers:
        if value and name.startswith((TRAILER, "grpc-status", "grpc-message")):
            print_line(to_safe_line(f"{name.removeprefix(TRAILER)}: {unquote(value)}"))


def _print_interaction_messages(found: Interaction, asked: Sequence[Message], answer: Message | None) -> None:
    ending = "" if found.response.ending.value == "complete" else f" ({found.response.ending.value})"
    if is_websocket_body(found.response.headers):
        print_line(f"\n=== messages{ending}")
        for text in format_websocket_transcript(found.response.body):
            print_line(to_safe_line(text))
        return
    if (call := read_mcp_call_with_result(found)) is not None:
        print_line(f"\n--- call of {to_safe_line(call.tool)}\n{format_body_for_reading(call.arguments.encode())}")
        print_line(
            "\n=== result" + (" (an error)" if call.failed else "") + "\n" + escape_all_but_line_breaks(call.result)
        )
        return
    for message in asked:
        _print_message(message)
    if not asked and found.request.body:
        print_line(f"\n--- request\n{format_body_for_reading(found.request.body)}")
    print_line(f"\n=== answer{ending}")
    if answer is not None:
        _print_message(answer, title=False)
    elif found.response.body:
        print_line(format_body_for_reading(found.response.body))


def _format_interaction_summary(found: Interaction) -> list[str]:
    answer, usage = found.response, found.usage
    cost = compute_cost(found.provider, found.model, usage)
    spent = [f"{value:,} {what}" for value, what in (
        (usage.input, "tokens in"), (usage.cached, "of them cached"), (usage.cache_written, "written to the cache"),
        (usage.output, "out"), (usage.reasoning, "of them reasoning")) if value is not None]  # fmt: skip
    last = answer.chunks[-1].offset if answer.chunks else answer.head_offset
    first = answer.chunks[0].offset if answer.chunks else answer.head_offset
    client, model = parse_user_agent_client(found.request.headers), read_model_and_fingerprint(answer)
    again = get_answer_date_or_start(found.started_at, answer.headers)
    size = sum(len(chunk.data) for chunk in answer.chunks)
    came = f"{size:,} bytes in {format_count(len(answer.chunks), 'chunk')}"
    times = f"first byte {format_milliseconds(first / 1000)}, last {format_milliseconds(last / 1000)}"
    name, where = append_sample_number_to_name(found.cassette, found.sample), f"{found.upstream}{found.request.target}"
    return [
        f"interaction {found.id}  cassette {name}  party {found.party}  occurrence {found.occurrence}",
        f"key         {found.key}" + (f"  rules {found.rules}" if found.rules else ""),
        f"request     {format_local_time(found.started_at)}  {found.request.method} {where}",
        f"channel     {get_call_channel(found.provider, found.operation)}",
        f"call        {found.provider} {found.operation} {found.model or '(no model)'}"
        + (", streamed" if found.stream else ""),
        f"response    {answer.status} {answer.reason}, {answer.ending.value}, {came}, {times}",
        "usage       " + (", ".join(spent) or "unknown") + (f", {dollars(cost)}" if cost is not None else ""),
        *([f"asked again {format_local_time(again)}"] if again > found.started_at else []),
        *([f"client      {client}"] if client else []),
        *([f"answered by {model}"] if model else []),
        *(["redacted    bytes of the answer were replaced because they held a secret"] if found.redacted else []),
        *([f"made        {', '.join(found.made_ids)}"] if found.made_ids else []),
    ]


def _print_message(message: Message, *, title: bool = True) -> None:
    if title:
        of = f"  (of {to_safe_line(message.tool_call_id)})" if message.tool_call_id else ""
        print_line(f"\n--- {to_safe_line(message.role)}{of}")
    if message.reasoning:
        _print_wrapped(f"(reasoning) {message.reasoning}")
    if message.text:
        _print_wrapped(message.text)
    for call in message.tool_calls:
        print_line(f"-> {to_safe_line(call.name)}" + (f"  ({to_safe_line(call.id)})" if call.id else ""))
        print_line(
            "   " + format_body_for_reading(call.arguments.encode("utf-8", "surrogatepass")).replace("\n", "\n   ")
        )


def _print_wrapped(text: str) -> None:
    for row in wrap_text(escape_all_but_line_breaks(text), get_terminal_width_or_none()):
        print_line(row)


def _body_to_json(body: bytes) -> object:
    made = encode_body_for_json(body)
    return made.get("text", made)


def _to_json(found: Interaction, asked: list[Message], answer: Message | None) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(found) | {"channel": get_call_channel(found.provider, found.operation)}
    plain["run_variables"] = bindings.parse_stored_run_variables(found.run_variables)
    plain["request"]["body"] = _body_to_json(found.request.body)
    plain["response"]["body"] = _body_to_json(found.response.body)
    plain["response"]["chunks"] = [[chunk.offset, len(chunk.data)] for chunk in found.response.chunks]
    plain["conversation"] = [asdict(message) for message in asked]
    plain["answer"] = None if answer is None else asdict(answer)
    plain["client"] = str(parse_user_agent_client(found.request.headers) or "")
    plain["answered_by"] = read_model_and_fingerprint(found.response)
    plain["recorded_at"] = get_answer_date_or_start(found.started_at, found.response.headers)
    return plain


_HEADS = {"user": "asked", "answer": "answered", "says": "said", "failed": "failed", "call": "called", "tool": "did"}
_INDENT = 17


def show_cassette(typed: str, store: Path | None, *, single: str, as_json: bool) -> None:
    """Print a cassette, or one sample of it; `single` is a given option that applies to single interactions only."""
    with open_given_store(store) as database:
        named = find_cassette(database, typed)
        if single:
            listed = format_llmproxy_command(f"ls --cassette {quote_word(named.cassette)}", database.path)
            msg = f"{single} is for one interaction, by its number; {to_safe_line(typed)} is a cassette."
            raise SettingsError(msg, hint=f"Its numbers: {listed}")
        samples = [info.sample for info in database.cassettes(named.cassette) if named.sample in (None, info.sample)]
        if as_json:
            print_json([_cassette_to_json(database, named.cassette, sample) for sample in samples])
            return
        cells = get_terminal_width_or_none()
        for n, sample in enumerate(samples):
            told = _cassette_to_json(database, named.cassette, sample)
            print_line(("\n" if n else "") + "\n".join(wrap_text(_format_totals(told), cells)))
            if (fork := find_fork(database, named.cassette, sample)) is not None:
                print_line(to_safe_line(fork.describe_origin()))
            shown = append_sample_number_to_name(to_safe_line(named.cassette), sample)
            declared = list_run_variables(database, named.cassette, sample)
            for text in bindings.format_recorded_variable_lines(shown, declared):
                print_line("\n".join(wrap_text(text, cells)))
            for text in format_conversation(told["steps"], cells):
                print_line(text)
            if not told["steps"]:
                listed = format_llmproxy_command(f"ls {quote_word(named.cassette)}", database.path)
                print_line(f"It holds no conversation with a model; what was asked of tools: {listed}")
            for each in told["differences"]:
                print_line("\n".join(["", *wrap_text(escape_all_but_line_breaks(f"differs: {each}"), cells)]))


def _cassette_to_json(store: StoreReader, cassette: str, sample: int) -> dict[str, Any]:
    of_tools = False

    def read_interactions() -> Iterator[Interaction]:
        nonlocal of_tools
        for each in store.iter_interactions(cassette, sample):
            of_tools = of_tools or each.operation.startswith(MCP_PREFIX)
            yield each

    from llmproxy.ui.queries import CallFilter, compute_totals_of_filtered_calls  # late: it needs sessions and misses

    sums = compute_totals_of_filtered_calls(store, CallFilter(cassette, sample))
    told = {"cassette": cassette, "sample": sample, **sums, "steps": build_step_list_of_run(read_interactions())}
    return told | {"differences": list_model_vs_mcp_call_mismatches(read_interactions()) if of_tools else []}


def _format_totals(told: Mapping[str, Any]) -> str:
    name = append_sample_number_to_name(told["cassette"], told["sample"])
    unpriced = f" ({format_count(told['unpriced'], 'call')} without price or tokens)" if told["unpriced"] else ""
    cost = f"{dollars(told['cost'])}{unpriced}" if told["cost"] is not None else "cost unknown"
    parts = [
        format_count(told["calls"], "call"),
        f"{told['failed']} failed" if told["failed"] else "",
        f"{number(told['in'])} tokens in, {number(told['out'])} out",
        cost,
        format_milliseconds(max(told["to"] - told["from"], 0) * 1000) if told["from"] else "",
        format_local_time(told["from"] or 0),
    ]
    return f"{to_safe_line(name)}: {', '.join(filter(None, parts))}"


def format_conversation(steps: list[dict[str, Any]], room: int | None) -> Iterator[str]:
    """Yield the lines of the steps for a terminal `room` columns wide; None: a pipe, where no line is broken."""
    before: object = None
    for step in steps:
        call = step.get("call")
        mark = f"#{call}" if call is not None and call != before else ""
        if mark:
            yield ""
        before = call
        inside = "  " * min(step.get("depth", 0), 6)
        head = f"{mark:<7}{_HEADS.get(step['kind'], step['kind']):<9} {inside}"
        for n, text in enumerate(
            wrap_text(escape_all_but_line_breaks(_format_step(step).rstrip()), room, _INDENT + len(inside))
        ):
            yield (head if n == 0 else " " * (_INDENT + len(inside))) + text


def _format_step(step: Mapping[str, Any]) -> str:
    if step["kind"] != "tool":
        again = " (asked again)" if step.get("again") else ""
        error = f": {step['error']}" if step.get("error") else ""
        return f"{step.get('text') or '(nothing)'}{error}{again}"
    result = "(no result seen)" if step.get("result") is None else step["result"]
    return f"{step.get('name') or '(no name)'} {step.get('given') or ''}\n-> {result}"


_PLACES = 100
_FORMS = ("text", "json", "markdown")


def diff_command(
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
    if is_interaction_number(old) and is_interaction_number(new):
        with open_given_store(store) as database:
            pair = database.load(int(old)), database.load(int(new))
            changed = _print_interaction_diff(*pair, _would_answer_other(database, *pair), as_json=form == "json")
        failed = changed and fail_on is not None
    else:
        files = Path(old).is_file() and Path(new).is_file()  # two files need no store, and in a clone there may be none
        with nullcontext() if files else open_given_store(store) as looked_into:
            found = compare_cassettes(looked_into, old, new)
            if form == "json":
                print_json(_comparison_to_json(found))
            elif form == "markdown":
                print_line("\n".join(_format_markdown(found)))
            else:
                for text in _format_for_terminal(found):
                    typer.echo(text)
        failed = found.diff.fails(cast("FailOn | None", fail_on))
    if failed:
        raise typer.Exit(Exit.FAILED)


class CassetteComparison(NamedTuple):
    names: tuple[str, str]
    diff: TraceAndRequestsDiff
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
            to_safe_line(text)
            for name, (said, fields) in told
            for text in (
                *bindings.format_recorded_variable_lines(name, said),
                *bindings.format_volatile_fields(name, fields),
            )
        ]
        if self.exchanged:
            lines.append(to_safe_line(f"exchanged before comparing: {', '.join(self.exchanged)}"))
        for fork in self.forks:
            lines.append(to_safe_line(f"{fork.cassette} is a {fork.describe_origin()}"))
            overrides = [f"{each.name_as_typed} returns {each.text[:_PLACES]}" for each in fork.overrides.tools]
            answers = sorted(fork.overrides.answers.items())
            overrides += [f"LLM call {n} answers {said.text[:_PLACES]!r}" for n, said in answers]
            lines += [f"  {to_safe_line(text)}" for text in overrides]
        return lines


def compare_cassettes(database: Store | None, old: str, new: str) -> CassetteComparison:
    from llmproxy.cli.parts.import_files import load_stored_or_file_cassette  # late: `show` reads a store only
    from llmproxy.core.sessions.session import split_cassette_and_sample
    from llmproxy.trace.comparing.recording_diff import TraceAndRequestsDiff

    loaded = load_settings({})
    rules, upstreams = Rules.from_settings(loaded.settings.normalize), loaded.settings.upstream
    sides = [load_stored_or_file_cassette(name, database, rules, upstreams) for name in (old, new)]
    kept = {name: database for name in (old, new) if database is not None and not Path(name).is_file()}
    own = {name: read_volatile_fields(store, split_cassette_and_sample(name)[0]) for name, store in kept.items()}
    fields = [own.get(name, ()) for name in (old, new)]
    said = [list(dict.fromkeys(filter(None, (each.run_variables for each in side)))) for side in sides]
    sides[0], exchanged = rewrite_recordings_to_new_run(
        sides[0], sides[1], (*fields[0], *fields[1], *load_builtin_volatile_fields()), rules, upstreams
    )
    found = (find_fork(store, *split_cassette_and_sample(name)) for name, store in kept.items())
    return CassetteComparison(
        (old, new),
        TraceAndRequestsDiff.compare(*sides, names=(old, new)),
        tuple(each for each in found if each is not None),
        exchanged,
        tuple(zip(said, fields, strict=True)),
    )


def _comparison_to_json(found: CassetteComparison) -> dict[str, Any]:
    plain: dict[str, Any] = found.diff.requests.to_dict()
    bound = [bindings.convert_bindings_to_json(*each) for each in found.bound]
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
        yield f"Request {number} {pair.what}: {to_safe_line(pair.title)}  {pair.asked}"
        for each in pair.changes_beyond_run_diff:
            yield f"  {each.what}"
            yield from (f"    {mark} {value}" for mark, value in (("-", each.old), ("+", each.new)) if value)
    yield f"Requests: {found.diff.requests.summarize()}"


def _format_markdown(found: CassetteComparison) -> Iterator[str]:
    yield f"### `{to_safe_line(found.names[0])}` → `{to_safe_line(found.names[1])}`\n"
    yield from (f"> {to_safe_line(text)}  " for text in found.reasons)
    if found.reasons:
        yield ""
    yield render(found.diff.trace, "markdown")
    for pair in found.diff.pairs_beyond_run_diff:
        changes = ", ".join(each.what for each in pair.changes_beyond_run_diff)
        yield f"\n- request {pair.new or pair.old} {pair.what}: {to_safe_line(pair.title)} ({to_safe_line(changes)})"
    yield f"\nRequests: {found.diff.requests.summarize()}"


def _would_answer_other(database: Store, a: Interaction, b: Interaction) -> Fit | Mismatch | None:
    own = {field: None for one in (a, b) for field in read_volatile_fields(database, one.cassette)}
    if a.key == b.key or not (own or (a.run_variables and b.run_variables)):
        return None
    settings = load_settings({}).settings
    rules = Rules.from_settings(settings.normalize)
    return match_recording_to_other_request(a, b, (*own, *load_builtin_volatile_fields()), rules, settings.upstream)


def _print_interaction_diff(a: Interaction, b: Interaction, fit: Fit | Mismatch | None, *, as_json: bool) -> bool:
    found = {
        "requests": _diff_two_requests(a, b),
        "answers": list_differences(*_decode_answers_for_diff(a, b), _PLACES),
    }
    changed = any(found.values())
    if as_json:
        plain = {part: [each.to_dict() for each in places] for part, places in found.items()}
        said = [bindings.parse_stored_run_variables(each.run_variables) for each in (a, b)]
        told = {"run_variables": said, "bound": None if fit is None else _describe_would_answer(fit)}
        print_json({"same_key": a.key == b.key, **told, **plain})
        return changed
    print_line(f"keys: {'the same' if a.key == b.key else 'different'}")
    declared = [
        (mark, bindings.format_run_variables_line(x.run_variables))
        for mark, x in (("- ", a), ("+ ", b))
        if x.run_variables
    ]
    if len(declared) > len({text for _, text in declared}):
        declared = [("", declared[0][1])]
    for mark, text in declared:
        print_line(f"declared {mark}{text}")
    if fit is not None:
        print_line(f"bound: {to_safe_line(_describe_would_answer(fit))}")
    for part, places in found.items():
        print_line(f"{part}: {format_count(len(places), 'difference') if places else 'equal'}")
        for each in places:
            path = each.path.replace("$.body", "$", 1) if part == "requests" else each.path  # as misses name it
            looks = f"   (looks like {each.looks})" if each.looks else ""
            print_line(f"  {to_safe_line(f'{each.where} at {path}' if each.where else path)}{looks}")
            print_line(f"    - {to_safe_line(each.old)}\n    + {to_safe_line(each.new)}")
    return changed


def _describe_would_answer(fit: Fit | Mismatch) -> str:
    if isinstance(fit, Mismatch):
        return f"the first would not answer the second: {fit}"
    return f"the first would answer the second ({', '.join(fit.names) or 'nothing differs'})"


def _parse_body(body: bytes) -> object:
    with suppress(ValueError, RecursionError):
        return json.loads(body)
    return body.decode("utf-8", "backslashreplace")


def _diff_two_requests(a: Interaction, b: Interaction) -> list[Difference]:
    outside = [{"provider": x.provider, "method": x.request.method, "target": x.request.target} for x in (a, b)]
    places = compare_requests(b.operation, _parse_body(a.request.body), _parse_body(b.request.body), _PLACES)
    found = [build_difference(f"$.body{path[1:]}", old, new, where) for where, path, old, new, _ in places]
    return [*list_differences(outside[0], outside[1], _PLACES), *found]


def _decode_answers_for_diff(a: Interaction, b: Interaction) -> tuple[object, object]:
    """Return both answers as JSON trees; if one is a stream, the decoded content of both."""
    bodies = [_parse_body(one.response.body) for one in (a, b)]
    if any(isinstance(body, str) for body in bodies):
        said = [parse_answer_as_message(one) for one in (a, b)]
        if None not in said:
            bodies = [asdict(message) for message in said if message is not None]
    statuses = [{"status": one.response.status, "ending": one.response.ending.value} for one in (a, b)]
    old, new = ({**status, "body": body} for status, body in zip(statuses, bodies, strict=True))
    return old, new
