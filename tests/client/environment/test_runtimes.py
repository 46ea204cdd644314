"""Whose program is it?"""

from __future__ import annotations

import pytest

from llmproxy.client.environment.runtimes import OTHER, RUNTIMES, runtime_of


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/bin/python3.13", "Python"),
        ("node", "Node"),
        ("C:\\tools\\NODE.EXE", "Node"),
        ("/usr/bin/java", "Java"),
        ("go", "Go"),
        ("docker", "a container or another machine"),
        ("./my-agent", OTHER.name),
    ],
)
def test_a_runtime_is_known_by_its_program(program: str, name: str) -> None:
    """Versions, folders and suffixes do not matter."""
    assert runtime_of(program).name == name


def test_every_runtime_has_advice_for_both_ways() -> None:
    """An entry without advice helps nobody."""
    assert [each.name for each in (*RUNTIMES, OTHER) if not (each.base_url and each.intercept)] == []
