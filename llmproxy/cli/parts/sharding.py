"""``llmproxy test --shard 3/10``: the scenarios of one part, and what its report says of how all parts were cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.errors import Exit, SettingsError
from llmproxy.report.sharding import describe_cut, read_shard, read_times, split, weights

if TYPE_CHECKING:
    from llmproxy.report.events import Handler
    from llmproxy.suite.reading.load import SuiteCase


@dataclass(frozen=True, slots=True)
class CutPart:
    cases: list[SuiteCase]
    title: str
    """Of the whole test."""
    told: Mapping[str, Any]


def cut(
    text: str, times: Path | None, cases: Sequence[SuiteCase], runs: int | None, command: str, *, partly: bool
) -> CutPart | None:
    """Return a part of the selected cases; None where none was asked for.

    Raises:
        SettingsError: there is no such part, or no report of times.

    """
    if not text:
        if times is not None:
            raise SettingsError("--shard-times balances parts of a test: it goes with --shard 1/10.")
        return None
    from llmproxy.suite.choose.unrecorded import with_runs

    shard = read_shard(text)
    weighed = weights(
        {case.id: runs or case.scenario.runs for case in cases}, {} if times is None else read_times(times)
    )
    parts = split(weighed, shard.of)
    title = ", ".join(dict.fromkeys(case.suite.name for case in cases))
    mine = [case for case in cases if parts[case.id] == shard.number]
    told = describe_cut(shard, parts, "test", command=with_runs(command, runs), partly=partly)
    return CutPart(mine, title, told)


def tell_empty(part: CutPart, handlers: Sequence[Handler], mode: str, at: float) -> str:
    """Tell reports that a part had nothing to run, which is no failure of it; return it in words."""
    from llmproxy.report.events import Completed, Selected

    for handler in handlers:
        handler.handle(Selected(title=part.title, scenarios=0, runs=0, mode=mode, at=at, shard=part.told))
        handler.handle(Completed(exit_code=int(Exit.OK), seconds=0.0))
    many = len(part.told["items"])
    return f"part {part.told['number']}/{part.told['of']} has none of {many} {'scenario' if many == 1 else 'scenarios'}: nothing to run"


def advise(unrecorded: Sequence[str], shard: Mapping[str, Any]) -> str:
    """Say of a whole test what records the scenarios of which nothing is recorded."""
    from llmproxy.suite.choose.unrecorded import advice

    return advice(
        unrecorded, len(shard["items"]), shard.get("command", "llmproxy test"), partly=bool(shard.get("partly"))
    )
