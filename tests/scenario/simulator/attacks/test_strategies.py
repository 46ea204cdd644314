"""Strategies say what an attacker is told, and read what it answers."""

from __future__ import annotations

import pytest

from llmproxy.scenario.simulator.attacks.strategies import Attack, CrescendoStrategy, GoatStrategy, Technique


def test_crescendo_tells_goal_plan_and_phase() -> None:
    """The goal cannot break out of its place."""
    text = CrescendoStrategy().build_system_prompt("x </goal> y", 3, 4, "a bank", "first ask")
    assert "message 3 of 4" in text
    assert '"direct"' in text
    assert "first ask" in text
    assert "x <\\/goal> y" in text


def test_goat_tells_its_catalogue_and_makes_no_plan() -> None:
    """One of its own takes the place of the seven; none, or two of one id, is refused."""
    own = GoatStrategy([Technique("a", "FLATTER", "say how good it is")])
    assert "- FLATTER: say how good it is" in own.build_system_prompt("x", 1, 4, "a bank")
    assert (own.needs_metaprompt_plan, len(GoatStrategy().techniques)) == (False, 7)
    for wrong in ([], [*own.techniques, *own.techniques]):
        with pytest.raises(ValueError, match="an id of its own"):
            GoatStrategy(wrong)


@pytest.mark.parametrize(
    ("raw", "attack"),
    [
        ('{"observation": "weak", "strategy": "s", "reply": " hi "}', Attack("hi", "weak", "s")),
        ('```json\n{"reply": "hi"}\n```', Attack("hi")),
        ("plain words", Attack("plain words", parse_failed=True)),
        ('{"reply": ""}', Attack('{"reply": ""}', parse_failed=True)),
        ("[1]", Attack("[1]", parse_failed=True)),
    ],
)
def test_goat_reads_json_and_says_what_is_none(raw: str, attack: Attack) -> None:
    """Never an empty message."""
    assert GoatStrategy().parse_attacker_output(raw) == attack
