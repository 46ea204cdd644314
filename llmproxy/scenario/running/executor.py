"""One run of a scenario, from what its user wrote down to how it ended."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

from llmproxy.client.host import HOST
from llmproxy.report.events import Handler
from llmproxy.report.langwatch import ScenarioEventBus, Stream
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.config import UNSET, ScenarioConfig, Unset
from llmproxy.scenario.running.cast import Cast, players
from llmproxy.scenario.running.conversing.conversation import settled
from llmproxy.scenario.running.conversing.narrator import Narrator, RunIdentity
from llmproxy.scenario.running.life import Life
from llmproxy.scenario.running.recorded import recorded_as
from llmproxy.scenario.script import Step, proceed
from llmproxy.scenario.types import AgentRole, ScenarioResult, ScriptStep
from llmproxy.scenario.values.checkpoints import ALL_PASSED, added_up
from llmproxy.scenario.values.criteria import refuse_contradiction
from llmproxy.scenario.values.fault import status_of, told
from llmproxy.scenario.values.messages import copies
from llmproxy.scenario.values.naming import DEFAULT_SET, batch_run_id, run_id
from llmproxy.scenario.values.options import RunOptions

__all__ = ["ScenarioExecutor"]

LEFT = "The user ended the conversation, and no judge decided. "
END_OF_SCRIPT = """Reached end of script without conclusion, add one of the following to the end of the script:

- `scenario.proceed()` to let the simulation continue to play out
- `scenario.judge()` to force criteria judgement
- `scenario.succeed()` or `scenario.fail()` to end the test with an explicit result
"""
_NESTED = 10
"""How often a step may return a step."""


class ScenarioExecutor(Life):
    """Plays one scenario; `scenario.run` makes one for every run. Its verbs also work without `run`, one by one."""

    def __init__(
        self,
        name: str,
        description: str,
        agents: Sequence[AgentAdapter | Any] = (),
        script: Sequence[ScriptStep] | None = None,
        max_turns: int | None = None,
        verbose: bool | int | None = None,  # noqa: FBT001 (the documented parameters)
        cache_key: str | None = UNSET,
        debug: bool | None = None,  # noqa: FBT001
        event_bus: ScenarioEventBus | None = None,
        set_id: str | None = None,
        *,
        min_turns: int | None = None,
        options: RunOptions | None = None,
    ) -> None:
        """Prepare a run; parameters as of `scenario.run`."""
        self.name, self.description = name, description
        self.options = options or RunOptions()
        self.agents = players(agents, self.options.parameters)
        self.script = _checked(script)
        self.config = _configured(max_turns, verbose, cache_key, debug, min_turns)
        self.batch_run_id = batch_run_id()
        self.scenario_set_id = set_id or DEFAULT_SET
        self.cassette = recorded_as(name, set_id, description, script, self.options)
        self._cast = Cast(self.agents)
        self._stream = Stream()
        self.event_bus = event_bus or ScenarioEventBus()
        self.event_bus.subscribe_to_events(self._stream)
        self.narrator = Narrator(self._identity(), self._handlers(), self._stream)
        self.reset()

    @property
    def events(self) -> Stream:
        """The LangWatch events of this run, to subscribe to."""
        return self._stream

    async def _play(self) -> ScenarioResult:
        """Recall what was said before, then take the steps of the script."""
        await self._recall()
        for number, step in enumerate(self.script):
            self._steps_left = len(self.script) - number - 1
            result = await self._take(step)
            if isinstance(result, ScenarioResult):
                refuse_contradiction(f"step {number + 1} of the script", result)
                return self._complete(added_up(self._checkpoints, result))
        if self._checkpoints:
            passed = ScenarioResult(success=True, messages=[], reasoning=ALL_PASSED)
            return self._complete(added_up(self._checkpoints, passed))
        return self._out_of_turns(f"{LEFT}{END_OF_SCRIPT}" if self._left else END_OF_SCRIPT)

    async def _recall(self) -> None:
        """Begin with what was said before; where the user had the last word, it is the agent's turn."""
        history = self.options.history
        if not history:
            return
        if isinstance(history, str):
            from llmproxy.scenario.running.seeding import messages_from

            history = await settled(messages_from(history))
        self.add_messages(copies(history))
        if self._state.messages and self._state.messages[-1]["role"] == "user":
            self._turns.skip_to(AgentRole.AGENT)

    async def _take(self, step: ScriptStep) -> object:
        """Take a step, and the steps that it returns."""
        if isinstance(step, Step):
            return await self._value(step)
        if self.session is not None:
            self.unattributed = await self.session.unattributed()
            await self._traffic.catch_up()
        label = getattr(step, "__name__", None) or type(step).__name__
        try:
            value = await self._value(step)
            if self.session is not None:
                await self.session.disown(self.unattributed)
            _refuse_denial(label, value)
        except Exception as error:
            status = status_of(error, self._at_work)
            self.narrator.step("script", label=label, status=status, message=told(error))
            raise
        self.narrator.step("script", label=label)
        return value

    async def _value(self, step: ScriptStep) -> object:
        value: Any = await settled(step(self._state))
        for _ in range(_NESTED):
            if not (isinstance(value, Step) or inspect.isfunction(value)):
                break
            value = await settled(value(self._state))
        return value

    def _identity(self) -> RunIdentity:
        return RunIdentity(
            name=self.name,
            description=self.description,
            set_id=self.scenario_set_id,
            batch_id=self.batch_run_id,
            run_id=run_id(),
            sample=self.options.sample,
            runs=self.options.runs,
            metadata=dict(self.options.metadata or {}),
            fields=dict(self.options.fields or {}),
        )

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Who hears the events of this run."""
        return self._handlers()

    def _handlers(self) -> tuple[Handler, ...]:
        own = cast("Sequence[Handler]", self.options.handlers)  # functions were wrapped when the options were made
        handlers = (*HOST.handlers, *ScenarioConfig.defaults.handlers, *own)
        if not self.config.verbose:
            return handlers
        from llmproxy.report.forms.hiding import Hiding
        from llmproxy.report.terminal.scenario_console import ScenarioConsole

        return (*handlers, Hiding(ScenarioConsole(verbose=int(self.config.verbose))))


def _configured(
    max_turns: int | None,
    verbose: bool | int | None,  # noqa: FBT001
    cache_key: str | None,
    debug: bool | None,  # noqa: FBT001
    min_turns: int | None,
) -> ScenarioConfig:
    given = ScenarioConfig(max_turns=max_turns, verbose=verbose, debug=debug, min_turns=min_turns)
    found = (ScenarioConfig.default_config or ScenarioConfig()).merge(given)
    if found.min_turns is not None and found.min_turns > found.turns:
        raise ValueError(f"min_turns ({found.min_turns}) cannot exceed max_turns ({found.turns})")
    if not isinstance(cache_key, Unset):
        found.cache_key = cache_key or None
    return found


def _checked(script: Sequence[ScriptStep] | None) -> list[ScriptStep]:
    for place, step in enumerate(script or ()):
        if not callable(step):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"script[{place}] is {step!r}, which is no step; write scenario.user({step!r}) to let the user say it."
            )
    return list(script or [proceed()])


def _refuse_denial(label: str, value: object) -> None:
    """Refuse what a step of one's own returned that must not be passed over.

    Raises:
        AssertionError: False; whoever wrote `lambda state: state.has_tool_call("x")` meant it.
        TypeError: a generator, of which nothing has run.

    """
    if value is False:
        raise AssertionError(f"the step {label} returned False")
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(
            f"the step {label} returned a generator, and nothing of it has run: it yields, and a step returns."
        )
