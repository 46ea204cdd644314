"""Every document of the guide loads, each alternative alone; and what its origin let pass does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.yaml_reader import Problems, YamlList, YamlMapping, read_yaml_file
from tests.suite.fragment import KINDS, load_fragment

GUIDE = Path(__file__).resolve().parents[2] / "fixtures" / "suites" / "guide.yaml"
NEEDS = {"$reminder.id": "reminder", "$parentTask.id": "parentTask"}
"""What documents of the guide refer to and do not declare."""


def documents() -> list[tuple[str, Any]]:
    problems = Problems()
    found = [value for value, _ in read_yaml_file(GUIDE, problems)]
    problems.raise_if_any()
    return [(each["kind"], body) for each in found for body in each.get("alternatives") or [each["yaml"]]]  # type: ignore[index,attr-defined]


DOCUMENTS = documents()


def test_the_guide_is_whole() -> None:
    """Nothing of it was lost on the way here."""
    assert len(DOCUMENTS) == 25
    assert {kind for kind, _ in DOCUMENTS} == set(KINDS)


@pytest.mark.parametrize(("kind", "body"), DOCUMENTS, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(DOCUMENTS)])
def test_every_document_of_the_guide_loads(kind: str, body: YamlMapping | YamlList) -> None:
    """As it is; one that uses a name that it does not declare says so, and loads once the name is declared."""
    needed = [name for text, name in NEEDS.items() if text in repr(body)]
    for name in needed:
        with pytest.raises(SuiteError, match=rf"\${name}\.id: nothing is called \${name}"):
            load_fragment(kind, body)
    assert load_fragment(kind, body, declared=needed) is not None


REFUSED = [
    # rows of B0 that are about reading: the origin took them and asserted nothing
    ("step", "{chat: hi, tool: {x: 1}}", "unknown key `tool` (did you mean `tools`?)"),
    ("scenario", "{id: a, runs: '5', steps: [{chat: hi}]}",
     '`runs` takes a whole number from 1, not text "5" (mind the quotes)'),
    ("response", "{mentions: x}", "unknown key `mentions`"),
    ("response", "{matches: x}", "unknown key `matches`"),
    ("tools", "{x: {min: 1}}", "unknown key `min`"),
    ("tools", "[{name: x, count: 1}]", "takes a mapping"),
    ("fields", "{title: {matches: x}}", "there is no matcher `matches`"),
    ("step", "{wait: {entity: x, fields: {a: 1}, timeoutSeconds: 5}}", "unknown key `timeoutSeconds`"),
    ("step", "{verify: {tasks: [{title: x}]}}", "unknown key `tasks`"),
    ("scenario", '{id: a, steps: [{chat: "about $parent.title"}]}', "nothing is called $parent"),
    ("messageProcessing", "{condensor: {activated: true}}", "did you mean `condenser`?"),
    # what would assert nothing
    ("tools", "{}", "at least one item"),
    ("response", "{ignoreCase: true}", "changes nothing here"),
    ("usage", "{anyOf: []}", "takes at least one item"),
    ("usage", "{estimate: true}", "nothing is asserted here"),
    ("messageProcessing", "{condenser: {}}", "nothing is asserted here"),
    ("fields", "{}", "asserts nothing"),
    ("step", "{verify: {entity: tasks, fields: {a: 1}}}", "`verify` selects nothing"),
    ("steps", "[]", "at least one item"),
    # traps
    ("step", "{chat: hi, continueConversation: yes}", "only true and false are booleans"),
    ("scenario", "{id: 5, steps: [{chat: hi}]}", "`id` takes a text, not a number 5 (put it in quotes)"),
    ("step", "{http: {url: x}}", "steps that call HTTP are not part of the format"),
    ("step", "{sql: x}", "steps that run SQL are not part of the format"),
    ("step", "chat", "a step"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "words"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_what_would_pass_by_accident_is_refused(kind: str, text: str, words: str) -> None:
    """Misspelt keys, numbers in quotes, empty assertions: a line of the file and what to write."""
    with pytest.raises(SuiteError) as caught:
        load_fragment(kind, text)
    assert words in str(caught.value)
    assert "fragment:1:" in str(caught.value)
