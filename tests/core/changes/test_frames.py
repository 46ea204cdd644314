"""What a client wrote itself, told apart from what stands between."""

from __future__ import annotations

import pytest

from llmproxy.core.changes.client_frames import ClientFrames, digest_line, frames_of
from llmproxy.core.providers.table import Client

OPENING, NEXT = "<system-reminder>", "As you answer, you can use the following context:"
OWN = (
    OPENING,
    NEXT,
    "# currentDate",
    "</system-reminder>",
    "---",
    "IMPORTANT: this context may or may not be relevant.",
)
FRAMES = ClientFrames({
    "lines": [digest_line(line) for line in OWN], "holes": ["Today's date is {}.", "You are the model named {*}."],
    "tools": [], "parameters": [], "members": [],
})  # fmt: skip


def text(*lines: str) -> str:
    """Return lines between the client's own, as one part."""
    return "\n".join(
        [OPENING, NEXT, *lines, "# currentDate", "Today's date is 2026-11-28.", OWN[-1], "</system-reminder>\n"]
    )


@pytest.mark.parametrize(("lines", "others"), [
    (("# House rules", "", "Be brief."), ["# House rules\n\nBe brief."]),
    (("Be brief.", "---", "Be kind."), ["Be brief.\n---\nBe kind."]),
    (("Be brief.", "---"), ["Be brief.\n---"]),
    ((f"{NEXT} Really.",), [f"{NEXT} Really."]),
    (("You are the model named Opus 5.",), []),
    ((), []),
])  # fmt: skip
def test_what_stands_between_is_kept_whole(lines: tuple[str, ...], others: list[str]) -> None:
    """Only whole lines of the client are its own; a short one that anybody writes is not, beside others' lines."""
    split = FRAMES.split(text(*lines))
    assert [*split.others] == others
    assert split.values == ("2026-11-28",)


@pytest.mark.parametrize(("part", "writes"), [
    (text("Be brief."), True),
    (f"{OPENING}\nWhat do my notes say?\n</system-reminder>", False),
    (f"{OPENING}\n</system-reminder>", False),
    (f"{text('Be brief.')}\nWhat do my notes say?", False),
    (f"What do my notes say?\n{text('Be brief.')}", False),
    ("What do my notes say?", False),
])  # fmt: skip
def test_a_tag_that_anybody_could_type_makes_no_frame(part: str, writes: bool) -> None:
    """A part of a user's message is the client's only if its head and its end are the client's very lines."""
    assert FRAMES.wrote_part(part) is writes


def test_frames_ship_for_two_agents() -> None:
    """Of other programs nobody knows what is theirs."""
    claude, codex = frames_of(Client("Claude Code", "2.1.332")), frames_of(Client("Codex", "0.171.0"))
    assert claude is not None
    assert codex is not None
    assert {"Bash", "Read"} <= claude.tools
    assert "exec_command" in codex.tools
    assert (
        claude.split(
            "You are Claude Code, Anthropic's official CLI for Claude, running within the Claude Agent SDK."
        ).others
        == ()
    )
    assert frames_of(Client("shop", "1.0")) is frames_of(None) is None
