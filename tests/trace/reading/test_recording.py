"""A recorded cassette of a store as a trace."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from llmproxy.errors import CassetteCorrupt, CassetteNotFound
from llmproxy.trace import Cassette, spans_of
from llmproxy.trace.trace_file import build_trace_from_interactions
from tests.support.messages import said, user
from tests.trace.runs import NOW, chat, loop, recorded, store


def test_the_head_of_the_trace(tmp_path: Path) -> None:
    """Name, texts, totals, the time of the first request; the same for every export."""
    cassette = recorded(tmp_path / "x.db")
    assert (cassette.name, cassette.framework, cassette.id) == ("default", "llmproxy", "default~1")
    assert (cassette.input_text, cassette.output_text) == ("Weather in Paris?", "18 degrees.")
    assert (cassette.total_tokens, cassette.llm_call_count, cassette.tool_call_count) == (240, 4, 1)
    assert cassette.created_at == NOW + 1
    assert cassette == Cassette.from_store(tmp_path / "x.db", cassette="default")
    assert cassette.unknown == {}


def test_cassette_and_sample_are_chosen(tmp_path: Path) -> None:
    """Others in the same store are not looked at."""
    other = chat(5, [user("b")], said("B"), cassette="other", sample=2)
    path = store(tmp_path / "x.db", *loop(), other)
    assert Cassette.from_store(path, cassette="other", sample=2).output_text == "B"
    assert len(Cassette.from_store(path, cassette="default").get_llm_calls()) == 4
    with pytest.raises(CassetteNotFound, match=r"'other', sample 1; there are: default, other"):
        Cassette.from_store(path, cassette="other")


def test_the_agents_own_exchanges_by_default(tmp_path: Path) -> None:
    """What judges and the user simulator said is no behaviour of the agent; everybody's can be asked for."""
    path = store(tmp_path / "x.db", *loop(), chat(9, [user("Good?")], said("Yes."), party="judge"))
    assert Cassette.from_store(path, cassette="default").llm_call_count == 4
    assert Cassette.from_store(path, cassette="default", party=None).llm_call_count == 6
    assert [span.output for span in spans_of(path, cassette="default", party="judge")][-1] == "Yes."


def test_the_output_is_the_main_agents(tmp_path: Path) -> None:
    """The first thing said to it, and the last that it said; a sub-agent's words are its own."""
    path = store(tmp_path / "x.db", *loop(), chat(3, [user("And now?")], said("Later.")))
    assert Cassette.from_store(path, cassette="default").output_text == "Later."


def test_what_is_no_store(tmp_path: Path) -> None:
    """Missing or something else: an error, and nothing is made."""
    with pytest.raises(CassetteNotFound):
        Cassette.from_store(tmp_path / "none.db", cassette="x")
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(CassetteCorrupt):
        Cassette.from_store(tmp_path / "text.db", cassette="x")
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


def test_garbage_is_collected_again_afterwards(tmp_path: Path) -> None:
    """Building a trace leaves the interpreter as it was, after an error too."""
    recorded(tmp_path / "x.db")
    assert gc.isenabled()
    with pytest.raises(CassetteNotFound):
        Cassette.from_store(tmp_path / "x.db", cassette="nope")
    assert gc.isenabled()
    gc.disable()
    try:
        Cassette.from_store(tmp_path / "x.db", cassette="default")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_interactions_from_anywhere_are_a_trace(tmp_path: Path) -> None:
    """A file's, a proxy's: the same spans as from the store."""
    kept = Cassette.from_store(store(tmp_path / "x.db", *loop()), cassette="default")
    made = build_trace_from_interactions(loop(), "mine")
    assert (made.name, made.output_text, made.total_tokens) == ("mine", kept.output_text, kept.total_tokens)
    assert [(each.id, each.kind, each.output) for each in made.spans] == [
        (each.id, each.kind, each.output) for each in kept.spans
    ]
