"""Values as texts and back: the same type by type, no pickle, no code from a file."""

from __future__ import annotations

import enum
import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from pydantic import BaseModel, Field, PrivateAttr, SecretStr

from llmproxy.scenario import ScenarioResult
from llmproxy.scenario.cache import NotCacheable, class_path, deserialize_cached_value, serialize_cached_value
from tests.support.process import ROOT, clean_env

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("$type"), inner, max_size=4),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "r"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Inner:
    colour: Colour
    pair: tuple[int, str]


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner | None = None
    made: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.made.append("made")


class Item(BaseModel):
    name: str = Field(alias="itemName")
    tags: list[str] = []
    _seen: int = PrivateAttr(default=0)


class Special(Item):
    watts: int = 40


class Basket(BaseModel, extra="allow"):
    items: list[Item]
    note: str | None = None


class Anything(BaseModel):
    value: Any


def back(value: object) -> Any:
    return deserialize_cached_value(serialize_cached_value(value))


@given(JSON)
def test_json_comes_back_as_it_is(value: object) -> None:
    """With its types: 1 is not 1.0 and not True; whatever a dict's keys look like."""
    assume("REDACTE" not in json.dumps(value))  # stands for a credential, which is refused
    found = back(value)
    assert found == value
    assert json.dumps(found) == json.dumps(value)


def test_objects_come_back_as_objects() -> None:
    """Tuples, enums, dataclasses (nothing of the class runs again), pydantic objects with aliases and extras, results."""
    basket = Basket.model_validate({"items": [{"itemName": "lamp"}], "colour": "red"})
    result = ScenarioResult(success=False, messages=[{"role": "user", "content": "hi"}], failed_criteria=["c"])
    for value in ((1, (2,)), Colour.RED, Outer("x", Inner(Colour.RED, (1, "y"))), basket, result):
        found = back(value)
        assert found == value
        assert type(found) is type(value)
    assert back(Outer("x")).made == ["made"]
    assert back(basket).colour == "red"
    assert back(Basket(items=[], **{"$type": "tuple"})).model_extra == {"$type": "tuple"}
    assert back(basket).model_fields_set == basket.model_fields_set


@pytest.mark.slow
def test_answers_of_known_sdks_come_back() -> None:
    """Messages and responses of openai, which programs return from cached functions."""
    from openai.types.chat import ChatCompletion

    from llmproxy.scenario.models.transport import import_litellm

    litellm = import_litellm()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "hi", "tool_calls": [call]},
    }
    answer = {"id": "x", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice]}
    for value in (
        litellm.Message(content="hi", role="assistant", tool_calls=[call]),
        litellm.ModelResponse(**answer),
        ChatCompletion.model_validate({**answer, "extra": [1]}),
    ):
        found = back(value)
        assert type(found) is type(value)
        assert found.model_dump() == value.model_dump()


