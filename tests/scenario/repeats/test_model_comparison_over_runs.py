"""Another model on recorded tools: the differences that are told are exactly those that were planted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from llmproxy.scenario.repeats.model_comparison_over_runs import BehaviorVsRecording, RunAndRecordedBehavior
from llmproxy.trace.comparing.behavior_comparison import (
    BehaviorChange,
    RunBehaviorSummary,
    ToolCallNameAndArguments,
    compare_behaviors,
    extract_run_behavior,
)
from tests.support.live import Bench, Turn, Wish, World, scripted

OLD = [Wish(f"tool_{n % 4}", {"n": n, "deep": {"list": [n]}}) for n in range(14)]
"""Each call is its own; tools come again."""


class Planted(NamedTuple):
    """A policy, and how it differs from the old one."""

    turns: list[Turn]
    changes: set[BehaviorChange]
    calls: list[Wish]


def text(wish: Wish) -> str:
    return str(ToolCallNameAndArguments(wish.tool, wish.arguments))


def plant(seed: int) -> Planted:
    """Change the old policy in up to four places that do not touch."""
    chance = random.Random(seed)
    places = chance.sample(range(0, len(OLD) - 1, 3), chance.randint(0, 4))
    new: list[Wish] = []
    changes: set[BehaviorChange] = set()
    at = 0
    while at < len(OLD):
        wish = OLD[at]
        match chance.choice(("drop", "add", "change", "swap")) if at in places else "":
            case "drop":
                changes.add(BehaviorChange("gone", wish.tool, old=text(wish)))
            case "add":
                more = Wish(chance.choice(["tool_1", "other"]), {"fresh": at})
                new += [wish, more]
                changes.add(BehaviorChange("new", more.tool, new=text(more)))
            case "change":
                new.append(Wish(wish.tool, {"n": 100 + at, "deep": {"list": [at]}}))
                changes.add(BehaviorChange("arguments", wish.tool, "$.n", str(at), str(100 + at)))
            case "swap":
                new += [OLD[at + 1], wish]
                changes.add(BehaviorChange("order", OLD[at + 1].tool, old=text(wish), new=text(OLD[at + 1])))
                at += 1
            case _:
                new.append(wish)
        at += 1
    last = chance.choice(["done", "all done"])
    if last != "done":
        changes.add(BehaviorChange("answer", old="done", new=last))
    turns = []
    rest = list(new)
    while rest:
        size = chance.randint(3, 6)
        turns.append(Turn(tuple(rest[:size]), tokens=(chance.randint(1, 99), chance.randint(1, 99))))
        rest = rest[size:]
    return Planted([*turns, Turn(text=last, tokens=(7, 3))], changes, new)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    store = tmp_path_factory.mktemp("models") / "x.db"
    old = [Turn(tuple(OLD[n : n + 5]), tokens=(11, 2)) for n in range(0, len(OLD), 5)]
    with Bench(store, "record", model=scripted([*old, Turn(text="done")]), tools=World()) as made:
        made.run("do it")
    with Bench(store, live=["llm"]) as made:
        yield made


def run(bench: Bench, seed: int) -> tuple[Planted, RunAndRecordedBehavior]:
    planted = plant(seed)
    bench.model = scripted(planted.turns)
    ran = bench.run("do it")
    name = ran.report["live"]["cassette"]
    recorded, policy = (extract_run_behavior(bench.interactions(each)) for each in ("x", name))
    verdict = "pass" if seed % 3 else "fail"
    return planted, RunAndRecordedBehavior(name, policy, recorded, verdict, tuple(ran.report["live"]["unknown"]))


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 62), marks=pytest.mark.slow)], ids=["few", "many"])
def test_what_is_told_is_what_was_planted(bench: Bench, seeds: range) -> None:
    """Calls gone, new, changed, swapped, other last words, tokens, verdicts: exactly those, in each run and in all."""
    expected: Counter[BehaviorChange] = Counter()
    runs: list[RunAndRecordedBehavior] = []
    for seed in seeds:
        planted, made = run(bench, seed)
        assert set(compare_behaviors(made.recorded, made.policy)) == planted.changes, seed
        assert made.policy.tokens_in == sum(turn.tokens[0] for turn in planted.turns)
        assert made.policy.tokens_out == sum(turn.tokens[1] for turn in planted.turns)
        assert [(call.tool, call.arguments) for call in made.policy.calls] == [tuple(each) for each in planted.calls]
        expected.update(planted.changes)
        expected.update([BehaviorChange("verdict", old="pass", new="fail")] * (made.verdict == "fail"))
        runs.append(made)
    found = BehaviorVsRecording("x", runs[0].recorded, tuple(runs), "pass")
    assert dict(found.behavior_change_counts) == dict(expected)
    told: dict[str, Any] = found.to_json()
    assert [row["runs"] for row in told["changes"]] == sorted(expected.values(), reverse=True)
    assert told["used"]["tokens_in"]["recorded"] == 43
    for row in told["changes"]:
        low, high = row["interval"]
        assert low <= row["runs"] / len(seeds) <= high
    assert "\n".join(found.summary_lines())


def test_the_same_policy_differs_in_nothing() -> None:
    same = RunBehaviorSummary((ToolCallNameAndArguments("a", {"b": 1}),) * 3, "done", 4, 10, 5, None, ("m",))
    found = BehaviorVsRecording("x", same, (RunAndRecordedBehavior("x@live-1", same, same),))
    assert found.behavior_change_counts == []
    assert "the same calls in the same order" in "\n".join(found.summary_lines())
    assert "cost: unknown -> unknown" in "\n".join(found.summary_lines())


def test_a_run_that_broke_off_says_nothing_of_its_model() -> None:
    """A provider that failed, Ctrl-C: what was not called any more is no choice of the model's."""
    call = ToolCallNameAndArguments("a", {"b": 1})
    whole, cut = RunBehaviorSummary((call, call), "done", 3), RunBehaviorSummary((call,), "", 1, ended=False)
    found = BehaviorVsRecording(
        "x",
        whole,
        (
            RunAndRecordedBehavior("x@live-1", cut, whole, "exit 1"),
            RunAndRecordedBehavior("x@live-2", RunBehaviorSummary(), whole),
        ),
    )
    assert (found.behavior_change_counts, found.verdicts) == ([], {})
    assert found.to_json()["compared"] == 0
    lines = list(found.summary_lines())
    assert lines[1:] == ["  2 runs broke off before the model had said its last words: not compared"]
    ends_with_a_call = RunBehaviorSummary((call,), "", 1, ended=False)
    assert not RunAndRecordedBehavior("x@live-3", cut, ends_with_a_call).broke_off


def test_a_call_that_comes_once_less_is_gone_and_nothing_else() -> None:
    """Equal calls stand for each other in order as far as that goes."""
    calls = [ToolCallNameAndArguments(name, {}) for name in ("get", "set", "get")]
    changes = compare_behaviors(RunBehaviorSummary(tuple(calls)), RunBehaviorSummary(tuple(calls[1:])))
    assert changes == (BehaviorChange("gone", "get", old="get({})"),)
