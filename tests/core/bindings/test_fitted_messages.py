"""Messages that were seen before are compared as a whole: with the same outcome, always."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    IdPair,
    IdPairs,
    MatchedMessageCache,
    MisfitReason,
    Mismatch,
    RunVariable,
    match_requests_with_bindings,
    rewrite_request_to_this_run,
)
from llmproxy.core.bindings.leaf_pairs import pair_request_leaves
from llmproxy.core.bindings.request_comparison import rewrite_chat_message_with_bindings
from llmproxy.core.misses.nearest_recording import find_messages_member
from tests.core.bindings import test_near_duplicates as near
from tests.core.bindings.test_property import make_worlds
from tests.support.messages import used, user
from tests.support.narrowing import narrow
from tests.support.renamings import REQUESTS, SLOTS, World

Json = Any
SEEDS = range(8)


@pytest.mark.parametrize("operation", REQUESTS)
def test_the_outcome_is_that_of_the_comparison_of_leaves(operation: str) -> None:
    """A renamed run, one whose ids are not one to one, one in which a text differs: the first, second and third time."""
    settled = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = make_worlds(rng := random.Random(seed))
        before, now = REQUESTS[operation](run, recorded), REQUESTS[operation](run, present)
        presents = [now, before, _changed(now, rng), _changed(before, rng)]
        if made:
            presents.append(REQUESTS[operation](run, World({**present.values, made[0]: recorded.values[made[0]]})))
        fitted = MatchedMessageCache()
        for known in (None, _some_ids(rng, before)):
            for _ in range(3):
                for each in presents:
                    wanted = match_requests_with_bindings(bindings, before, each, known)
                    assert match_requests_with_bindings(bindings, before, each, known, fitted) == wanted, seed
        settled += any(pair.texts for each in presents for pair in pair_request_leaves(before, each, fitted).messages)
    assert settled > len(SEEDS) // 4


def _changed(tree: Json, rng: random.Random) -> Json:
    """Return a request in which one letter of one text is another."""
    text = json.dumps(tree)
    at = rng.choice([n for n, letter in enumerate(text) if letter in "abcdef0123456789"])
    try:
        return json.loads(text[:at] + ("e" if text[at] != "e" else "f") + text[at + 1 :])
    except ValueError:
        return tree


def _some_ids(rng: random.Random, tree: Json) -> IdPairs:
    """Return ids as an earlier request may have made them, one of which stands in the request."""
    words = [word for word in json.dumps(tree).replace("/", " ").split() if word.isalnum() and len(word) > 5]
    return IdPairs([IdPair("x", "word", rng.choice([*words, "nothing1"]), "other99")])


@pytest.mark.parametrize("name", near.DUPLICATES)
def test_a_near_duplicate_is_a_miss_after_any_number_of_hits(name: str) -> None:
    """What fitted once does not let pass what differs."""
    recorded, bindings, fitted = (
        near._recorded(),
        Bindings(near.RECORDED, near.PRESENT, near.SLOTS),
        MatchedMessageCache(),
    )
    for _ in range(3):
        assert isinstance(match_requests_with_bindings(bindings, recorded, near._present(), None, fitted), Fit)
    present = near.plant(name)
    result = narrow(Mismatch, match_requests_with_bindings(bindings, recorded, present, None, fitted))
    assert result == match_requests_with_bindings(bindings, recorded, present)


def _chat(*messages: Json) -> Json:
    return {"messages": list(messages)}


A, B = [RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/b")]


@pytest.mark.parametrize(("recorded", "present"), [
    ([user([{"n": 1}])], [user([{"n": True}])]),
    ([user([{"n": 1}])], [user([{"n": 1.0}])]),
    ([user("/tmp/aé")], [user("/srv/bé")]),
    ([user([{"text": "in /tmp/a"}])], [user([{"text": "in /srv/b"}, {"text": "and"}])]),
    # Another folder, whose name goes on with a letter; likewise with a space that a shell escapes, and as a member.
    (used("run", '{"path": "/tmp/a\\u00e9"}'), used("run", '{"path": "/srv/b\\u00e9"}')),
    (used("run", '{"path": "/tmp/a\\\\ b"}'), used("run", '{"path": "/srv/b\\\\ b"}')),
    (used("run", '{"/tmp/a\\u00e9": 1}'), used("run", '{"/srv/b\\u00e9": 1}')),
])  # fmt: skip
def test_equal_in_python_or_as_written_is_not_equal_in_json(recorded: list[Json], present: list[Json]) -> None:
    """1, 1.0 and true are three values, and arguments are read as JSON, however often they are compared."""
    bindings, before, now = Bindings(A, B), _chat(*recorded), _chat(*present)
    for fits in ((True, False, False), (False, False, True)):
        fitted = MatchedMessageCache()
        for expected in fits * 2:
            asked = copy.deepcopy(before) if expected else now
            assert isinstance(match_requests_with_bindings(bindings, before, asked, None, fitted), Fit) is expected


def test_an_id_that_a_tool_makes_later_counts_in_what_fitted_before() -> None:
    """A message that was equal all the time is a leak once its word is known for a recorded id."""
    bindings, fitted = Bindings(A, B), MatchedMessageCache()
    before, now = (_chat(user("in " + cwd), *used("run", "{}", "made c0ffee12")) for cwd in ("/tmp/a", "/srv/b"))
    for _ in range(3):
        assert isinstance(match_requests_with_bindings(bindings, before, now, None, fitted), Fit)
    known = IdPairs([IdPair("made", "hex", "c0ffee12", "beefbeef")])
    assert (
        narrow(Mismatch, match_requests_with_bindings(bindings, before, now, known, fitted)).why is MisfitReason.LEAKED
    )


def test_a_message_after_another_call_is_that_tools_result() -> None:
    """One result in two conversations, of a tool with volatile fields in one of them."""
    bindings = Bindings(A, B, SLOTS)
    first, second = used("run", "{}", "Chunk ID: aabbcc\n/tmp/a")
    read = copy.deepcopy(first)
    read["tool_calls"][0]["function"]["name"] = "read"
    now = {**second, "content": "Chunk ID: ddeeff\n/srv/b"}
    fitted = MatchedMessageCache()
    for _ in range(3):
        assert isinstance(
            match_requests_with_bindings(bindings, _chat(read, second), _chat(read, now), None, fitted), Mismatch
        )
        assert isinstance(
            match_requests_with_bindings(bindings, _chat(first, second), _chat(first, now), None, fitted), Fit
        )


def test_a_value_is_known_as_it_reads_not_as_json_writes_it() -> None:
    """A folder beyond ASCII is escaped in the arguments of a call, and answers are written with the folder itself."""
    bindings = Bindings(A, [RunVariable("cwd", "/srv/\u00fcb")])
    before, now = (_chat(*used("run", json.dumps({"path": cwd}))) for cwd in ("/tmp/a", "/srv/\u00fcb"))
    fitted = MatchedMessageCache()
    for _ in range(3):
        fit = narrow(Fit, match_requests_with_bindings(bindings, before, now, None, fitted))
        assert fit.chosen == {"/tmp/a": {"/srv/\u00fcb"}}


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_message_is_told_as_in_the_whole(operation: str) -> None:
    """Who speaks, and what a tool was asked and answered, stands in the message itself."""
    told = 0
    for seed in range(12):
        run, _, recorded, _, bindings = make_worlds(random.Random(seed))
        tree = REQUESTS[operation](run, recorded)
        member, messages = find_messages_member(tree)
        whole = rewrite_request_to_this_run(bindings, tree)
        assert isinstance(whole, dict)
        assert [rewrite_chat_message_with_bindings(bindings, member, each) for each in messages] == whole[member]
        told += whole[member] != messages
    assert told > 3


def test_a_wrapped_body_is_told_in_its_wrapper_and_in_its_order() -> None:
    """Code Assist wraps requests; one may be empty, and JSON may name a member by nothing."""
    said = {"z": 1, "contents": [{"role": "user", "parts": [{"text": "in /tmp/a/x"}]}]}
    told = rewrite_request_to_this_run(Bindings(A, B), {"project": "p", "request": said})
    now = {**said, "contents": [{"role": "user", "parts": [{"text": "in /srv/b/x"}]}]}
    assert json.dumps(told) == json.dumps({"project": "p", "request": now})
    assert rewrite_request_to_this_run(Bindings(A, B), {"request": {}}) == {"request": {}}
    for name in ("", "request.x", "y"):
        for tree in ({name: "in /tmp/a/x", "a": 2}, {"request": {name: "in /tmp/a/x", "b": "y"}}):
            told = rewrite_request_to_this_run(Bindings(A, B), tree)
            assert json.dumps(told) == json.dumps(tree).replace("/tmp/a", "/srv/b")
