"""``llmproxy label`` and ``judge``: people label recorded conversations, and a judge is compared with them."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli import make_default_typer
from llmproxy.cli.parts.completion import complete_model_names
from llmproxy.cli.parts.options import LAST_REPORT
from llmproxy.cli.parts.printing import escape_all_but_line_breaks, print_json, print_line, to_safe_line
from llmproxy.errors import Exit, SettingsError
from llmproxy.parsers import read_text_file_named_by_user
from llmproxy.scenario.config import UNSET_ZERO
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.lab import human_labels
from llmproxy.scenario.lab.judge_calibration import (
    JudgeCalibration,
    calibrate_judge as measured,
    predict_calibration_call_count,
)
from llmproxy.scenario.transcripts import format_transcript

_SHOWN = 20


def register(app: typer.Typer) -> None:
    group = make_default_typer(help="Compare a judge's verdicts with human labels.", no_args_is_help=True)
    group.callback()(lambda: None)  # keeps `calibrate` a command of its own while it is the only one
    group.command("calibrate")(calibrate)
    app.add_typer(group, name="judge")
    app.command("label")(ask_human_labels_at_terminal)


def calibrate(
    labels: Path = typer.Argument(..., metavar="LABELS", help="JSON lines: id, messages, criteria with human labels."),
    model: str = typer.Option(
        ..., "--model", "-m", autocompletion=complete_model_names, help="Model, as in litellm: openai/gpt-4.1-mini."
    ),
    repeats: int = typer.Option(3, "--repeats", "-r", min=1, help="Verdicts per conversation."),
    order: bool = typer.Option(True, "--order/--no-order", help="Judge once more with the criteria in reverse order."),
    judges: int = typer.Option(1, "--judges", min=1, help="Number of judges that vote on each verdict."),
    vote: str = typer.Option("majority", "--vote", help="How judges vote: majority, unanimous or confirm-on-fail."),
    temperature: float | None = typer.Option(None, "--temperature", help="The judge's temperature."),
    system_prompt: Path | None = typer.Option(None, "--system-prompt", help="File with the judge's instructions."),
    proxy: str | None = typer.Option(None, "--proxy", help="Proxy that records or replays; default: LLMPROXY_URL."),
    mode: str | None = typer.Option(None, "--mode", help="Mode of the sessions at the proxy."),
    concurrency: int = typer.Option(8, "--concurrency", min=1, help="Number of parallel requests."),
    seed: int = typer.Option(0, "--seed", help="Random seed of the bootstrap intervals."),
    min_kappa: float | None = typer.Option(
        None, "--min-kappa", help="End with exit code 1 if kappa is lower or undefined."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare a judge's verdicts with human labels. It prints agreement, kappa, and how often verdicts change."""
    if min_kappa is not None and math.isnan(min_kappa):
        raise SettingsError("--min-kappa nan is no number.", hint="It takes one from -1 to 1, like 0.6.")
    labelled = human_labels.read_human_labels(labels)
    prompt = read_text_file_named_by_user(system_prompt, f"--system-prompt {system_prompt}") if system_prompt else None

    def make(criteria: Sequence[str]) -> JudgeAgent:
        return JudgeAgent(
            criteria=list(criteria),
            model=model,
            judges=judges,
            vote=vote,
            temperature=UNSET_ZERO if temperature is None else temperature,
            system_prompt=prompt,
        )

    if not as_json:
        asked = predict_calibration_call_count(labelled, repeats, order=order)
        count = format_count(len(labelled), "conversation")
        print_line(f"{labels}: {count}, {format_count(asked, 'look')} of {to_safe_line(model)}")
    found = asyncio.run(
        measured(
            labelled,
            make,
            repeats=repeats,
            order=order,
            rng=random.Random(seed),  # noqa: S311 (resampling is no cryptography)
            name=f"calibrate {labels.stem}",
            proxy=proxy,
            mode=mode,
            max_concurrency=concurrency,
        )
    )
    _print_calibration(found, as_json=as_json)
    raise typer.Exit(_choose_calibration_exit_code(found, min_kappa))


def _print_calibration(found: JudgeCalibration, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(found), "agreement": found.agreement})
        return
    for text in found.summary_lines():
        print_line(escape_all_but_line_breaks(text))
    if found.missed:
        print_line("  to record what is missing, type the same with --mode auto")
    for each in found.disagreements[:_SHOWN]:
        about = f"{to_safe_line(each.id)}: {to_safe_line(each.criterion)}"
        print_line(f"  {about}: human {each.human}, judge {each.judge}. {to_safe_line(each.reason)}")
    if len(found.disagreements) > _SHOWN:
        print_line(f"  ... and {len(found.disagreements) - _SHOWN} more disagreements (--json lists all)")


def _choose_calibration_exit_code(found: JudgeCalibration, min_kappa: float | None) -> Exit:
    """Return the exit code: a conversation that could not be judged outweighs any figure."""
    if found.errors:
        return Exit.MISS if found.missed else Exit.ENVIRONMENT
    return Exit.FAILED if min_kappa is not None and (found.kappa is None or found.kappa < min_kappa) else Exit.OK


QUIT = "q"


def ask_human_labels_at_terminal(
    report: Path = typer.Argument(
        ..., metavar="RUN", help="A test report (--report json=FILE), or the id of a run of the last `llmproxy test`."
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
    known = human_labels.read_labelled_conversation_ids(out)
    runs = human_labels.list_labelable_conversations(report, run, criterion)
    left = [each for each in runs if each.id not in known]
    print_line(
        f"{format_count(len(left), 'conversation')} to label"
        + (f", {len(runs) - len(left)} labelled before" if len(left) < len(runs) else "")
    )
    done = 0
    for number, each in enumerate(left, 1):
        if (labels := _ask_person(each, f"{number}/{len(left)}")) is None:
            break
        with out.open("a", encoding="utf-8") as file:
            file.write(each.format_jsonl_line(labels) + "\n")
        done += 1
    print_line(
        f"{format_count(done, 'conversation')} labelled in {out}"
        + (f"; llmproxy judge calibrate {out} -m MODEL compares a judge with them" if done else "")
    )


def _ask_person(labelling: human_labels.ConversationToLabel, number: str) -> list[str | None] | None:
    print_line(f"\n{number}  {escape_all_but_line_breaks(labelling.id)}")
    print_line(escape_all_but_line_breaks(format_transcript(labelling.messages)))
    found: list[str | None] = []
    for text in labelling.criteria:
        typed = ""
        while typed not in human_labels.KEYS:
            print_line(f"\n  {escape_all_but_line_breaks(text)}")
            typer.echo("  [p]assed, [f]ailed, [i]nconclusive, [s]kip, [q]uit: ", nl=False)
            line = sys.stdin.readline()
            typed = line.strip().lower()[:1]
            if not line or typed == QUIT:
                return None
        found.append(human_labels.KEYS[typed])
    return found
