"""Output and exit code after a run agent has ended, and what differed with channels that ran live (``run --live``)."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy import calls_and_totals
from llmproxy.advice import SuggestedCommandTemplate, format_llmproxy_command, quote_word
from llmproxy.amount_formatting import name_some
from llmproxy.calls_and_totals import (
    Totals,
    describe_replayed_failures,
    find_strict_violations,
    format_exit_code_reason,
)
from llmproxy.cli.parts.options import suggest_cassette_file_replay
from llmproxy.cli.parts.printing import to_safe_line, write_stderr_lines
from llmproxy.cli.parts.store_arguments import learn_fields_from_recorded_runs, open_given_store
from llmproxy.client.bypass_monitor import PROJECTS, find_known_bypassers, is_client_configured_in_command
from llmproxy.client.child_env import EnvironmentPlan, in_ci
from llmproxy.client.control import ControlError, ProxyUnreachable
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import SessionReport, format_session_counts, list_shortened_misses_with_counts
from llmproxy.errors import ENDED_BY_USER, Exit, LLMProxyError, MachineError
from llmproxy.protocol import AUTHENTICATION, OFFLINE, PROXIES, Channel, Decision, UnknownToolPolicy
from llmproxy.report.proxy_console import format_proxy_call_totals
from llmproxy.settings import Loaded, format_shown_path

if TYPE_CHECKING:
    from llmproxy.report.events import Event
    from llmproxy.scenario.repeats.model_comparison_over_runs import BehaviorVsRecording


def write_json_result_file(path: Path, told: object) -> None:
    try:
        path.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"--json {path} cannot be written: {error.strerror or error}") from error


LONGEST_SHUT = 61.0
"""Seconds, longer than a fault may close the port."""
LOOKED_AT = 500
"""Calls searched for refusals: each comes with its recording, and a long session has many."""


@dataclass(slots=True)
class RunFinisher:
    proxy: ProxyHandle
    session: str
    since: float
    """Unix time of the run's start: older misses in the journal belong to other runs."""
    loaded: Loaded
    command: tuple[str, ...] = ()
    report: SessionReport | None = None
    totals: Totals | None = None
    """Totals of our proxy over all sessions; known when it has ended."""
    unused: int | None = None
    """Unused recordings of all sessions; None if unknown."""
    misses: tuple[str, ...] = ()
    records: set[str] = field(default_factory=set)
    """Commands that record the missed requests; empty for a miss in a cassette with recordings."""
    refused: tuple[str, ...] = ()
    """Reasons of refusals other than misses, such as an unreachable upstream."""
    unreached: set[str] = field(default_factory=set)
    unfiled: str = ""
    """Answers missing from the cassette folder's files, and the command to type."""
    tries: Counter[str] = field(default_factory=Counter)
    trouble: str = ""

    def close_session(self, *, failed: bool = False, interrupted: bool = False, last: bool = True) -> None:
        """Close the session and, after the last run, end our proxy; errors are printed later and do not hide the
        child's exit code.

        A command that `failed` or was interrupted leaves its cassette open: mode `once` records the missing requests
        next time.
        """
        self._wait_for_reopened_proxy_port()
        control, complete = self.proxy.control, False if failed else None
        try:
            self.refused += self._read_refusals()
            self.unfiled = self.unfiled or self._describe_hits_in_no_file()
            self.report = control.close_session(self.session, complete=complete, interrupted=interrupted)
            alone = self.proxy.process is not None and self.report.live is None
            misses = control.misses(None if alone else self.session) if alone or self.report.misses else ()
            found = [miss for miss in misses if miss.at >= self.since]
            if alone:
                self.misses = tuple(miss.text for miss in found)
            else:
                self.misses += tuple(self.report.miss_texts)  # the journal has those that the model is told of, too
            self.records |= {miss.record for miss in found if not miss.to_model}
        except ControlError as error:
            self.trouble = str(error)
        if last or self.trouble:
            self.proxy.end_if_started()
            if self.proxy.process is not None:
                self.totals, self.unused = self.proxy.process.read_final_totals()

    def _describe_hits_in_no_file(self) -> str:
        settings = self.loaded.settings
        if settings.cassette_dir is None or settings.mode not in OFFLINE or self.proxy.process is None:
            return ""
        from llmproxy.core.cassettes.folder_sync import CassetteDir, describe_hits_missing_from_files

        files, calls = CassetteDir(settings.cassette_dir, now=time.time), self.proxy.control.calls
        hits = {settings.cassette: lambda: [each.interaction for each in calls(self.session)]}
        return describe_hits_missing_from_files(settings.store, files, hits)

    def _wait_for_reopened_proxy_port(self) -> None:
        """Wait until the proxy listens again, since an injected fault may have closed its port."""
        process, until = self.proxy.process, time.monotonic() + LONGEST_SHUT
        while self.loaded.settings.faults and process is not None and process.is_alive and time.monotonic() < until:
            try:
                self.proxy.control.health()
            except ProxyUnreachable:
                time.sleep(0.05)
            else:
                return

    def _read_refusals(self) -> tuple[str, ...]:
        """Return the texts of the last refusals, if available; nothing else depends on them."""
        found: list[str] = []
        with suppress(ControlError):
            if self.proxy.process is not None:  # of one that others use too, nobody knows whose such a request was
                strays = self.proxy.control.read_refused_before_session()
                found += [f"{each.method} {each.target}: {each.text}" for each in strays if each.at >= self.since]
            told = self.proxy.control.report(self.session)
            if told.refused:
                calls = self.proxy.control.calls(self.session, max(0, told.arrived - LOOKED_AT))
                found += [call.note for call in calls if call.decision == Decision.REFUSE and not call.miss]
                self.unreached |= {call.provider for call in calls if call.unreached}
        return tuple(found)

    def print_end(self, code: int, plan: EnvironmentPlan) -> int:
        report, settings = self.report, self.loaded.settings
        if self.trouble or report is None:
            log = self.proxy.process.log_text if self.proxy.process is not None else ""
            write_stderr_lines(f"llmproxy: the proxy did not end the session: {self.trouble}", log[-2000:].rstrip())
            return code or Exit.ENVIRONMENT
        counted = self.totals or report
        where = f", store {format_shown_path(settings.store)}" if counted.recorded else ""
        elsewhere = counted.calls > 0 and not report.calls  # tests have modes and cassettes of their own
        which = "sessions of the command's own" if elsewhere else f"{report.mode}, cassette {report.cassette}"
        write_stderr_lines(f"llmproxy: {self.summary_line}  ({which}{where})")
        if report.carried:
            from llmproxy.report.request_change_summary import describe_acceptance_dates

            told = describe_acceptance_dates(settings.store, report.carried_names)
            write_stderr_lines(*(f"  carried: {text}" for text in told))
        write_stderr_lines(*list_shortened_misses_with_counts(self.misses, prefix="  miss: "))
        write_stderr_lines(*list_shortened_misses_with_counts(self.refused, prefix="  refused: "))
        if failures := describe_replayed_failures(counted):
            write_stderr_lines(f"  {failures}")
        write_stderr_lines(*(f"  {text}" for text in (report.faults or {}).get("idle", ())))
        if self.misses:
            write_stderr_lines(self._format_miss_advice(format_shown_path(settings.store)))
        certified = report.calls - report.refused  # what was refused alone is no use of the proxy
        came = self.totals.calls - self.totals.refused if self.totals is not None else 0
        used = certified or came or code in ENDED_BY_USER or report.replacement
        fewer = [] if code or self.unreached or elsewhere else self._warn_of_shorter_recording(report)
        write_stderr_lines(*fewer)
        if not used and not fewer:
            write_stderr_lines(*self._explain_no_use(report, code, plan))
        if report.recorded:
            write_stderr_lines(*self._advise_learning_if_varying())
        lost = report.failed or self.proxy.exit_code == Exit.ENVIRONMENT
        if incomplete := self._explain_incomplete(report, code):
            write_stderr_lines(f"llmproxy: {incomplete}: this recording is incomplete.")
        if lost and not report.failed and self.proxy.process is not None:
            write_stderr_lines(*self.proxy.process.log_text.splitlines()[-3:])
        if self.unfiled:
            write_stderr_lines(f"llmproxy: {self.unfiled}")
            if in_ci(os.environ):
                write_stderr_lines(f"llmproxy: exit code {Exit.MISS}: on CI, what is not committed proves nothing.")
                return Exit.MISS
        if doubts := self._list_doubts(report, used=bool(used)):
            failing = settings.unknown_tool is UnknownToolPolicy.FAIL and not settings.fail_on_miss
            named = "--unknown-tool fail" if failing else "--strict" if settings.strict else "--fail-on-miss"
            write_stderr_lines(f"llmproxy: {format_exit_code_reason(Exit.MISS, named, *doubts)}.")
            return Exit.MISS
        if report.unreplaced_recordings_reason:
            write_stderr_lines(f"llmproxy: {report.unreplaced_recordings_reason}")
            return code or Exit.FAILED
        forbidden = calls_and_totals.find_fail_on_exit_code(
            counted, carried=settings.fail_on_carried, stale=settings.fail_on_stale
        )
        if forbidden is not None and not (code or lost):
            write_stderr_lines(f"llmproxy: {forbidden[1]}.")
            return forbidden[0]
        return code or (Exit.ENVIRONMENT if lost else Exit.OK)

    def _explain_no_use(self, report: SessionReport, code: int, plan: EnvironmentPlan) -> list[str]:
        """Return why nothing was replayed or recorded; empty if a bypass, which is printed later, is the reason."""
        if self.unreached:
            return [f"llmproxy: {' and '.join(sorted(self.unreached))} did not answer; nothing was recorded."]
        if self.tries:
            return []
        refused = ["what was refused"] * bool(report.refused or self.refused) + ["stubs"] * bool(report.stubs)
        if report.unused and not refused:
            return explain_command_used_no_recording(len(report.unused), report.cassette, code, plan)
        return explain_unused_proxy(plan, self.proxy.url, self.command, refused=refused, code=code)

    def report_bypass_attempts(self, code: int, *, only: bool) -> int:
        if self.tries:
            said = format_exit_code_reason(
                Exit.MISS, "--only", "the command tried to bypass the proxy, and was blocked"
            )
            tried = list_shortened_misses_with_counts(sorted(self.tries.elements()), prefix="  tried: ")
            write_stderr_lines(f"llmproxy: {said}:", *tried)
            return Exit.MISS
        if self.loaded.settings.strict and not only:
            write_stderr_lines("llmproxy: --strict does not see traffic that bypasses the proxy; --only blocks it.")
        return code

    def _explain_incomplete(self, report: SessionReport, code: int) -> str:
        """Return why what was recorded is incomplete, as `ls` shows it; empty if it is not, or is elsewhere."""
        if report.failed:
            return "an answer could not be recorded"
        why = f"the command ended with {code}" if code else "an answer failed or was cut off"
        if report.recorded and not (report.live or report.replacement) and self.proxy.process is not None:
            with suppress(LLMProxyError), open_given_store(self.loaded.settings.store) as store:
                if not store.last_session_ended_cleanly(report.cassette, report.sample):
                    rows = store.list_summaries(report.cassette, report.sample)
                    recent = (row for row in rows if row.started_at >= self.since and row.channel is Channel.LLM)
                    denied = next((row for row in recent if row.status in AUTHENTICATION), None)
                    why = f"{denied.provider} answered {denied.status} (check the key)" if denied else why
                    return "the command was interrupted" if code in ENDED_BY_USER else why
        return ""

    def _format_miss_advice(self, store: str) -> str:
        """Suggest a command after misses; without any recordings `why` has nothing to add."""
        if self.proxy.process is not None and (unread := suggest_cassette_file_replay(self.loaded)):
            return f"  {unread}"
        if len(self.records) == 1 and (command := next(iter(self.records))):
            return f"  Record what is missing: {command}"
        return f"  `{format_llmproxy_command('why', store)}` shows each request and its nearest recording."

    @property
    def summary_line(self) -> str:
        """Totals on one line: our proxy's, else the session's."""
        if self.totals is not None:
            return format_proxy_call_totals(self.totals, self.unused)[0]
        return "" if self.report is None else format_session_counts(self.report)

    def _count_misses(self) -> int:
        return max(0 if self.report is None else self.report.misses, 0 if self.totals is None else self.totals.misses)

    def to_json(self, code: int, final: int) -> dict[str, object]:
        told = {} if self.report is None else self.report.to_json()
        return told | {
            "misses": self._count_misses(),
            "miss_texts": list(self.misses),
            "refused_texts": list(self.refused),
            "summary": "" if self.totals is None else self.summary_line,
            "tried": dict(self.tries),
            "trouble": self.trouble,
            "command_exit_code": code,
            "exit_code": int(final),
        }

    def _warn_of_shorter_recording(self, report: SessionReport) -> list[str]:
        from llmproxy.core.store.queries import count_recordings_unsuperseded_at

        settings, before = self.loaded.settings, 0
        if self.proxy.process is not None and settings.mode.policy.anew:
            with suppress(LLMProxyError), open_given_store(settings.store) as store:
                before = count_recordings_unsuperseded_at(store, report.cassette, report.sample, self.since)
        told = f"{report.recorded} recorded, and {before} before in cassette {report.cassette}"
        return [
            f"llmproxy: FEWER CALLS THAN THE LAST TIME: {told}.",
            "  A command with its own cache of answers does not ask again, so no recording has them.",
            *_list_client_caches(os.environ),
        ] if report.recorded < before else []  # fmt: skip

    def _advise_learning_if_varying(self) -> list[str]:
        settings = self.loaded.settings
        options = self.loaded.list_typed(environment=False)
        learn = SuggestedCommandTemplate(f"llmproxy learn {shlex.quote(settings.cassette)}", "", options)
        typed = learn.command("", store=format_shown_path(settings.store))
        try:
            number = len(learn_fields_from_recorded_runs(self.loaded).lessons)
        except LLMProxyError:
            return []
        vary = "values vary" if number > 1 else "value varies"
        return [f"llmproxy: {number} {vary} from run to run: {typed}"] if number else []

    def _list_doubts(self, report: SessionReport, *, used: bool) -> tuple[str, ...]:
        settings = self.loaded.settings
        unused = None if report.unused is None else len(report.unused)
        counted = replace(report, misses=self._count_misses(), refused=report.refused or len(self.refused))
        fails = settings.fail_on_miss or (bool(settings.live) and settings.unknown_tool is UnknownToolPolicy.FAIL)
        return find_strict_violations(counted, unused, used=used, fail_on_miss=fails, strict=settings.strict)


