"""``llmproxy suite``: inspect suites without running them, and create new ones."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import align_rows, format_count
from llmproxy.cli import make_default_typer
from llmproxy.cli.parts.options import CASSETTES, STORE, OwnOptionsFirstInHelp, get_given_flag_values, load_settings
from llmproxy.core.cassettes.anonymized_export import anonymize_recordings_for_file
from llmproxy.core.cassettes.folder_sync import build_slug
from llmproxy.core.cassettes.formats import review_yaml, write_text
from llmproxy.core.forks.fork_rows import find_fork
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import read_cassette_replay_rules
from llmproxy.errors import Exit, MachineError, SettingsError, SuiteError
from llmproxy.scenario.agents.config import build_agent
from llmproxy.scenario.values.run_ids_and_options import name_cassette
from llmproxy.settings import format_shown_path
from llmproxy.suite.reading.load import load_suites
from llmproxy.suite.reading.project_settings import parse_agent_or_store_flag_value
from llmproxy.suite.run.run_context import add_yaml_place_to_errors
from llmproxy.suite.schema.json_schema import SCHEMA_COMMENT, format_suite_schema_json, write_schema_beside
from llmproxy.suite.selection import SelectionOptions, build_case_cassette_name, select_cases
from llmproxy.trace.reading.recording_spans import spans_of
from llmproxy.trace.span_models import Span, SpanKind

_PATHS = typer.Argument(None, metavar="SUITE", help="Files, folders, globs. Default: this folder.")


def register(app: typer.Typer) -> None:
    text = "Check and list YAML suites without running them, or make one."
    group = make_default_typer(no_args_is_help=True, help=text)
    group.command("validate")(validate)
    group.command("schema")(schema)
    group.command("list")(list_cases)
    group.command("from-session", cls=OwnOptionsFirstInHelp)(write_suite_from_cassette)
    app.add_typer(group, name="suite")


def validate(paths: list[str] = _PATHS) -> None:
    """Check suites: every mistake with file, line and column. Warnings show what is allowed but probably a mistake."""
    loaded = load_suites(paths or ["."])

    for case in {id(case.suite): case for case in loaded.scenarios}.values():
        agent = case.suite.agent
        if agent is not None and "${env:" not in str(agent):  # what another machine has in its environment
            with add_yaml_place_to_errors(case.suite.at("agent")):
                build_agent(agent, case.folder)
    for doubt in loaded.warnings:
        typer.echo(str(doubt))
    suites, scenarios = len(loaded.suites), len(loaded.scenarios)
    typer.echo(f"{format_count(suites, 'suite')}, {format_count(scenarios, 'scenario')}: nothing is wrong")


def schema() -> None:
    """Print the JSON Schema of suites, for editors."""
    typer.echo(format_suite_schema_json(), nl=False)


def list_cases(
    paths: list[str] = _PATHS,
    tags: str = typer.Option("", "--tags", metavar="EXPRESSION", help='Scenarios by tags: "smoke and not slow".'),
    tag: list[str] = typer.Option(
        [], "--tag", metavar="TAG", help="Scenarios with this tag; repeat for several tags, all required."
    ),
    grep: str = typer.Option("", "--grep", metavar="TEXT", help="Scenarios with TEXT in id, name or description."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List scenarios: id, name, tags, runs, and their recordings."""
    cases = select_cases(load_suites(paths or ["."]).scenarios, SelectionOptions(tags=tags, tag=tuple(tag), grep=grep))
    if not cases:
        typer.echo("llmproxy: nothing selected", err=True)
        raise typer.Exit(Exit.NOTHING)
    rows = [
        {
            "id": case.id,
            "name": case.title,
            "tags": list(case.scenario.tags),
            "runs": case.scenario.runs,
            "suite": case.suite.name,
            "place": str(case.scenario.place or case.path),
            "cassette": build_case_cassette_name(case.suite.name, case.id),
        }
        for case in cases
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    titles = [case.title + (f"  [{', '.join(case.scenario.tags)}]" if case.scenario.tags else "") for case in cases]
    counts = [f"  x{case.scenario.runs}" if case.scenario.runs > 1 else "" for case in cases]
    shown = [(case.id, title + count) for case, title, count in zip(cases, titles, counts, strict=True)]
    typer.echo("\n".join(align_rows(shown)))


def write_suite_from_cassette(
    ctx: typer.Context,
    name: str = typer.Argument(..., metavar="NAME", help="The recorded cassette (see `llmproxy ls`)."),
    output: str = typer.Option(
        "", "--output", "-o", metavar="FILE", help="File to write. Default: tests/NAME.suite.yaml."
    ),
    agent: str = typer.Option("", "--agent", metavar="AGENT", help="URL, command, module:function or YAML."),
    sample: int = typer.Option(1, "--sample", min=1, help="Sample of the recording."),
    force: bool = typer.Option(False, "--force", help="Overwrite an existing file."),
) -> None:
    """Make a suite from a recorded conversation. It passes in replay at once."""
    loaded = load_settings(get_given_flag_values(ctx))
    store = loaded.settings.store
    if loaded.is_default("store") and not store.exists() and (Path.cwd() / STORE).exists():
        store = Path.cwd() / STORE  # only tests ran here
    folder = Path(output).parent if output else Path("tests")
    reached = parse_agent_or_store_flag_value(agent, "--agent") if agent else None
    if reached is not None:
        reached = rewrite_agent_paths_for_folder(reached, Path.cwd(), folder)
    made = build_suite_from_recording(store, name, sample=sample, agent=reached)
    target = Path(output or folder / f"{made.slug}.suite.yaml")
    _write_suite(target, made.text, force=force, hint="--force writes over it, --output names another file.")
    typer.echo(f"wrote {target}: 1 scenario, {format_count(made.turns, 'message')}")
    _write_schema_beside(target)
    folder = loaded.settings.cassette_dir or Path.cwd() / CASSETTES
    copied = _export_recording_as_test_cassette(store, name, sample, build_case_cassette_name(name, made.slug), folder)
    typer.echo(f"wrote {format_shown_path(copied)}: its recording")
    typer.echo(f"now: llmproxy test {target}{'' if agent else ' --agent AGENT'}")
    for note in made.notes:
        typer.echo(f"  {note}")


def _export_recording_as_test_cassette(store: Path, name: str, sample: int, cassette: str, folder: Path) -> Path:
    """Write a recording as a test's cassette and return its file. Raises CassetteError, MachineError."""
    with open_store(store, writable=False, now=time.time) as opened:
        found = [replace(each, sample=1) for each in opened.iter_interactions(name, sample)]
        recorded = anonymize_recordings_for_file(found, read_cassette_replay_rules(opened, name))
        fork = find_fork(opened, name, sample)
    target = folder / f"{build_slug(cassette)}.yaml"
    write_text(target, review_yaml.dumps(recorded, cassette, fork and replace(fork, sample=1)))
    return target


def _write_suite(target: Path, text: str, *, force: bool = False, hint: str = "") -> None:
    if target.exists() and not force:
        raise SettingsError(f"{target} exists already.", hint=hint)
    write_text(target, text)


def _write_schema_beside(target: Path) -> None:
    try:
        made = write_schema_beside(target)
    except OSError as error:
        raise MachineError(f"cannot write beside {target}: {error.strerror or error}") from error
    if made is not None:
        typer.echo(f"wrote {made}: by it editors complete and check suites")


def write_starter_suite(paths: Sequence[str], agent: str) -> Exit:
    target = Path(paths[0] if paths else "tests/agent.suite.yaml")
    if not agent:
        if not sys.stdin.isatty():
            hint = "Say how to reach the agent: --agent http://127.0.0.1:8000/v1"
            raise SettingsError("--init has nobody to ask here.", hint=hint)
        kinds = "An address (http://127.0.0.1:8000/v1), a command (python agent.py), or module:function."
        typer.echo(f"How is your agent reached? {kinds}")
        agent = typer.prompt("agent")
    reached = parse_agent_or_store_flag_value(agent, "--agent")
    if isinstance(words := reached.get("command"), list):
        reached = {"command": {"run": words, "lines": False}}
    found = rewrite_agent_paths_for_folder(reached, Path.cwd(), target.parent)
    hint = f"Name another one: llmproxy test --init {target.with_stem('other.suite')}"
    _write_suite(target, format_starter_suite(found), hint=hint)
    typer.echo(f"wrote {target}")
    _write_schema_beside(target)
    typer.echo(f"record it once:  llmproxy test {target} --mode record")
    typer.echo(f"then, offline:   llmproxy test {target}")
    return Exit.OK


_HEAD = 60
_SCALARS = (str, int, float, bool)


@dataclass(slots=True)
class _SuiteTurn:
    text: str
    conversation: str
    at: float
    tools: list[tuple[str, Mapping[str, Any] | None]] = field(default_factory=list)
    answer: str = ""
    calls: int = 0


class _SuiteScaffold(NamedTuple):
    text: str
    slug: str
    turns: int
    notes: tuple[str, ...] = ()


def build_suite_from_recording(
    store: Path, name: str, *, sample: int = 1, agent: Mapping[str, Any] | None = None
) -> _SuiteScaffold:
    """Create a suite from the recording `name`. Raises SuiteError: no user message; CassetteError."""
    turns, notes = collect_turns_from_spans(spans_of(store, cassette=name, sample=sample))
    if not turns:
        msg = f"{name}: this recording contains no user message, so there is nothing to test."
        raise SuiteError(msg, hint=format_llmproxy_command("ls", store))
    slug = name_cassette(name)
    if agent is None:
        notes.append("AGENT: an address, a command, module:function; or write `agent:` into the file")
    return _SuiteScaffold(_format_suite(name, slug, turns, agent), slug, len(turns), tuple(notes))


def collect_turns_from_spans(spans: Iterable[Span]) -> tuple[list[_SuiteTurn], list[str]]:
    """Return the turns of conversations with a user, in order of time, and the omitted ones.

    A conversation with a user is not started by a tool call, and its agent has the tools of the first one: a summary
    that an agent requests looks like a conversation, too.
    """
    roots: dict[str, frozenset[str]] = {}  # the tools that a conversation's first request declares
    others: set[str] = set()
    turns: dict[str, list[_SuiteTurn]] = {}
    for span in spans:
        name = str(span.metadata.get("gen_ai.conversation.id") or "")
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation":
            turns[name] = []
        elif span.kind is SpanKind.AGENT_STEP and span.name == "sub-agent":
            others.add(name)
        if name not in turns:
            continue
        if span.kind is SpanKind.LLM_REQUEST:
            found = span.metadata.get("gen_ai.tool.definitions") or span.metadata.get("llmproxy.tools") or ()
            names = (str(each.get("name") if isinstance(each, Mapping) else each) for each in found)
            roots.setdefault(name, frozenset(names))
        _add_span(span, name, turns[name])
    first = next(iter(roots.values()), frozenset())
    kept = [name for name in turns if turns[name] and roots.get(name, frozenset()) == first]
    left = len([name for name in turns if turns[name]]) - len(kept) + len(others)
    notes = [f"{left} more conversations (sub-agents, summaries) are recorded, in which no user speaks"] if left else []
    return sorted((turn for name in kept for turn in turns[name]), key=lambda turn: turn.at), notes


def _add_span(span: Span, name: str, turns: list[_SuiteTurn]) -> None:
    if span.kind is SpanKind.USER_INPUT:
        if turns and not turns[-1].calls:  # two messages of one request
            turns[-1].text += f"\n{span.input}"
        else:
            turns.append(_SuiteTurn(str(span.input), name, span.timestamp))
    elif not turns:
        return
    elif span.kind is SpanKind.TOOL_CALL and span.tool_name:
        turns[-1].tools.append((span.tool_name, span.tool_args))
    elif span.kind is SpanKind.LLM_RESPONSE and span.error is None:
        turns[-1].calls += 1
    elif span.kind is SpanKind.AGENT_OUTPUT:
        turns[-1].answer = str(span.output or "")


def _format_suite(name: str, slug: str, turns: Sequence[_SuiteTurn], agent: Mapping[str, Any] | None) -> str:
    first = " ".join(turns[0].text.replace("$", "").split())
    numbers = {each: f"c{n}" for n, each in enumerate(dict.fromkeys(turn.conversation for turn in turns), 1)}
    lines = [
        SCHEMA_COMMENT,
        "# Made from a recorded conversation: it says what happened.",
        "# Take out what does not matter, and write what should have happened.",
        f"name: {_quote_text(name)}",
        f"agent: {format_yaml_flow_value(agent)}"
        if agent
        else '# agent: {http: "http://127.0.0.1:8000/v1"}   # or {command: [python, agent.py]}',
        "scenarios:",
        f"  - id: {_quote_text(slug)}",
        f"    name: {_quote_text('Recorded: ' + (first if len(first) <= 50 else first[:49] + '…'))}",
        "    steps:",
    ]
    for n, turn in enumerate(turns):
        lines.append(f"      - chat: {_quote_text(turn.text.replace('$', '$$'))}")
        if len(numbers) > 1:
            lines.append(f"        conversation: {numbers[turn.conversation]}")
        elif n:
            lines.append("        continueConversation: true")
        lines += [f"        {line}" for line in _write_assertions(turn)]
    return "\n".join(lines) + "\n"


def _write_assertions(turn: _SuiteTurn) -> list[str]:
    made: list[str] = []
    if names := list(dict.fromkeys(name for name, _ in turn.tools)):
        made.append("tools:")
        calls = {name: [args for n, args in turn.tools if n == name] for name in names}
        made += [
            f"  {_quote_text(name)}: {format_yaml_flow_value(_expect_calls(each))}" for name, each in calls.items()
        ]
    made.append(f"totalToolCalls: {len(turn.tools)}")
    if head := _shorten_answer(turn.answer):
        made.append(f"response: {{contains: {_quote_text(head.replace('$', '$$'))}}}")
    if turn.calls:
        made.append(f"usage: {{callCount: {turn.calls}}}")
    return made


def _expect_calls(calls: Sequence[Mapping[str, Any] | None]) -> Any:
    if len(calls) > 1 or not calls[0]:
        return len(calls)
    plain = {
        name: value.replace("$", "$$") if isinstance(value, str) else value
        for name, value in calls[0].items()
        if isinstance(value, _SCALARS) and re.fullmatch(r"[A-Za-z_]\w*", name)
    }
    return {"count": 1, "input": plain} if plain else 1


def _shorten_answer(answer: str) -> str:
    first = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    return first if len(first) <= _HEAD else first[:_HEAD].rpartition(" ")[0] or first[:_HEAD]


def _quote_text(text: str) -> str:
    """Return a text as JSON, which is valid YAML, with terminal control characters escaped."""
    plain, controls = json.dumps(text, ensure_ascii=False), r"[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]"
    return re.sub(controls, lambda found: f"\\u{ord(found[0]):04x}", plain)


def format_yaml_flow_value(value: Any) -> str:
    if isinstance(value, Mapping):
        members = (f"{_format_yaml_key(name)}: {format_yaml_flow_value(each)}" for name, each in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_yaml_flow_value, value)) + "]"
    return _quote_text(value) if isinstance(value, str) else json.dumps(value)


