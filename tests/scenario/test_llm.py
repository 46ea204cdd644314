"""Access to models in one session."""

from __future__ import annotations

import os

import pytest

from llmproxy.scenario.types import AdapterModelAccessThroughProxy

LLM_HERE = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather~2")


@pytest.mark.parametrize(
    ("provider", "path"),
    [("openai", "/v1"), ("anthropic", "/anthropic"), ("gemini", "/gemini"), ("groq", "/groq"), ("mistral", "/mistral/v1"),
     ("ollama", "/ollama"), ("mine", "/mine")],
)  # fmt: skip
def test_a_base_url_names_session_and_provider(provider: str, path: str) -> None:
    """OpenAI's has no prefix; a name of the proxy's own is its own prefix."""
    assert LLM_HERE.base_url(provider) == f"http://127.0.0.1:8080/s/weather~2{path}"


def test_variables_are_set_over_what_is_there_and_the_rest_stays() -> None:
    """An agent's own variables survive, its base URLs do not; a key only where it is needed."""
    env = LLM_HERE.environment({"OPENAI_BASE_URL": "http://elsewhere", "HOME": "/home/me"})
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:8080/s/weather~2/v1"
    assert env["HOME"] == "/home/me"
    assert "OPENAI_API_KEY" not in env
    assert "OPENAI_API_KEY" in AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "x", replay=True).environment({})


def test_the_process_is_left_alone() -> None:
    """`env` only says what to set."""
    before = dict(os.environ)
    assert LLM_HERE.env["OPENAI_BASE_URL"].endswith("/s/weather~2/v1")
    assert dict(os.environ) == before


def test_plain_values_hold_no_key() -> None:
    """They go into messages, and so into logs."""
    told = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "x", replay=True).to_dict()
    assert told["session"] == "x"
    assert not [name for name in told["env"] if name.endswith("KEY")]


def test_who_is_not_the_agent_has_a_name_of_its_own() -> None:
    """Asked for when it is needed, in URLs and variables; the headers say the session and the party."""
    asked: list[str] = []

    def named() -> str:
        asked.append("judge-1")
        return "judge-1"

    llm = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather", party="judge", named=named)
    assert llm.headers == {"x-llmproxy-session": "weather", "x-llmproxy-party": "judge"}
    assert not asked
    assert llm.base_url("openai") == "http://127.0.0.1:8080/s/judge-1/v1"
    assert llm.env["OPENAI_BASE_URL"] == llm.to_dict()["base_urls"]["openai"] == "http://127.0.0.1:8080/s/judge-1/v1"
    assert llm.to_dict()["session"] == "weather"
