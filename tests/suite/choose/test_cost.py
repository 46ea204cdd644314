"""What a live run may spend is estimated before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.errors import SuiteError
from llmproxy.suite.choose.cost import estimate, refuse_costs
from llmproxy.suite.choose.options import Options
from llmproxy.suite.reading.load import SuiteCase
from tests.suite import rig
from tests.trace.observing.chats import NOW, Chats, said, user

TEXT = "name: t\nscenarios: [{id: one, runs: 3, steps: [{chat: x}]}, {id: two, steps: [{chat: x}]}]\n"


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Sequence[SuiteCase]]:
    """Return a store in which the first of two cases is recorded."""
    chats = Chats()
    _, made = chats.chat([user("x")], said("y"), usage={"prompt_tokens": 100_000, "completion_tokens": 1000})
    assert made is not None
    with FileStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as store:
        store.add(replace(made, cassette="t/one"), supersede=False)
    return tmp_path / "x.db", rig.cases_of(tmp_path, TEXT)


def test_recordings_are_added_up(recorded: tuple[Path, Sequence[SuiteCase]]) -> None:
    """Once for each run; what was never recorded is unknown."""
    found = estimate(*recorded)
    one = estimate(recorded[0], recorded[1][:1], runs=1)
    assert one.usd > 0
    assert (found.usd, found.unknown) == (one.usd * 3, ("two",))
    assert estimate(recorded[0].with_name("none.db"), recorded[1]).unknown == ("one", "two")


def test_too_much_is_refused(recorded: tuple[Path, Sequence[SuiteCase]]) -> None:
    """Before anything runs; in replay nothing is spent."""
    store, cases = recorded
    for mode, limit in (("replay", "0"), (None, "0"), ("record", "1000")):
        refuse_costs(store, cases, Options(mode=mode, max_cost=Decimal(limit)))
    with pytest.raises(SuiteError, match="this would cost"):
        refuse_costs(store, cases, Options(mode="record", max_cost=Decimal("0.0001")))
    assert (
        "nothing is known about the cost of two"
        in refuse_costs(store, cases, Options(mode="auto", max_cost=Decimal(9)))[0]
    )
    assert refuse_costs(store, cases, Options(mode="auto")) == []
