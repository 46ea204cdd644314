"""Which faults a sweep does to which calls, what agents make of them, and the table."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.client.fault_sweep_judging import (
    FaultSweepRunOutcome,
    FaultTrialFinding,
    FaultTrialOutcome,
    PlannedFaultTrial,
    find_failure_in_output,
    format_sweep_findings,
    format_sweep_summary_lines,
    give_bound_hits_recorded_keys,
    judge_fault_trial,
    parse_fault_sweep_kinds,
    plan_fault_trials,
    sweep_findings_to_json,
)
from llmproxy.core.cassettes.anonymized_export import convert_interaction_to_json
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import BadFaults
from tests.support.messages import asks, call as call_tool, said, user
from tests.trace.observing.test_servers import Tools


def call(seq: int, key: str, *, decision: str = "REPLAY", **more: Any) -> Call:
    """Return a call of the agent; answered from its recording unless something else is said."""
    given: dict[str, Any] = {
        "seq": seq, "at": 0.0, "ms": 1.0, "first_ms": None, "party": "agent", "decision": decision, "status": 200,
        "miss": False, "note": "", "key": key, "occurrence": 1 if decision == "REPLAY" else None, "provider": "openai",
        "operation": "chat.completions", "model": "gpt-4o", "interaction": seq,
    }  # fmt: skip
    return Call(**given | more)


def injected(seq: int, key: str) -> Call:
    return call(seq, key, decision="FAULT", fault="http-500", status=500)


def miss(seq: int) -> Call:
    return call(seq, "new", decision="REFUSE", miss=True, status=404)


def trial(kind: str = "http-500", number: int = 2) -> PlannedFaultTrial:
    return PlannedFaultTrial(KINDS[kind], number, "b", 1, {"kind": kind})


BASELINE = FaultSweepRunOutcome(
    calls=[call(1, "a"), call(2, "b"), call(3, "c")], seconds=1.0, said="one\ntook 3 ms\ntwo\n"
)


def test_a_sweep_takes_what_differs_in_what_it_asks() -> None:
    """Not what meets everybody, nor what asks the same of an agent as another kind; names say otherwise."""
    usual = [kind.name for kind in parse_fault_sweep_kinds("sweep")]
    assert {"http-429", "reset", "early-end", "truncated-arguments"} <= set(usual)
    assert not {"refused", "tls-failure", "http-503", "slow-start"} & set(usual)
    assert [kind.name for kind in parse_fault_sweep_kinds("sweep:slow-start, reset")] == ["slow-start", "reset"]


@pytest.mark.parametrize(
    ("asked", "said"), [("sweep:rset", "did you mean 'reset'"), ("sweep:refused", "meets a connection")]
)
def test_what_a_sweep_cannot_take_is_refused(asked: str, said: str) -> None:
    with pytest.raises(BadFaults, match=said):
        parse_fault_sweep_kinds(asked)


def test_calls_of_tools_are_swept_with_numbers_of_their_own() -> None:
    """`http-500@2` is the second call of a model, `mcp-error@2` that of a tool; initialize and lists are let alone."""
    chats = Tools()
    chats.lists("echo")
    chats.chat([user("x")], asks(call_tool("echo", {"n": 1})))
    chats.serve("echo", {"n": 1})
    chats.serve("echo", {"n": 2})
    chats.chat([user("y")], said("done"))
    walk = [
        told._replace(recording=convert_interaction_to_json(made)) for told, made in chats.calls if made is not None
    ]
    trials = plan_fault_trials(walk, parse_fault_sweep_kinds("sweep:http-500,mcp-error,mcp-gone"))
    assert [(each.label, each.rule["recording"]) for each in trials] == [
        ("http-500@1", 102), ("http-500@2", 105), ("mcp-error@1", 103), ("mcp-error@2", 104), ("mcp-gone@1", 103),
        ("mcp-gone@2", 104),
    ]  # fmt: skip
    usual = {each.kind.name for each in plan_fault_trials(walk, parse_fault_sweep_kinds("sweep"))}
    assert {"mcp-error", "mcp-tool-error", "mcp-silent", "mcp-gone", "http-429"} <= usual


RETRIED = [call(1, "a"), injected(2, "b"), injected(3, "b"), call(4, "b"), call(5, "c")]
ACCEPTED = [call(1, "a"), injected(2, "b"), call(3, "c")]


def went(calls: object, said: str = BASELINE.said, **more: object) -> FaultSweepRunOutcome:
    return FaultSweepRunOutcome(calls=calls, said=said, seconds=2.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("run", "outcome", "detail", "mark"), [
    (went(RETRIED), FaultTrialOutcome.RECOVERED, "2 retries, +1.0 s", " "),
    (went(ACCEPTED), FaultTrialOutcome.RECOVERED, "not disturbed, +1.0 s", " "),
    (went(ACCEPTED, said="one\n"), FaultTrialOutcome.QUIET, "says nothing, not 'took 3 ms'", "!"),
    (went(ACCEPTED, said="one\ntook 3 ms\nthree\n"), FaultTrialOutcome.QUIET, "says 'three', not 'two'", "!"),
    (went(ACCEPTED, said=BASELINE.said + "oops\n"), FaultTrialOutcome.QUIET, "says 'oops' besides", "!"),
    (went([call(1, "a"), injected(2, "b")]), FaultTrialOutcome.QUIET, "ended well, without call 3", "!"),
    (went(RETRIED[:3], failed="Error: 500"), FaultTrialOutcome.GAVE_UP, "Error: 500", "!"),
    (went([*ACCEPTED[:2], miss(3)]), FaultTrialOutcome.WENT_ON, "to a request that is not recorded, at call 3", "?"),
    (went([*ACCEPTED[:2], miss(3)], failed="404"), FaultTrialOutcome.WENT_ON,
     "to a request that is not recorded, at call 3", "?"),
    (went([*RETRIED[:4], miss(5)]), FaultTrialOutcome.WENT_ON, "to a request that is not recorded, at call 3", "?"),
    (went(RETRIED[:2], hung=True, failed="killed"), FaultTrialOutcome.HUNG, "had not ended after 2.0 s", "!"),
    (went(BASELINE.calls), FaultTrialOutcome.UNMET, "the call did not come", "?"),
    (went(ACCEPTED, wrong="step 1: nope"), FaultTrialOutcome.QUIET, "step 1: nope", "!"),
])  # fmt: skip
def test_what_the_agent_did(run: FaultSweepRunOutcome, outcome: FaultTrialOutcome, detail: str, mark: str) -> None:
    """Each way to end has a name; only what a sound agent would not do breaks it."""
    found = judge_fault_trial(trial(), run, [BASELINE])
    assert (found.outcome, found.full_detail, found.severity_mark) == (outcome, detail, mark)


def test_giving_up_is_sound_where_asking_again_is_no_cure() -> None:
    """With a message; an error that nobody caught breaks the agent there too."""
    refused = went(ACCEPTED[:2], failed="the model declined")
    assert not judge_fault_trial(trial("refusal"), refused, [BASELINE]).weak
    crashed = went(ACCEPTED[:2], failed="KeyError: 'x'", crashed=True)
    assert judge_fault_trial(trial("refusal"), crashed, [BASELINE]).weak


def test_what_differs_from_run_to_run_counts_for_nothing() -> None:
    """Lines that undisturbed runs do not agree on, and the numbers in those that they do."""
    more = FaultSweepRunOutcome(calls=BASELINE.calls, seconds=1.0, said="one\ntook 41 ms\ntwo\n")
    other = went(ACCEPTED, said="one\ntook 5 ms\ntwo\n")
    assert judge_fault_trial(trial(), other, [BASELINE]).outcome is FaultTrialOutcome.QUIET
    assert judge_fault_trial(trial(), other, [BASELINE, more]).outcome is FaultTrialOutcome.RECOVERED
    assert (
        judge_fault_trial(trial(), went(ACCEPTED, said="one\ntook 5 ms\n"), [BASELINE, more]).outcome
        is FaultTrialOutcome.QUIET
    )


@pytest.mark.parametrize(("err", "said", "crashed"), [
    ("Traceback (most recent call last):\n  File x\nopenai.RateLimitError: 429\n", "openai.RateLimitError: 429",
     True),
    ("throw e\n^\n\nError: boom\n    at f (a.mjs:1:2)\n\nNode.js v22.1.0\n", "Error: boom", True),
    ("agent: giving up\n", "agent: giving up", False),
    ("", "out of ideas", False),
    ("   \n", "out of ideas", False),
    (("  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: errors\n  +-+---- 1 ----\n"
     "    | McpError: Internal error\n    +-----\n"), "McpError: Internal error", True),
])  # fmt: skip
def test_last_words(err: str, said: str, crashed: bool) -> None:
    """The message that a person would look for: the error's own line, else the last one."""
    assert find_failure_in_output("out of ideas\n", err, 1) == (said, crashed)
    assert find_failure_in_output("", "", 3) == ("exit code 3", False)


