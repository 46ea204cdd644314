"""Assertions of a chat step about the agent's answer (its text, JSON, snapshot), and about its traffic in the step.

Without an observed model answer every assertion about traffic is an error, ``deleteTask: 0`` too: an agent that
bypasses the proxy would pass it. Only ``usage: {callCount: 0}`` says that none is expected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, cast

from llmproxy.client.child_env import in_ci
from llmproxy.core.dialects.messages import as_dict
from llmproxy.errors import MachineError, SuiteError
from llmproxy.file_io import read_bounded_text, replace_file
from llmproxy.report.events import Assertion, Status, redact_plain_data
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.running.run_lifecycle import EventEmitter
from llmproxy.suite.checks.tools import (
    check_expected_tool_calls,
    check_mcp_server_calls,
    check_tool_names_and_offers,
    check_tool_sequence,
    check_total_tool_calls,
    explain_unreadable_answers,
)
from llmproxy.suite.matchers.apply import (
    all_assertions_hold,
    assertion,
    check_number_against_matcher,
    check_value,
    check_values_at_paths,
    evaluate_matcher_on_value,
    make_error_assertion,
)
from llmproxy.suite.matchers.compare import parse_actual_value_as_json
from llmproxy.suite.matchers.registry import (
    MatcherOutcomeKind,
    Unknown,
    are_json_equal,
    explain_match_on_redacted_value,
    quote,
)
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.schema.assertions import AgentHistoryEditAssertions, HistoryEditAssertions, Response, Usage
from llmproxy.suite.schema.suite import ChatOrSimulateStep, StepBase
from llmproxy.trace.observing.agent_activity import AgentActivity, ModelCallObserver, estimate_tokens_used_by_step
from llmproxy.trace.observing.history_edits import EVIDENCE, HistoryEditFindings, HistoryProcessing, find_history_cuts
from llmproxy.trace.observing.tool_calls import InteractionIdsLabel, PossiblyIncompleteSum, SeenModelCall

FORMAT = 1  # of snapshots
_NAMES = tuple(each.name for each in fields(HistoryEditFindings))
_COUNTS = ("condensedMessages", "recentMessages", "totalMessages", "partsRemoved", "droppedMessages")
_WHERE = "the agent's answer"
_SHOWN = 4  # requests listed in a message
_WIDE = 200  # characters shown of a provider's text
NO_TRAFFIC = (
    "the agent's traffic did not pass the proxy: no request to a model was seen in this step, so nothing can be said "
    "about it. Its base URL must name the proxy (`llmproxy doctor` tells which program goes past it)"
)
_TEXT_ONLY = frozenset(
    {"completions", "complete", "fim.completions", "api.generate", "v1.generate", "writer.completions", "generate"}
)
"""Text completion operations: they have no tools, and requests for tools in the text cannot be recognised."""


def get_suite_snapshot_path(suite: Path) -> Path:
    return suite.with_name(f"{suite.name.removesuffix('.yaml').removesuffix('.yml')}.snapshots.json")


def refuse_snapshot_update_in_ci(env: Mapping[str, str]) -> None:
    """Refuse to write snapshots in CI, where nobody reviews them. Raises SuiteError."""
    if in_ci(env):
        raise SuiteError(
            "--update is refused in CI (the variable CI is set): a snapshot that nobody looked at proves nothing.",
            hint="Run it on your machine, look at the difference, and commit it.",
        )


@dataclass(slots=True)
class SuiteSnapshotFile:
    path: Path
    update: bool = False
    command: str = "llmproxy test"
    """Command that `--update` is added to, for messages."""
    values: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    changed: bool = False
    by_sample: dict[tuple[str, str, str], dict[int, object]] = field(default_factory=dict)
    """Values that were to be stored in this test, by number of the scenario's run."""

    @classmethod
    def load_for_suite(cls, suite: Path, *, update: bool = False) -> SuiteSnapshotFile:
        """Read the snapshots of a suite file. Raises SuiteError: damaged, or of a newer format."""
        path = get_suite_snapshot_path(suite)
        try:
            tree = json.loads(read_bounded_text(path))
        except FileNotFoundError:
            return cls(path, update)
        except (OSError, ValueError, RecursionError) as error:
            raise SuiteError(f"{path}: the snapshots cannot be read: {error}") from error
        found = tree.get("scenarios") if isinstance(tree, dict) and tree.get("version") == FORMAT else None
        steps = found.values() if isinstance(found, dict) else [None]
        if not all(isinstance(each, dict) and all(isinstance(x, dict) for x in each.values()) for each in steps):
            raise SuiteError(
                f"{path} holds no snapshots of version {FORMAT}.",
                hint="`--update` writes them anew once it is removed.",
            )
        return cls(path, update, values=found or {})

    def store_value(self, scenario: str, step: str, what: str, value: object, sample: int = 1) -> bool:
        """Store the value of a scenario's run; returns False, and stores nothing, if other runs have another value."""
        runs = self.by_sample.setdefault((scenario, step, what), {})
        runs[sample] = value
        if not all(are_json_equal(each, value) for each in runs.values()):
            return False
        of_step = self.values.setdefault(scenario, {}).setdefault(step, {})
        self.changed = self.changed or not are_json_equal(of_step.get(what), value)
        of_step[what] = value
        return True

    def save_changes(self) -> bool:
        """Write changed snapshots; returns whether there were any. Raises MachineError: not writable."""
        if not (self.update and self.changed):
            return False
        text = json.dumps({"version": FORMAT, "scenarios": self.values}, ensure_ascii=False, indent=2, sort_keys=True)
        try:
            with replace_file(self.path) as file:
                file.write(text + "\n")
        except OSError as error:
            raise MachineError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.changed = False
        return True


