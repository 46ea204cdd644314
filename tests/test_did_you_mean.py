"""The nearest word: near ones are offered, far ones are not, and odd characters are named."""

from __future__ import annotations

import ast

import pytest

from llmproxy.did_you_mean import did_you_mean, nearest_word, suggest_name
from tests.support.process import ROOT


def test_a_slip_is_offered_and_a_stranger_is_not() -> None:
    """Options, commands, names of scenarios: one form."""
    assert did_you_mean("recrod", ["record", "replay"]) == "; did you mean 'record'?"
    assert did_you_mean("xyz", ["record", "replay"]) == ""


@pytest.mark.parametrize(("close", "found"), [(0.6, "responses"), (0.99, None)])
def test_how_close_is_the_callers(close: float, found: str | None) -> None:
    """Where a wrong guess costs more, it must be closer."""
    assert nearest_word("response", ["responses", "judge"], close) == found


def test_a_hint_in_a_file_forgives_case_and_dashes_and_names_lookalikes() -> None:
    """What is known is said where nothing is near."""
    assert suggest_name("Total-Tool_Calls", ["totalToolCalls", "tools"]) == "did you mean `totalToolCalls`?"
    assert "cyrillic small letter o (U+043E)" in suggest_name("t\u043eols", ["tools"])
    assert suggest_name("tool", ("tools", "response")) == "did you mean `tools`?"
    assert suggest_name("base_dir", ("baseDir", "name")) == "did you mean `baseDir`?"
    assert suggest_name("zzz", ("b", "a", "a")) == "known here: a, b"
    assert suggest_name("zzz", []) == ""


def test_every_guess_at_a_word_is_made_in_one_place() -> None:
    """Who looks for near words elsewhere has another idea of what is near."""
    makers = set()
    for path in sorted((ROOT / "llmproxy").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "get_close_matches" in text else ():
            if getattr(node, "attr", getattr(node, "id", "")) == "get_close_matches":
                makers.add(path.relative_to(ROOT / "llmproxy").as_posix())
    assert makers == {"did_you_mean.py"}