NAMED = 6
_CACHES = {
    "DSPy": ("DSPY_CACHEDIR", "~/.dspy_cache", "dspy.configure_cache(enable_disk_cache=False)"),
    "promptfoo": ("PROMPTFOO_CACHE_PATH", "~/.promptfoo/cache", "PROMPTFOO_CACHE_ENABLED=false"),
    "Inspect": ("INSPECT_CACHE_DIR", "~/.cache/inspect_ai/generate", "--no-cache"),
    "DeepEval": ("", ".deepeval/.deepeval-cache.json", "deepeval test run without -c"),
    "LangSmith": ("LANGSMITH_TEST_CACHE", "", "unset LANGSMITH_TEST_CACHE"),
}
"""Programs with a cache of answers: its variable, its folder, how to disable it. Sources: settings pages, 2026-11."""


INTERCEPT = "    `llmproxy run --intercept -- COMMAND` catches clients whose base URL cannot be changed"


def explain_command_used_no_recording(recorded: int, cassette: str, code: int, plan: EnvironmentPlan) -> list[str]:
    """Return the message for a command that used none of its recordings: it failed, has its own address or cache."""
    calls = f"{recorded} recorded call{'s' if recorded > 1 else ''} of cassette {cassette}"
    if code:
        said = f"llmproxy: THE COMMAND ENDED WITH {code} and asked for none of the {calls}; see what it said above."
        if plan.unset_keys:
            needed = "In replay a placeholder stood in; this run asks the provider, so set your key."
            return [said, f"  Not set: {', '.join(plan.unset_keys)}. {needed}"]
        return [said] if any(name in plan.others for name in PROXIES) else [said, INTERCEPT]
    return [
        f"llmproxy: THE COMMAND ASKED FOR NONE of the {calls}, and ended with 0: nothing was replayed.",
        "  Its base URL may stand in code: `llmproxy doctor -- COMMAND` says which program went past the proxy.",
        "  Or it keeps answers in its own cache:",
        *_list_client_caches(os.environ),
        "  If it is another command, name its cassette: llmproxy run --cassette NAME -- COMMAND",
    ]


