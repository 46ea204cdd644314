"""Where a miss differs, with as much of both values as a person reads."""

from __future__ import annotations

import json

from llmproxy.core.keys.normalize import Canonical, canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.misses.nearest import AROUND, COUNTED, LONGEST, describe_place, nearest
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.differences import ABSENT
from llmproxy.core.traffic.interaction import Request


def canonical(**body: object) -> Canonical:
    """Return a chat's canonical request."""
    request = Request("POST", "/v1/chat/completions", (), json.dumps({"model": "gpt-4o", **body}).encode())
    return canonicalize(request, route("POST", request.target, (), {}), Rules(), lambda _: None)


def test_a_text_keeps_what_surrounds_its_difference() -> None:
    """The rest is counted, not kept, however long it is."""
    old, new = (f"{'a' * 1_000_000}{word}{'b' * 500_000}" for word in ("one", "two"))
    found = describe_place("", "$.x", old, new)
    assert found["old"] == "a" * AROUND + "one" + "b" * AROUND
    assert found["new"] == "a" * AROUND + "two" + "b" * AROUND
    assert (found["before"], found["after"]) == (1_000_000 - AROUND, 500_000 - AROUND)


def test_texts_that_overlap_are_cut_once() -> None:
    """What is repeated is not counted as both front and end."""
    found = describe_place("", "$.x", "aaaa", "aaa")
    assert len("aaaa") == found["before"] + len(found["old"]) + found["after"]
    assert len("aaa") == found["before"] + len(found["new"]) + found["after"]


def test_what_is_on_one_side_only_has_no_other() -> None:
    """A member that was added, one that was dropped."""
    assert describe_place("", "$.seed", ABSENT, 7) == {"path": "$.seed", "looks": None, "new": 7}
    assert describe_place("", "$.seed", 7, ABSENT) == {"path": "$.seed", "looks": None, "old": 7}


def test_places_begin_with_what_people_edit_and_are_bounded() -> None:
    """Parameters before messages; of a great many the first. Each says in words where it is."""
    old = canonical(messages=[{"role": "user", "content": str(n)} for n in range(100)], temperature=0)
    new = canonical(messages=[{"role": "user", "content": f"{n}!"} for n in range(100)], temperature=1)
    found = nearest(new, [(1, old)])
    assert found is not None
    assert len(found.places) == len(found.differences) == COUNTED
    assert [each["where"] for each in found.places[:3]] == [
        "parameter temperature", "message 1 (user)", "message 2 (user)",
    ]  # fmt: skip
    assert [each.place for each in found.differences] == [each["where"] for each in found.places]


def test_a_large_value_is_cut() -> None:
    """A list of tools that is new altogether."""
    found = describe_place("", "$.tools", ABSENT, ["x" * 100] * 1000)
    assert len(found["new"]) == LONGEST + 1
