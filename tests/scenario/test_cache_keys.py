"""Keys of calls: what makes two calls the same, what does not, and what has no key."""

from __future__ import annotations

import datetime as dt
import functools
import io
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from enum import KEEP, Enum, IntFlag
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, SecretStr, create_model

from llmproxy.scenario import AgentInput, JudgmentRequest, ModelConfig, ScenarioConfig, ScenarioState
from llmproxy.scenario.cache import CachedFunction, NotCacheable
from tests.support.process import ROOT, clean_env

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=3)
    ),
    max_leaves=10,
)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Model(BaseModel):
    name: str
    api_key: str = ""
    secret: SecretStr = SecretStr("")


class Hidden(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "hidden"


class Bits(IntFlag, boundary=KEEP):
    ONE = 1


class Private(BaseModel):
    _mood: str = "calm"


@dataclass
class Record:
    a: object = None
    password: str = ""


def f(x: object, y: object = 2, *rest: object, z: object = None, **more: object) -> None:
    """Take anything."""


def g(x: object, y: object = 2, *rest: object, z: object = None, **more: object) -> None:
    """Take the same."""


class Agent:
    def __init__(self, model: str = "m", **more: Any) -> None:
        self.model = model
        self.__dict__.update(more)

    def ask(self, q: str) -> None:
        """Ask."""


class Other(Agent):
    """Another class with the same method."""


def key(*args: object, of: Any = f, ignore: tuple[str, ...] = (), state: tuple[str, ...] = (), **kwargs: Any) -> str:
    return CachedFunction(of, frozenset(ignore), state).call_key(args, kwargs, cache_key="k")


def test_every_way_of_writing_a_call_has_one_key() -> None:
    """Positional, by keyword, by default, in another order; generations and samples are apart."""
    assert len({key(1), key(x=1), key(1, 2), key(y=2, x=1), key(1, z=None)}) == 1
    assert key(1).startswith("call:")
    assert len(key(1)) == 5 + 64
    assert key(1) == key(1)
    call_key = CachedFunction(f).call_key
    assert len({call_key((1,), {}, cache_key=name, sample=sample) for name in "ab" for sample in (1, 2)}) == 4


@pytest.mark.parametrize(
    "other",
    [
        key(2), key(1, 5), key(1, z=1), key(1, 2, 3), key(1, extra=1), key(1, of=g), key(True), key(1.0), key("1"),
        key([1]), key((1,)),
    ],
)  # fmt: skip
def test_every_other_call_has_another_key(other: str) -> None:
    """Other values, keywords, functions; and 1 is neither True nor 1.0."""
    assert key(1) != other


@given(VALUES, VALUES)
def test_different_values_never_share_a_key(one: object, other: object) -> None:
    """As far as Python tells them apart, type by type."""
    assert (key(one) == key(other)) == (repr_of(one) == repr_of(other))


def repr_of(value: object) -> str:
    """Return a text that tells values and their types, whatever the order in dicts and sets."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{repr_of(k)}:{repr_of(v)}" for k, v in value.items())) + "}"
    if isinstance(value, frozenset):
        return "f{" + ",".join(sorted(map(repr_of, value))) + "}"
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + "[" + ",".join(map(repr_of, value)) + "]"
    return repr(value)


@pytest.mark.parametrize(("one", "other"), [
    (Colour.RED, Colour.BLUE),
    (Colour.RED, 1),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    (Decimal("1.0"), Decimal("1.00")),
    (Path("a"), Path("b")),
    (Model(name="a"), Model(name="b")),
    (Record(1), Record(2)),
    (Record(1), {"a": 1}),
    (Hidden("a"), Hidden("b")),
    (Bits(8), Bits(16)),
    (Agent, Other),
    (f, g),
])  # fmt: skip
def test_objects_count_by_their_value(one: object, other: object) -> None:
    """Enums, times, numbers, paths, models, dataclasses, classes, functions."""
    assert key(one) == key(one) != key(other)


@pytest.mark.parametrize("value", [
    object(),
    io.StringIO(),
    create_model("Model", temp=(int, 0)),
    lambda: 1,
    [1, [object()]],
    {"a": Agent()},
    Record(object()),
    (x for x in [1]),
    Mock(),
])  # fmt: skip
def test_what_has_no_value_has_no_key(value: object) -> None:
    """Never `str()` of it: the address in it changes, or it hides a difference. It says where it is."""
    with pytest.raises(NotCacheable, match="argument 'x'"):
        key(value)


def test_private_state_has_no_key() -> None:
    """It would be lost, so it must not be taken for nothing."""
    model = Private()
    assert key(model) == key(Private())
    model._mood = "angry"
    with pytest.raises(NotCacheable, match="private attributes are set"):
        key(model)


def test_cycles_have_no_key() -> None:
    """A list that holds itself has none; named tuples and ordered dicts count by name, order and value."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(NotCacheable, match="contains itself"):
        key(loop)
    shared = [1]
    assert key([shared, shared]) == key([[1], [1]])
    pair = namedtuple("pair", "a b")  # noqa: PYI024 (what programs pass)
    assert key(pair(1, 2)) == key(pair(1, 2)) != key((1, 2))
    assert key(pair(1, 2)) != key(pair(2, 1))
    assert key(OrderedDict(api_key="x")) == key(OrderedDict(api_key="y")) != key(OrderedDict(key="y"))


def test_what_is_ignored_does_not_count() -> None:
    """By position, by keyword, among further keywords; and it needs no value."""
    assert key(1, object(), ignore=("y",)) == key(1, ignore=("y",), y=3)
    assert key(1, ignore=("trace",), trace=object()) == key(1, ignore=("trace",))


def test_self_is_no_argument() -> None:
    """Its class counts, and of its fields those that are named, also deep ones."""
    ask = Agent.ask
    assert key(Agent("a"), "q", of=ask) == key(Agent("b"), "q", of=ask)
    assert key(Agent("a"), "q", of=ask) != key(Other("a"), "q", of=ask)
    assert key(Agent("a"), "q", of=ask, state=("model",)) != key(Agent("b"), "q", of=ask, state=("model",))
    deep = ("config.a",)
    cold, warm = (Agent(config=Record(n)) for n in (0, 1))
    assert key(cold, "q", of=ask, state=deep) != key(warm, "q", of=ask, state=deep)
    with pytest.raises(AttributeError, match="modle"):
        key(Agent(), "q", of=ask, state=("modle",))
    with pytest.raises(NotCacheable, match=r"self\.client"):
        key(Agent(client=object()), "q", of=ask, state=("client",))


def conversation(_llm: Any = None, **changes: Any) -> AgentInput:
    said: dict[str, Any] = {"thread_id": "t", "messages": [{"role": "user", "content": "hi"}]}
    said |= {"description": "d", "current_turn": 0, "config": ScenarioConfig(default_model="m")}
    state = ScenarioState(**said | {name: changes.pop(name) for name in tuple(changes) if name in said})
    given: dict[str, Any] = {"new_messages": [], **changes}
    return AgentInput(thread_id=state.thread_id, messages=state.messages, scenario_state=state, **given).set_llm(_llm)


@pytest.mark.parametrize("changes", [
    {"thread_id": "other"},
    {"config": ScenarioConfig(default_model="m", verbose=3, debug=True, max_turns=3, cache_key="x")},
    {"config": ScenarioConfig(default_model=ModelConfig(model="m", api_key="sk-other"))},
    {"_llm": object()},
])  # fmt: skip
def test_of_an_input_counts_what_it_means(changes: dict[str, Any]) -> None:
    """Not the thread, not how verbose it is, not whose key pays."""
    assert key(conversation()) == key(conversation(**changes))


@pytest.mark.parametrize("changes", [
    {"messages": []},
    {"new_messages": [{"role": "user", "content": "hi"}]},
    {"judgment_request": JudgmentRequest()},
    {"judgment_request": JudgmentRequest(additional_context="c")},
    {"judgment_request": JudgmentRequest(criteria=["c"])},
    {"description": "other"},
    {"current_turn": 1},
    {"config": ScenarioConfig(default_model="other")},
])  # fmt: skip
def test_of_an_input_everything_else_counts(changes: dict[str, Any]) -> None:
    """The conversation, what is asked for, the scenario, the model."""
    assert key(conversation()) != key(conversation(**changes))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Model(name="a", api_key="x"), Model(name="a", api_key="y")),
        (Model(name="a", secret=SecretStr("x")), Model(name="a", secret=SecretStr("y"))),
        (Record(1, password="x"), Record(1, password="y")),
        ({"OPENAI_API_KEY": "x"}, {"OPENAI_API_KEY": "y"}),
        (["Bearer sk-proj-abcdefghijklmnopqrstuvwx0123"], ["Bearer sk-proj-zyxwvutsrqponmlkjihgfed0123"]),
    ],
    ids=["api_key", "SecretStr", "password", "a dict", "its shape"],
)
def test_credentials_are_all_alike(one: object, other: object) -> None:
    """A new key finds the old answers, and no digest tells a key."""
    assert key(one) == key(other)


