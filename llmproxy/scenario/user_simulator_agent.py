"""The simulated user: a model that plays a person, or fixed lines.

It sees what a user sees: texts, no tool calls and no results. In a conversation that continues by itself it may end it,
by a tool call, never by a word in the text: the judge decides then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.did_you_mean import nearest_word
from llmproxy.errors import SettingsError
from llmproxy.parsers import read_text_file_named_by_user
from llmproxy.scenario.agent_adapter import (
    AgentAdapter,
    find_scenario_session,
    get_scenario_description,
    is_conversation_unscripted,
)
from llmproxy.scenario.config import UNSET_ZERO, ModelConfig, refuse_misspelt_keywords
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.models.model_calls import ToolChoiceRefused, choose_model, complete, require_model
from llmproxy.scenario.models.transport import ModelAnswer
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.transcripts import enclose_in_tags, fill_prompt, list_messages_visible_to_user, read_prompt_file
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole, Message
from llmproxy.scenario.values.criteria import object_schema
from llmproxy.scenario.values.messages import UserFarewellMessages
from llmproxy.yaml_reader import SuiteProblemsError, parse_single_yaml_document

_MEMBERS = frozenset({"name", "about", "behaviour"})
_SUFFIXES = (".yaml", ".yml", ".md", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    name: str
    about: str = ""
    behaviour: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.behaviour, str):
            object.__setattr__(self, "behaviour", (self.behaviour,))
        if not (self.about.strip() or self.behaviour):
            raise SettingsError(f"the persona {self.name!r} says nothing: it needs `about`, `behaviour`, or both.")

    def format_text(self) -> str:
        lines = [*([self.about] if self.about else []), *(f"- {each}" for each in self.behaviour)]
        return enclose_in_tags("persona", "\n".join(lines))


def resolve_persona_name_file_or_text(said: Persona | str | Path) -> Persona:
    """Return the persona of a name, file, text or value. Raises SettingsError: unknown name, or unreadable file."""
    if isinstance(said, Persona):
        return said
    text = str(said).strip()
    if isinstance(said, Path) or text.endswith(_SUFFIXES):
        return _build_persona_from_file(Path(said))
    known = load_built_in_personas()
    if text in known:
        return known[text]
    if len(text.split()) > 1:
        return Persona(name="", about=text)
    near = nearest_word(text, known)
    raise SettingsError(
        f"there is no persona {text!r}." + (f" Did you mean {near!r}?" if near else ""),
        hint=f"There are: {', '.join(known)}. A description of at least two words, a .yaml or a .md file is one too.",
    )


@cache
def load_built_in_personas() -> dict[str, Persona]:
    entries = parse_single_yaml_document(read_prompt_file("personas.yaml"), "personas.yaml")
    personas = (_parse_persona(entry, "data/prompts/personas.yaml") for entry in entries)
    return {each.name: each for each in personas}


def _build_persona_from_file(path: Path) -> Persona:
    text = read_text_file_named_by_user(path, f"the persona {str(path)!r}")
    if path.suffix in {".md", ".txt"}:
        return Persona(name=path.stem, about=text.strip())
    try:
        value = parse_single_yaml_document(text, str(path))
    except SuiteProblemsError as error:
        raise SettingsError(f"the persona cannot be read: {error.message}") from error
    return _parse_persona(value, str(path))


def _parse_persona(value: Any, where: str) -> Persona:
    is_table = isinstance(value, dict) and value.keys() <= _MEMBERS
    members = value.values() if is_table else ()
    texts = [each for given in members for each in (given if isinstance(given, list) else [given])]
    if not is_table or not all(isinstance(text, str) for text in texts):
        raise SettingsError(
            f"{where} is no persona: it has `name`, `about` (texts) and `behaviour` (a list of texts), not {value!r}"
        )
    return Persona(**{"name": Path(where).stem, **value})


GREETING = "Hello, how can I help you today?"
"""Assumed first message of the assistant, so that the simulator has something to answer."""
PARTY = "user"
END = "end_conversation"
ATTEMPTS = 3
NUDGE = "(The assistant has not answered yet. Write what the user says next.)"
END_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": END,
        "description": "End the conversation: the user has what they wanted, or gives up for good.",
        "parameters": object_schema(
            {
                "message": {"type": "string", "description": "The user's last words, if there are any."},
                "goal_reached": {"type": "boolean", "description": "Whether the user has what they wanted."},
            }
        ),
    },
}


class UserSimulatorAgent(AgentAdapter):
    role: ClassVar[AgentRole] = AgentRole.USER
    uses_session: ClassVar[bool] = True
    raises_misses: ClassVar[bool] = True

    def __init__(
        self, *, model: str | ModelConfig | None = None, api_key: str | None = None, temperature: float = UNSET_ZERO,
        max_tokens: int | None = None, system_prompt: str | None = None, persona: Persona | str | Path | None = None,
        lines: Sequence[str] = (), show_tools: bool = False, may_end: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        """Prepare a user.

        Besides the usual parameters of a model:
            model: Name of the model; None: the default model of `scenario.configure`.
            temperature: Of the model. The default is dropped if the model refuses it.
            system_prompt: Replaces the whole prompt; the persona is added to it.
            persona: A name (``impatient``, ``beginner``, ...), a file, a text of at least two words, a Persona.
            lines: Messages of the user, in order, without a model. With `model=` as well, the model continues after
                the last of them; otherwise the conversation is over then.
            show_tools: Whether the user sees the agent's tool calls and their results.
            may_end: Whether the user may end a conversation that continues by itself, when the goal is reached.
            more: ``api_base`` and any other keyword of ``litellm.completion``.

        Raises SettingsError: neither model nor lines, or no such persona; TypeError: a misspelt keyword.
        """
        if isinstance(lines, str):
            raise TypeError(f"lines takes a list of texts; write lines=[{lines!r}]")
        self.lines = tuple(lines)
        goes_on = model is not None or not self.lines
        extra = refuse_misspelt_keywords(UserSimulatorAgent, more)
        chosen = choose_model("UserSimulatorAgent", model, api_key, temperature, max_tokens, extra) if goes_on else None
        self.config = require_model("UserSimulatorAgent", chosen) if goes_on else None
        self.model = self.config.model if self.config else None
        self.api_key = self.config.api_key if self.config else api_key
        self.temperature = self.config.temperature if self.config else temperature
        self.max_tokens = self.config.max_tokens if self.config else max_tokens
        self.system_prompt = system_prompt
        self.persona = resolve_persona_name_file_or_text(persona) if persona is not None else None
        self.show_tools = show_tools
        self.may_end = may_end
        self._said = 0  # number of lines used

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        return (self.config,) if self.config else ()

    async def open(self, session: RunSession | None) -> None:  # noqa: ARG002 (the hook's parameter)
        self._said = 0

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        free = is_conversation_unscripted(input)
        if self._said < len(self.lines):
            self._said += 1
            return {"role": "user", "content": self.lines[self._said - 1]}
        if self.config is None:
            if free:
                return UserFarewellMessages()
            raise SettingsError(
                f"UserSimulatorAgent has said all of its {len(self.lines)} lines, and the script lets it speak again.",
                hint='Add a line, write scenario.user("..."), or give it a model, which then goes on.',
            )
        messages = self.build_prompt_messages(input, may_end=free)
        tools = [END_TOOL] if free and self._may_end_now(input.messages) else []
        for attempt in range(ATTEMPTS):
            answer = await self._ask_with_optional_tools(self.config, messages, tools, input, attempt)
            endings = [_parse_farewell_arguments(call.arguments) for call in answer.tool_calls if call.name == END]
            if endings and tools:
                last, reached = endings[0]
                reached = None if any(each != reached for _, each in endings) else reached  # who contradicts himself
                said: list[Message] = [{"role": "user", "content": last or answer.text}]
                return UserFarewellMessages(said if last or answer.text else (), reached=reached)
            if answer.text:
                return {"role": "user", "content": answer.text}
        raise ModelError(
            f"No response from LLM: {self.config.model}, who plays the user, answered nothing in {ATTEMPTS} attempts.",
            hint="A higher max_tokens helps where the model spends all of it on reasoning.",
        )

    def build_prompt_messages(self, input: AgentInput, *, may_end: bool = False) -> list[Message]:  # noqa: A002
        persona = f"\n{self.persona.format_text()}\n" if self.persona else ""
        if self.system_prompt is None:
            system = fill_prompt("user_simulator", description=get_scenario_description(input), persona=persona)
        else:
            system = f"{self.system_prompt}{persona and '\n' + persona}".rstrip()
        if may_end and self._may_end_now(input.messages):
            system += "\n\n" + fill_prompt("user_simulator_end")
        seen = list_messages_visible_to_user(input.messages, show=self.show_tools)
        spoken = reverse_roles([{"role": "assistant", "content": GREETING}, *seen])
        found = [{"role": "system", "content": system}, *spoken]
        return [*found, {"role": "user", "content": NUDGE}] if found[-1]["role"] == "assistant" else found

    async def _ask_with_optional_tools(
        self, config: ModelConfig, messages: list[Message], tools: list[dict[str, Any]], given: AgentInput, attempt: int
    ) -> ModelAnswer:
        session = find_scenario_session(given)
        ask = partial(complete, model=config, messages=messages, party=PARTY, session=session, attempt=attempt)
        try:
            return await ask(tools=tools)
        except ToolChoiceRefused:
            if not tools:
                raise
        return await ask()

    def _may_end_now(self, messages: Sequence[Message]) -> bool:
        return self.may_end and any(message.get("role") == "assistant" for message in messages)


def reverse_roles(messages: Sequence[Message]) -> list[Message]:
    """Return texts with user and assistant exchanged; consecutive ones of a role are joined."""
    other = {"user": "assistant", "assistant": "user"}
    found: list[Message] = []
    for message in messages:
        role = other.get(message["role"], message["role"])
        if found and role in other and found[-1]["role"] == role:
            found[-1] = {"role": role, "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append({"role": role, "content": message["content"]})
    return found


def _parse_farewell_arguments(arguments: str) -> tuple[str, bool | None]:
    given = parse_json_or_none(arguments or "{}")
    said, reached = (given.get("message"), given.get("goal_reached")) if isinstance(given, dict) else ("", None)
    return said.strip() if isinstance(said, str) else "", reached if isinstance(reached, bool) else None
