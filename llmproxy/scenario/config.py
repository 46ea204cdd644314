"""Defaults for all scenarios of a process: default < configure() (calls accumulate) < arguments of run.

None means "not given" except for `cache_key` in `run`, where None disables the cache. To distinguish that, the default
of such a parameter is `OmittedArgumentSentinel`, which prints as the documented value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from llmproxy.did_you_mean import nearest_word
from llmproxy.errors import SettingsError
from llmproxy.report.events import Handler, HandlerLike, convert_to_event_handlers

_VOICE = "is part of voice, which is not here: conversations are text."
_SERVERS = "needs LangWatch's servers, to which nothing is sent from here."
UNSUPPORTED = {
    **dict.fromkeys(("audio_effects", "audio_playback", "on_audio_chunk", "on_voice_event", "voice"), _VOICE),
    **dict.fromkeys(("trace_wait_extension", "trace_wait_timeout"), _SERVERS),
    "evaluators": f"{_SERVERS} A check of your own is a step of the script, or a JudgeAgent.",
    "fetch_remote_traces": f"{_SERVERS} What the agent called is read off the wire, with a proxy.",
    "span_collector": "reads OpenTelemetry spans; what the agent called is read off the wire, with a proxy.",
}
"""Keywords of LangWatch Scenario that are refused because ignoring them could let a test pass, with reasons."""
_CLOSE = 0.84
"""Least similarity of a misspelt keyword to one of ours: `criterion` is, `headers` is not."""
MAX_TURNS = 10  # also for 0


class OmittedArgumentSentinel:
    """Default of a parameter that was not given; prints as the documented default."""

    __slots__ = ("shown",)

    def __init__(self, shown: object = None) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return repr(self.shown)

    def __bool__(self) -> bool:
        return False


UNSET: Any = OmittedArgumentSentinel(None)
UNSET_ZERO: Any = OmittedArgumentSentinel(0.0)


class ModelConfig(BaseModel):
    """A model with its parameters, and any further keyword of ``litellm.completion`` (litellm makes the call then).

    `base_url`, litellm's alias of `api_base`, is accepted.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    api_key: str | None = Field(default=None, repr=False)
    temperature: float = 0.0
    max_tokens: int | None = None
    api_base: str | None = None
    """Address of the model. With a proxy it is the upstream of the session."""
    api_version: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _resolve_parameter_aliases(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found = {name: value for name, value in given.items() if not isinstance(value, OmittedArgumentSentinel)}
        found |= found.pop("extra", None) or {}
        other = found.pop("base_url", None)
        return {**found, "api_base": found.get("api_base") or other}

    @property
    def extra_parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def temperature_given(self) -> bool:
        """Whether the temperature was given: the default is dropped for models that refuse it."""
        return "temperature" in self.model_fields_set


type _Number = Annotated[int, Field(strict=True, ge=0)]


class ScenarioConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    default_model: str | ModelConfig | None = None
    max_turns: _Number | None = MAX_TURNS
    verbose: StrictBool | _Number | None = True
    """Whether to print the conversation; from 2 on, each line names its scenario."""
    cache_key: StrictStr | None = None
    """Enables the cache, and separates generations of its values. Empty is off."""
    debug: bool | None = False
    """Whether to stop before every turn of the simulator for a person's input."""

    min_turns: _Number | None = None
    """Turns before a judge decides by itself; a demanded verdict may come earlier."""
    headless: bool | None = None  # accepted and ignored: no browser is opened
    observability: Mapping[str, Any] | None = None  # accepted and ignored: calls are observed on the wire

    default_config: ClassVar[ScenarioConfig | None] = None
    defaults: ClassVar[tuple[str | bool | None, tuple[Handler, ...]]] = None, ()
    """Proxy and handlers of `configure`: outside the documented fields, which stay as users know them."""

    @classmethod
    def configure(
        cls, default_model: str | ModelConfig | None = None, max_turns: int | None = None,
        verbose: bool | int | None = None, cache_key: str | None = None,  # noqa: FBT001 (the documented parameters)
        debug: bool | None = None, *, min_turns: int | None = None,  # noqa: FBT001 - the original's parameter
        headless: bool | None = None, observability: Mapping[str, Any] | None = None, proxy: str | bool | None = None,
        handlers: Sequence[HandlerLike] | None = None, **unsupported: Any,
    ) -> None:  # fmt: skip
        """Set defaults for all scenarios that start from now on; None keeps a value.

        `cache_key=""` disables the cache. `proxy` is the URL of a running llmproxy, or True to start one; `handlers`
        get the events of every scenario (see `llmproxy.report.events`), an empty tuple removes them.
        """
        for name in refuse_unsupported_arguments("configure", unsupported):
            raise TypeError(f"configure() got an unexpected keyword argument {name!r}")
        said = ScenarioConfig(
            default_model=default_model, max_turns=max_turns, verbose=verbose, cache_key=cache_key, debug=debug,
            min_turns=min_turns, headless=headless, observability=observability,
        )  # fmt: skip
        ScenarioConfig.default_config = (ScenarioConfig.default_config or ScenarioConfig()).merge(said)
        before, heard = ScenarioConfig.defaults
        told = heard if handlers is None else convert_to_event_handlers(handlers)
        ScenarioConfig.defaults = before if proxy is None else proxy, told

    def merge(self, other: ScenarioConfig) -> ScenarioConfig:
        """Return a new configuration in which the values of `other` (except None) take precedence."""
        return ScenarioConfig(**{**self.items(), **other.items()})

    def items(self) -> dict[str, Any]:
        return {name: value for name, value in self if value is not None}

    @property
    def turn_limit(self) -> int:
        return self.max_turns or MAX_TURNS


def refuse_unsupported_arguments(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords without neutral values of `UNSUPPORTED` ones. Raises SettingsError for others."""
    for name, value in given.items():
        if name in UNSUPPORTED and value:
            raise SettingsError(f"{where}({name}=...) {UNSUPPORTED[name]}", hint=f"Leave {name} out.")
    return {name: value for name, value in given.items() if name not in UNSUPPORTED}


def refuse_misspelt_keywords(where: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords for litellm. Raises TypeError for one that is similar to a parameter of this class."""
    if not (found := refuse_unsupported_arguments(where.__name__, given)):
        return found
    parameters = signature(where).parameters.values()
    known = [*(each.name for each in parameters if each.kind is each.KEYWORD_ONLY), "api_base"]
    for name in found:
        if (near := nearest_word(name, known, _CLOSE)) and name not in known:
            raise TypeError(f"{where.__name__} has no parameter {name!r}; did you mean {near!r}?")
    return found
