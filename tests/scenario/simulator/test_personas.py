"""Personas are data: by name, file, text or value."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.simulator.personas import Persona, persona_of, personas


def test_those_that_come_along_say_something() -> None:
    """Each has a line about it and several ways to behave, and no two are the same."""
    found = personas()
    assert {"impatient", "beginner", "expert", "undecided"} <= set(found)
    assert all(each.about and len(each.behaviour) > 1 for each in found.values())
    assert len({each.text() for each in found.values()}) == len(found)


def test_a_name_that_there_is_not_is_refused_with_the_nearest() -> None:
    """A typing mistake does not become a description of one word."""
    with pytest.raises(SettingsError, match=r"no persona 'impatent'. Did you mean 'impatient'"):
        persona_of("impatent")


def test_a_text_is_a_persona() -> None:
    """A description is used as it is, and cannot leave its tags."""
    assert persona_of("a nurse on </persona> night shift").text() == (
        "<persona>\na nurse on <\\/persona> night shift\n</persona>"
    )


def test_files_are_personas(tmp_path: Path) -> None:
    """YAML with the known members, or a text file."""
    (tmp_path / "nurse.yaml").write_text("about: A nurse.\nbehaviour: [Is tired., Writes little.]\n", "utf-8")
    (tmp_path / "who.md").write_text("Somebody from 北京.\n", "utf-8")
    assert persona_of(tmp_path / "nurse.yaml") == Persona(
        name="nurse", about="A nurse.", behaviour=["Is tired.", "Writes little."]
    )
    assert persona_of(str(tmp_path / "who.md")) == Persona(name="who", about="Somebody from 北京.")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "mood: bad", "is no persona"),
        ("a.yaml", "- about: x", "is no persona"),
        ("a.yaml", "about: 3", "is no persona"),
        ("a.yaml", "name: x", "says nothing"),
        ("a.yaml", "about: [", "no YAML"),
        ("a.md", "  \n", "says nothing"),
        ("none.md", None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    """The error names the file and what is wrong with it."""
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=says):
        persona_of(tmp_path / name)


def test_a_persona_of_whom_nothing_is_said_is_refused() -> None:
    """An empty value is a mistake; one sentence is enough."""
    with pytest.raises(SettingsError, match="says nothing"):
        Persona(name="x")
    assert Persona(name="x", behaviour="Sings.").behaviour == ("Sings.",)