def _list_client_caches(env: Mapping[str, str]) -> list[str]:
    places = {name: Path(env.get(row[0]) or row[1]).expanduser() for name, row in _CACHES.items()}
    there = {name: place for name, place in places.items() if str(place) != "." and place.exists()}
    found = [f"    {name}: {place} exists; without it: {_CACHES[name][2]}" for name, place in there.items()]
    return found or ["    Empty its cache, or turn it off, in the recording and in the replay."]


def explain_unused_proxy(
    plan: EnvironmentPlan, url: str, command: tuple[str, ...] = (), *, refused: Sequence[str] = (), code: int = 0
) -> list[str]:
    """Return the message if no request arrived, or only `refused` ones, and the command ended with `code`."""
    files = {name: Path(name).read_text("utf-8", "replace") for name in PROJECTS if Path(name).is_file()}
    clients = [
        each for each in find_known_bypassers(command, files) if not is_client_configured_in_command(each, command)
    ]
    option = "--intercept " if any(name in plan.others for name in PROXIES) else ""
    names = [*plan.base_urls, *(name for name in PROXIES if name in plan.others)]
    if refused:
        alone = " and ".join(refused).replace("stubs", "sign-ins and the like")
        return [f"llmproxy: THE COMMAND NEVER USED THE PROXY but for {alone}; nothing was replayed or recorded."]
    return [
        f"llmproxy: THE COMMAND NEVER USED THE PROXY: no request arrived at {url}; nothing was replayed or recorded.",
        *([f"  It ended with {code}: what it says above may be the reason, a missing key for one."] * bool(code)),
        f"  It was given: {name_some(names, ' ', NAMED)}",
        *(f"  {each.name}: {each.advice}" for each in clients),
        "  A client whose base URL stands in code or in a file does not read them. Next:",
        f"    llmproxy doctor {option}-- COMMAND      says which program went past the proxy, and what to do about it",
        *([] if option else [INTERCEPT]),
    ]


