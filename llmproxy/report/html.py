"""One self-contained HTML page: an overview of the scenarios, and each run with its conversation, checks, criteria and cost.

No script, nothing loaded from elsewhere: the file can be mailed, attached to a build, and opened in ten years. What agents and models say
is data: every text is escaped, the page's own policy forbids scripts, pictures, forms and other styles, and what a terminal would obey (ESC,
BEL) or what would turn the order of letters round is written as its number.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from llmproxy.report.amounts import counted
from llmproxy.report.events import Assertion, Criterion, Finished, Message, Status, Step, Verdict
from llmproxy.report.story import Run, Story, StoryScenario
from llmproxy.report.words import calls_of, content_of, replayed, seconds, shown, used

__all__ = ["page"]

NAMES = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.AGENT_ERROR: "agent error",
    Status.ENVIRONMENT_ERROR: "environment error",
    Status.SKIPPED: "skipped",
    Status.FLAKY: "flaky",
}


UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls, marks that turn the direction of text, and halves of surrogate pairs: nothing that a page has to hold."""


def page(story: Story) -> str:
    """Return a story as one HTML document."""
    scenarios = story.scenarios()
    style = (files("llmproxy") / "data" / "report.css").read_text(encoding="utf-8")
    body = "\n".join(
        [
            *_head(story),
            *_overview(scenarios, story),
            *(line for number, each in enumerate(scenarios) for line in _scenario(number, each)),
        ]
    )
    ours = f"\n{style}"
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(ours)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(story.title)}</title>\n<style>{ours}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def policy(style: str) -> str:
    """Return the page's Content-Security-Policy: its one style, and nothing else."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _status(status: Status) -> str:
    return f'<span class="status {status.value}">{NAMES[status]}</span>'


def _head(story: Story) -> Iterator[str]:
    yield f"<h1>{escape(story.title)}</h1>"
    about = [f"{counted(len(story.scenarios()), 'scenario')}, {counted(len(story.runs), 'run')}"]
    if story.selected:
        if story.selected.at:
            about.append(datetime.fromtimestamp(story.selected.at, UTC).strftime("%Y-%m-%d %H:%M UTC"))
        if story.selected.mode:
            about.append(f"mode {story.selected.mode}")
    if story.completed:
        about += [seconds(story.completed.seconds), f"exit code {story.completed.exit_code}"]
    else:
        about.append("the test did not end")
    yield f'<p class="soft">{escape(" · ".join(filter(None, about)))}</p>'
    counts = Counter(scenario.status for scenario in story.scenarios())
    yield '<ul class="totals">'
    yield from (
        f'<li><b class="{status.value}">{counts[status]}</b>{name}</li>'
        for status, name in NAMES.items()
        if counts[status]
    )
    yield "</ul>"
    for note in story.completed.notes if story.completed else ():
        yield f"<p>{escape(note)}</p>"


def _overview(scenarios: list[StoryScenario], story: Story) -> Iterator[str]:
    yield "<table><thead><tr><th>scenario<th>result<th>runs<th>passed<th>time</tr></thead><tbody>"
    rates = {str(row.get("scenario")): row for row in (story.completed.scenarios if story.completed else ())}
    for number, scenario in enumerate(scenarios):
        dots = "".join(
            f'<i class="{run.status.value}" title="run {run.started.sample}: {NAMES[run.status]}"></i>'
            for run in scenario.runs
        )
        taken = [
            run.finished.total_seconds
            for run in scenario.runs
            if run.finished and run.finished.total_seconds is not None
        ]
        yield (
            f'<tr><td><a href="#s{number}">{escape(scenario.name)}</a>'
            f'<td>{_status(scenario.status)}<td><span class="dots">{dots}</span>'
            f'<td class="number">{_rate(scenario, rates.get(scenario.id))}'
            f'<td class="number">{escape(seconds(sum(taken)) if taken else "")}</tr>'
        )
    yield "</tbody></table>"


def _rate(scenario: StoryScenario, row: Mapping[str, Any] | None) -> str:
    """Return how many passed of those that say something about the agent, with the interval where it was worked out."""
    counted = [run.status for run in scenario.runs if run.status in (Status.PASSED, Status.FAILED, Status.AGENT_ERROR)]
    if not counted:
        return '<span class="soft">nothing to count</span>'
    text = f"{counted.count(Status.PASSED)} of {len(counted)}"
    interval = row.get("interval") if row else None
    if isinstance(interval, list | tuple) and len(interval) == 2 and len(counted) > 1:
        text += f" <small>95 %: {interval[0]:.0%} to {interval[1]:.0%}</small>"
    left_out = len(scenario.runs) - len(counted)
    return text + (f" <small>{left_out} left out</small>" if left_out else "")


def _scenario(number: int, scenario: StoryScenario) -> Iterator[str]:
    yield f'<section id="s{number}"><h2>{escape(scenario.name)} {_status(scenario.status)}</h2>'
    first = scenario.runs[0].started
    yield from (f"<p>{escape(line)}</p>" for line in first.description.strip().splitlines())
    about = [scenario.id if scenario.id != scenario.name else "", scenario.suite, *first.tags]
    if any(about):
        yield f'<p class="soft">{escape(" · ".join(filter(None, about)))}</p>'
    for run in scenario.runs:
        is_open = " open" if run.status is not Status.PASSED or len(scenario.runs) == 1 else ""
        title = f"run {run.started.sample} of {run.started.runs}: " if run.started.runs > 1 else ""
        yield f"<details{is_open}><summary>{title}{_status(run.status)} <small>{escape(_taken(run))}</small></summary>"
        yield '<div class="run">'
        yield from _run(run)
        yield "</div></details>"
    yield "</section>"


def _taken(run: Run) -> str:
    if run.finished is None:
        return "did not end"
    done = run.finished
    said = [
        seconds(done.total_seconds),
        f"{seconds(done.agent_seconds)} in the agent" if done.agent_seconds is not None else "",
        f"{seconds(done.waited_seconds)} waiting for its turn" if done.waited_seconds else "",
        replayed(done),
        *done.labels,
    ]
    return " · ".join(filter(None, said))


def _run(run: Run) -> Iterator[str]:
    if run.why:
        yield f'<p class="why {run.status.value}">{escape(run.why)}</p>'
    yield from _criteria(run.criteria)
    talking = False
    for part in run.parts:
        if isinstance(part, Message) is not talking:
            talking = not talking
            yield '<div class="talk">' if talking else "</div>"
        if isinstance(part, Message):
            yield from _message(part)
        elif isinstance(part, Step):
            yield from _step(part)
        elif part.reasoning or part.criteria:
            yield from _verdict(part)
    if talking:
        yield "</div>"
    if run.finished:
        yield from _end(run.finished)
    if run.started.rerun:
        yield f"<p><small>run only this again</small></p><pre>{escape(run.started.rerun)}</pre>"


def _message(message: Message) -> Iterator[str]:
    role = str(message.message.get("role", ""))
    yield f'<div class="message {escape(role, quote=True)}">'
    taken = "" if message.ms is None else seconds(message.ms / 1000)
    about = " · ".join(filter(None, [role, message.author, message.conversation, taken]))
    yield f"<small>{escape(about)}</small>"
    for name, given, result in calls_of(message):
        yield f'<div class="call"><code>{escape(name)}({escape(given)})</code>'
        yield f"<br><small>→ {escape(result)}</small></div>" if result is not None else "</div>"
    text = content_of(message.message)
    yield f"<p>{escape(text)}</p></div>" if text else "</div>"


def _step(step: Step) -> Iterator[str]:
    if not step.assertions and not step.message and step.status is Status.PASSED:
        return
    name = step.label or f"{step.kind} {step.index + 1}"
    about = "" if step.ms is None else seconds(step.ms / 1000)
    if step.interactions:
        about += " · interactions " + ", ".join(map(str, step.interactions))
    yield f"<h3>{escape(name)} {_status(step.status)} <small>{escape(about)}</small></h3>"
    if step.message:
        yield f'<p class="why {step.status.value}">{escape(step.message)}</p>'
    if step.assertions:
        yield '<ul class="checks">'
        for each in step.assertions:
            yield from _assertion(each)
        yield "</ul>"


def _assertion(each: Assertion) -> Iterator[str]:
    yield f"<li>{_status(each.status)} <code>{escape(each.name)}</code> {escape(each.message)}"
    if each.status is not Status.PASSED:
        yield f"<dl><dt>expected<dd><code>{escape(shown(each.expected))}</code>"
        yield f"<dt>seen<dd><code>{escape(shown(each.actual))}</code></dl>"
    about = ", ".join(filter(None, [each.evidence and f"evidence: {each.evidence}", each.where]))
    yield f"<small>{escape(about)}</small></li>" if about else "</li>"


def _criteria(criteria: tuple[Criterion, ...]) -> Iterator[str]:
    if not criteria:
        return
    yield '<ul class="checks">'
    for each in criteria:
        yield f'<li><span class="status {escape(each.status, quote=True)}">{escape(each.status)}</span> {escape(each.text)}'
        if each.reason:
            yield f'<br><span class="soft">{escape(each.reason)}</span>'
        if each.evidence:
            yield f"<br><q>{escape(each.evidence)}</q>"
        yield f"<br><small>votes: {escape(', '.join(each.votes))}</small></li>" if len(each.votes) > 1 else "</li>"
    yield "</ul>"


def _verdict(verdict: Verdict) -> Iterator[str]:
    said = {True: "passes", False: "fails", None: "goes on"}[verdict.success]
    yield f"<h3>{escape(verdict.judge or 'judge')} {said}</h3>"
    if verdict.reasoning:
        yield f'<p class="soft">{escape(verdict.reasoning)}</p>'


def _end(finished: Finished) -> Iterator[str]:
    for text in finished.misses:
        yield f"<pre>{escape(text)}</pre>"
    yield from (f"<p><small>{escape(line)}</small></p>" for line in used(finished))
