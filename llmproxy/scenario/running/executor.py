"""One run of a scenario: a Python script for the run engine, and the interface for users, steps and programs written
for LangWatch.

The default recording name is set by a test runner, if there is one. Otherwise it is the scenario's name; different
scenarios of one name have recordings of their own: the second is `NAME.2`, by the order of first runs in a process.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, cast

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.errors import AgentError, LLMProxyError, MachineError, SettingsError
from llmproxy.file_io import build_dict_without_duplicates
from llmproxy.parsers import read_text_file_named_by_user
from llmproxy.report.events import HOST, Handler, RedactingEventHandler, RunSettingsFromPytest, Started
from llmproxy.report.langwatch import LangWatchEventConverter, ScenarioEventBus, ScenarioEventStream
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.config import UNSET, OmittedArgumentSentinel, ScenarioConfig
from llmproxy.scenario.models.route_via_proxy import map_upstream_names_to_urls
from llmproxy.scenario.run_session import RunSession, find_or_start_proxy
from llmproxy.scenario.running.agent_caller import (
    Participants,
    convert_to_agent_adapters,
    read_run_variables_from_agent_env,
)
from llmproxy.scenario.running.conversation import ConversationRunner, ScriptActions, await_value
from llmproxy.scenario.running.run_lifecycle import EventEmitter, RunLifecycle, SessionToOpen
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.script import BuiltinScriptStep, proceed
from llmproxy.scenario.types import AgentRole, CriterionResult, Message, ScenarioResult, ScriptStep
from llmproxy.scenario.values.criteria import ALL_PASSED, prepend_checkpoint_findings, reject_contradictory_verdict
from llmproxy.scenario.values.messages import convert_json_value_to_text, copy_messages
from llmproxy.scenario.values.run_ids_and_options import (
    DEFAULT_SET,
    ScenarioRunOptions,
    batch_run_id,
    classify_run_error,
    context_scenario,
    derive_thread_id,
    describe_error,
    make_run_id,
    name_cassette,
    traceparent,
)
from llmproxy.trace import Cassette
from llmproxy.trace.observing.agent_activity import find_oldest_replayed_answer_time
from llmproxy.trace.span_models import AssertionResult, EvalResult, Span, SpanKind

_NAMESAKES: dict[str, dict[str, int]] = {}
"""Names used in this process, with the number of each scenario of the name; guarded by the lock."""
_NAMING = threading.Lock()


def choose_cassette_name(
    name: str, set_id: str | None, description: str, script: Sequence[ScriptStep] | None,
    options: ScenarioRunOptions, *,
    host: RunSettingsFromPytest = HOST, namesakes: dict[str, dict[str, int]] = _NAMESAKES,
) -> str:  # fmt: skip
    if options.cassette:
        return options.cassette
    own = name_cassette(name, set_id)
    if host.place is not None:
        return host.place(own)
    # Separates scenarios of one name, and is the same in every run.
    steps = [
        [step.kind, step.said] if isinstance(step, BuiltinScriptStep) else _get_qualified_name(step)
        for step in script or ()
    ]
    given = [options.fields, options.parameters, options.history, options.mock]
    text = json.dumps([description, steps, given], sort_keys=True, skipkeys=True, default=_get_qualified_name)
    about = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    with _NAMING:
        known = namesakes.setdefault(own, {})
        number = known.setdefault(about, len(known) + 1)
    return own if number == 1 else f"{own}.{number}"


def _get_qualified_name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)


LEFT = "The user ended the conversation, and no judge decided. "
END_OF_SCRIPT = """Reached end of script without conclusion, add one of the following to the end of the script:

- `scenario.proceed()` to let the simulation continue to play out
- `scenario.judge()` to force criteria judgement
- `scenario.succeed()` or `scenario.fail()` to end the test with an explicit result
"""
_NESTED = 10


def _get_step_label(step: ScriptStep) -> str:
    return getattr(step, "__name__", None) or type(step).__name__


def _refuse_false_result(label: str, value: object) -> None:
    """Raise AssertionError for a step's False or failed assertion, and TypeError for what nobody would look at."""
    is_bool = type(value).__name__ in ("bool", "bool_")  # numpy's too
    if is_bool or isinstance(value, AssertionResult | EvalResult):
        if not value:
            raise AssertionError(f"the step {label} returned {'False' if is_bool else value}")
    elif value is not None and not isinstance(value, ScenarioResult | ScenarioState):
        messages = value if isinstance(value, list) else [value]  # a list: what `rollback_messages_to` returns
        if not all(isinstance(each, Mapping) and "role" in each for each in messages):
            raise TypeError(
                f"the step {label} returned {value!r:.80}, which says neither yes nor no: a step returns None, True, "
                "False, a ScenarioResult, another step, an assertion's result, messages or the state."
            )