_SERVED = {"llm": "models", "mcp": "tools", "http": "services"}


class LiveRunOutcome(NamedTuple):
    live: Mapping[str, Any]
    verdict: str
    kept: bool = True
    """Whether any call was recorded, so that the cassette exists."""


@dataclass(slots=True)
class LiveRunsVsRecordingSummary:
    loaded: Loaded
    runs: list[LiveRunOutcome] = field(default_factory=list)

    def add(self, report: SessionReport | None, code: int) -> None:
        if report is not None and report.live is not None:
            self.runs.append(LiveRunOutcome(report.live, f"exit {code}", report.calls > 0))

    def to_json(self) -> dict[str, object]:
        found = compare_live_outcomes_to_recording(self.loaded, self.runs)
        told = [{**each.live, "verdict": each.verdict} for each in self.runs]
        return {} if not told else {"live_runs": told, "comparison": None if found is None else found.to_json()}

    def describe(self) -> list[str]:
        if not (kept_runs := [each for each in self.runs if each.kept]):
            return []
        store, last = format_shown_path(self.loaded.settings.store), kept_runs[-1].live
        names = [str(each.live["cassette"]) for each in kept_runs]
        kept = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        served = " and ".join(word for each, word in _SERVED.items() if each not in last["channels"])
        of = f", {served} served from {to_safe_line(str(last['parent']))}" if served else ""
        lines = [f"llmproxy: live {', '.join(last['channels'])}; kept in {to_safe_line(kept)}{of}"]
        if (found := compare_live_outcomes_to_recording(self.loaded, self.runs)) is not None:
            first, *rest = found.summary_lines()
            lines += [f"  {to_safe_line(first)}", *(f"    {to_safe_line(text.strip())}" for text in rest)]
        compared = format_llmproxy_command(f"diff {quote_word(str(last['parent']))} {quote_word(names[-1])}", store)
        return [*lines, f"  request by request: {compared}"]


