"""Assertions about the agent's answer: its text, its JSON, its snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from llmproxy.client.child_env import in_ci
from llmproxy.errors import MachineError, SuiteError
from llmproxy.files import read_bounded_text, replace_file
from llmproxy.report.events import Assertion, Status
from llmproxy.scenario.run_session import RunSession
from llmproxy.suite.matchers.apply import assertion, check_paths, check_value
from llmproxy.suite.matchers.compare import parse_json
from llmproxy.suite.matchers.match import quote
from llmproxy.suite.matchers.variables import VariableScope
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.schema.response_assertions import Response
from llmproxy.suite.schema.steps import StepBase, Talk
from llmproxy.trace.observing.agent_activity import AgentActivity, WireObserver

FORMAT = 1


def locate_snapshots(suite: Path) -> Path:
    """Return the path of the snapshots of a suite file, which may not exist."""
    return suite.with_name(f"{suite.name.removesuffix('.yaml').removesuffix('.yml')}.snapshots.json")


def forbid_update_in_ci(env: Mapping[str, str]) -> None:
    """Refuse to write snapshots in CI, where nobody reviews them. Raises SuiteError."""
    if in_ci(env):
        raise SuiteError(
            "--update is refused in CI (the variable CI is set): a snapshot that nobody looked at proves nothing.",
            hint="Run it on your machine, look at the difference, and commit it.",
        )


@dataclass(slots=True)
class StoredAnswerSnapshots:
    path: Path
    update: bool = False
    command: str = "llmproxy test"
    """Command that `--update` is added to, for messages."""
    values: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def load_for_suite(cls, suite: Path, *, update: bool = False) -> StoredAnswerSnapshots:
        """Read the snapshots of a suite file. Raises SuiteError: damaged, or of a newer format."""
        path = locate_snapshots(suite)
        try:
            tree = json.loads(read_bounded_text(path))
        except FileNotFoundError:
            return cls(path, update)
        except (OSError, ValueError, RecursionError) as error:
            raise SuiteError(f"{path}: the snapshots cannot be read: {error}") from error
        if not isinstance(tree, dict) or tree.get("version") != FORMAT or not isinstance(tree.get("scenarios"), dict):
            raise SuiteError(
                f"{path} holds no snapshots of version {FORMAT}.",
                hint="`--update` writes them anew once it is removed.",
            )
        return cls(path, update, values=tree["scenarios"])

    def store_value(self, scenario: str, step: str, what: str, value: object) -> None:
        of_step = self.values.setdefault(scenario, {}).setdefault(step, {})
        self.changed = self.changed or of_step.get(what) != value
        of_step[what] = value

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
    scope: VariableScope
    session: RunSession | None
    snapshots: StoredAnswerSnapshots
    declared: list[tuple[int, Any]]
    spoken: list[str]
    index: int

    @property
    def wire(self) -> WireObserver:
        """Observed traffic of the agent with models and servers."""


def check_tool_calls_snapshot(context: StepCheckContext, step: Talk, measured: AgentActivity) -> Assertion:
    """Compare the tool calls of a step with their snapshot, in order: names only, or with arguments."""
    uses = [use for use in measured.tools if step.include_hosted or not use.hosted]
    names_only = step.tools_snapshot == "names"
    seen: list[Any] = [use.name if names_only else {"name": use.name, "arguments": use.arguments} for use in uses]
    return _compare_with_snapshot(context, step, "tools", "toolsSnapshot", seen)


def _compare_with_snapshot(context: StepCheckContext, step: StepBase, what: str, name: str, seen: object) -> Assertion:
    snapshots, scenario = context.snapshots, context.case.id
    key = step.label or str(context.index + 1)
    known = snapshots.values.get(scenario, {}).get(key, {}).get(what)
    if snapshots.update:
        snapshots.store_value(scenario, key, what, seen)
        known = seen
    made = Assertion(name=name, status=Status.PASSED, expected=known, actual=seen, where=snapshots.path.name)
    if known is None:
        message = f"no snapshot is stored; `{snapshots.command} --update` stores what is seen now: {quote(seen, 200)}"
        return replace(made, status=Status.ENVIRONMENT_ERROR, message=message)
    message = f"it differs from the snapshot: expected {quote(known, 300)}, saw {quote(seen, 300)}; --update accepts it"
    return made if known == seen else replace(made, status=Status.FAILED, message=message)


def check_response(context: StepCheckContext, step: Talk, wanted: Response, answer: str) -> list[Assertion]:
    made = check_text(wanted, answer, context.scope)
    if wanted.snapshot:
        seen = "\n".join(line.rstrip() for line in answer.strip().splitlines())
        made.append(_compare_with_snapshot(context, step, "response", "response.snapshot", seen))
    return made


def check_text(wanted: Response, answer: str, scope: VariableScope) -> list[Assertion]:
    made: list[Assertion] = []
    if wanted.matcher:
        made += check_value("response", answer, wanted.matcher, scope)
    if wanted.json_ is not None:
        try:
            made += check_paths("response.json", parse_json(answer), wanted.json_, scope)
        except ValueError as error:
            message = f"the answer is no JSON ({error})"
            made.append(assertion("response.json", message, expected=dict(wanted.json_), actual=answer))
    return [
        each
        if each.status is Status.PASSED or quote(answer, 60)[:40] in each.message
        else replace(each, message=f"{each.message}; the agent answered: {quote(answer, 300)}")
        for each in made
    ]
