"""Who a simulated user is, as data: a name, a line about it, and how it behaves.

    "impatient"                      one of those that come along (prompts/personas.yaml)
    "my/persona.yaml", "who.md"      a file
    "a nurse on a night shift ..."   a text, at least two words
    Persona(name=..., about=...)     a value

A name that there is not is an error, never a description of one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmproxy.did_you_mean import nearest
from llmproxy.errors import SettingsError
from llmproxy.files import read_text
from llmproxy.scenario.prompts.load import data, fence_text

_MEMBERS = frozenset({"name", "about", "behaviour"})
_SUFFIXES = (".yaml", ".yml", ".md", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    name: str
    about: str = ""
    behaviour: Sequence[str] = ()
    """What such a person does, a sentence or two each."""

    def __post_init__(self) -> None:
        """Refuse one of whom nothing is said."""
        if isinstance(self.behaviour, str):
            object.__setattr__(self, "behaviour", (self.behaviour,))
        if not (self.about.strip() or self.behaviour):
            raise SettingsError(f"the persona {self.name!r} says nothing: it needs `about`, `behaviour`, or both.")

    def text(self) -> str:
        """Return the persona as a part of a prompt."""
        lines = [*([self.about] if self.about else []), *(f"- {each}" for each in self.behaviour)]
        return fence_text("persona", "\n".join(lines))


def persona_of(said: Persona | str | Path) -> Persona:
    """Return the persona that a name, a file, a text or a value means.

    Raises:
        SettingsError: there is no persona of that name, or the file cannot be read as one.

    """
    if isinstance(said, Persona):
        return said
    text = str(said).strip()
    if isinstance(said, Path) or text.endswith(_SUFFIXES):
        return _from_file(Path(said))
    known = personas()
    if text in known:
        return known[text]
    if len(text.split()) > 1:
        return Persona(name="", about=text)
    near = nearest(text, known)
    raise SettingsError(
        f"there is no persona {text!r}." + (f" Did you mean {near!r}?" if near else ""),
        hint=f"There are: {', '.join(known)}. A description of at least two words, a .yaml or a .md file is one too.",
    )


@cache
def personas() -> dict[str, Persona]:
    """Return the personas that come along, by name."""
    import yaml

    return {
        each.name: each
        for each in (_build_persona(entry, "prompts/personas.yaml") for entry in yaml.safe_load(data("personas.yaml")))
    }


def _from_file(path: Path) -> Persona:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the persona {str(path)!r} cannot be read: {error}") from error
    if path.suffix in {".md", ".txt"}:
        return Persona(name=path.stem, about=text.strip())
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise SettingsError(f"the persona {str(path)!r} is no YAML: {error}") from error
    return _build_persona(value, str(path))


def _build_persona(value: Any, where: str) -> Persona:  # noqa: ANN401 - any YAML
    if not isinstance(value, dict) or not value.keys() <= _MEMBERS or not all(_fits(each) for each in value.values()):
        raise SettingsError(
            f"{where} is no persona: it has `name`, `about` (texts) and `behaviour` (a list of texts), not {value!r}"
        )
    return Persona(**{"name": Path(where).stem, **value})


def _fits(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