TellLines = Callable[[list[str], Mapping[str, object]], None]


class LiveRunDifferenceReporter:
    """Collects the outcomes of runs with live channels; tells at the end how their models differ from recorded ones."""

    def __init__(self, loaded: Loaded, store: Path, baseline: Path | None, tell: TellLines) -> None:
        self._loaded, self._store, self._baseline, self._tell = loaded, store, baseline, tell
        self._runs: dict[str, list[LiveRunOutcome]] = {}

    def handle(self, event: Event) -> None:
        from llmproxy.report.events import Completed, Finished

        if isinstance(event, Finished) and event.live is not None:
            self._runs.setdefault(event.scenario, []).append(LiveRunOutcome(event.live, str(event.status)))
        elif isinstance(event, Completed) and self._runs:
            self._tell(*self._compare_tests())

    def close(self) -> None:
        """Do nothing: no output is buffered."""

    def _compare_tests(self) -> tuple[list[str], dict[str, object]]:
        before = self._read_baseline_verdicts()
        lines, told = [], dict[str, object]()
        for name, runs in self._runs.items():
            found = compare_live_outcomes_to_recording(self._loaded, runs, before.get(name, ""), self._store)
            if found is None:
                lines.append(f"{to_safe_line(name)}: live {', '.join(runs[0].live['channels'])}")
                continue
            first, *rest = found.summary_lines()
            lines.append(f"{to_safe_line(name)}: {to_safe_line(first)}")
            lines += [f"  {to_safe_line(text.strip())}" for text in rest]
            told[name] = found.to_json()
        return lines, told

    def _read_baseline_verdicts(self) -> dict[str, str]:
        if self._baseline is None:
            return {}
        from llmproxy.report.scenario_rows import read_baseline

        try:
            rows = read_baseline(self._baseline, list(self._runs))
        except LLMProxyError:  # it knows other scenarios; whoever compares with it has said so
            return {}
        return {name: str(row.get("status")) for name, row in rows.items()}


