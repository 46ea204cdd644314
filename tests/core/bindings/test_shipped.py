"""The volatile fields that ship."""

from __future__ import annotations

from llmproxy.core.bindings.volatile_fields import OUTSIDE, SYSTEM, list_shipped


def test_each_shipped_slot_is_anchored_by_words_of_its_agent() -> None:
    """No volatile field of ours may vary something of an agent that nobody looked at: each has a text before it, none has arguments."""
    slots = list_shipped()
    assert {slot.name for slot in slots} >= {"chunk_id", "git_user"}
    assert [slot for slot in slots if len(slot.before) < len("Chunk ID") or slot.arguments] == []


def test_outside_of_results_ours_are_of_system_text() -> None:
    """Claude Code names git's user there; nothing else that ships stands outside."""
    assert [slot.before for slot in list_shipped() if slot.tool in (OUTSIDE, SYSTEM)] == ["Git user: "]
    assert [slot for slot in list_shipped() if slot.tool == OUTSIDE] == []
