"""A dataclass whose methods are made late is the same dataclass: each option is compared with Python's own."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from itertools import combinations, compress, product
from typing import Any, ClassVar

import pytest

from llmproxy.late_dataclass import dataclass

Class = Any
"""A class that is made here, or an instance of one."""
OPTIONS: list[dict[str, bool]] = [
    dict.fromkeys(names, True) | extra
    for count in range(4)
    for names in combinations(("frozen", "slots", "kw_only"), count)
    for extra in ({}, {"eq": False}, {"repr": False})
]
MORE: list[dict[str, bool]] = [{"order": True}, {"unsafe_hash": True}, {"init": False}, {"match_args": False}]


def make(decorator: Class, options: dict[str, bool]) -> Class:
    """Return a class with a field of each sort."""

    class Value:
        """One of each."""

        kind: ClassVar[str] = "x"
        number: int
        words: list[str] = field(default_factory=list)
        text: str = "text"
        hidden: int = field(default=1, repr=False, compare=False)
        made: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", self.number + 1)

        def twice(self) -> int:
            """Return a sum."""
            return self.number * 2

    return decorator(**options)(Value)


def told(cls: Class) -> list[object]:
    """Return what a class and its instances do, or how they refuse."""
    found: list[object] = [[(each.name, each.type, each.init, each.compare) for each in dataclasses.fields(cls)]]
    found += [cls.__match_args__ if hasattr(cls, "__match_args__") else None, cls.__name__, cls.__doc__]

    def tell(what: Callable[[], object]) -> None:
        try:
            found.append(what())
        except (TypeError, AttributeError) as error:
            found.append((type(error), str(error).replace(f"{cls.__qualname__}.", "")))

    def one(**more: object) -> Class:
        return cls(number=1, words=("a",), **more)

    for what in (
        lambda: repr(one(hidden=5)).partition("Value")[2].partition(" at 0x")[0],
        lambda: (one() == one(hidden=9), one() == one(text="y"), one() == 3, one() != one()),
        lambda: hash(one()) == hash(one(hidden=9)),
        lambda: cls.__hash__ is None,
        lambda: (one().made, one().twice(), one().kind, cls(number=2).words, cls(number=2).hidden),
        lambda: cls(1, ["a"], "b").text,
        lambda: repr(cls()),
        lambda: cls(number=1, other=2),
        lambda: cls(number=1, made=2),
        lambda: setattr(one(), "number", 5),
        lambda: setattr(one(), "other", 5),
        lambda: delattr(one(), "text"),
        lambda: dataclasses.replace(one(), number=8).made,
        lambda: dataclasses.asdict(one(hidden=3)),
        lambda: vars(one()),
        lambda: copy.copy(one(text="c")).text,
        lambda: copy.deepcopy(one(text="c")).text,
        lambda: one() < one(),
        lambda: weak(cls).added,
    ):
        tell(what)
    return found


def weak(cls: Class) -> Class:
    """Return an instance of a plain subclass that has something of its own."""

    class More(cls):  # type: ignore[misc]
        """One that may be set."""

    more = More(number=1)
    more.added = 3
    return more


@pytest.mark.parametrize("options", [*OPTIONS, *MORE], ids=lambda options: "-".join(options) or "plain")
def test_it_behaves_as_pythons_own(options: dict[str, bool]) -> None:
    """Fields, instances, comparison, hash, text, refusals, copies: by every option that it knows, and by those that it leaves alone."""
    ours, pythons = told(make(dataclass, options)), told(make(dataclasses.dataclass, options))
    # A frozen one with slots of Python 3.13 trips over itself where a name is none of its fields.
    sound = ["super(type, obj)" not in str(each) for each in pythons]
    assert list(compress(ours, sound)) == list(compress(pythons, sound))


@pytest.mark.parametrize(("first", "options"), list(product(["repr", "eq", "hash", "init"], [{"frozen": True}, {}])))
def test_the_first_call_makes_all_of_them(first: str, options: dict[str, bool]) -> None:
    """Whichever it is, from then on they are those that Python wrote."""
    cls = make(dataclass, options)
    one = cls(number=1)
    again = make(dataclass, options)
    before = again.__init__
    instance = object.__new__(again)
    for name in ("number", "words", "text", "hidden", "made"):
        object.__setattr__(instance, name, ())
    calls: dict[str, Callable[[object], object]] = {
        "repr": repr,
        "eq": lambda it: it == it,  # noqa: PLR0124 (it asks)
        "hash": hash,
        "init": lambda _: again(number=1),
    }
    if first == "hash" and not options:
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)
        return
    calls[first](instance)
    assert again.__init__ is not before
    assert again.__init__.__code__.co_varnames[:2] == ("self", "number")


@dataclass(frozen=True, slots=True)
class Pickled:
    """One that is found by its name."""

    number: int
    text: str = ""


def test_it_travels() -> None:
    """To another process and back, frozen and with slots as well."""
    assert pickle.loads(pickle.dumps(Pickled(3, "x"))) == Pickled(3, "x")


def test_a_class_with_a_base_of_fields_is_pythons_own() -> None:
    """What it inherits counts, and a thawed one is refused."""

    @dataclass(frozen=True)
    class Base:
        """A field."""

        number: int

    @dataclass(frozen=True)
    class More(Base):
        """Another."""

        text: str = "x"

    assert More(1) == More(1, "x")
    assert repr(More(1)).endswith("More(number=1, text='x')")
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclass
        class Thawed(Base):  # type: ignore[misc]
            """Nothing more."""
