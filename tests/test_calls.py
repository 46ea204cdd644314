"""What calls come to, and what a run that is to prove something must be."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from llmproxy.calls_and_totals import KEPT_MISSES, Call, Totals, find_strict_violations
from llmproxy.protocol import Decision

ASKED = Call(decision=Decision.REPLAY, method="POST", target="/v1/chat/completions", status=200, interaction=1)
HIT = ASKED._replace(model="gpt-4o", input=10, output=2, cost=Decimal("0.10"))


def call(**changes: Any) -> Call:
    return HIT._replace(**changes)


def test_what_was_saved_is_not_what_was_spent() -> None:
    """Money and tokens of replayed and of live calls are kept apart; tokens are given as one sum."""
    totals = Totals()
    totals.add(HIT)
    totals.add(HIT)
    totals.add(call(decision=Decision.RECORD, cost=Decimal("0.30")))
    totals.add(call(decision=Decision.PASS, cost=Decimal("0.05"), interaction=None))
    said = totals.to_json()
    assert (said["hits"], said["recorded"], said["passed"], said["live_calls"]) == (2, 1, 1, 2)
    assert (said["cost_not_spent"], said["cost_spent"]) == (0.2, 0.35)
    assert said["tokens"] == {"input": 40, "output": 8}


def test_an_unknown_price_is_unknown() -> None:
    """A call of a model that nobody can price is counted as unpriced and makes no sum; one that is known counts alone."""
    totals = Totals()
    totals.add(call(cost=None))
    assert (totals.to_json()["cost_not_spent"], totals.to_json()["unpriced"]) == (None, 1)
    totals.add(HIT)
    assert (totals.to_json()["cost_not_spent"], totals.to_json()["unpriced"]) == (0.1, 1)
    assert totals.to_json()["unpriced_live"] == 0, "a hit costs nothing, whatever its price is"
    totals.add(call(decision=Decision.RECORD, cost=None))
    assert Totals.parse_fields(totals.to_json())["spent"].unpriced == 1


def test_what_costs_nothing_is_not_unpriced() -> None:
    """Listing models and a throttled call have no price because they are free."""
    totals = Totals()
    totals.add(call(method="GET", target="/v1/models", model=None, input=None, output=None, cost=None))
    totals.add(call(status=429, input=None, output=None, cost=None))
    assert totals.to_json()["unpriced"] == 0


def test_unknown_tokens_are_null_and_not_0() -> None:
    """Of a session and of a party; the known ones count alone."""
    totals = Totals()
    assert totals.to_json()["tokens"] == {"input": 0, "output": 0}
    totals.add(call(input=None, output=None, cost=None))
    assert totals.to_json()["tokens"] == {"input": None, "output": None}
    assert Totals.parse_fields(totals.to_json())["parties"]["agent"] == totals.parties["agent"]
    totals.add(call(output=None))
    assert totals.to_json()["tokens"] == {"input": 10, "output": None}


def test_recorded_is_what_is_in_the_store() -> None:
    """An answer that was lost, and one that never came, were calls but no recordings; nothing is ever negative."""
    totals = Totals()
    totals.add(call(decision=Decision.RECORD, interaction=None, lost=True))
    totals.add(call(decision=Decision.RECORD, interaction=None, status=0, cost=None))  # the client left
    totals.add(call(decision=Decision.PASS, interaction=None, lost=True))  # its usage could not be read
    said = totals.to_json()
    assert (said["recorded"], said["failed"], said["live_calls"], said["passed"]) == (0, 2, 3, 1)


def test_a_miss_is_not_any_refusal() -> None:
    """Only what was looked up and not found is a miss; refusals cost nothing and belong to no party."""
    totals = Totals()
    refused = call(decision=Decision.REFUSE, status=404, interaction=None, cost=None)
    totals.add(refused._replace(miss=True), "no recorded response")
    totals.add(refused._replace(status=413))
    said = totals.to_json()
    found = (said["misses"], said["refused"], said["miss_texts"], said["parties"])
    assert found == (1, 1, ["no recorded response"], {})


def test_parties_are_counted_apart() -> None:
    """The judge's calls are not the agent's."""
    totals = Totals()
    totals.add(HIT)
    totals.add(call(party="judge.2", input=7, output=1, cost=None))
    totals.add(call(party="judge.2", input=7, output=1, decision=Decision.RECORD))
    assert totals.to_json()["parties"] == {
        "agent": {"calls": 1, "input": 10, "output": 2, "cost": 0.1, "unpriced": 0},
        "judge.2": {"calls": 2, "input": 14, "output": 2, "cost": 0.1, "unpriced": 1},
    }


def test_texts_of_misses_are_bounded() -> None:
    """An agent in a loop of misses does not fill the memory; each is still counted."""
    totals = Totals()
    for n in range(100):
        totals.add(call(decision=Decision.REFUSE, miss=True), f"miss {n}")
    assert totals.misses == 100
    assert totals.miss_texts == [f"miss {n}" for n in range(KEPT_MISSES)]


def test_parties_have_an_order_of_their_own() -> None:
    """A report does not depend on who asked first."""
    one, other = Totals(), Totals()
    one.add(call(party="agent"))
    one.add(call(party="user"))
    other.add(call(party="user"))
    other.add(call(party="agent"))
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_a_sum_of_counters_counts_what_each_counted() -> None:
    """One by one or in two parts: the sums are equal."""
    calls = [HIT, call(party="user", bound=("day",)), call(decision=Decision.REFUSE, miss=True, cost=None)]
    whole, parts = Totals(), [Totals(), Totals()]
    for number, each in enumerate(calls * 2):
        whole.add(each, "no" if each.miss else "")
        parts[number % 2].add(each, "no" if each.miss else "")
    parts[0].merge(parts[1])
    assert parts[0] == whole


def test_a_call_is_read_as_it_was_told() -> None:
    """The JSON form keeps what clients are told of a call; what another version says is left out."""
    told = HIT._replace(method="", target="", input=None, output=None, cost=None, fault="cut", seq=3, at=1.5)
    assert Call.from_json(told.to_json() | {"news": 1}) == told
    assert Call.from_json({"decision": "NEWS"}).decision == "NEWS"


@pytest.mark.parametrize(("totals", "unused", "fail_on_miss", "strict"), [
    (Totals(hits=3), 0, (), ()),
    (Totals(), 0, ("no request came",), ("no request came",)),
    (Totals(refused=1), 0, *[("no request came but what was refused",)] * 2),
    (Totals(misses=1), 0, ("1 miss",), ("1 miss",)),
    (Totals(misses=2, bound=1), 0, ("2 misses",), ("2 misses", "1 hit was bound, not exact")),
    (Totals(hits=3), 1, (), ("1 recording unused",)),
    (Totals(hits=3), None, (), ("nothing is known of unused recordings",)),
])  # fmt: skip
def test_each_doubt_is_named(
    totals: Totals, unused: int | None, fail_on_miss: tuple[str, ...], strict: tuple[str, ...]
) -> None:
    """--fail-on-miss wants use and no miss; --strict also every recording used, and exact hits only."""
    used = totals.calls > totals.refused
    assert find_strict_violations(totals, unused, used=used, fail_on_miss=True, strict=False) == fail_on_miss
    assert find_strict_violations(totals, unused, used=used, fail_on_miss=False, strict=True) == strict
    assert find_strict_violations(totals, unused, used=used, fail_on_miss=True, strict=True) == strict


def test_without_either_nothing_is_doubted() -> None:
    """Who has not asked for a proof gets none."""
    assert find_strict_violations(Totals(misses=9, bound=9), 9, used=False, fail_on_miss=False, strict=False) == ()
