"""One run of a scenario as its user, its steps and LangWatch's programs know it: a thin face over what is played and its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

from llmproxy.client.host import HOST
from llmproxy.report.events import Handler
from llmproxy.report.langwatch import ScenarioEventBus, Stream
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.config import UNSET, ScenarioConfig, Unset
from llmproxy.scenario.running.cast import players
from llmproxy.scenario.running.conversing.narrator import Narrator, RunIdentity
from llmproxy.scenario.running.recording_name import recorded_as
from llmproxy.scenario.running.script_run import ScriptRun
from llmproxy.scenario.script import proceed
from llmproxy.scenario.types import ScenarioResult, ScriptStep
from llmproxy.scenario.values.run import DEFAULT_SET, RunOptions, batch_run_id, context_scenario, run_id


class _Part:
    """An attribute that a part of the run has: a value, or a method."""

    def __init__(self, path: str, said: str) -> None:
        self.__doc__ = said
        self._found = attrgetter(path)

    def __get__(self, run: ScenarioExecutor | None, _: type) -> Any:  # noqa: ANN401 (whatever the part has)
        return self if run is None else self._found(run)


def _of(path: str, said: str) -> Any:  # noqa: ANN401 - whatever stands there
    return _Part(path, said)


class ScenarioExecutor:
    """Plays one scenario; `scenario.run` makes one for every run. Its verbs also work without `run`, one by one.

    A face: what is played is `playing` (a `ScriptRun`), and its run is `life`.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self,
        name: str,
        description: str,
        agents: Sequence[AgentAdapter | Any] = (),
        script: Sequence[ScriptStep] | None = None,
        max_turns: int | None = None,
        verbose: bool | int | None = None,  # noqa: FBT001 (the documented parameters)
        cache_key: str | None = UNSET,
        debug: bool | None = None,  # noqa: FBT001 - as its users call it
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
        self.script = _check_script(script)
        self.config = _build_config(max_turns, verbose, cache_key, debug, min_turns)
        self.batch_run_id = batch_run_id()
        self.scenario_set_id = set_id or DEFAULT_SET
        self.cassette = recorded_as(name, set_id, description, script, self.options)
        stream = Stream()
        self.event_bus = event_bus or ScenarioEventBus()
        self.event_bus.subscribe_to_events(stream)
        self.narrator = Narrator(self._identity(), self._handlers(), stream)
        self.playing = ScriptRun(
            self,
            description,
            self.agents,
            self.script,
            self.options,
            self.config,
            self.cassette,
            self.narrator,
            self.clock,
        )
        self.life = self.playing.life

    async def run(self) -> ScenarioResult:
        """Play the scenario and return how it ended. Raises what an adapter or a step raises."""
        token = context_scenario.set(self)
        try:
            result = await self.life.live()
        finally:
            context_scenario.reset(token)
        if self.life.error is not None:
            raise self.life.error
        return result

    def __deepcopy__(self, memo: object) -> ScenarioExecutor:
        """Return itself: a copy of a state is one of the same run."""
        return self

    def tell_reports(self, kind: str, **about: Any) -> None:  # noqa: ANN401 (fields of the event)
        """Tell the reports of a step that an adapter took by itself."""
        self.narrator.step(kind, **about)

    outcome = _of("life.outcome", "How the run ended, once it has; also when it ended with an exception.")
    session = _of("life.session", "Of the run that goes on; None without a proxy.")
    wire_report = _of("life.report", "What the session came to, once it is closed; None without a proxy.")
    unattributed = _of(
        "life.unattributed", "Calls that arrived at the proxy while nobody had the turn: whose they are is not known."
    )
    events = _of("narrator.stream", "The LangWatch events of this run, to subscribe to.")
    marks = _of("playing.marks", "Labels that steps put on the run.")
    from_cache = _of("playing.from_cache", "Decorated functions that `cache` answered: the wire saw nothing of them.")
    build_failure = _of("playing.build_failure", "Return the result of a run that an error ended.")
    never_ran = _of("life.never_ran", "Tell that the run could not be made, and return what is known of it.")
    reset = _of("playing.reset", "Begin anew: no messages, turn 0, a new thread id.")

    wire_calls = _of(
        "life.traffic.tools",
        "Tool calls of the agent as seen on the wire; None without a proxy. Whoever asks relies on them.",
    )
    wire_served = _of("life.traffic.served", "What servers of tools (MCP) got from the agent; None without a proxy.")
    wire_unread = _of("life.traffic.unread", "Why it is not known what the agent called; empty where all are known.")
    wire_unknown = _of(
        "life.traffic.unknown", "Why answers to the agent may have called what nobody knows of, for a judge."
    )
    wire_before = _of(
        "playing.conversation.wire_before", "The tool calls, by the place of the message that came after them."
    )

    _state = _of("playing.conversation.state", "What steps, callbacks and adapters see.")
    _pending_roles_on_turn = _of("playing.conversation.turns.roles", "Who may still speak.")
    _pending_agents_on_turn = _of("playing.conversation.turns.pending", "Who has not spoken.")
    criteria = _of("playing.conversation.criteria", "The criteria of all judges.")
    unscripted = _of("playing.conversation.unscripted", "Whether the conversation goes on by itself now.")
    add_message = _of("playing.conversation.add_message", "Append a message; everybody hears it but its author.")
    add_messages = _of("playing.conversation.add_messages", "Append messages, one by one.")
    rollback_messages_to = _of("playing.conversation.rollback_messages_to", "Take back all messages from a place on.")
    step = _of("playing.conversation.step", "Let the next agent speak, in a new turn if this one is over.")

    message = _of("playing.verbs.message", "Add a message; a user's or an assistant's takes the turn of that role.")
    user = _of("playing.verbs.user", "Let the user speak, or say something in his place.")
    agent = _of("playing.verbs.agent", "Let the agent under test speak, or say something in its place.")
    judge = _of("playing.verbs.judge", "Demand a verdict.")
    succeed = _of("playing.verbs.succeed", "Return a result that says passed.")
    fail = _of("playing.verbs.fail", "Return a result that says failed.")
    proceed = _of("playing.verbs.proceed", "Take steps for so many turns, or until somebody ends it.")

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
        from llmproxy.report.redaction import Hiding
        from llmproxy.report.terminal.scenario_console import ScenarioConsole

        return (*handlers, Hiding(ScenarioConsole(verbose=int(self.config.verbose))))


def _build_config(
    max_turns: int | None,
    verbose: bool | int | None,  # noqa: FBT001 - as its users call it
    cache_key: str | None,
    debug: bool | None,  # noqa: FBT001 - as its users call it
    min_turns: int | None,
) -> ScenarioConfig:
    given = ScenarioConfig(max_turns=max_turns, verbose=verbose, debug=debug, min_turns=min_turns)
    found = (ScenarioConfig.default_config or ScenarioConfig()).merge(given)
    if found.min_turns is not None and found.min_turns > found.turns:
        raise ValueError(f"min_turns ({found.min_turns}) cannot exceed max_turns ({found.turns})")
    if not isinstance(cache_key, Unset):
        found.cache_key = cache_key or None
    return found


def _check_script(script: Sequence[ScriptStep] | None) -> list[ScriptStep]:
    for place, step in enumerate(script or ()):
        if not callable(step):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"script[{place}] is {step!r}, which is no step; write scenario.user({step!r}) to let the user say it."
            )
    return list(script or [proceed()])
