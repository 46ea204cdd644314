"""Defaults, what `configure` makes of them, and what was given as opposed to what is default."""

from __future__ import annotations

import copy
import inspect
from typing import Any, cast

import pytest
from pydantic import ValidationError

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import UNSET, UNSET_ZERO, ModelConfig, ScenarioConfig
from tests.scenario.people import Ear

pytestmark = pytest.mark.usefixtures("untouched")


def test_documented_defaults() -> None:
    """As the pages list them; `default_config` is a copy from import time, as in the original."""
    config = ScenarioConfig()
    assert (config.default_model, config.max_turns, config.verbose, config.cache_key, config.debug) == (
        None, 10, True, None, False,
    )  # fmt: skip
    model = ModelConfig(model="openai/x")
    assert (model.api_key, model.temperature, model.max_tokens) == (None, 0.0, None)
    assert scenario.default_config is None


def test_merge_makes_a_new_one_in_which_what_is_not_none_wins() -> None:
    """Neither of the two changes; `items` leaves out None, and keeps a model as the object it is."""
    first, second = ScenarioConfig(max_turns=3, cache_key="k"), ScenarioConfig(max_turns=20)
    merged = first.merge(second)
    assert (merged.max_turns, merged.cache_key, first.max_turns) == (20, "k", 3)
    model = ModelConfig(model="openai/x", temperature=0.2)
    assert ScenarioConfig(default_model=model, debug=None).items() == {
        "default_model": model, "max_turns": 10, "verbose": True,
    }  # fmt: skip


def test_configure_accumulates() -> None:
    """Successive calls add up; None changes nothing, an empty cache key is an order; a model may be either kind."""
    scenario.configure(default_model="openai/x", max_turns=15)
    scenario.configure(verbose=2, default_model=None)
    found = ScenarioConfig.default_config
    assert found is not None
    assert (found.default_model, found.max_turns, found.verbose) == ("openai/x", 15, 2)
    scenario.configure(default_model=ModelConfig(model="m"))
    assert isinstance(ScenarioConfig.default_config and ScenarioConfig.default_config.default_model, ModelConfig)
    scenario.configure(cache_key="k")
    scenario.configure(cache_key=None)
    assert ScenarioConfig.default_config
    assert ScenarioConfig.default_config.cache_key == "k"
    scenario.configure(cache_key="")
    assert ScenarioConfig.default_config.cache_key == ""


def test_proxy_and_handlers_are_kept_beside_the_documented_fields() -> None:
    """They are no part of the configuration that users dump."""
    ear = Ear()
    scenario.configure(proxy="http://127.0.0.1:1", handlers=(ear,))
    scenario.configure(max_turns=3)
    assert list(ScenarioConfig.defaults) == ["http://127.0.0.1:1", (ear,)]
    scenario.configure(handlers=(), proxy=False)
    assert list(ScenarioConfig.defaults) == [False, ()]
    documented = {
        "default_model", "max_turns", "verbose", "cache_key", "debug", "min_turns", "headless", "observability",
    }  # fmt: skip
    assert set(ScenarioConfig().model_dump()) == documented


@pytest.mark.parametrize(("given", "want"), [(None, 10), (0, 10), (3, 3)])
def test_turns(given: int | None, want: int) -> None:
    """0 and None mean ten."""
    assert ScenarioConfig(max_turns=given).turn_limit == want


@pytest.mark.parametrize("wrong", [{"max_turns": "5"}, {"max_turns": -1}, {"verbose": "yes"}, {"cache_key": 3}])
def test_values_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ScenarioConfig(**wrong)
    with pytest.raises(ValidationError, match="at least 1 character"):
        ModelConfig(model="")


def test_a_temperature_that_was_chosen_is_known_as_such() -> None:
    """Also when it is the default's value, and in a copy."""
    chosen, default = ModelConfig(model="m", temperature=0.0), ModelConfig(model="m")
    assert (chosen.temperature_given, default.temperature_given) == (True, False)
    assert copy.copy(chosen).temperature_given
    assert chosen == default


def test_a_key_is_in_no_repr() -> None:
    assert "secret" not in repr(ScenarioConfig(default_model=ModelConfig(model="m", api_key="secret")))


def test_what_is_unset_prints_as_the_documented_default() -> None:
    def run(cache_key: str | None = UNSET, temperature: float = UNSET_ZERO) -> None: ...

    assert (
        str(inspect.signature(run)).replace("'", "")
        == "(cache_key: str | None = None, temperature: float = 0.0) -> None"
    )
    assert not UNSET


def test_a_model_takes_any_keyword_of_litellm() -> None:
    """They are kept apart, read as attributes, and `base_url` is the other name of `api_base`."""
    model = ModelConfig(model="openai/x", timeout=3, base_url="http://h/v1", extra={"seed": 1})
    assert (cast("Any", model).timeout, cast("Any", model).seed, model.api_base) == (3, 1, "http://h/v1")
    assert model.extra_parameters == {"seed": 1, "timeout": 3}
    assert not hasattr(model, "headers")
    assert copy.deepcopy(model) == model


def test_what_is_not_here_is_named() -> None:
    """Voice and remote traces are refused with a reason; a slip is an error as in every call."""
    with pytest.raises(SettingsError, match=r"configure\(fetch_remote_traces=...\) needs LangWatch's servers"):
        scenario.configure(fetch_remote_traces=True)
    scenario.configure(fetch_remote_traces=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'maxturns'"):
        scenario.configure(maxturns=3)
