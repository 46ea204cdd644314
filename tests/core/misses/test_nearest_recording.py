"""Which recording was meant."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from llmproxy.core.keys.normalize import Canonical, build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.misses.nearest_recording import (
    AROUND,
    COUNTED,
    LONGEST,
    RecordingToCurrentRunRewriter,
    find_nearest_recording,
    shorten_old_and_new_values,
    suggest_normalize_rules,
)
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Headers, Request
from llmproxy.core.traffic.json_diff import ABSENT
from llmproxy.settings import parse_normalize_rules
from tests.support.narrowing import known

Turn = tuple[str, str]


def canonical_of(
    tree: object,
    rules: Rules | None = None,
    *,
    target: str = "/v1/chat/completions",
    raw: bytes | None = None,
    headers: Headers = (("content-type", "application/json"),),
) -> Canonical:
    request = Request("POST", target, headers, json.dumps(tree).encode() if raw is None else raw)
    return canonicalize_request(request, route(target, headers), rules or Rules(), lambda _: None)


def canonical(
    *turns: Turn, target: str = "/v1/chat/completions", raw: bytes | None = None, **more: object
) -> Canonical:
    tree = {"model": "gpt-4o", "messages": [{"role": role, "content": text} for role, text in turns], **more}
    return canonical_of(tree, target=target, raw=raw)


SYSTEM = ("system", "You are a helpful travel agent.")


def test_no_candidates() -> None:
    assert find_nearest_recording(canonical(("user", "hi")), []) is None


TALK: list[Turn] = [SYSTEM, ("user", "a"), ("assistant", "b"), ("user", "c")]
BETA = (("content-type", "application/json"), ("openai-beta", "assistants=v2"))


def flight(day: str, **more: Any) -> Canonical:
    return canonical(SYSTEM, ("user", f"Find me a flight to Rome on {day}"), **more)


@pytest.mark.parametrize(("wanted", "recorded", "id_", "paths", "like"), [
    pytest.param(canonical(("user", "hello there")),
                 [(1, canonical(("user", "hello there"), target="/v1/responses")), (2, canonical(("user", "something else")))],
                 2, ["$.messages[0].content"], 0, id="the same operation beats likeness"),
    pytest.param(canonical(*TALK[:3], ("user", "changed")), [(n, canonical(*TALK[:n])) for n in range(1, 5)],
                 4, ["$.messages[3].content"], 0, id="the longest common beginning wins"),
    pytest.param(flight("Monday"), [
        (1, flight("Sunday", model="gpt-4o-mini")), *((n, canonical(SYSTEM, ("user", f"question {n} about the weather"))) for n in range(2, 40)),
        (40, flight("Tuesday")), (41, canonical(SYSTEM, ("user", "What is love?"))),
    ], 40, ["$.messages[1].content"], 0.8, id="then the model, then likeness"),
    pytest.param(canonical_of({}, headers=BETA), [(1, canonical(raw=b"{}"))], 1, ["headers.openai-beta"], 0, id="a header that counts"),
    pytest.param(canonical(raw=b"\xff" * 50 + b"old"), [(1, canonical(raw=b"\xff" * 50 + b"new"))], 1, ["body"], 0.9, id="no JSON"),
    pytest.param(canonical(("system", "be quick"), ("user", "plan it")), [
        (10, canonical(("system", "be kind"), ("user", "plan it"), ("assistant", "I do"), ("user", "plan it"))),
        (1, canonical(("system", "be brief"), ("user", "plan it"))),
    ], 1, ["$.messages[0].content"], 0, id="one difference is nearer than two"),
    pytest.param(canonical(("user", "count"), ("assistant", "step 2"), ("user", "on")),
                 [(1, canonical(("user", "count"), ("assistant", "step 1"), ("user", "on")))],
                 1, ["$.messages[1].content"], 0, id="a number in an answer is no counter, and no rule takes it out"),
])  # fmt: skip
def test_the_recording_that_was_meant_is_named(
    wanted: Canonical, recorded: list[tuple[int, Canonical]], id_: int, paths: list[str], like: float
) -> None:
    """With its differences, which the journal can write down."""
    found = known(find_nearest_recording(wanted, recorded))
    assert (found.id, found.same_operation, [each.path for each in found.differences]) == (id_, True, paths)
    assert found.similarity > like
    assert like or ([each.looks for each in found.differences], found.suggestion) == ([None], None)
    value = json.loads(json.dumps(found.to_dict()))
    assert (value["id"], [each["path"] for each in value["differences"]]) == (id_, paths)


def test_suggests_a_rule_that_helps() -> None:
    """A date in the system prompt brings a rule, and what stays different is counted."""
    old = canonical(("system", "Today is 2026-11-19. Be kind."), ("user", "hi"), temperature=0)
    new = canonical(("system", "Today is 2026-11-20. Be kind."), ("user", "hi"), temperature=1)
    suggestion = known(known(find_nearest_recording(new, [(1, old)])).suggestion)
    assert (suggestion.toml, suggestion.left) == ('packs = ["days"]', 1)


class Counting(RecordingToCurrentRunRewriter):
    """Counts the messages that somebody wanted in this run's words."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int]] = []
        self.wholes: list[int] = []

    def restate_message(self, id_: int, recorded: Canonical, n: int) -> object:
        self.messages.append((id_, n))
        return super().restate_message(id_, recorded, n)

    def restate_whole_recording(self, id_: int, recorded: Canonical) -> Canonical:
        self.wholes.append(id_)
        return super().restate_whole_recording(id_, recorded)