FINDINGS = [
    FaultTrialFinding(trial("http-429", 1), FaultTrialOutcome.RECOVERED, "1 retry", weak=False, extra_seconds=0.5),
    FaultTrialFinding(trial("http-429", 2), FaultTrialOutcome.RECOVERED, "1 retry", weak=False, extra_seconds=1.5),
    FaultTrialFinding(trial("http-429", 4), FaultTrialOutcome.RECOVERED, "1 retry", weak=False, extra_seconds=0.2),
    FaultTrialFinding(trial("http-429", 5), FaultTrialOutcome.RECOVERED, "2 retries", weak=False, extra_seconds=0.2),
    FaultTrialFinding(trial("length", 2), FaultTrialOutcome.QUIET, "says 'a', not 'b'", weak=True),
]


def test_a_bound_hit_is_the_same_call_in_each_run() -> None:
    """Its request has this run's words, and so another key; a fault and a retry of it have that key, too."""
    bound: set[int | None] = set()
    first = give_bound_hits_recorded_keys(
        [call(1, "a", interaction=1), call(2, "b", interaction=2, bound=("at",))], bound
    )
    again = [call(1, "a", interaction=1), injected(2, "c"), call(3, "c", interaction=2, bound=("at",))]
    assert [each.key for each in first] == ["a", "#2"]
    assert [each.key for each in give_bound_hits_recorded_keys(again, bound)] == ["a", "#2", "#2"]
    assert [each.key for each in give_bound_hits_recorded_keys([call(1, "b", interaction=2)], bound)] == ["#2"]


