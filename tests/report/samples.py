"""A stream of events with everything in it: repeats, odd text, steps, criteria, tool calls, misses, an unfinished run."""

from __future__ import annotations

from collections.abc import Iterable

from llmproxy.report.events import (
    Assertion,
    Completed,
    Event,
    Finished,
    Handler,
    JudgedCriterion,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.run_tree import EventsGroupedByRun

LONG = "averyveryverylongwordwithoutanyspace" * 12
HOSTILE = "</p><script>alert('x')</script>&amp; \x00\x1b[31m"
CHINESE = "助手必须用中文礼貌地回答每一个问题,并且不得编造事实"


def run(name: str, sample: int = 1, runs: int = 1, *, suite: str = "Tasks", end: Finished | None = None) -> list[Event]:
    """Return a run with one exchange; `end` replaces how it ends, its run_id and scenario filled in."""
    run_id = f"{name}-{sample}"
    begin = Started(
        run_id=run_id, scenario=name, name=f"Scenario {name}", suite=suite, sample=sample, runs=runs, tags=("smoke",),
        description="A user asks for a task.\nThen for another.", cassette=name, mode="replay", at=1_700_000_000.0,
        rerun=f"llmproxy test tasks.yaml --id {name}",
    )  # fmt: skip
    said = [
        Message(
            run_id=run_id, message={"role": "user", "content": f"Create '{name}' {LONG}"}, author="UserSimulatorAgent"
        ),
        Message(
            run_id=run_id,
            message={"role": "assistant", "content": f"Created {name}. {HOSTILE}"},
            author="TaskAgent",
            ms=1234.5,
            tool_calls=({"name": "createTask", "arguments": {"title": name}, "result": {"id": 7}},),
        ),
    ]
    return [begin, *said, *([end] if end else [])]


def finished(name: str, sample: int, status: Status, **more: object) -> Finished:
    used = {
        "agent": PartyUse(calls=2, input_tokens=1200, output_tokens=None, cost_usd="0.0021"),
        "judge": PartyUse(calls=1),
    }
    given = {"total_seconds": 2.5, "agent_seconds": 0.4, "usage": used, "replayed": True, **more}
    return Finished(run_id=f"{name}-{sample}", scenario=name, status=status, **given)  # type: ignore[arg-type]


CRITERIA = (
    JudgedCriterion(id="c1", text="The agent is polite", status="passed", evidence="Created", reason="it is"),
    JudgedCriterion(
        id="c2", text=CHINESE, status="failed", reason="it spoke English", votes=("failed", "passed", "failed")
    ),
    JudgedCriterion(id="c3", text="x" * 2000, status="inconclusive", reason="never came up"),
)
FAILED_STEP = Step(
    run_id="wrong-1", index=1, kind="chat", label="create", status=Status.FAILED, ms=900.0, interactions=(12, 13),
    assertions=(
        Assertion(name="tools.createTask", status=Status.PASSED, expected=1, actual=1),
        Assertion(
            name="created[0].fields.title", status=Status.FAILED, expected="Review PR", actual="Review PRs",
            message="the new task is called 'Review PRs', not 'Review PR'", where="tasks.yaml:12",
        ),
        Assertion(
            name="messageProcessing.condenser.activated", status=Status.ENVIRONMENT_ERROR, expected=True, actual=None,
            message="cannot be seen: the provider keeps the history", evidence="unobservable",
        ),
    ),
)  # fmt: skip


def events() -> list[Event]:
    wrong = run("wrong", end=finished("wrong", 1, Status.FAILED, reasoning="2 of 3 checks", criteria=CRITERIA))
    wrong[-1:-1] = [
        FAILED_STEP,
        Verdict(run_id="wrong-1", judge="JudgeAgent", success=False, reasoning="no", criteria=CRITERIA),
    ]
    flaky = [
        event
        for sample in range(1, 6)
        for event in run(
            "flaky",
            sample,
            5,
            end=finished("flaky", sample, Status.PASSED if sample % 2 else Status.AGENT_ERROR, error="exit 1"),
        )
    ]
    return [
        Selected(title="Tasks & more", scenarios=5, runs=9, mode="replay", at=1_700_000_000.0),
        *run("fine", end=finished("fine", 1, Status.PASSED)),
        *wrong,
        *flaky,
        *run(
            "missed",
            end=finished("missed", 1, Status.ENVIRONMENT_ERROR, misses=(f"not recorded: {LONG}",), error="a miss"),
        ),
        *run("left", suite="Other", end=finished("left", 1, Status.SKIPPED, reasoning="needs a database")),
        *run("cut", suite="Other"),
        Completed(
            exit_code=1,
            seconds=12.5,
            notes=("5 samples recorded on 2026-11-01",),
            scenarios=({"scenario": "flaky", "rate": 0.6, "interval": (0.23, 0.88)},),
        ),
    ]


def story(given: Iterable[Event] = ()) -> EventsGroupedByRun:
    """Return what comes of these events, or of all of the sample."""
    told = EventsGroupedByRun()
    for event in given or events():
        told.add_event(event)
    return told


def feed[H: Handler](handler: H, given: Iterable[Event] = ()) -> H:
    """Hand these events to a handler, or all of the sample, and close it."""
    for event in given or events():
        handler.handle(event)
    handler.close()
    return handler