def _format_yaml_key(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_]\w*", name) and name.lower() not in ("true", "false", "null")
    return name if is_plain else _quote_text(name)


_LINES = "# lines: false starts it for each message, with text in and text out; true keeps it, with lines of JSON"
_STEPS = """\
scenarios:
  - id: hello
    name: The agent answers
    tags: [smoke]
    steps:
      - chat: "Hello! What can you do for me?"
        usage: {callCount: {gte: 1}}      # its LLM calls pass the proxy
        response: {notContains: ["Traceback", "Internal Server Error"], ignoreCase: true}

  # What suites can say, to be filled in:
  #
  # - id: create-task
  #   steps:
  #     - chat: "Create a task called 'Buy milk'"
  #       tools: {createTask: {count: 1, input: {title: {contains: milk}}}}
  #       response: {contains: created, ignoreCase: true}
  #     - chat: "Mark it as done"
  #       continueConversation: true
  #       tools: {updateTask: 1, deleteTask: 0}
  #       totalToolCalls: {lte: 3}
"""


def rewrite_agent_paths_for_folder(agent: Mapping[str, Any], here: Path, folder: Path) -> Mapping[str, Any]:
    if here.resolve() == folder.resolve():
        return agent
    up = Path(os.path.relpath(here.resolve(), folder.resolve()))
    command, python = agent.get("command"), agent.get("python")
    if command is not None:
        run = dict(command) if isinstance(command, Mapping) else {"run": command}
        return {"command": {**run, "cwd": (up / run.get("cwd", ".")).as_posix()}}
    if isinstance(python, str) and python.rpartition(":")[0].endswith(".py") and not Path(python).is_absolute():
        return {"python": (up / python).as_posix()}
    return agent


def format_starter_suite(agent: Mapping[str, Any]) -> str:
    comment = f"{_LINES}\n" if "lines" in str(agent.get("command")) else ""
    return f"{SCHEMA_COMMENT}\nname: My agent\n{comment}agent: {format_yaml_flow_value(agent)}\n{_STEPS}"
