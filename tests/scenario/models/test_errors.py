"""What an exception of litellm means."""

from __future__ import annotations

import pytest

from llmproxy.core.dialects.dialect_table import build_dialect_error_response
from llmproxy.core.providers.provider_table import Family
from llmproxy.errors import Exit, LLMProxyError, MissError, SettingsError
from llmproxy.scenario.models.errors import (
    ModelError,
    RefusableParameter,
    build_model_call_error,
    extract_proxy_error_text,
    find_refused_parameter,
    is_transient,
)

FAMILIES: tuple[Family, ...] = ("openai", "anthropic", "gemini", "bedrock", "ollama", "cohere", "generic")
MISS = (
    'llmproxy: no recorded response for this request (openai chat) in cassette "a": {"x": 1}.\nmode replay\nWhat to '
    'do:\n  1. "record" it'
)


class FromLitellm(Exception):
    """Looks like litellm's exceptions: a text that wraps the body, a status, and the answer's headers."""

    def __init__(self, text: str, status: int | str | None = 404, code: str = "") -> None:
        super().__init__(text)
        self.status_code = status
        self.litellm_response_headers = {"x-llmproxy-error": code} if code else None


def meant(error: Exception, temperature: float | None = None) -> LLMProxyError:
    return build_model_call_error(error, "openai/x", "judge", temperature=temperature)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_miss_is_told_in_the_words_of_the_proxy(family: Family) -> None:
    """Whatever envelope the text came in and litellm wrote around it, the error is the whole text and nothing else."""
    body = build_dialect_error_response(family, 404, "llmproxy_cache_miss", MISS)[1].decode()
    error = meant(FromLitellm(f"litellm.NotFoundError: SomeException - {body}", code=MissError.code))
    assert type(error) is MissError
    assert str(error) == MISS
    assert error.exit_code is Exit.MISS


def test_a_miss_whose_envelope_litellm_has_opened() -> None:
    """The code decides, not the text, also where only the exception's cause has the headers; who quotes a miss has not missed."""
    error = FromLitellm(f"litellm.NotFoundError: NotFoundError: OpenAIException - {MISS}", code=MissError.code)
    assert str(meant(error)) == MISS
    error = FromLitellm(MISS)
    error.__cause__ = FromLitellm("CohereError", code=MissError.code)
    assert type(meant(error)) is MissError
    assert type(meant(FromLitellm(MISS))) is ModelError


def test_a_missing_model_is_no_miss() -> None:
    """A 404 of the provider is an error of the call; a dead upstream says what the proxy said."""
    error = meant(FromLitellm("litellm.NotFoundError: the model gpt-9 does not exist"))
    assert type(error) is ModelError
    assert "the model gpt-9 does not exist" in str(error)
    assert error.exit_code is Exit.ENVIRONMENT
    text = 'InternalServerError: {"error": {"message": "llmproxy: cannot reach https://x"}}'
    error = meant(FromLitellm(text, 502, "llmproxy_upstream"))
    assert type(error) is ModelError
    assert "cannot reach https://x" in str(error)
    assert "{" not in str(error)


@pytest.mark.parametrize(("text", "status", "what"), [
    ("UnsupportedParamsError: gpt-5 models don't support temperature=0.0", 400, RefusableParameter.TEMPERATURE),
    ("Unsupported value: 'temperature' does not support 0", "400", RefusableParameter.TEMPERATURE),
    ("Thinking mode does not support this tool_choice", 400, RefusableParameter.TOOL_CHOICE),
    ("`tools` is not supported by this model", 422, RefusableParameter.TOOL_CHOICE),
    ("No endpoints found that support tool use", 404, RefusableParameter.TOOL_CHOICE),
    ("function calling is not enabled", 400, RefusableParameter.TOOL_CHOICE),
    ("This response_format type is unavailable now", 400, RefusableParameter.FORMAT),
    ("context length exceeded", 400, None),
    ("tool_choice: overloaded", 529, None),
    ("temperature too high in the data center", 500, None),
])  # fmt: skip
def test_what_a_model_refuses_is_recognised(text: str, status: int | str, what: RefusableParameter | None) -> None:
    """Only a client error that names the thing is a refusal; what the proxy says never is."""
    assert find_refused_parameter(FromLitellm(text, status)) is what
    assert find_refused_parameter(FromLitellm(text, status, MissError.code)) is None


def test_a_chosen_temperature_that_is_refused_is_the_users_mistake() -> None:
    """The error names the value, and says what to do."""
    error = meant(FromLitellm("temperature is not supported", 400), temperature=0.3)
    assert type(error) is SettingsError
    assert "temperature=0.3" in str(error)
    assert "Leave temperature out" in str(error)


@pytest.mark.parametrize(("status", "text", "transient"), [
    (429, "slow down", True),
    (529, "overloaded", True),
    (500, "oops", True),
    (400, "bad", False),
    (401, "key", False),
])  # fmt: skip
def test_a_bad_moment_is_told_from_a_mistake(status: int, text: str, transient: bool) -> None:
    """Only what may be different a moment later is worth another call."""
    assert is_transient(FromLitellm(text, status)) is transient


def test_a_missing_key_says_what_to_set() -> None:
    """The commonest mistake has its own words; a bare `gemini-...` is asked at Vertex AI, which few people mean."""
    error = meant(FromLitellm("litellm.AuthenticationError: The api_key client option must be set", 401))
    assert "api_key=..." in str(error)
    error = build_model_call_error(
        FromLitellm("google.auth: no default credentials", 500), "gemini-2.5-pro", "user", temperature=None
    )
    assert 'write "gemini/gemini-2.5-pro"' in str(error)


def test_a_long_error_is_cut_and_an_odd_one_survives() -> None:
    """A page of HTML is not printed whole; an exception without a status is an error like any other."""
    assert len(str(meant(FromLitellm("x" * 5000, None)))) < 1000
    assert extract_proxy_error_text(ValueError("nothing of ours {")) == "nothing of ours {"
    assert isinstance(meant(ValueError("odd")), ModelError)
