"""The agent of `llmproxy demo`: three turns with an OpenAI client: one plain, one with a tool, one streamed.

It does not know llmproxy. `scripts/make-demo` records it against a scripted provider; the demo replays that recording.
Its prompts are part of the recording's keys: after changing one, record again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam


MODEL = "gpt-4o-mini"
PLAIN = "What is the capital of Norway? One word."
WEATHER = "Do I need an umbrella there today?"
STREAMED = "Why should the tests of an agent replay recorded answers? Two sentences."
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

Say = Callable[[str], None]
Create = Callable[..., Any]


def get_weather(city: str) -> str:
    return json.dumps({"city": city, "sky": "rain", "celsius": 7})


def run_narrated_conversation(create: Create, say: Say, *, plain: str = PLAIN) -> None:
    """Run the whole conversation; `create` is `client.chat.completions.create`, `say` gets text as it arrives."""
    history: list[ChatCompletionMessageParam] = [{"role": "user", "content": plain}]
    say(f"\nuser       {plain}\n")
    answer = create(model=MODEL, messages=history).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history += [{"role": "assistant", "content": answer}, {"role": "user", "content": WEATHER}]
    say(f"\nuser       {WEATHER}\n")
    _append_tool_turn(create, history, say)
    history.append({"role": "user", "content": STREAMED})
    say(f"\nuser       {STREAMED}\nassistant  ")
    for chunk in create(model=MODEL, messages=history, stream=True, stream_options={"include_usage": True}):
        if chunk.choices and chunk.choices[0].delta.content:
            say(chunk.choices[0].delta.content)
    say("\n")


def _append_tool_turn(create: Create, history: list[ChatCompletionMessageParam], say: Say) -> None:
    for call in create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.tool_calls or ():
        if call.type != "function":
            continue
        result = get_weather(**json.loads(call.function.arguments))
        say(f"assistant  calls {call.function.name}({call.function.arguments})\ntool       {result}\n")
        function: Any = {"name": call.function.name, "arguments": call.function.arguments}
        history += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
    answer = create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history.append({"role": "assistant", "content": answer})


KEY = "no-key-needed"


@dataclass(frozen=True, slots=True)
class DemoClient:
    """A client for a base URL; `refused` is the exception that it raises for an error."""

    name: str
    made_for: Callable[[str], Create]
    refused: type[Exception]

    @classmethod
    def find_installed(cls) -> Self:
        """Return the real OpenAI client if installed, else the plain one."""
        try:
            import openai
        except ModuleNotFoundError:
            return cls("a plain HTTP client (openai is not installed here)", _make_completion_function, DemoRefused)
        return cls(
            "the real openai client",
            lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0).chat.completions.create,
            openai.APIStatusError,
        )

    def describe_error(self, error: Any) -> str:
        """Return the error as a developer sees it, starting with the exception's class."""
        message = error.body.get("message", "") if isinstance(error.body, dict) else str(error)
        kind = f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}: "
        name = "" if self.refused is DemoRefused else kind
        return f"{name}HTTP {error.status_code}\n{message}"


class DemoRefused(Exception):
    """An error that the plain client received."""

    def __init__(self, status_code: int, body: object) -> None:
        super().__init__(str(body))
        self.status_code = status_code
        self.body = body


class _AttributeDict(SimpleNamespace):
    """JSON with attribute access; missing members are None."""

    def __getattr__(self, name: str) -> None:
        return None


def _parse_attribute_json(text: str) -> Any:
    return json.loads(text, object_hook=lambda found: _AttributeDict(**found))


def _make_completion_function(url: str) -> Create:
    """Return a replacement of `client.chat.completions.create` that needs only httpx."""
    import httpx

    client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False)

    def create(**body: Any) -> Any:
        answer = client.post("/v1/chat/completions", json=body) if not body.get("stream") else None
        if answer is None:
            return _iter_stream_chunks(client, body)
        if answer.is_error:
            raise DemoRefused(answer.status_code, answer.json().get("error"))
        return _parse_attribute_json(answer.text)

    return create


def _iter_stream_chunks(client: Any, body: dict[str, Any]) -> Iterator[Any]:
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data not in ("", "[DONE]"):
                yield _parse_attribute_json(data)