def compare_live_outcomes_to_recording(
    loaded: Loaded, runs: Sequence[LiveRunOutcome], verdict: str = "", path: Path | None = None
) -> BehaviorVsRecording | None:
    """Return the differences of live runs from the recording with verdict `verdict`; None without model calls or
    recordings.

    `path` is the store, by default the settings'.
    """
    from llmproxy.core.bindings.volatile_result_fields import load_builtin_volatile_fields
    from llmproxy.core.engine.learn_fields_from_recordings import rewrite_recordings_to_new_run
    from llmproxy.core.keys.user_rules import Rules
    from llmproxy.core.store.file.store import open_store
    from llmproxy.core.store.queries import read_volatile_fields
    from llmproxy.scenario.repeats.model_comparison_over_runs import BehaviorVsRecording, RunAndRecordedBehavior
    from llmproxy.trace.comparing.behavior_comparison import extract_run_behavior

    if not (with_model := [each for each in runs if "llm" in each.live["channels"]]):
        return None
    parent, sample = str(with_model[0].live["parent"]), int(with_model[0].live["parent_sample"])
    try:
        rules = Rules.from_settings(loaded.settings.normalize)
        with open_store(path or loaded.settings.store, writable=False, now=lambda: 0.0) as store:
            recorded = list(store.iter_interactions(parent, sample))
            volatile = (*read_volatile_fields(store, parent), *load_builtin_volatile_fields())
            made = []
            for each in with_model:
                mine = list(store.iter_interactions(str(each.live["cassette"])))
                told, _ = rewrite_recordings_to_new_run(recorded, mine, volatile, rules, loaded.settings.upstream)
                name, unknown = str(each.live["cassette"]), tuple(each.live["unknown"])
                behaviors = extract_run_behavior(mine), extract_run_behavior(told)
                made.append(RunAndRecordedBehavior(name, *behaviors, each.verdict, unknown))
    except LLMProxyError:  # a proxy elsewhere, with a store of its own
        return None
    return BehaviorVsRecording(parent, extract_run_behavior(recorded), tuple(made), verdict)
