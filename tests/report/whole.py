"""A test of some scenarios with repeats, as one whole and as its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmproxy.report.events import Completed, Event, Finished, Message, PartyUse, Selected, Started, Status, Step
from llmproxy.report.sharding import Shard, assign_items_to_shards, shard_split_to_json, weigh_tests_for_shards

NAMES = [f"s{n:02}" for n in range(23)]
RUNS = {name: 3 if n % 7 == 0 else 1 for n, name in enumerate(NAMES)}
STATUS = {"s03": Status.FAILED, "s11": Status.AGENT_ERROR, "s14": Status.SKIPPED}


def row(name: str) -> dict[str, Any]:
    status = STATUS.get(name, Status.PASSED)
    measured = {"interval": [0.2, 1.0], "cost_usd": "0.0021", "latency_ms": 12.5}
    return {"scenario": name, "status": status.value, "runs": RUNS[name], **measured}


def runs_of(name: str, at: float) -> list[Event]:
    found: list[Event] = []
    for sample in range(1, RUNS[name] + 1):
        run = f"{name}-{sample}"
        use = {"agent": PartyUse(calls=2, input_tokens=120, output_tokens=34, cost_usd="0.0021")}
        found += [
            Started(run_id=run, scenario=name, name=f"Scenario {name}", suite=f"Suite {int(name[1:]) % 3}", sample=sample, runs=RUNS[name], cassette=name, at=at),
            Message(run_id=run, message={"role": "user", "content": f"> <?x {name}"}, at=at),
            Step(run_id=run, index=0, kind="chat", interactions=(1, 2), recordings=("a",), ms=at),
            Finished(run_id=run, scenario=name, status=STATUS.get(name, Status.PASSED), usage=use, replayed=True, total_seconds=2.0, at=at),
        ]  # fmt: skip
    return found


def whole_test(names: list[str], shard: dict[str, Any] | None = None, at: float = 100.0, code: int = 1) -> list[Event]:
    many = sum(RUNS[name] for name in names)
    begun = Selected(title="Tasks", scenarios=len(names), runs=many, mode="replay", at=at, shard=shard)
    ended = Completed(
        exit_code=code if set(names) & {"s03", "s11"} else 0,
        seconds=2.0 * many,
        notes=("one at a time",) if names else (),
        scenarios=[row(name) for name in names],
        times={name: 2000 * RUNS[name] for name in names},
    )
    return [begun, *(event for name in names for event in runs_of(name, at)), ended]


def parts(of: int = 10, at: float = 100.0) -> list[list[Event]]:
    cut = assign_items_to_shards(weigh_tests_for_shards(RUNS, {}), of)
    return [
        whole_test([name for name in NAMES if cut[name] == n], shard_split_to_json(Shard(n, of), cut, "test"), at)
        for n in range(1, of + 1)
    ]


def later(events: list[Event], seconds: float) -> list[Event]:
    """Return a part that ran once more, with the same results."""
    moved: list[Event] = []
    for event in events:
        changed: dict[str, Any] = {}
        if hasattr(event, "run_id"):
            changed["run_id"] = f"{event.run_id}-again"
        if hasattr(event, "at"):
            changed["at"] = event.at + seconds
        if hasattr(event, "ms") and event.ms is not None:
            changed["ms"] = event.ms + seconds
        if isinstance(event, Completed):
            changed["seconds"] = event.seconds + seconds
        moved.append(replace(event, **changed))
    return moved