def test_alike_findings_share_a_row() -> None:
    """With the longest time of them; what breaks the agent is marked."""
    assert format_sweep_findings(FINDINGS) == [
        "fault     call      what the agent did",
        "http-429  1-2,4     recovered: 1 retry, +1.5 s",
        "http-429  5         recovered: 2 retries, +0.2 s",
        "length    2      !  wrong but quiet: says 'a', not 'b'",
    ]


def test_what_it_comes_to() -> None:
    """How many of each, which break it, what a sound agent does, how to see it again."""
    assert format_sweep_summary_lines(FINDINGS, "llmproxy run --faults FAULT -- x") == [
        "5 faults, one at a time: 4 recovered, 1 wrong but quiet",
        "1 of them breaks the agent: length",
        "A robust agent does not use the half as an answer: asks for the rest, retries, or reports the limit.",
        "Run one alone: llmproxy run --faults length@2 -- x",
    ]
    assert format_sweep_summary_lines(FINDINGS[:2], "")[-1] == "None of them breaks the agent."
    unsure = [FaultTrialFinding(trial("length", 2), FaultTrialOutcome.WENT_ON, "at call 3", weak=False)]
    assert "Unknown, for want of recordings: length@2" in format_sweep_summary_lines(unsure, "x FAULT")[1]
    assert format_sweep_summary_lines([], "") == ["0 faults, one at a time: none"]


def test_as_plain_values() -> None:
    assert sweep_findings_to_json(FINDINGS)[-1] == {
        "kind": "length", "call": 2, "outcome": "wrong but quiet", "detail": "says 'a', not 'b'", "weak": True,
    }  # fmt: skip