def test_only_what_decides_is_told_in_this_runs_words() -> None:
    """A conversation that parts in its second message is not read to its end, and only the best are read whole."""
    turns = [("user" if n % 2 else "assistant", f"some words, {n}") for n in range(100)]
    others = [(n, canonical(SYSTEM, ("user", f"question {'x' * n}"), *turns)) for n in range(49)]
    wanted = canonical(SYSTEM, *turns[:80], ("user", "and now?"))
    wording = Counting()
    assert known(find_nearest_recording(wanted, [*others, (99, canonical(SYSTEM, *turns))], wording)).id == 99
    assert len([n for id_, n in wording.messages if id_ != 99]) == 3 * 49  # two messages, and the last one
    assert wording.wholes == [99]


def test_what_varies_in_every_message_is_not_looked_at_without_end() -> None:
    """Fifty conversations with a number of their own in each message: the likest of those that agree so far is taken."""

    def numbered(seed: int, last: str) -> Canonical:
        return canonical(*(("user", f"row {seed} of {n}") for n in range(90)), ("user", last))

    wording = Counting()
    recorded = [(n, numbered(n, f"the {n}th end of all")) for n in range(50)]
    assert known(find_nearest_recording(numbered(1000, "the 31st end of all"), recorded, wording)).id == 31
    assert len(wording.messages) < 50 * 20
    assert len(wording.wholes) == 8


ONE, TWO = ("user", "paris: 7 degrees"), ("user", "oslo: 3 degrees")


@pytest.mark.parametrize(("recorded", "asked", "path"), [
    (canonical(SYSTEM, ONE, TWO), canonical(SYSTEM, TWO, ONE), "$.messages"),
    (canonical(("user", "a b c")), canonical(("user", "c a b")), "$.messages[0].content"),
    (canonical(ONE, tools=[{"name": "x"}, {"name": "y"}]), canonical(ONE, tools=[{"name": "y"}, {"name": "x"}]), "$.tools"),
    (canonical(SYSTEM, ONE, TWO), canonical(SYSTEM, ONE, ONE), ""),
    (canonical(ONE), canonical(ONE), ""),
])  # fmt: skip
def test_the_same_in_another_order_is_told_as_that(recorded: Canonical, asked: Canonical, path: str) -> None:
    """Permuted messages, members and words are one difference, with its place; no rule is advised."""
    found = known(find_nearest_recording(asked, [(1, recorded)]))
    assert (found.reordered, found.is_word_order) == (path, path.endswith("content"))
    assert not path or found.suggestion is None


@pytest.mark.parametrize(("recorded", "asked", "question"), [
    (canonical(SYSTEM, ("user", "to Rome")), canonical(SYSTEM, ("user", "to Paris")), True),
    (canonical(ONE), canonical(ONE, ("user", "to Paris")), True),
    (canonical(SYSTEM, ("user", "to Rome")), canonical(("user", "to Paris")), False),
    (canonical(("user", "Be kind.\nto Rome")), canonical(("user", "Be brief.\nto Rome")), False),
])  # fmt: skip
def test_another_question_is_told_from_an_edit(recorded: Canonical, asked: Canonical, *, question: bool) -> None:
    """Nothing of it can be accepted; one line of several may be a template."""
    assert known(find_nearest_recording(asked, [(1, recorded)])).is_other_question is question