class StepCheckContext(Protocol):
    case: SuiteCase
    emitter: EventEmitter
    scope: CaseVariables
    session: RunSession | None
    snapshots: SuiteSnapshotFile
    declared: list[tuple[int, Any]]
    spoken: list[str]
    index: int

    @property
    def wire(self) -> ModelCallObserver:
        """Observed traffic of the agent with models and servers."""


def check_tool_calls_snapshot(
    context: StepCheckContext, step: ChatOrSimulateStep, measured: AgentActivity, index: int
) -> Assertion:
    uses = [use for use in measured.tools if step.include_hosted or not use.hosted]
    names_only = step.tools_snapshot == "names"
    seen: list[Any] = [use.name if names_only else {"name": use.name, "arguments": use.arguments} for use in uses]
    return _compare_with_snapshot(context, step, "tools", "toolsSnapshot", seen, index)


def _compare_with_snapshot(
    context: StepCheckContext, step: StepBase, what: str, name: str, seen: object, index: int
) -> Assertion:
    from llmproxy.core.secrets.redact import Redactor  # late: most scenarios have no snapshot

    snapshots, scenario = context.snapshots, context.case.id
    key = f"label {step.label}" if step.label and step.label.isdigit() else step.label or str(index + 1)
    known = snapshots.values.get(scenario, {}).get(key, {}).get(what)
    known, seen = cast("Sequence[Any]", redact_plain_data((known, seen), Redactor(os.environ).text))
    stored = not snapshots.update or snapshots.store_value(scenario, key, what, seen, context.emitter.about.sample)
    known = seen if snapshots.update else known
    made = Assertion(name=name, status=Status.PASSED, expected=known, actual=seen, where=snapshots.path.name)
    if not stored:
        message = f"the scenario's runs differ, and one snapshot is for all of them; this one: {quote(seen, 200)}"
        return replace(made, status=Status.ENVIRONMENT_ERROR, message=message)
    if known is None:
        message = f"no snapshot is stored; `{snapshots.command} --update` stores what is seen now: {quote(seen, 200)}"
        return replace(made, status=Status.ENVIRONMENT_ERROR, message=message)
    message = f"it differs from the snapshot: expected {quote(known, 300)}, saw {quote(seen, 300)}; --update accepts it"
    return made if are_json_equal(known, seen) else replace(made, status=Status.FAILED, message=message)


def check_answer_assertions(
    context: StepCheckContext, step: ChatOrSimulateStep, wanted: Response, answer: str
) -> list[Assertion]:
    made = check_text(wanted, answer, context.scope)
    if wanted.snapshot:
        seen = "\n".join(line.rstrip() for line in answer.strip().splitlines())
        made.append(_compare_with_snapshot(context, step, "response", "response.snapshot", seen, context.index))
    return made


