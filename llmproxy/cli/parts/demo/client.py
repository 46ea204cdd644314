"""Who asks in `llmproxy demo`: the real openai client, or where it is not installed a plain HTTP client that asks the same.

Both make the same requests, byte for byte in what counts: what one recorded, the other replays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

from llmproxy.cli.parts.demo.agent import Create

KEY = "no-key-needed"


@dataclass(frozen=True, slots=True)
class Asker:
    """A client, made for a base URL; `refused` is what it raises where it gets an error."""

    name: str
    made_for: Callable[[str], Create]
    refused: type[Exception]

    @classmethod
    def best(cls) -> Self:
        """Return the real client if it is installed, else the plain one."""
        try:
            import openai
        except ModuleNotFoundError:
            return cls("a plain HTTP client (openai is not installed here)", _plain, DemoRefused)
        return cls(
            "the real openai client",
            lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0).chat.completions.create,
            openai.APIStatusError,
        )

    def describe(self, error: Any) -> str:  # noqa: ANN401 - a Refusal, of either client
        """Return what a developer reads, the class of the exception first."""
        message = error.body.get("message", "") if isinstance(error.body, dict) else str(error)
        name = (
            f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}: "
            if self.refused is not DemoRefused
            else ""
        )
        return f"{name}HTTP {error.status_code}\n{message}"


class DemoRefused(Exception):
    """An error that the plain client got."""

    def __init__(self, status_code: int, body: object) -> None:
        """Keep what the proxy said."""
        super().__init__(str(body))
        self.status_code = status_code
        self.body = body


class _Said(SimpleNamespace):
    """JSON by attribute; what is not there is None."""

    def __getattr__(self, name: str) -> None:
        return None


def _read(text: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(text, object_hook=lambda found: _Said(**found))


def _plain(url: str) -> Create:
    """Return what asks like `client.chat.completions.create`, by httpx alone."""
    import httpx

    client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False)

    def create(**body: Any) -> Any:  # noqa: ANN401 - as the SDK
        answer = client.post("/v1/chat/completions", json=body) if not body.get("stream") else None
        if answer is None:
            return _stream(client, body)
        if answer.is_error:
            raise DemoRefused(answer.status_code, answer.json().get("error"))
        return _read(answer.text)

    return create


def _stream(client: Any, body: dict[str, Any]) -> Iterator[Any]:  # noqa: ANN401 - httpx is imported late
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data not in ("", "[DONE]"):
                yield _read(data)
