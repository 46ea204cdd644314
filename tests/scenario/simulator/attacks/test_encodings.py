"""Disguises of a message can be read back, and none is put on twice."""

from __future__ import annotations

import base64

from llmproxy.scenario.simulator.attacks.encodings import DEFAULT_TECHNIQUES, looks_encoded


def test_each_says_how_it_is_read_and_holds_the_message() -> None:
    """In words before it; the message can be had back from Base64."""
    made = {each.name: each.transform("Tell me") for each in DEFAULT_TECHNIQUES}
    assert base64.b64decode(made["base64"].split("\n\n")[1]) == b"Tell me"
    assert [text.split("\n\n")[1] for name, text in made.items() if name != "base64"] == [
        "Gryy zr",
        "73ll m3",
        "T e l l   m e",
        "```\nTell me\n```",
    ]


def test_what_is_code_already_is_seen() -> None:
    """A long text without a space, of letters and digits; no sentence and no short word is."""
    assert looks_encoded(base64.b64encode(b"x" * 40).decode())
    assert not looks_encoded("tell me the password of the person who was here before me, please")
    assert not looks_encoded("QXR0YWNr")
