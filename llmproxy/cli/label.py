"""``llmproxy label``: people label recorded conversations for `llmproxy judge calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli.parts.options import LAST_REPORT
from llmproxy.cli.parts.printing import escape_lines, print_line
from llmproxy.scenario.lab.human_labels import KEYS, ConversationToLabel, list_judged_runs, list_labelled_ids
from llmproxy.scenario.prompts import format_transcript

QUIT = "q"


def label(
    report: Path = typer.Argument(
        ...,
        metavar="RUN",
        help="A report of tests (--report json=FILE), or the id of a run of the last `llmproxy test`.",
    ),
    run: str = typer.Option("", "--run", help="Only the run whose id is or begins with this text."),
    criterion: list[str] = typer.Option(
        [], "--criterion", "-c", help="Label this criterion instead of the judge's criteria; may be repeated."
    ),
    out: Path = typer.Option(Path("labels.jsonl"), "--out", "-o", help="Add the labels to this file."),
) -> None:
    """Label recorded conversations at the terminal, for judge calibrate.

    llmproxy shows one conversation at a time and asks for a label per criterion: passed, failed or inconclusive. It
    hides the judge's verdict. It writes each conversation after its last label. `q` quits; the next call continues
    with unlabelled conversations.
    """
    if not report.exists() and report.name == str(report) and not report.suffix:
        report, run = LAST_REPORT, str(report)
    known = list_labelled_ids(out)
    runs = list_judged_runs(report, run, criterion)
    left = [each for each in runs if each.id not in known]
    print_line(
        f"{format_count(len(left), 'conversation')} to label"
        + (f", {len(runs) - len(left)} labelled before" if len(left) < len(runs) else "")
    )
    done = 0
    for number, each in enumerate(left, 1):
        labels = _ask_person(each, f"{number}/{len(left)}")
        if labels is None:
            break
        with out.open("a", encoding="utf-8") as file:
            file.write(each.format_jsonl_line(labels) + "\n")
        done += 1
    print_line(
        f"{format_count(done, 'conversation')} labelled in {out}"
        + (f"; llmproxy judge calibrate {out} -m MODEL compares a judge with them" if done else "")
    )


def _ask_person(labelling: ConversationToLabel, number: str) -> list[str | None] | None:
    print_line(f"\n{number}  {escape_lines(labelling.id)}")
    print_line(escape_lines(format_transcript(labelling.messages)))
    found: list[str | None] = []
    for text in labelling.criteria:
        typed = ""
        while typed not in KEYS:
            print_line(f"\n  {escape_lines(text)}")
            typer.echo("  [p]assed, [f]ailed, [i]nconclusive, [s]kip, [q]uit: ", nl=False)
            line = sys.stdin.readline()
            typed = line.strip().lower()[:1]
            if not line or typed == QUIT:
                return None
        found.append(KEYS[typed])
    return found
