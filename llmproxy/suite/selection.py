"""Selection of scenarios, names of their recordings, and checks of costs before a run."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from llmproxy.amount_formatting import dollars, name_some
from llmproxy.did_you_mean import did_you_mean, suggest_name
from llmproxy.errors import LLMProxyError, MissError, SuiteError
from llmproxy.file_io import replace_file
from llmproxy.protocol import OFFLINE, Mode
from llmproxy.scenario.values.run_ids_and_options import name_cassette
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.schema.suite import StepBase
from llmproxy.trace.reading.recording_spans import spans_of

_SHOWN = 10  # scenarios named
FILE = Path(".llmproxy") / "last-failed.json"
_WORD = re.compile(r"[()]|[^\s()]+")
_KEYWORDS = ("(", ")", "and", "or", "not")
Holds = Callable[[Collection[str]], bool]
_NODES = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Name, ast.Load)


def build_case_cassette_name(suite: str, case: str) -> str:
    """Return a case's recording name: suite and id as slugs; with a digest if slugging lost characters."""
    return f"{name_cassette(suite)}/{name_cassette(case)}"


class RunNotRecorded(MissError):
    """This run has no recording, so there is nothing to replay."""

    code = "llmproxy_nothing_recorded"


def build_run_not_recorded_error(
    case: str, rerun: str, sample: int, runs: int, *, flag: str = "--mode"
) -> RunNotRecorded:
    """Return the error of one run; `rerun` is the command that runs only its case, `flag` its mode option."""
    number = f", run {sample}" if runs > 1 or sample > 1 else ""
    mode = "auto" if number else "record"  # other runs may be recorded
    command = append_runs_flag(f"{rerun} {flag} {mode}", runs if runs > 1 and flag == "--mode" else None)
    return RunNotRecorded(f"nothing is recorded for {case}{number}; record it: {command}")


def append_runs_flag(command: str, runs: int | None) -> str:
    return command if runs is None else f"{command} --runs {runs}"


def advise_recording(
    cases: Sequence[str], selected: int, command: str, *, partly: bool, some_runs: bool = False
) -> str:
    """Return the command that records all cases without a recording.

    `selected` is the number of cases to run; `partly` whether the command omits their selection; `some_runs` whether
    other runs of these cases are recorded, which `auto` keeps.
    """
    names = name_some(cases, shown=_SHOWN)
    only = " ".join(f"--id {shlex.quote(case)}" for case in cases)
    if not partly:
        how = f"{command} --mode {'record' if len(cases) == selected and not some_runs else 'auto'}"
    elif len(cases) <= _SHOWN:
        how = f"{command} {only} --mode {'auto' if some_runs else 'record'}"
    else:
        how = f"{command} --last-failed --mode auto"
    those = "it" if len(cases) == 1 else "them"
    many = "" if len(cases) == 1 else f"{len(cases)} of {selected} scenarios: "
    what = "not every run is recorded of" if some_runs else "nothing is recorded for"
    return f"{what} {many}{names}; record {those}: {how}"


def add_record_command_to_miss(
    text: str, rerun: str, *, flag: str = "--mode", starts: Mapping[str, str] | None = None,
    counted: Sequence[str] = (), who: str = "the agent",
) -> str:  # fmt: skip
    """Return the proxy's text about a miss, preceded by the command that records the request.

    `starts` are commands in the text that start a proxy, by mode: the test's own replaces each. `counted` are entities
    whose keys the store numbers, if the request differs from the nearest recording in numbers only.
    """
    lines = [f"a request of {who} was never recorded; to add it: {rerun} {flag} auto"]
    if counted:
        lines.append(
            f"it differs in numbers only, and the store counts the keys of {', '.join(counted)} up: if they are ids,"
            " its counter has moved since the recording. `store: {reset: truncate}` (or `copy`, `hook`, `http`) brings"
            " it back before each run, and `ids: deterministic` gives the rows of `setup` ids of their own; then record"
            " once more"
        )
    for mode, command in (starts or {}).items():
        own = f"{rerun} {flag} {mode}" if mode != Mode.REPLAY else "no option names it; a scenario has one of its own"
        text = text.replace(command, own)
    return "\n".join([*lines, text])