def _delegate_to(path: str) -> Any:
    """Return a property for an attribute or method of a part of the run, which documents it."""
    return property(attrgetter(path))


class ScenarioExecutor(ScriptActions):
    """Runs one scenario; `scenario.run` creates one for every run. Its verbs also work without `run`, one by one.

    It implements `run_lifecycle.Playable` for the run engine, and is the host of its conversation.
    """

    late_hint: ClassVar[str] = (
        "Judges and steps of the script looked at the agent's calls before them. Its `call` should return, or its "
        "`close` wait, until everything is over that it began; calls that it makes outside of `call` should go by "
        "input.llm (uses_session = True)."
    )
    adds_user_farewell: ClassVar[bool] = True
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self, name: str, description: str, agents: Sequence[AgentAdapter | Any] = (),
        script: Sequence[ScriptStep] | None = None, max_turns: int | None = None,
        verbose: bool | int | None = None, cache_key: str | None = UNSET,  # noqa: FBT001 (the documented parameters)
        debug: bool | None = None, event_bus: ScenarioEventBus | None = None,  # noqa: FBT001 - as its users call it
        set_id: str | None = None, *, min_turns: int | None = None, options: ScenarioRunOptions | None = None,
    ) -> None:  # fmt: skip
        self.name, self.description = name, description
        self.options = options or ScenarioRunOptions()
        self.agents = convert_to_agent_adapters(agents, self.options.parameters)
        self.steps = self.script = _check_script(script)
        given = ScenarioConfig(max_turns=max_turns, verbose=verbose, debug=debug, min_turns=min_turns)
        found = (ScenarioConfig.default_config or ScenarioConfig()).merge(given)
        if found.min_turns is not None and found.min_turns > found.turn_limit:
            raise ValueError(f"min_turns ({found.min_turns}) cannot exceed max_turns ({found.turn_limit})")
        if not isinstance(cache_key, OmittedArgumentSentinel):
            found.cache_key = cache_key or None
        self.config = found
        self.batch_run_id = batch_run_id()
        self.scenario_set_id = set_id or DEFAULT_SET
        self.cassette = choose_cassette_name(name, set_id, description, script, self.options)
        self.events = ScenarioEventStream()
        self.event_bus = event_bus or ScenarioEventBus()
        self.event_bus.subscribe_to_events(self.events)
        langwatch = LangWatchEventConverter(self.events, self, dict(self.options.fields or {}))
        started = Started(
            scenario=name, name=name, description=description, set_id=self.scenario_set_id, batch_id=self.batch_run_id,
            run_id=make_run_id(), sample=self.options.sample, runs=self.options.runs,
            metadata=dict(self.options.metadata or {}),
        )  # fmt: skip
        self.emitter = EventEmitter(started, (langwatch, *self.handlers))
        self.running_scenario = self
        self.lifecycle: RunLifecycle[ScriptStep, ScenarioResult] = RunLifecycle(
            self, limit=self.options.timeout, call_limit=self.options.call_timeout, clock=self.clock
        )
        self._participants = Participants(self.agents)
        self._opening: AgentAdapter | None = None
        self.reset()

    async def run(self) -> ScenarioResult:
        """Run the scenario and return its result. Raises exceptions of adapters and steps."""
        token = context_scenario.set(self)
        try:
            result = await self.lifecycle.run()
        finally:
            context_scenario.reset(token)
        if self.lifecycle.error is not None:
            raise self.lifecycle.error
        return result

    def __deepcopy__(self, memo: object) -> ScenarioExecutor:
        """Return itself: a copied state belongs to the same run."""
        return self

    emit_step = _delegate_to("emitter.emit_step")
    outcome = _delegate_to("lifecycle.outcome")
    session = _delegate_to("lifecycle.session")
    wire_report = _delegate_to("lifecycle.report")
    unattributed = _delegate_to("lifecycle.unattributed")
    forbids_late_calls = _delegate_to("lifecycle.traffic.relied")
    leave = _delegate_to("_participants.close_adapters")
    never_ran = _delegate_to("lifecycle.never_ran")

    wire_calls = _delegate_to("lifecycle.traffic.agent_tool_calls")
    wire_served = _delegate_to("lifecycle.traffic.server_calls")
    wire_unread = _delegate_to("lifecycle.traffic.unread_reason")
    wire_unknown = _delegate_to("lifecycle.traffic.unknown_call_reasons")
    wire_by_message = _delegate_to("conversation.wire_by_message")

    _state = _delegate_to("conversation.state")
    _pending_roles_on_turn = _delegate_to("conversation.turns.roles")
    _pending_agents_on_turn = _delegate_to("conversation.turns.pending")
    criteria = _delegate_to("conversation.criteria")
    unscripted = _delegate_to("conversation.unscripted")
    messages = _delegate_to("conversation.messages")
    add_message = _delegate_to("conversation.add_message")
    add_messages = _delegate_to("conversation.add_messages")
    rollback_messages_to = _delegate_to("conversation.rollback_messages_to")
    step = _delegate_to("conversation.step")

    def reset(self) -> None:
        self.lifecycle.renew_caller()
        known = self.lifecycle.session is not None and not self.options.fresh_ids
        thread = derive_thread_id(self.cassette, self.options.sample, self.name) if known else derive_thread_id()
        state = ScenarioState(
            description=self.description, messages=[], thread_id=thread, current_turn=0, config=self.config
        ).bind(self)
        caller = self.lifecycle.caller
        super().__init__(
            ConversationRunner(state, self.agents, caller=caller, emitter=self.emitter, setting=self, name=self.name)
        )
        self.marks: list[str] = []
        self.from_cache: list[str] = []

    async def prepare_call(self, conversation: ConversationRunner, index: int) -> Mapping[str, Any]:
        state, traffic = conversation.state, self.lifecycle.traffic
        if traffic.session is not None and self.agents[index].role is AgentRole.JUDGE:
            await traffic.mark_calls_not_late()  # what the agent called since its answer is a part of what he judges
        parent = traceparent(state.thread_id, state.current_turn, index)
        return {"scenario_state": state, "propagation_headers": {"traceparent": parent}}

    async def on_answer(self, conversation: ConversationRunner, answer: object) -> None: ...

    @property
    def describe_actor(self) -> str:
        return "a step of the script" if self._opening is None else type(self._opening).__name__

    async def choose_session(self) -> SessionToOpen | None:
        """Return its session request. Raises SettingsError for options that need a proxy, without one."""
        said, configured = self.options.proxy, ScenarioConfig.defaults[0]
        starts = True in (said, configured)  # that alone takes time
        found = (said, configured, os.environ)
        proxy = await asyncio.to_thread(find_or_start_proxy, *found) if starts else find_or_start_proxy(*found)
        if not proxy:
            if self.options.mode:  # who asks for a replay must not be sent to the provider
                raise SettingsError(
                    f"mode={self.options.mode!r} is a mode of the proxy, and there is none.",
                    hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one; or leave the mode out.",
                )
            if self.options.mock is not None:
                raise SettingsError(
                    "mock= swaps what the agent's model reads on its way through the proxy, and there is none.",
                    hint="LLMPROXY_URL or `proxy` names one, proxy=True starts one.",
                )
            return None
        if HOST.ready is not None:
            await asyncio.to_thread(HOST.ready)
        models = [model for agent in self.agents for model in OptionalAdapterAttributes.of_adapter(agent).models]
        speaking = (each for each in self.agents if each.role is AgentRole.AGENT)
        how = {
            "mode": self.options.mode or HOST.mode or None,
            "run_variables": next(filter(None, map(read_run_variables_from_agent_env, speaking)), ()),
            "upstreams": map_upstream_names_to_urls(models, proxy),
            "faults": HOST.faults,
            "mocks": self.options.mock,
        }
        return SessionToOpen(proxy, self.cassette, self.options.sample, how)

    async def open(self, session: RunSession | None) -> None:
        self._participants.claim_adapters()
        self.reset()
        if session is not None:
            self.emitter.about = replace(self.emitter.about, cassette=self.cassette)
        try:
            await self._participants.open_adapters(session)
        except BaseException:
            self._opening = self._participants.opened[-1] if self._participants.opened else None
            self.lifecycle.caller.broke = self._opening.role if self._opening else None
            raise

    def emit_start(self) -> None:
        session = self.lifecycle.session
        self.emitter.emit_start(criteria=self.conversation.criteria, mode=session.mode if session else "")

    async def take_step(self, number: int, step: ScriptStep) -> ScenarioResult | None:
        self.steps_left = len(self.steps) - number - 1
        result = await self._run_step(step)
        if not isinstance(result, ScenarioResult):
            return None
        reject_contradictory_verdict(f"step {number + 1} of the script", result)
        return self._complete_result(result)

    async def conclude(self) -> ScenarioResult:
        if self.checkpoints:
            return self._complete_result(ScenarioResult(success=True, messages=[], reasoning=ALL_PASSED))
        went = self.conversation.farewell is not None
        return self.conversation.build_turns_exhausted(f"{LEFT}{END_OF_SCRIPT}" if went else END_OF_SCRIPT)

    def _complete_result(self, result: ScenarioResult) -> ScenarioResult:
        return self.conversation.fill_result(prepend_checkpoint_findings(self.checkpoints, result))

    async def begin(self) -> None:
        """Add the starting history; after a user's last message it is the agent's turn."""
        conversation, history = self.conversation, self.options.history
        if history:
            found = load_conversation_history(history) if isinstance(history, str) else history
            conversation.add_messages(copy_messages(found))
            if conversation.messages and conversation.messages[-1]["role"] == "user":
                conversation.turns.skip_to(AgentRole.AGENT)

    async def _run_step(self, step: ScriptStep) -> object:
        if isinstance(step, BuiltinScriptStep):
            return await self.evaluate_step(step)
        if (session := self.lifecycle.session) is not None:
            self.lifecycle.unattributed = await session.count_unattributed()
            await self.lifecycle.traffic.mark_calls_not_late()
        label = _get_step_label(step)
        try:
            value = await self.evaluate_step(step)
            if session is not None:
                await session.exclude_step_calls_from_unattributed(self.lifecycle.unattributed)
        except Exception as error:
            status = classify_run_error(error, self.lifecycle.caller.broke)
            self.emitter.emit_step("script", label=label, status=status, message=describe_error(error))
            raise
        self.emitter.emit_step("script", label=label)
        return value

    async def evaluate_step(self, step: ScriptStep) -> object:
        """Return the value of a step and of the steps that it returns. Raises for one that cannot pass."""
        value: Any = await await_value(step(self.conversation.state))
        for _ in range(_NESTED):
            if not (isinstance(value, BuiltinScriptStep) or inspect.isfunction(value)):
                break
            value = await await_value(value(self.conversation.state))
        _refuse_false_result(_get_step_label(step), value)
        return value

    def build_time_limit_error(self, *, blocked: bool = False) -> LLMProxyError:
        who = self.lifecycle.caller.current_party
        kind = AgentError if who is AgentRole.AGENT else MachineError
        at = f" while {who.value} was called" if who else ""
        how = "; its thread is blocked and goes on until it returns" if blocked else ""
        limit, turn = self.options.timeout or 0.0, self.conversation.state.current_turn
        return kind(
            f"scenario {self.name!r} did not end in {limit:g} s: it was in turn {turn}{at}{how}.",
            hint="timeout=<seconds> allows more.",
        )

    def has_passed(self, result: ScenarioResult) -> bool:
        return result.success

    def build_error_result(self, error: BaseException) -> ScenarioResult:
        broke = self.lifecycle.caller.broke
        check = isinstance(error, AssertionError) and broke is None
        stated = str(error) or "an assertion in a step of the script"
        step = CriterionResult(id="step", criterion=stated, status="failed", reasoning="a step of the script raised it")
        said = error if isinstance(error, Exception) else describe_error(error)
        return self._complete_result(
            ScenarioResult(
                success=False,
                messages=[],
                reasoning=f"Scenario failed with error: {said}",
                status=classify_run_error(error, broke),
                error=describe_error(error),
                failed_criteria=[stated] if check else [],
                criteria=[step] if check else [],
                inconclusive_criteria=list(self.conversation.criteria),
            )
        )

    def emit_end(self, result: ScenarioResult, error: BaseException | None) -> ScenarioResult:  # noqa: ARG002 (told)
        result = self._add_measures(result)
        if self.emitter.emit_result(result):
            HOST.emit_scenario_run_end(self, result)
        return result

    def _add_measures(self, result: ScenarioResult) -> ScenarioResult:
        lifecycle, traffic = self.lifecycle, self.lifecycle.traffic
        labels = [*result.labels, *self.marks, *lifecycle.problems, *lifecycle.late]
        labels += [] if lifecycle.report is None else lifecycle.report.unused_faults
        if lifecycle.unattributed:
            labels.append(f"unattributed traffic: {lifecycle.unattributed} calls")
        if self.from_cache:
            names = ", ".join(dict.fromkeys(self.from_cache))
            labels.append(f"answered from cache.db, unseen on the wire: {len(self.from_cache)} calls of {names}")
        found: dict[str, Any] = {
            "run_id": self.emitter.about.run_id,
            "sample": self.options.sample,
            "labels": tuple(labels),
            **lifecycle.read_measures(),
        }
        if traffic.session is not None:
            found |= {"cassette": self.cassette, "waited": lifecycle.caller.waited}
            found["tool_calls"] = tuple(traffic.wire_observer.list_tool_uses())
            found["recorded_at"] = find_oldest_replayed_answer_time(traffic.calls)
        return result.model_copy(update=found)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        own = cast("Sequence[Handler]", self.options.handlers)  # functions were wrapped when the options were made
        handlers = (*HOST.handlers, *ScenarioConfig.defaults[1], *own)
        if not self.config.verbose:
            return handlers
        from llmproxy.report.run_console import ScenarioConsole

        return (*handlers, RedactingEventHandler(ScenarioConsole(verbose=int(self.config.verbose))))


