"""Functions that make the steps of a script.

Inside a custom step, ``return scenario.fail("why")`` and ``return scenario.fail("why")()`` mean the same: without a
state, a step uses that of the running scenario.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.run_ids_and_options import ScenarioExecutorProtocol, context_scenario

type Callback = Callable[[ScenarioState], Any]


class BuiltinScriptStep:
    """A step of a script, made by one of the functions below."""

    __slots__ = ("_verb", "kind", "said")

    def __init__(
        self,
        kind: str,
        verb: Callable[[ScenarioExecutorProtocol], Awaitable[ScenarioResult | None]],
        said: object = None,
    ) -> None:
        self.kind, self.said = kind, said
        self._verb = verb

    def __call__(self, state: ScenarioState | None = None) -> Awaitable[ScenarioResult | None]:
        running = context_scenario.get() if state is None else state.executor
        if running is None:
            raise ValueError(f"{self!r}() was called outside a scenario; put {self!r} into a script.")
        return self._verb(running)

    def __repr__(self) -> str:
        return f"scenario.{self.kind}(...)"


def message(message: Message) -> BuiltinScriptStep:
    """Add a message unchanged; a user's or assistant's takes the turn of that role."""
    return BuiltinScriptStep("message", lambda executor: executor.message(message), message)


def user(content: str | Message | None = None) -> BuiltinScriptStep:
    """Let the user speak; without content, the simulator does."""
    return BuiltinScriptStep("user", lambda executor: executor.user(content), content)


def agent(content: str | Message | None = None) -> BuiltinScriptStep:
    return BuiltinScriptStep("agent", lambda executor: executor.agent(content), content)


def judge(
    content: str | Message | Sequence[str] | None = None,
    additional_context: str | None = None,
    *,
    criteria: Sequence[str] | None = None,
) -> BuiltinScriptStep:
    """Demand the judge's verdict now.

    With `criteria` it is a checkpoint: the judge decides by them alone. If all pass the script continues, and they
    count in the result; if not, the scenario ends as failed. Otherwise it decides by its own: a failed criterion, or
    that all passed, ends the scenario; with something inconclusive the script continues, if there is more of it.

    `additional_context` (or a text as `content`) is passed to the judge and not added to the conversation; a list as
    `content` means criteria.
    """
    if isinstance(content, list | tuple):
        if criteria is not None:
            raise ValueError("scenario.judge takes one list of criteria, not two")
        content, criteria = None, content
    if isinstance(criteria, str):
        raise ValueError(f"scenario.judge takes a list of criteria, [{criteria!r}]")  # noqa: TRY004 (a value)
    chosen = None if criteria is None else list(criteria)
    said: str | Message | None = additional_context if content is None else content  # type: ignore[assignment]
    return BuiltinScriptStep("judge", lambda executor: executor.judge(said, criteria=chosen), [said, chosen])


def proceed(
    turns: int | None = None,
    on_turn: Callback | None = None,
    on_step: Callback | None = None,
    *,
    on_turn_end: Callback | None = None,
) -> BuiltinScriptStep:
    """Let the conversation continue by itself, for this many turns or until it ends.

    `on_turn` is called when a new turn begins (never for the first), `on_turn_end` when one has ended, `on_step` after
    every call of an agent. All may be async.
    """
    return BuiltinScriptStep(
        "proceed", lambda executor: executor.proceed(turns, on_turn, on_step, on_turn_end=on_turn_end)
    )


def succeed(reasoning: str | None = None) -> BuiltinScriptStep:
    return BuiltinScriptStep("succeed", lambda executor: executor.succeed(reasoning))


def fail(reasoning: str | None = None) -> BuiltinScriptStep:
    return BuiltinScriptStep("fail", lambda executor: executor.fail(reasoning))