@pytest.mark.parametrize("value", [
    object(),
    {1, 2},
    b"bytes",
    {1: "a"},
    math.nan,
    math.inf,
    lambda: 1,
    iter([]),
    [object()],
    {"a": {1: 2}},
    Anything(value={1, 2}),
    Path("a"),
    "my key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789",
    {"a": ["Bearer", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"]},
    Anything(value=SecretStr("hush")),
])  # fmt: skip
def test_what_would_not_come_back_is_not_kept(value: object) -> None:
    """Nor is a credential, in any part of a value."""
    with pytest.raises(NotCacheable):
        serialize_cached_value(value)


def test_flags_come_back_one_by_one() -> None:
    """A combination has no name that the class knows."""
    assert back(Right.READ) is Right.READ
    for combined in (Right.READ | Right.WRITE, Right(0), Inner(Right.READ | Right.WRITE, (1, ""))):  # type: ignore[arg-type]
        with pytest.raises(NotCacheable):
            serialize_cached_value(combined)


def test_a_key_of_the_environment_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYAPI_KEY", "MYSECRETVALUE123")
    with pytest.raises(NotCacheable, match="credential"):
        serialize_cached_value("the key is MYSECRETVALUE123")


@dataclass
class Titled(list[int]):
    title: str = ""


def test_a_class_that_cannot_be_found_is_not_kept() -> None:
    """Classes inside functions, subclasses of builtins, objects with more than their fields, or more than their data."""

    @dataclass
    class Hidden:
        a: int = 1

    class Words(list[str]):
        pass

    more = Inner(Colour.RED, (1, "y"))
    more.extra = 1  # type: ignore[attr-defined]
    titled = Titled("numbers")
    titled.append(1)
    for value in (Hidden(), Words(["a"]), more, [Hidden()], titled):
        with pytest.raises(NotCacheable, match=r"Hidden|Words|extra|Titled"):
            serialize_cached_value(value)


def test_a_field_that_is_new_gets_its_default() -> None:
    """An SDK that was updated reads what an older one answered; what is lost stays lost, and a subclass stays one."""
    old = json.loads(serialize_cached_value(Basket(items=[])))
    del old["is"]["note"]
    assert deserialize_cached_value(json.dumps(old)) == Basket(items=[])
    basket = Basket(items=[])
    del basket.note
    assert not hasattr(back(basket), "note")
    found = back(Basket(items=[Special(itemName="lamp")]))
    assert type(found.items[0]) is Special
    assert found.items[0].watts == 40


HOSTILE = [
    "os:system", "subprocess:Popen", "builtins:eval", "sys:modules", "posix:system", "llmproxy.__main__:run",
    "openai.__main__:x", "litellm.utils:os.system", "pathlib:Path", ":x", "x", "",
]  # fmt: skip


def test_nothing_unknown_is_imported(tmp_path: Path) -> None:
    """A module that the file names stays unimported; what is imported already may be rebuilt."""
    (tmp_path / "evil.py").write_text(
        "from dataclasses import dataclass\nprint('PWNED')\n@dataclass\nclass E:\n    a: int = 1\n"
    )
    code = """
from llmproxy.scenario.cache import NotCacheable, deserialize_cached_value
text = '{"$type": "evil:E", "is": {"a": 2}}'
try:
    deserialize_cached_value(text)
except NotCacheable as error:
    print("refused:", error)
import evil
print(deserialize_cached_value(text))
"""
    env = clean_env({"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    refused, printed, rebuilt = done.stdout.strip().split("\n")
    assert "the module evil is not imported" in refused
    assert (printed, rebuilt) == ("PWNED", "E(a=2)")


@pytest.mark.parametrize("text", ["", "{", "cos\nsystem"], ids=repr)
def test_a_broken_text_is_an_error(text: str) -> None:
    """ValueError: the caller calls the file damaged."""
    with pytest.raises(ValueError, match=r"\S"):
        deserialize_cached_value(text)


def test_an_old_shape_of_a_class_and_a_hostile_path_are_refused() -> None:
    """Fields that are gone, members that are gone, data that no longer fits; a path before anything is imported or called."""
    path = class_path(Inner)
    trees: list[dict[str, Any]] = [
        {"$type": "tuple"},
        {"$type": path},
        {"$type": 1, "is": {}},
        {"$type": path, "is": {"gone": 1}},
        {"$type": class_path(Colour), "is": "BLUE"},
        {"$type": class_path(Basket), "is": {"note": None}, "gone": [], "extra": {}, "set": []},
        {"$type": class_path(Basket), "is": {"items": [], "more": 1}, "gone": [], "extra": {}, "set": []},
        {"$type": class_path(Basket), "is": {}},
    ]
    for tree in (*trees, *({"$type": path, "is": {}, "gone": [], "extra": {}, "set": []} for path in HOSTILE)):
        with pytest.raises(NotCacheable):
            deserialize_cached_value(json.dumps(tree))