def check_text(wanted: Response, answer: str, scope: CaseVariables) -> list[Assertion]:
    made: list[Assertion] = []
    if wanted.matcher:
        made += check_value("response", answer, wanted.matcher, scope)
    if wanted.json_ is not None:
        try:
            made += check_values_at_paths("response.json", parse_actual_value_as_json(answer), wanted.json_, scope)
        except ValueError as error:
            message = f"the answer is no JSON ({error})"
            made.append(assertion("response.json", message, expected=dict(wanted.json_), actual=answer))
    return [
        each
        if each.status is Status.PASSED or quote(answer, 60)[:40] in each.message
        else replace(each, message=f"{each.message}; the agent answered: {quote(answer, 300)}")
        for each in made
    ]


def check_token_usage_and_cost(
    wanted: Usage, step: AgentActivity, scope: CaseVariables, name: str = "usage", where: str = ""
) -> list[Assertion]:
    """Check tokens, calls and cost; an unknown value is an error, unless the known part decides."""
    if ids := step.interactions:
        where = where or InteractionIdsLabel(*dict.fromkeys((ids[0], ids[-1])))
    made: list[Assertion] = []
    for key, matcher in wanted.numbers.items():
        made += _check_usage_number(f"{name}.{key}", key, matcher, step, scope, estimate=wanted.estimate, where=where)
    for number, branch in enumerate(wanted.all_of or ()):
        made += check_token_usage_and_cost(branch, step, scope, f"{name}.allOf[{number}]", where)
    if wanted.any_of:
        branches = [
            check_token_usage_and_cost(branch, step, scope, f"{name}.anyOf[{n}]", where)
            for n, branch in enumerate(wanted.any_of)
        ]
        made.append(_combine_any_of(f"{name}.anyOf", branches, where))
    return made


def _check_usage_number(
    name: str, key: str, matcher: object, step: AgentActivity, scope: CaseVariables, *, estimate: bool, where: str
) -> list[Assertion]:
    tokens = step.usage[key]
    if tokens.complete:
        found = check_number_against_matcher(name, _decimal_to_float(tokens.known), matcher, scope, where=where)
        return [replace(each, evidence="recorded") if step.replayed else each for each in found]
    if tokens.known is not None and isinstance(matcher, Mapping) and matcher.keys() <= {"gt", "gte"}:
        at_least = check_number_against_matcher(name, _decimal_to_float(tokens.known), matcher, scope, where=where)
        if all_assertions_hold(at_least):
            return [replace(each, evidence="lower bound") for each in at_least]
    if estimate and (guess := estimate_tokens_used_by_step(key, step)) is not None:
        return [
            replace(each, evidence="estimated")
            for each in check_number_against_matcher(name, guess, matcher, scope, where=where)
        ]
    return check_value(name, Unknown(_explain_unmeasured_value(key, tokens, step)), matcher, scope, where=where)


def _explain_unmeasured_value(key: str, tokens: PossiblyIncompleteSum, step: AgentActivity) -> str:
    if step.unrecorded_answers:
        return f"{key} is not known: answers were passed through and not recorded"
    known = _decimal_to_float(tokens.known)
    if key == "callCount":
        return f"callCount is not known: an answer broke off, or could not be read (known so far: {known})"
    if key in {"latencyMs", "firstTokenMs"}:
        return f"{key} is not known: there is no recording of an answer with its times"
    what = "the price of the model is not known" if key == "costUsd" else f"{key} was not reported by the provider"
    part = "" if tokens.known is None else f" for every call (known so far: {known})"
    if any(each.exchange is not None and each.exchange.interaction.stream for each in step.seen):
        part += "; a streamed chat completion reports usage only with stream_options: {include_usage: true}"
    return f"{what}{part}"


def _combine_any_of(name: str, branches: Sequence[Sequence[Assertion]], where: str) -> Assertion:
    for number, branch in enumerate(branches):
        if all_assertions_hold(branch):
            return Assertion(name=name, status=Status.PASSED, actual=f"branch {number}", where=where)
    told = "; or ".join(
        " and ".join(f"{each.name.rpartition('.')[2]}: {each.message}" for each in branch if each.message)
        for branch in branches
    )
    unclear = any(each.status is Status.ENVIRONMENT_ERROR for branch in branches for each in branch)
    status = Status.ENVIRONMENT_ERROR if unclear else Status.FAILED
    return Assertion(name=name, status=status, message=f"no branch holds: {told}", where=where)