def test_a_text_keeps_what_surrounds_its_difference() -> None:
    """The rest is counted, not kept, however long it is."""
    old, new = (f"{'a' * 1_000_000}{word}{'b' * 500_000}" for word in ("one", "two"))
    found = shorten_old_and_new_values("", "$.x", old, new)
    for side, word in (("old", "one"), ("new", "two")):
        assert found[side] == "a" * AROUND + word + "b" * AROUND
    assert (found["before"], found["after"]) == (1_000_000 - AROUND, 500_000 - AROUND)


def test_texts_that_overlap_are_cut_once() -> None:
    """What is repeated is not counted as both front and end."""
    found = shorten_old_and_new_values("", "$.x", "aaaa", "aaa")
    assert [found["before"] + len(found[side]) + found["after"] for side in ("old", "new")] == [4, 3]


def test_what_is_on_one_side_only_has_no_other() -> None:
    """A member that was added, one that was dropped; a list of tools that is new altogether is cut."""
    assert shorten_old_and_new_values("", "$.seed", ABSENT, 7) == {"path": "$.seed", "looks": None, "new": 7}
    assert shorten_old_and_new_values("", "$.seed", 7, ABSENT) == {"path": "$.seed", "looks": None, "old": 7}
    assert len(shorten_old_and_new_values("", "$.tools", ABSENT, ["x" * 100] * 1000)["new"]) == LONGEST + 1


def test_places_begin_with_what_people_edit_and_are_bounded() -> None:
    """Parameters before messages; of a great many the first. Each says in words where it is."""
    old = canonical(messages=[{"role": "user", "content": str(n)} for n in range(100)], temperature=0)
    new = canonical(messages=[{"role": "user", "content": f"{n}!"} for n in range(100)], temperature=1)
    found = known(find_nearest_recording(new, [(1, old)]))
    assert len(found.places) == len(found.differences) == COUNTED
    assert [each["where"] for each in found.places[:3]] == [
        "parameter temperature", "message 1 (user)", "message 2 (user)",
    ]  # fmt: skip
    assert [each.place for each in found.differences] == [each["where"] for each in found.places]


def chat(system: str, user: str = "hi", **more: object) -> dict[str, object]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more}


@pytest.mark.parametrize(("old", "new", "member"), [
    (chat("It is 2026-11-19."), chat("It is 2026-11-20."), "packs"),
    (chat("a", "It is 2026-11-19."), chat("a", "It is 2026-11-20."), "scrub"),
    (chat("It is 2026-11-19T10:00:00Z."), chat("It is 2026-11-20T11:30:00Z."), "packs"),
    (chat("run 123e4567-e89b-12d3-a456-426614174000"), chat("run 9b2e4567-e89b-12d3-a456-426614174111"), "packs"),
    (chat("a", "from /tmp/x1/y"), chat("a", "from /tmp/x22/y"), "scrub"),
    (chat("port http://localhost:41231/"), chat("port http://localhost:50112/"), "scrub"),
    (chat("2026-11-19 in /tmp/a1 at 10:15"), chat("2026-11-20 in /tmp/b2 at 11:20"), "scrub packs"),
    (chat("a", trace="9f8e7d6c5b4a"), chat("a", trace="1a2b3c4d5e6f"), "ignore"),
    (chat("a", at=1763550000), chat("a", at=1763550042), "ignore"),
])  # fmt: skip
def test_pasted_rule_makes_the_keys_equal(old: object, new: object, member: str) -> None:
    """What is suggested, pasted into pyproject.toml, makes one key of the two requests."""
    found = known(suggest_normalize_rules(canonical_of(old), canonical_of(new)))
    assert found.left == 0
    table = tomllib.loads(found.toml)
    assert list(table) == member.split()
    rules = Rules.from_settings(parse_normalize_rules(table))
    assert build_key(canonical_of(old)) != build_key(canonical_of(new))
    assert build_key(canonical_of(old, rules)) == build_key(canonical_of(new, rules))


@pytest.mark.parametrize(("old", "new"), [
    (canonical_of(chat("be kind")), canonical_of(chat("be rude"))),
    (canonical_of(chat("2026-11-19 be kind")), canonical_of(chat("2026-11-20 be rude"))),
    (canonical(raw=b"\xff2026-11-19"), canonical_of({})),
], ids=["a real change", "half volatile", "no JSON"])  # fmt: skip
def test_what_no_rule_makes_equal_brings_none(old: Canonical, new: Canonical) -> None:
    """A change that the caller made, a text that differs in more than volatile values, and what is no JSON."""
    assert suggest_normalize_rules(old, new) is None
