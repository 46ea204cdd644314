"""Every document of the guide loads, each alternative alone; what its origin let pass is in schema/test_refusals."""

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