def _decimal_to_float(value: int | Decimal | None) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def read_history_edits_in_agent_answer(answers: Iterable[object]) -> dict[str, HistoryProcessing]:
    """Read a step's answers; a processor active in one was active. Invalid data does not raise."""
    found: dict[str, HistoryProcessing] = {}
    for answer in answers:
        tree = as_dict(answer)
        tree = as_dict(tree.get("processors")) or tree
        for name in _NAMES:
            if name in tree and not (name in found and found[name].activated):
                found[name] = _read_declared_history_edit(name, tree[name])
    return found


def _read_declared_history_edit(name: str, said: object) -> HistoryProcessing:
    part: Mapping[str, Any] = {"activated": said} if isinstance(said, bool) else as_dict(said)
    activated = part.get("activated")
    if not isinstance(activated, bool):
        reason = f"the agent speaks of the {name} and does not say `activated: true` or `false`: {said!r:.100}"
        return HistoryProcessing(activated=None, evidence="unobservable", reason=reason, where=_WHERE)
    counts = {key: part[key] for key in _COUNTS if isinstance(part.get(key), int) and not isinstance(part[key], bool)}
    summary = part.get("summary")
    return HistoryProcessing(
        activated=activated,
        evidence="declared",
        reason=f"the agent says that the {name} {'was' if activated else 'was not'} at work",
        where=_WHERE,
        values=dict(counts),
        summaries=[summary] if isinstance(summary, str) and summary else [],
    )


def merge_observed_and_declared_edits(
    seen: HistoryEditFindings, said: Mapping[str, HistoryProcessing]
) -> HistoryEditFindings:
    return HistoryEditFindings(
        **{name: _merge_declared_finding(getattr(seen, name), said.get(name)) for name in _NAMES}
    )


def _merge_declared_finding(seen: HistoryProcessing, said: HistoryProcessing | None) -> HistoryProcessing:
    if said is None:
        return seen
    if seen.activated is None:
        return said if said.activated is not None else seen
    if said.activated is seen.activated:
        known = {key: value for key, value in seen.values.items() if value is not None}
        return replace(
            seen,
            evidence="declared" if seen.evidence == "inferred" else seen.evidence,
            values={**seen.values, **said.values, **known},
            summaries=seen.summaries or said.summaries or seen.summaries,
        )
    if said.activated is None or (seen.activated and seen.evidence != "inferred"):
        return seen
    reason = f"{said.reason}, and the wire says otherwise: {seen.reason}"
    return HistoryProcessing(activated=None, evidence="unobservable", reason=reason, where=seen.where)


def check_history_edit_assertions(
    wanted: AgentHistoryEditAssertions, found: HistoryEditFindings, scope: CaseVariables
) -> list[Assertion]:
    made: list[Assertion] = []
    for name in _NAMES:
        if part := wanted.given_values.get(name):
            check = _MessageProcessingCheck(name, part, getattr(found, name), wanted.min_evidence, scope)
            made += check.check_message_processing()
    return made