def test_words_that_only_sound_like_credentials_count() -> None:
    """A key of a table, a token of a page, a secret word: merging them would be a wrong answer."""
    for name in ("key", "token", "secret", "code"):
        assert key({name: "customer-0000000000000001"}) != key({name: "customer-0000000000000002"})


def test_a_name_with_a_mistake_in_it_is_refused() -> None:
    """It would silently do nothing; so is what is no function, and a wrong call in Python's own words."""
    with pytest.raises(ValueError, match=r"no such parameter; it has: self, q"):
        CachedFunction(Agent.ask, frozenset({"p"}))
    with pytest.raises(ValueError, match="no method"):
        CachedFunction(f, frozenset(), ("model",))
    with pytest.raises(TypeError, match="functions and methods"):
        CachedFunction(functools.partial(f, 1))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        key()


@pytest.mark.slow
def test_another_process_makes_the_same_key() -> None:
    code = (
        "from tests.scenario.test_cache_keys import key, conversation\n"
        "print(key({'b': {1, 'x', 3}, 'a': conversation()}))"
    )
    found = set()
    for seed in ("1", "2"):
        command, env = [sys.executable, "-c", code], clean_env({"PYTHONHASHSEED": seed})
        found.add(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, timeout=60).stdout)
    assert len(found) == 1
