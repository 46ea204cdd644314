"""Where things stand, and how what is wrong is told."""

from __future__ import annotations

import pytest

from llmproxy.did_you_mean import suggest
from llmproxy.errors import Exit, SuiteError
from llmproxy.suite.yaml.places import List, Map, Problems, SuiteProblems, YamlPlace, locate, place_of


def at(line: int, column: int = 1, file: str = "a.yaml") -> YamlPlace:
    return YamlPlace(file, line, column)


def tree() -> Map:
    """``tags: [x]`` in lines 2 and 3."""
    tags, root = List(at(2, 7)), Map(at(2))
    tags.put("x", at(3, 4))
    root.put("tags", tags, at(2, 1), at(2, 7))
    return root


def test_an_empty_list_of_problems_stops_nothing() -> None:
    """Nothing wrong: it goes on."""
    Problems().stop()


def test_all_problems_are_told_in_the_order_of_the_file() -> None:
    """One error, a line each, whatever was found first; those without a place come first."""
    problems = Problems()
    problems.add(at(9), "later", "a hint")
    problems.add(at(2, 3), "earlier")
    problems.add(None, "no such file")
    with pytest.raises(SuiteProblems) as caught:
        problems.stop()
    assert str(caught.value).splitlines() == ["no such file", "a.yaml:2:3: earlier", "a.yaml:9:1: later (a hint)"]
    assert isinstance(caught.value, SuiteError)
    assert caught.value.exit_code is Exit.USAGE


def test_files_stay_in_the_order_in_which_they_were_read() -> None:
    """Names do not sort them."""
    problems = Problems()
    problems.add(at(1, file="z.yaml"), "one")
    problems.add(at(1, file="a.yaml"), "two")
    problems.add(at(2, file="z.yaml"), "three")
    assert [problem.message for problem in problems] == ["one", "three", "two"]


def test_the_same_problem_is_told_once() -> None:
    """Two readers of one mistake do not double it."""
    problems = Problems()
    problems.add(at(1), "x")
    problems.add(at(1), "x")
    assert len(problems) == 1


def test_many_problems_are_cut() -> None:
    """A reader wants to repair the first ones."""
    problems = Problems()
    for line in range(1, 60):
        problems.add(at(line), "x")
    with pytest.raises(SuiteProblems, match="and 9 more problems"):
        problems.stop()


def test_places_of_members_and_keys_are_known() -> None:
    """A mapping knows where each key and value stands, a list each item, and itself for what it does not have."""
    root = tree()
    assert place_of(root, "tags", key=True) == at(2, 1)
    assert place_of(root, "tags") == at(2, 7)
    assert place_of(root["tags"], 0) == at(3, 4)
    assert place_of(root, "nothing") == root.place
    assert place_of({"plain": 1}) is None


def test_a_path_is_located_past_names_that_are_no_keys() -> None:
    """Branches of unions stand in pydantic's paths and not in files."""
    assert locate(tree(), ("(branch)", "tags", 0)) == at(3, 4)
    assert locate(tree(), ("tags", 7)) == at(2, 7)


def test_a_twin_is_changed_alone() -> None:
    """Defaults are put into a copy: an anchor may share the mapping."""
    root = tree()
    twin = root.twin()
    twin.put("id", "x", at(5), at(5))
    assert "id" not in root
    assert place_of(twin, "tags") == at(2, 7)


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("tool", ("tools", "response"), "did you mean `tools`?"),
        ("base_dir", ("baseDir", "name"), "did you mean `baseDir`?"),
        ("xyz", ("b", "a", "a"), "known here: a, b"),
        ("xyz", (), ""),
    ],
)
def test_a_near_name_is_meant(word: str, known: tuple[str, ...], hint: str) -> None:
    """Spelling and style of writing are forgiven in the hint."""
    assert suggest(word, known) == hint
