"""One self-contained HTML page: the viewer with a report inside (`ui/static/report.js` shows it).

It asks nobody, not even where it came from, and can be mailed, attached to a build, and opened in ten years. What agents and models say is
data: it stands in the page as JSON and becomes text nodes, and the page's own policy runs and loads nothing else. Where no script runs, the
same is there as plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmproxy.amounts import format_count, seconds
from llmproxy.report.events import Criterion, Message, Status, Step, Verdict
from llmproxy.report.evidence import evidence_of
from llmproxy.report.forms.words import calls_of, content_of, describe_assertion, describe_replay, describe_uses
from llmproxy.report.json_report import document as plain_values
from llmproxy.report.story import Run, Story, StoryScenario
from llmproxy.ui.page import document

MARK = "llmproxy report"
"""What kind of data the page has."""

NAMES = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.AGENT_ERROR: "agent error",
    Status.ENVIRONMENT_ERROR: "environment error",
    Status.SKIPPED: "skipped",
    Status.FLAKY: "flaky",
}


def page(story: Story, store: Path | None = None) -> str:
    """Return a story as one HTML document, with what it stands on where its recordings are in `store`."""
    found = {"cassettes": []} | evidence_of(story, store)
    report = {**plain_values(story), "trend": found.pop("trend", []), "left": found.pop("left", [])}
    data = {**found, "kind": MARK, "title": story.title, "start": "#/report", "report": report}
    return document(
        data | {"recordings": bool(found["cassettes"])}, title=story.title, plain="\n".join(plain_text(story))
    )


def plain_text(story: Story) -> Iterator[str]:
    """Yield a story as lines of text: scenario by scenario, each run with its conversation, checks, criteria and cost."""
    yield story.title
    scenarios = story.scenarios()
    ended = story.completed
    about = [f"{format_count(len(scenarios), 'scenario')}, {format_count(len(story.runs), 'run')}"]
    about += [f"mode {story.selected.mode}"] if story.selected and story.selected.mode else []
    about += [seconds(ended.seconds), f"exit code {ended.exit_code}"] if ended else ["the test did not end"]
    yield ", ".join(about)
    yield from ended.notes if ended else ()
    rates = {str(row.get("scenario")): row for row in (ended.scenarios if ended else ())}
    for each in scenarios:
        yield from _scenario(each, rates.get(each.id))


def _scenario(scenario: StoryScenario, row: Mapping[str, Any] | None) -> Iterator[str]:
    yield ""
    yield f"== {scenario.name}: {NAMES[scenario.status]}{_interval(row) if len(scenario.runs) > 1 else ''}"
    first = scenario.runs[0].started
    yield from filter(None, (first.description, " · ".join(filter(None, [scenario.suite, *first.tags]))))
    for run in scenario.runs:
        yield f"-- run {run.started.sample} of {run.started.runs}: {NAMES[run.status]}"
        yield from _run(run)


def _interval(row: Mapping[str, Any] | None) -> str:
    found = row.get("interval") if row else None
    return f", 95 %: {found[0]:.0%} to {found[1]:.0%}" if isinstance(found, list | tuple) and len(found) == 2 else ""


def _run(run: Run) -> Iterator[str]:
    done = run.finished
    yield from filter(None, [run.why])
    if done is not None:
        yield " · ".join(filter(None, [seconds(done.total_seconds), describe_replay(done), *done.labels]))
    for criterion in run.criteria:
        yield from _criterion(criterion)
    for part in run.parts:
        if isinstance(part, Message):
            yield from (
                f"  {name}({given})" + (f" -> {result}" if result else "") for name, given, result in calls_of(part)
            )
            yield f"{part.message.get('role', '?')}: {content_of(part.message)}"
        elif isinstance(part, Verdict):
            yield f"{part.judge or 'judge'}: {part.reasoning}"
        else:
            yield from _step(part)
    yield from done.misses if done else ()
    yield from describe_uses(done) if done else ()
    yield from filter(None, [run.started.rerun])


def _criterion(criterion: Criterion) -> Iterator[str]:
    yield f"[{criterion.status}] {criterion.text}"
    yield from filter(None, [criterion.reason, criterion.evidence and f'"{criterion.evidence}"'])
    if len(criterion.votes) > 1:
        yield f"votes: {', '.join(criterion.votes)}"


def _step(step: Step) -> Iterator[str]:
    calls = f", interactions {', '.join(map(str, step.interactions))}" if step.interactions else ""
    yield f"{step.label or f'{step.kind} {step.index + 1}'}: {NAMES[step.status]}{calls}"
    yield from filter(None, [step.message])
    yield from (f"  [{NAMES[each.status]}] {describe_assertion(each)}" for each in step.assertions)
