"""``llmproxy run --live``: the channels that ran live, and the differences between live and recorded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.advice import format_command, quote_word
from llmproxy.cli.parts.options import format_record_command
from llmproxy.cli.parts.printing import to_line
from llmproxy.errors import CassetteNotFound, LLMProxyError
from llmproxy.server_store_copies import store_exists
from llmproxy.settings import shown_path

if TYPE_CHECKING:
    from llmproxy.client.session_reports import Report
    from llmproxy.report.events import Event
    from llmproxy.scenario.repeats.differences_from_recording import RecordingComparison
    from llmproxy.settings import Loaded


_SERVED = {"llm": "models", "mcp": "tools", "http": "services"}


@dataclass(frozen=True, slots=True)
class LiveRun:
    live: Mapping[str, Any]
    verdict: str
    kept: bool = True
    """Whether any call was recorded, so that the cassette exists."""


def require_recordings(loaded: Loaded) -> None:
    """Check that the replayed channels have recordings. Raises CassetteNotFound."""
    store, channels = loaded.settings.store, ",".join(loaded.settings.live)
    if not store_exists(store) and loaded.settings.cassette_dir is None:
        msg = f"there is no store {shown_path(store)}, so there is nothing to serve beside --live {channels}."
        raise CassetteNotFound(msg, hint=f"Record it first, with its tools: {format_record_command(loaded)}")


@dataclass(slots=True)
class FinishedLiveRuns:
    loaded: Loaded
    runs: list[LiveRun] = field(default_factory=list)

    def add(self, report: Report | None, code: int) -> None:
        if report is not None and report.live is not None:
            self.runs.append(LiveRun(report.live, f"exit {code}", report.calls > 0))

    def to_json(self) -> dict[str, object]:
        found = compare_finished_live_runs(self.loaded, self.runs)
        told = [{**each.live, "verdict": each.verdict} for each in self.runs]
        return {} if not told else {"live_runs": told, "comparison": None if found is None else found.to_json()}

    def describe(self) -> list[str]:
        kept_runs = [each for each in self.runs if each.kept]
        if not kept_runs:
            return []
        store, last = shown_path(self.loaded.settings.store), kept_runs[-1].live
        names = [str(each.live["cassette"]) for each in kept_runs]
        kept = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        served = " and ".join(word for each, word in _SERVED.items() if each not in last["channels"])
        lines = [
            f"llmproxy: live {', '.join(last['channels'])}; kept in {to_line(kept)}"
            + (f", {served} served from {to_line(str(last['parent']))}" if served else "")
        ]
        found = compare_finished_live_runs(self.loaded, self.runs)
        if found is not None:
            first, *rest = found.summary_lines()
            lines += [f"  {to_line(first)}", *(f"    {to_line(text.strip())}" for text in rest)]
        compared = format_command(f"diff {quote_word(str(last['parent']))} {quote_word(names[-1])}", store)
        return [*lines, f"  request by request: {compared}"]


class LiveTestComparer:
    """Collects the outcomes of runs with live channels; tells at the end how their models differ from recorded ones."""

    def __init__(
        self,
        loaded: Loaded,
        store: Path,
        baseline: Path | None,
        tell: Callable[[list[str], Mapping[str, object]], None],
    ) -> None:
        self._loaded, self._store, self._baseline, self._tell = loaded, store, baseline, tell
        self._runs: dict[str, list[LiveRun]] = {}

    def handle(self, event: Event) -> None:
        from llmproxy.report.events import Completed, Finished

        if isinstance(event, Finished) and event.live is not None:
            self._runs.setdefault(event.scenario, []).append(LiveRun(event.live, str(event.status)))
        elif isinstance(event, Completed) and self._runs:
            self._tell(*self._compare_tests())

    def close(self) -> None:
        """Do nothing: no output is buffered."""

    def _compare_tests(self) -> tuple[list[str], dict[str, object]]:
        before = self._read_baseline_verdicts()
        lines, told = [], dict[str, object]()
        for name, runs in self._runs.items():
            found = compare_finished_live_runs(self._loaded, runs, before.get(name, ""), self._store)
            if found is None:
                lines.append(f"{to_line(name)}: live {', '.join(runs[0].live['channels'])}")
                continue
            first, *rest = found.summary_lines()
            lines += [f"{to_line(name)}: {to_line(first)}", *(f"  {to_line(text.strip())}" for text in rest)]
            told[name] = found.to_json()
        return lines, told

    def _read_baseline_verdicts(self) -> dict[str, str]:
        if self._baseline is None:
            return {}
        from llmproxy.report.baseline import read_baseline

        try:
            rows = read_baseline(self._baseline, list(self._runs))
        except LLMProxyError:  # it knows other scenarios; whoever compares with it has said so
            return {}
        return {name: str(row.get("status")) for name, row in rows.items()}


def compare_finished_live_runs(
    loaded: Loaded, runs: Sequence[LiveRun], verdict: str = "", path: Path | None = None
) -> RecordingComparison | None:
    """Return the differences of live runs from the recording with verdict `verdict`; None without model calls or
    recordings.

    `path` is the store, by default the settings'.
    """
    from llmproxy.core.bindings.volatile_field_matching import list_builtin
    from llmproxy.core.engine.learn_fields_from_recordings import restate_run
    from llmproxy.core.keys.user_rules import Rules
    from llmproxy.core.store.file.store import open_store
    from llmproxy.core.store.queries import read_volatile_fields
    from llmproxy.scenario.repeats.differences_from_recording import RecordingComparison, RunAgainstRecording
    from llmproxy.trace.comparing.behavior_comparison import read_behavior

    with_model = [each for each in runs if "llm" in each.live["channels"]]
    if not with_model:
        return None
    parent, sample = str(with_model[0].live["parent"]), int(with_model[0].live["parent_sample"])
    try:
        rules = Rules.from_settings(loaded.settings.normalize)
        with open_store(path or loaded.settings.store, writable=False, now=lambda: 0.0) as store:
            recorded = list(store.iter_interactions(parent, sample))
            volatile = (*read_volatile_fields(store, parent), *list_builtin())
            made = []
            for each in with_model:
                mine = list(store.iter_interactions(str(each.live["cassette"])))
                told, _ = restate_run(recorded, mine, volatile, rules, loaded.settings.upstream)
                name, unknown = str(each.live["cassette"]), tuple(each.live["unknown"])
                made.append(RunAgainstRecording(name, read_behavior(mine), read_behavior(told), each.verdict, unknown))
    except LLMProxyError:  # a proxy elsewhere, with a store of its own
        return None
    return RecordingComparison(parent, read_behavior(recorded), tuple(made), verdict)
