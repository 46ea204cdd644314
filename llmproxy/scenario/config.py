"""What holds for all scenarios of a process unless a run says otherwise.

    default < configure() (successive calls accumulate) < arguments of run

None means "not said" everywhere but for `cache_key` in `run`, where None is an order: no cache. To tell that apart, the default of such
a parameter is :class:`Unset`, which prints as the documented value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from llmproxy.scenario.base.plain import Plain, names_of

if TYPE_CHECKING:
    from llmproxy.report.events import Handler
    from llmproxy.report.functions import HandlerLike

MAX_TURNS = 10
"""Turns of a scenario that says nothing, or 0."""


class Unset:
    """Stands for a parameter that was not given, and prints as the default that is documented for it."""

    __slots__ = ("shown",)

    def __init__(self, shown: object = None) -> None:
        """Print as `shown`, which is also what the parameter means when nothing else decides."""
        self.shown = shown

    def __repr__(self) -> str:
        return repr(self.shown)

    def __bool__(self) -> bool:
        return False

    def __copy__(self) -> Unset:
        return self

    def __deepcopy__(self, memo: object) -> Unset:
        return self


UNSET: Any = Unset(None)
"""A parameter that is documented as ``=None`` and was not given."""
UNSET_ZERO: Any = Unset(0.0)
"""A parameter that is documented as ``=0.0`` and was not given."""


@dataclass(kw_only=True, init=False)
class ModelConfig(Plain):
    """A model and how to call it; any further keyword of ``litellm.completion`` is taken, and kept in `extra`."""

    model: str
    api_key: str | None = field(default=None, repr=False)
    temperature: float = 0.0
    max_tokens: int | None = None
    api_base: str | None = None
    """Where the model is served. With a proxy it is the upstream of the session."""
    api_version: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of ``litellm.completion`` (`timeout`, `headers`, `client`); with others than plain parameters of OpenAI's, litellm
    makes the call."""
    _temperature_given: bool = field(default=False, init=False, repr=False, compare=False)

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        temperature: float = UNSET_ZERO,
        max_tokens: int | None = None,
        api_base: str | None = None,
        api_version: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401 (litellm's)
    ) -> None:
        """Remember whether the temperature was chosen: one that nobody chose is dropped for models that refuse it.

        `base_url`, litellm's other name of `api_base`, is taken for it.
        """
        if not model:
            raise ValueError(
                f"ModelConfig(model=...) takes the name of a model, such as 'openai/gpt-4.1-mini', not {model!r}"
            )
        given = {**(extra or {}), **more}
        other = given.pop("base_url", None)
        self.model, self.api_key, self.max_tokens = model, api_key, max_tokens
        self.api_base, self.api_version, self.extra = api_base or other, api_version, given
        self._temperature_given = not isinstance(temperature, Unset)
        self.temperature = temperature if self._temperature_given else 0.0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (litellm's)
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        raise AttributeError(f"ModelConfig has no {name!r}")

    @property
    def temperature_given(self) -> bool:
        """Whether the temperature was chosen by the user."""
        return self._temperature_given


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefaults:
    """What `configure` sets beside the documented fields, so that those stay as their users know them."""

    proxy: str | bool | None = None
    handlers: tuple[Handler, ...] = ()


@dataclass(kw_only=True)
class ScenarioConfig(Plain):
    default_model: str | ModelConfig | None = None
    """Model of simulators and judges that name none."""
    max_turns: int | None = MAX_TURNS
    verbose: bool | int | None = True
    """Whether to print the conversation; from 2 on, each line names its scenario."""
    cache_key: str | None = None
    """Switches the cache on, and tells one generation of its values from the next. Empty is off."""
    debug: bool | None = False
    """Whether to stop before every turn of the simulator and let a person write instead."""

    min_turns: int | None = None
    """Turns that must be over before a judge looks at the conversation by itself; a verdict that is demanded is given before."""
    headless: bool | None = None
    """Taken and ignored: nothing here opens a browser."""
    observability: Mapping[str, Any] | None = None
    """Taken and ignored: what the agent called is read off the wire."""

    default_config: ClassVar[ScenarioConfig | None] = None
    """What `configure` made so far."""
    defaults: ClassVar[ConfigDefaults] = ConfigDefaults()

    def __post_init__(self) -> None:
        """Refuse what would fail late and far from its cause."""
        for name in ("max_turns", "verbose"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise ValueError(f"{name} takes a number, not {value!r}")
        if self.min_turns is not None and (type(self.min_turns) is not int or self.min_turns < 0):
            raise ValueError(f"min_turns takes a number of turns from 0 on, not {self.min_turns!r}")
        if self.max_turns is not None and self.max_turns < 0:
            raise ValueError(f"max_turns takes a number of turns, not {self.max_turns}")
        if not isinstance(self.cache_key, (str, type(None))):
            raise ValueError(f"cache_key takes a text, not {self.cache_key!r}")  # noqa: TRY004 (one kind for all)

    @classmethod
    def configure(
        cls,
        default_model: str | ModelConfig | None = None,
        max_turns: int | None = None,
        verbose: bool | int | None = None,  # noqa: FBT001 (the documented parameters)
        cache_key: str | None = None,
        debug: bool | None = None,  # noqa: FBT001 - the original's parameter
        *,
        min_turns: int | None = None,
        headless: bool | None = None,
        observability: Mapping[str, Any] | None = None,
        proxy: str | bool | None = None,
        handlers: Sequence[HandlerLike] | None = None,
        **elsewhere: Any,  # noqa: ANN401 (refused by name)
    ) -> None:
        """Set defaults for all scenarios that start from now on; what is None stays as it is.

        `cache_key=""` switches the cache off. `proxy` is the URL of a running llmproxy, or True to start one; `handlers` (functions, or
        objects with `handle` and `close`) hear the events of every scenario (see `llmproxy.report.events`), an empty tuple removes them.
        """
        _refuse_unknown("configure", elsewhere)
        said = ScenarioConfig(
            default_model=default_model,
            max_turns=max_turns,
            verbose=verbose,
            cache_key=cache_key,
            debug=debug,
            min_turns=min_turns,
            headless=headless,
            observability=observability,
        )
        ScenarioConfig.default_config = (ScenarioConfig.default_config or ScenarioConfig()).merge(said)
        known = ScenarioConfig.defaults
        ScenarioConfig.defaults = ConfigDefaults(
            proxy=known.proxy if proxy is None else proxy,
            handlers=known.handlers if handlers is None else _handlers(handlers),
        )

    def merge(self, other: ScenarioConfig) -> ScenarioConfig:
        """Return a new configuration in which what `other` says (is not None) wins."""
        return ScenarioConfig(**{**self.items(), **other.items()})

    def items(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        found = {name: getattr(self, name) for name in names_of(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def turns(self) -> int:
        """How many turns a scenario may take: 0 and None mean the default."""
        return self.max_turns or MAX_TURNS


def _refuse_unknown(where: str, given: Mapping[str, Any]) -> None:
    from llmproxy.scenario.base.elsewhere import refuse_elsewhere

    for name in refuse_elsewhere(where, given):
        raise TypeError(f"{where}() got an unexpected keyword argument {name!r}")


def _handlers(given: Sequence[HandlerLike]) -> tuple[Handler, ...]:
    from llmproxy.report.functions import handlers_from

    return handlers_from(given)