@dataclass(frozen=True, slots=True)
class _MessageProcessingCheck:
    name: str
    wanted: HistoryEditAssertions
    finding: HistoryProcessing
    least: str
    scope: CaseVariables

    @property
    def path(self) -> str:
        return f"messageProcessing.{self.name}"

    def check_message_processing(self) -> list[Assertion]:
        wanted = self.wanted.activated
        details = {key: value for key, value in self.wanted.given_values.items() if key != "activated"}
        made = [self._check_activated(wanted is not False)] if wanted is not None or details else []
        if self.finding.activated is True and made and made[0].status is not Status.ENVIRONMENT_ERROR:
            return made + [
                each for key, matcher in details.items() for each in self._check_count_or_summary(key, matcher)
            ]
        reason = self.finding.reason or f"the {self.name} was not at work in this step"
        status = Status.FAILED if self.finding.activated is False else Status.ENVIRONMENT_ERROR
        return made + [Assertion(name=f"{self.path}.{key}", status=status, message=reason) for key in details]

    def _check_activated(self, wanted: bool) -> Assertion:  # noqa: FBT001 - what is expected
        finding = self.finding
        name, about = f"{self.path}.activated", dict[str, Any](expected=wanted, actual=finding.activated)
        about |= {"where": finding.where, "evidence": finding.evidence}
        if finding.activated is None:
            return make_error_assertion(name, finding.reason, **about)
        if finding.activated and EVIDENCE.index(finding.evidence) < EVIDENCE.index(self.least):
            hint = f"it is only {finding.evidence}, and minEvidence is {self.least}"
            return make_error_assertion(name, f"{finding.reason}; {hint}", **about)
        message = f"the {self.name} {'was not' if wanted else 'was'} at work in this step: {finding.reason}"
        return assertion(name, message, holds=finding.activated is wanted, **about)

    def _check_count_or_summary(self, key: str, matcher: object) -> list[Assertion]:
        name, finding = f"{self.path}.{key}", self.finding
        if key in _COUNTS:
            value = finding.values.get(key)
            actual = Unknown(f"how many is not known: {finding.reason}") if value is None else value
            found = check_number_against_matcher(name, actual, matcher, self.scope, where=finding.where)
            return [replace(each, evidence=finding.evidence) for each in found]
        words = matcher if isinstance(matcher, Sequence) and not isinstance(matcher, str) else [matcher]
        wanted = key == "summaryContains"
        return [
            self._check_summary_contains_word(name, str(self.scope.resolve_value(word)), wanted=wanted)
            for word in words
        ]

    def _check_summary_contains_word(self, name: str, word: str, *, wanted: bool) -> Assertion:
        finding = self.finding
        about: dict[str, Any] = {"expected": word, "where": finding.where, "evidence": finding.evidence}
        if not finding.summaries:
            unread = finding.summaries is None
            reason = "the summary is encrypted, nobody can read it" if unread else "no summary was seen"
            return make_error_assertion(name, f"{reason}: {finding.reason}", **about | {"evidence": "unobservable"})
        if not word:
            return make_error_assertion(name, "an empty text is in every text", **about)
        text = "\n".join(finding.summaries)
        holds = (word.casefold() in text.casefold()) is wanted
        if holds and not wanted and (hidden := explain_match_on_redacted_value(text)):
            return make_error_assertion(name, hidden, **about)
        message = f"the summary {'does not contain' if wanted else 'contains'} {word!r}: {quote(text, 300)}"
        return assertion(name, message, holds=holds, **about | ({} if holds else {"actual": text}))


@dataclass(frozen=True, slots=True)
class TrafficWindowStart:
    after: int
    continues: bool
    index: int = 0


def evaluate_step_traffic_assertions(
    context: StepCheckContext, step: ChatOrSimulateStep, window: TrafficWindowStart, strays: int = 0
) -> tuple[list[Assertion], AgentActivity]:
    """Evaluate a step's assertions about traffic; `strays` are this process's calls outside any turn."""
    measured = context.wire.build_step(window.after)
    if not step.traffic_assertion_keys:
        return [], measured
    if reason := explain_unseen_traffic(context, step.usage, measured):
        if strays:
            reason += (
                f"; {strays} calls arrived that belong to no run (they were made while the agent did not have its turn)"
            )
        names = [f"tools.{name}" for name in step.tools or ()]
        names += [f"serverTools.{name}" for name in step.server_tools or ()]
        names += [key for key in step.traffic_assertion_keys if key not in ("tools", "serverTools")]
        return [make_error_assertion(name, reason) for name in names], measured
    if not (made := find_undecidable_tool_checks(step, measured)):
        tools = check_expected_tool_calls(
            step.tools or {}, measured, context.scope, only=step.only_tools, hosted=step.include_hosted
        )
        named = check_tool_names_and_offers(step.tools or {}, measured, context.wire.calls)
        # What is said of a name that was meant otherwise says nothing.
        wrong = tuple(f"{each.name}." for each in named if each.status is Status.ENVIRONMENT_ERROR)
        made = [each for each in tools if not f"{each.name}.".startswith(wrong)] + named
        if step.tool_order is not None:
            made.append(check_tool_sequence(step.tool_order, measured))
        if step.total_tool_calls is not None:
            made += check_total_tool_calls(step.total_tool_calls, measured, context.scope, hosted=step.include_hosted)
        if step.tools_snapshot:
            made.append(check_tool_calls_snapshot(context, step, measured, window.index))
    if step.server_tools or step.servers_as_asked:
        served = context.wire.read_tool_server_calls(window.after)
        wanted = step.server_tools or {}
        made += check_mcp_server_calls(wanted, measured, served, context.scope, as_asked=step.servers_as_asked is True)
    if step.usage is not None:
        made += check_token_usage_and_cost(step.usage, measured, context.scope)
    if step.message_processing is not None:
        before = [each for each in context.wire.calls if each.call.seq <= window.after]
        found = find_history_cuts(measured, before, continues=window.continues, spoken=context.spoken)
        said = read_history_edits_in_agent_answer(answer for index, answer in context.declared if index == window.index)
        made += check_history_edit_assertions(
            step.message_processing, merge_observed_and_declared_edits(found, said), context.scope
        )
    return made, measured


