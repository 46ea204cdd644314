"""``llmproxy suite``: inspect suites without running them, and create new ones."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from llmproxy.amounts import align_rows, format_count
from llmproxy.cli.commands import make_default_typer
from llmproxy.cli.parts.options import CASSETTES, STORE, OwnOptionsFirstCommand, get_given_flag_values, load_settings
from llmproxy.core.cassettes.anonymized_export import to_anonymized_records
from llmproxy.core.cassettes.folder import build_slug
from llmproxy.core.cassettes.formats import review_yaml, write_text
from llmproxy.core.forks.fork_rows import find_fork
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import read_notes
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.scenario.agents.config import build_agent
from llmproxy.suite.project_settings import parse_agent_or_store_flag
from llmproxy.suite.reading.json_schema import schema_text, write_schema_beside
from llmproxy.suite.reading.load import load_suites
from llmproxy.suite.run.run_context import reraise_with_place
from llmproxy.suite.scaffold import rebase_agent_paths, scaffold_suite, starter_suite
from llmproxy.suite.selection import SelectionOptions, cassette_name, select_cases

_PATHS = typer.Argument(None, metavar="SUITE", help="Files, folders, globs. Default: this folder.")


def register(app: typer.Typer) -> None:
    group = make_default_typer(
        no_args_is_help=True, help="Check and list YAML suites without running them, or make one."
    )
    group.command("validate")(validate)
    group.command("schema")(schema)
    group.command("list")(list_cases)
    group.command("from-session", cls=OwnOptionsFirstCommand)(from_session)
    app.add_typer(group, name="suite")


def validate(paths: list[str] = _PATHS) -> None:
    """Check suites: every mistake with file, line and column. Warnings show what is allowed but probably a mistake."""
    loaded = load_suites(paths or ["."])

    for case in {id(case.suite): case for case in loaded.scenarios}.values():
        agent = case.suite.agent
        if agent is not None and "${env:" not in str(agent):  # what another machine has in its environment
            with reraise_with_place(case.suite.at("agent")):
                build_agent(agent, case.folder)
    for doubt in loaded.warnings:
        typer.echo(str(doubt))
    suites, scenarios = len(loaded.suites), len(loaded.scenarios)
    typer.echo(f"{format_count(suites, 'suite')}, {format_count(scenarios, 'scenario')}: nothing is wrong")


def schema() -> None:
    """Print the JSON Schema of suites, for editors."""
    typer.echo(schema_text(), nl=False)


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
            "cassette": cassette_name(case.suite.name, case.id),
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


def from_session(
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
    reached = rebase_agent_paths(parse_agent_or_store_flag(agent, "--agent"), Path.cwd(), folder) if agent else None
    made = scaffold_suite(store, name, sample=sample, agent=reached)
    target = Path(output or folder / f"{made.slug}.suite.yaml")
    _write_suite(target, made.text, force=force, hint="--force writes over it, --output names another file.")
    typer.echo(f"wrote {target}: {made.summary_line}")
    _write_schema_beside(target)
    folder = loaded.settings.cassette_dir or Path.cwd() / CASSETTES
    copied = _write_test_cassette(store, name, sample, cassette_name(name, made.slug), folder)
    here = Path.cwd()
    shown = copied.relative_to(here) if copied.is_relative_to(here) else copied
    typer.echo(f"wrote {shown}: its recording")
    typer.echo(f"now: llmproxy test {target}{'' if agent else ' --agent AGENT'}")
    for note in made.notes:
        typer.echo(f"  {note}")


def _write_test_cassette(store: Path, name: str, sample: int, cassette: str, folder: Path) -> Path:
    """Write a recording as a test's cassette and return its file. Raises CassetteError, MachineError."""
    with open_store(store, writable=False, now=time.time) as opened:
        found = [replace(each, sample=1) for each in opened.iter_interactions(name, sample)]
        recorded = to_anonymized_records(found, read_notes(opened, name))
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
    """Write a first suite (``llmproxy test --init``); asks how to reach the agent unless an option says so."""
    target = Path(paths[0] if paths else "tests/agent.suite.yaml")
    if not agent:
        if not sys.stdin.isatty():
            raise SettingsError(
                "--init has nobody to ask here.", hint="Say how to reach the agent: --agent http://127.0.0.1:8000/v1"
            )
        typer.echo(
            "How is your agent reached? An address (http://127.0.0.1:8000/v1), a command (python agent.py), or"
            " module:function."
        )
        agent = typer.prompt("agent")
    found = rebase_agent_paths(parse_agent_or_store_flag(agent, "--agent"), Path.cwd(), target.parent)
    _write_suite(
        target, starter_suite(found), hint=f"Name another one: llmproxy test --init {target.with_stem('other.suite')}"
    )
    typer.echo(f"wrote {target}")
    _write_schema_beside(target)
    typer.echo(f"record it once:  llmproxy test {target} --mode record")
    typer.echo(f"then, offline:   llmproxy test {target}")
    return Exit.OK
