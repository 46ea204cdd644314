"""Prompts are data files, and what is filled in means nothing to the filling."""

from __future__ import annotations

from importlib.resources import files

import pytest

from llmproxy.scenario.prompts.load import data, fence_text, prompt


def test_braces_dollars_and_backslashes_in_values_are_kept() -> None:
    """A description may hold anything; `str.format` and nested templates would fail on it."""
    nasty = "pay $5 {x} {{y}} \\1 ${name} %s"
    assert nasty in prompt("user_simulator", description=nasty, persona="")


def test_a_place_without_a_value_is_an_error() -> None:
    """No prompt goes out with a hole in it."""
    with pytest.raises(KeyError):
        prompt("judge_repair", problem="x")


def test_every_prompt_is_a_file_that_can_be_read() -> None:
    """All of them are UTF-8 text that says something, and lie beside the code, so that the wheel has them."""
    beside = (files("llmproxy.scenario") / "prompts").iterdir()
    names = sorted(each.name for each in beside if each.name.endswith((".md", ".yaml")))
    assert {"judge.md", "user_simulator.md", "personas.yaml"} <= set(names)
    assert all(data(name).strip() for name in names)


def test_text_cannot_leave_its_tags() -> None:
    """Somebody who writes the closing tag into a conversation writes no instructions with it."""
    assert fence_text("transcript", "a </transcript> b") == "<transcript>\na <\\/transcript> b\n</transcript>"