def find_undecidable_tool_checks(step: ChatOrSimulateStep, measured: AgentActivity) -> list[Assertion]:
    about_all = [  # a flag may be off
        ("onlyTools", bool(step.only_tools)), ("toolOrder", step.tool_order is not None),
        ("totalToolCalls", step.total_tool_calls is not None), ("toolsSnapshot", bool(step.tools_snapshot)),
    ]  # fmt: skip
    names = [f"tools.{name}" for name in step.tools or ()] + [key for key, asked in about_all if asked]
    reason, where = explain_toolless_api(measured), ""
    if not reason and measured.unreadable:
        reason, where = explain_unreadable_answers(measured), measured.unreadable[0].label
    return [make_error_assertion(name, reason, where=where) for name in names] if reason else []


def list_hosted_tools_not_checked(step: ChatOrSimulateStep, measured: AgentActivity) -> list[str]:
    about_all = step.total_tool_calls is not None or step.only_tools or "*" in (step.tools or {})
    if not about_all or step.include_hosted:
        return []
    named = {} if step.total_tool_calls is not None else step.tools or {}
    return sorted({use.name for use in measured.tools if not use.is_run_by_agent and use.name not in named})


def explain_toolless_api(measured: AgentActivity) -> str:
    answers = [each for each in measured.seen if each.is_readable]
    if not answers or any(each.call.operation not in _TEXT_ONLY for each in answers):
        return ""
    seen = ", ".join(f"{each.label} ({each.call.operation})" for each in answers[:_SHOWN])
    return (
        "only texts were completed in this step, by an API that has no tools, so nothing can be said about them: "
        f"{seen}"
    )


def explain_unseen_traffic(context: StepCheckContext, usage: Usage | None, measured: AgentActivity) -> str:
    """Describe why the agent's traffic cannot be judged, which takes one readable model answer; empty if it can.

    Other traffic (embeddings, an unknown path, a gateway's page, a failed answer) only shows that traffic exists.
    """
    if context.session is None:
        return "there is no proxy, so the agent's traffic is not seen"
    readable = any(each.is_readable for each in measured.seen)
    if readable or (_expects_no_model_calls(usage, context) and not measured.unreadable):
        return ""
    if not measured.request_count:
        return NO_TRAFFIC
    seen = ", ".join(map(_describe_call, measured.seen[:_SHOWN]))
    more = f" and {measured.request_count - _SHOWN} more" if measured.request_count > _SHOWN else ""
    return (
        "no answer of a model that could be read was seen in this step, so nothing can be said about it; seen were "
        f"{seen}{more}"
    )


def _describe_call(seen: SeenModelCall) -> str:
    status = f"HTTP {seen.call.status}" if seen.call.status else "no answer"
    wrong = "" if seen.exchange is None else (seen.exchange.error or "")[:_WIDE].removeprefix(status).lstrip(": ")
    why = seen.unread_reason or ("no question to a model" if not seen.is_chat else wrong)
    return f"{seen.label} ({seen.call.operation}, {status}{f', {why}' if why else ''})"


def _expects_no_model_calls(usage: Usage | None, context: StepCheckContext) -> bool:
    """Return whether a step expects no model calls: ``callCount`` holds only for 0."""
    if usage is None or usage.call_count is None:
        return False
    none, one = (evaluate_matcher_on_value(number, usage.call_count, context.scope).outcome for number in (0, 1))
    return none is MatcherOutcomeKind.HOLDS and one is not MatcherOutcomeKind.HOLDS