def read_last_failed(folder: Path) -> list[str] | None:
    """Return the ids that did not pass last time; None without an earlier test, or for a foreign file."""
    try:
        tree = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    found = tree.get("failed") if isinstance(tree, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else None


def save_failed_case_ids(folder: Path, ran: Iterable[str], failed: Iterable[str]) -> None:
    """Store which scenarios of this test did not pass, keeping the state of others, if the folder is writable."""
    known, now = set(read_last_failed(folder) or ()), set(ran)
    left = sorted((known - now) | set(failed))
    with suppress(OSError), replace_file(folder / FILE) as file:
        file.write(json.dumps({"version": 1, "failed": left}, ensure_ascii=False) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    tags: str = ""
    tag: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    grep: str = ""
    label: str = ""
    only: Collection[str] | None = None


def select_cases(cases: Sequence[SuiteCase], wanted: SelectionOptions) -> list[SuiteCase]:
    """Return the selected cases in order. Raises SuiteError: an invalid expression, id or label."""
    holds = parse_tag_expression(wanted.tags) if wanted.tags else lambda _: True
    tags = {tag for case in cases for tag in case.scenario.tags}
    for name in (*wanted.tag, *(word for word in _WORD.findall(wanted.tags) if word not in _KEYWORDS)):
        if name not in tags:  # a misspelt one would select nothing, or with `not` everything
            there = f"Known tags: {', '.join(sorted(tags))}." if tags else "No scenario has any tag."
            raise SuiteError(f"no scenario has the tag {name!r}{did_you_mean(name, tags)}", hint=there)
    for name in wanted.ids:
        if not any(_has_case_id(case, name) for case in cases):
            known = suggest_name(name, [case.id for case in cases])
            raise SuiteError(f"--id {name!r}: there is no such scenario ({known})")
    found = [
        case
        for case in cases
        if holds(case.scenario.tags)
        and set(wanted.tag) <= set(case.scenario.tags)
        and (not wanted.ids or any(_has_case_id(case, name) for name in wanted.ids))
        and any(wanted.grep.casefold() in text.casefold() for text in (case.id, case.title, case.description))
        and (wanted.only is None or case.full_id in wanted.only)
    ]
    if not wanted.label:
        return found
    labelled = [case for case in found if any(step.label == wanted.label for step in case.scenario.steps)]
    if found and not labelled:
        labels = {step.label for case in found for step in case.scenario.steps if step.label}
        what = f"no selected scenario has a step with this label{did_you_mean(wanted.label, labels)}"
        raise SuiteError(f"--step {wanted.label!r}: {what}")
    return labelled


def _has_case_id(case: SuiteCase, name: str) -> bool:
    return name in (case.id, case.scenario.id)


def list_case_steps_up_to_label(case: SuiteCase, label: str) -> tuple[StepBase, ...]:
    steps: tuple[StepBase, ...] = tuple(case.scenario.steps)
    if not label:
        return steps
    at = next((n for n, step in enumerate(steps) if step.label == label), None)
    if at is None:
        raise SuiteError(f"{case.id} has no step with the label {label!r}.")
    return steps[: at + 1]


def parse_tag_expression(text: str) -> Holds:
    """Parse an expression over tags, in which ``or`` binds least, then ``and``, then ``not``. Raises SuiteError."""
    names: dict[str, str] = {}
    source = [word if word in _KEYWORDS else names.setdefault(word, f"tag{len(names)}") for word in _WORD.findall(text)]
    wrong = SuiteError(f"--tags {text!r} is no expression", hint='It is like "smoke and not (slow or flaky)".')
    try:
        tree = ast.parse(" ".join(source), mode="eval").body
        nodes = [*ast.walk(tree)]
    except (SyntaxError, RecursionError, MemoryError) as error:  # also one that is nested thousands of times
        raise wrong from error
    if not all(isinstance(node, _NODES) for node in nodes):
        raise wrong
    return lambda tags: _evaluate_tags(tree, {made for name, made in names.items() if name in tags})


def _evaluate_tags(node: ast.expr, there: Collection[str]) -> bool:
    if isinstance(node, ast.BoolOp):
        found = (_evaluate_tags(each, there) for each in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    if isinstance(node, ast.UnaryOp):
        return not _evaluate_tags(node.operand, there)
    return isinstance(node, ast.Name) and node.id in there


def sum_recorded_case_costs(
    store: Path, cases: Sequence[SuiteCase], runs: int | None = None
) -> tuple[Decimal, list[str]]:
    """Return the recorded cost in US dollars, each run as the first sample, and the cases without a known one."""
    total, unknown = Decimal(0), list[str]()
    for case in cases:
        found = _find_cost(store, build_case_cassette_name(case.suite.name, case.id)) if store.is_file() else None
        if found is None:
            unknown.append(case.id)
        else:
            total += found * (runs or case.scenario.runs)
    return total, unknown


def _find_cost(store: Path, cassette: str) -> Decimal | None:
    with suppress(LLMProxyError):
        spans = spans_of(store, cassette=cassette, party=None)
        costs = [span.cost_usd for span in spans if span.token_usage is not None]
        return None if None in costs else sum((Decimal(str(cost)) for cost in costs), Decimal(0))
    return None


def check_cost_estimate_before_run(store: Path, cases: Sequence[SuiteCase], options: SuiteCommandOptions) -> list[str]:
    """Return a message about costs. Raises SuiteError: the estimate is above the limit."""
    if options.max_cost is None or options.mode is None or (options.mode in OFFLINE and not options.live):
        return []
    usd, unknown = sum_recorded_case_costs(store, cases, options.runs)
    if usd > options.max_cost:
        raise SuiteError(
            f"--max-cost {options.max_cost}: by the last recording this would cost {dollars(usd)}; nothing was run.",
            hint="Select fewer scenarios, or allow more.",
        )
    if not unknown:
        return []
    names = ", ".join(unknown[:5]) + (" ..." if len(unknown) > 5 else "")
    ends = f"runs end as soon as {dollars(options.max_cost)} are spent"
    return [f"--max-cost: nothing is known about the cost of {names}; {ends}"]