def _check_script(script: Sequence[ScriptStep] | None) -> list[ScriptStep]:
    for place, step in enumerate(script or ()):
        if not callable(step):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"script[{place}] is {step!r}, which is no step; write scenario.user({step!r}) to let the user say it."
            )
    return list(script or [proceed()])


_ONE_EXCHANGE = 2
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def load_conversation_history(source: str) -> list[Message]:
    """Return the messages of a file, or the texts of a recording's main conversation, "store.db::cassette~2".

    Raises SettingsError: it is empty; CassetteError.
    """
    if "::" in source:
        path, _, name = source.rpartition("::")
        cassette, tilde, number = name.rpartition("~")
        is_numbered = bool(tilde) and number.isdigit() and int(number) > 0
        cassette, sample = (cassette, int(number)) if is_numbered else (name, 1)
        found = _longest_conversation(Cassette.from_store(path, cassette=cassette, sample=sample).spans)
        if not found:
            raise SettingsError(
                f"nobody says anything in cassette {cassette!r}, sample {sample}, of {path}: there is nothing to go on "
                f"from.",
                hint=format_llmproxy_command(f"show {quote_word(cassette)}", path),
            )
        return found
    return _check_messages(_read_messages_file(Path(source)), source)


def _longest_conversation(spans: Sequence[Span]) -> list[Message]:
    """Return the longest conversation that no other started; of an agent without memory, all of them."""
    roots = [
        span.metadata.get("gen_ai.conversation.id")
        for span in spans
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation" and not span.parent_id
    ]
    said: dict[Any, list[Message]] = {root: [] for root in roots}
    for span in spans:
        if (found := said.get(span.metadata.get("gen_ai.conversation.id"))) is None:
            continue
        if span.kind is SpanKind.USER_INPUT:
            found.append({"role": "user", "content": convert_json_value_to_text(span.input)})
        elif span.kind is SpanKind.AGENT_OUTPUT:
            found.append({"role": "assistant", "content": convert_json_value_to_text(span.output)})
    longest = max(said.values(), key=len, default=[])
    return longest if len(longest) > _ONE_EXCHANGE else [message for messages in said.values() for message in messages]


def _read_messages_file(path: Path) -> list[Any]:
    hint = "It is a list of messages, a .json or .jsonl file of them, or a recording: store.db::cassette."
    text = read_text_file_named_by_user(path, f"the history {str(path)!r}", hint)
    read = partial(json.loads, object_pairs_hook=build_dict_without_duplicates)
    try:
        value = [read(line) for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else read(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the history {str(path)!r} is no JSON: {error}") from error
    value = value.get("messages") if isinstance(value, dict) else value
    return value if isinstance(value, list) else [value]


def _check_messages(messages: list[Any], where: str) -> list[Message]:
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            raise SettingsError(
                f"{where}: message {place + 1} is {message!r}; a message has a role of {', '.join(sorted(_ROLES))}."
            )
    return [dict(message) for message in messages]
