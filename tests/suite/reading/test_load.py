"""From paths to what is run, or to everything that is wrong."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.load import LoadedSuites, find_probable_scenario_mistakes, load_suites
from llmproxy.yaml_reader import Problems, YamlMapping, read_documents

GUIDE = Path(__file__).resolve().parents[3] / "fixtures" / "suites" / "guide.yaml"
STEPS = "steps: [{chat: hi, totalToolCalls: 1}]"


def write(folder: Path, text: str, name: str = "suite.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, name: str = "suite.yaml") -> list[str]:
    with pytest.raises(SuiteError) as caught:
        load_suites([write(folder, text, name)])
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def ids(loaded: LoadedSuites) -> list[str]:
    return [case.id for case in loaded.scenarios]


def test_inline_scenarios_are_not_dropped(tmp_path: Path) -> None:
    """B0: the origin's runner found none in its own complete example, and called that a success."""
    example = GUIDE.read_text(encoding="utf-8").rpartition("yaml:\n")[2]
    loaded = load_suites([write(tmp_path, "\n".join(line[2:] for line in example.splitlines()))])
    (case,) = loaded.scenarios
    assert (case.id, case.title, case.scenario.tags) == ("task-001", "Create and complete task", ("smoke", "tasks"))
    assert case.suite.name == "Task Management Suite"
    assert case.captures == {"setupTask", "newTask"}
    assert not loaded.warnings


def test_a_bare_scenario_is_a_suite_of_one(tmp_path: Path) -> None:
    """Named after its file; several documents of a file belong together."""
    loaded = load_suites([write(tmp_path, f"id: a\n{STEPS}\n---\nid: b\n{STEPS}\n", "login.yaml")])
    assert ids(loaded) == ["a", "b"]
    assert [suite.name for suite in loaded.suites] == ["login"]


def test_a_file_may_hold_suites_and_scenarios(tmp_path: Path) -> None:
    one, two = (f"name: {name}\nscenarios: [{{id: {id_}, {STEPS}}}]" for name, id_ in (("one", "a"), ("two", "b")))
    loaded = load_suites([write(tmp_path, f"{one}\n---\n{two}\n---\nid: c\n{STEPS}\n")])
    assert [(case.id, case.suite.name) for case in loaded.scenarios] == [("a", "one"), ("b", "two"), ("c", "suite")]


def test_scenarios_come_from_files_and_globs_too(tmp_path: Path) -> None:
    """Relative to baseDir, which is relative to the suite; a file that two entries mean is read once, the suite itself never."""
    write(tmp_path, f"id: b\n{STEPS}\n", "parts/b.yaml")
    write(tmp_path, f"id: c\n{STEPS}\n---\nid: d\n{STEPS}\n", "parts/deep/c.yaml")
    path = write(tmp_path, f"name: s\nbaseDir: ./parts\nscenarios: [deep/c.yaml, {{id: a, {STEPS}}}, '**/*.yaml']\n")
    loaded = load_suites([path])
    assert ids(loaded) == ["c", "d", "a", "b"]
    assert {case.folder for case in loaded.scenarios} == {tmp_path}
    assert loaded.scenarios[0].path.name == "c.yaml"
    assert ids(load_suites([write(tmp_path, f"name: s\nscenarios: ['*.yaml', {{id: a, {STEPS}}}]\n")])) == ["a"]


def test_two_suites_may_share_a_folder_of_parts(tmp_path: Path) -> None:
    """Then the ids stand twice, and that is said, not hidden."""
    write(tmp_path, f"id: b\n{STEPS}\n", "parts/b.yaml")
    for name in ("x.suite.yaml", "y.suite.yaml"):
        write(tmp_path, "name: s\nscenarios: [parts/b.yaml]\n", name)
    with pytest.raises(SuiteError, match="the id `b` stands here twice"):
        load_suites([tmp_path])


def test_all_files_are_read_before_anything_is_said(tmp_path: Path) -> None:
    """Names, keys, ids, missing files and syntax, of every file, in their order."""
    write(tmp_path, "id: x\nsteps: [{caht: hi}]\n", "parts/bad.yaml")
    told = refused(
        tmp_path,
        f"name: s\nscenarios:\n- {{id: a, steps: [{{chat: $x.y}}]}}\n- {{id: a, {STEPS}}}\n- parts/bad.yaml\n- no.yaml\n- 5\n- {{id: b, {STEPS}, tag: x}}\n",
    )
    expected = [
        "suite.yaml:3:26: $x.y: nothing is called $x", "suite.yaml:4:8: the id `a` stands here twice",
        "suite.yaml:6:3: no.yaml: no file is called so", "suite.yaml:7:3: a scenario is a mapping",
        "suite.yaml:8:51: unknown key `tag` (did you mean `tags`?)", "parts/bad.yaml:2:9: a step has one of",
    ]  # fmt: skip
    assert [start for start in expected if not any(line.startswith(start) for line in told)] == []
    assert len(told) == len(expected)


def test_an_id_that_stands_twice_is_told_with_what_is_wrong_in_its_scenarios(tmp_path: Path) -> None:
    told = refused(tmp_path, f"name: s\nscenarios:\n- {{id: a, {STEPS}, tag: x}}\n- {{id: a, {STEPS}, tag: x}}\n")
    assert [line.partition(" (")[0] for line in told] == [
        "suite.yaml:3:51: unknown key `tag`",
        "suite.yaml:4:8: the id `a` stands here twice, first at suite.yaml:3:8",
        "suite.yaml:4:51: unknown key `tag`",
    ]


@pytest.mark.parametrize(("text", "words"), [
    ("- id: a", "this is a list, neither a suite nor a scenario"),
    ("name: s", "suite.yaml:1:1: this is neither a suite (it has no `scenarios`) nor a scenario"),
    ("name: s\nscenarois: []", "(did you mean `scenarios`?)"),
    ("name: s\nscenarios: {}", "takes a list"),
    (f"scenarios: [{{id: a, {STEPS}}}]", "`name` is missing"),
    (f"name: s\nbaseDir: 5\nscenarios: [{{id: a, {STEPS}}}]", "`baseDir` takes a text"),
    (
        f"name: s\nscenarios: [{{id: a, {STEPS}}}, {{id: a, {STEPS}}}]",
        "the id `a` stands here twice, first at suite.yaml:2:18 (ids are unique in a run)",
    ),
    (f"id: a\n{STEPS}\nid: b", "`id` stands here twice, first at line 1, column 1"),
    (f"id: a\n{STEPS}\nskip: no", "takes true, false or a reason"),
    (f"id: a\nvars: {{no-name: 1}}\n{STEPS}", "is no name for a variable"),
    ("id: a\nsteps: [{chat: hi, response: {regex: '(['}}]", "suite.yaml:2:38: `regex`: the pattern '(['"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    told = refused(tmp_path, text)
    assert len(told) == 1
    assert words in told[0]


def test_a_suite_is_no_scenario(tmp_path: Path) -> None:
    """Suites are named on the command line, not in other suites."""
    write(tmp_path, f"name: t\nscenarios: [{{id: a, {STEPS}}}]\n", "other.yaml")
    told = refused(tmp_path, "name: s\nscenarios: [other.yaml]\n")
    assert told == ["other.yaml:1:1: this is a suite, where a scenario is expected (it is named at suite.yaml:2:13)"]


def test_anchors_and_merges_make_scenarios(tmp_path: Path) -> None:
    """What is shared is written once, defaults and captures stay apart."""
    text = f"""\
name: s
defaults: {{runs: 2}}
scenarios:
- &base {{id: a, tags: [x], {STEPS}}}
- {{<<: *base, id: b, runs: 3}}
"""
    loaded = load_suites([write(tmp_path, text)])
    found = [(case.id, case.scenario.tags, case.scenario.runs) for case in loaded.scenarios]
    assert found == [("a", ("x",), 2), ("b", ("x",), 3)]


PARAMETRIZED = """\
id: a
name: Buy $what
vars: {shop: corner}
parametrize:
%s
steps: [{chat: "buy $what at $shop", totalToolCalls: $n}]
"""


@pytest.mark.parametrize(("sets", "made"), [
    ("- {what: milk, n: 1}\n- {what: bread, n: 2}", ["a[milk-1]", "a[bread-2]"]),
    ("- {id: one, what: milk, n: 1}\n- {what: bread, n: 2}", ["a[one]", "a[bread-2]"]),
    ("- {what: milk, n: 1}\n- {what: milk, n: 1}", ["a[1]", "a[2]"]),
    ("- {what: true, n: 1}\n- {what: null, n: 2}", ["a[True-1]", "a[None-2]"]),  # what recordings are called
    ("- {what: {x: 1}, n: 1}", ["a[1]"]),
    (f"- {{what: {'x' * 60}, n: 1}}", ["a[1]"]),
])  # fmt: skip
def test_each_set_of_parameters_is_a_case(tmp_path: Path, sets: str, made: list[str]) -> None:
    """Named by its id, else by its values if they are short and differ, else by its number."""
    assert ids(load_suites([write(tmp_path, PARAMETRIZED % sets)])) == made


def test_parameters_are_variables_that_keep_their_type(tmp_path: Path) -> None:
    """They win over others; titles are written with them."""
    case = load_suites([write(tmp_path, PARAMETRIZED % "- {id: m, what: milk, n: 2, shop: mall}")]).scenarios[0]
    scope = case.scope(run=3, user="u-3", env={})
    assert scope.interpolate_text("$what $shop $userId $runIndex $scenarioId") == "milk mall u-3 3 a[m]"
    assert scope.lookup_value("$n") == 2
    assert case.title == "Buy milk"
    assert case.scope(env={}).lookup_value("$userId") == "test-user"


def test_every_set_has_to_have_the_names(tmp_path: Path) -> None:
    """A set that lacks one is found at load, and ids have to differ."""
    lacking = PARAMETRIZED % "- {what: milk, n: 1}\n- {what: bread}"
    told = refused(tmp_path, lacking.replace("totalToolCalls: $n", "response: {contains: '${n}'}"))
    assert any("this case has no `n`, and others have one, for ${n}" in line for line in told)
    told = refused(tmp_path, PARAMETRIZED % "- {id: x, what: a, n: 1}\n- {id: x, what: b, n: 1}")
    twice = "the id `a[x]` stands here twice, first at suite.yaml:5:3 (ids are unique in a run)"
    assert told == [f"suite.yaml:6:3: {twice}"]


def test_doubts_do_not_stop_anything(tmp_path: Path) -> None:
    loaded = load_suites([write(tmp_path, "id: a\nsteps: [{chat: costs $price}]\n")])
    assert [str(doubt).partition(": ")[2][:40] for doubt in loaded.warnings] == [
        "nothing is asserted: the scenario passes",
        "$price is sent as it is: nothing is call",
    ]


def test_two_hundred_scenarios_load_quickly(tmp_path: Path) -> None:
    """In little time and memory; alone on the machine it is a fifth of a second."""
    one = "- id: t-{0}\n  steps:\n  - chat: add task {0}\n    tools: {{create: 1}}\n    created: [{{entity: t, as: $t, fields: {{title: '{0}'}}}}]\n  - {{chat: finish $t.title, continueConversation: true, tools: {{update: {{gte: 1}}}}}}\n"
    path = write(tmp_path, "name: s\nscenarios:\n" + "".join(one.format(i) for i in range(200)))
    tracemalloc.start()
    began = time.process_time()
    loaded = load_suites([path])
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded.scenarios) == 200
    assert seconds < 10
    assert peak < 20_000_000


def doubts(text: str) -> list[str]:
    found, problems = Problems(), Problems()
    root = read_documents(text, "f", problems)[0][0]
    assert isinstance(root, YamlMapping)
    find_probable_scenario_mistakes(root, found)
    return [str(each) for each in found]


@pytest.mark.parametrize(("text", "words"), [
    ("steps: [{chat: hi}]", "f:1:1: nothing is asserted"),
    ("steps: [{chat: hi}, {wait: {ms: 5}}]", "nothing is asserted"),
    ("steps: [{chat: hi, onlyTools: false}]", "nothing is asserted"),
    ("steps: [{chat: hi, tools: {count: 0}}]", "f:1:28: `count` is taken for the name of a tool here"),
    ("steps: [{chat: hi, tools: {gte: 1}}]", "`totalToolCalls` counts all calls"),
    ("steps: [{chat: hi, created: [{entity: t, as: $x}]}]", "$x is captured and never used"),
    ("steps: [{chat: hi, totalToolCalls: {gt: 5, lt: 3}}]", "no number is gt 5 and lt 3"),
    ("steps: [{chat: hi, totalToolCalls: {gt: 5, lte: 5}}]", "no number is gt 5 and lte 5"),
    ("parametrize: [{a: 1}, {b: 1, id: x}]\nsteps: [{chat: hi, totalToolCalls: 1}]", "do not have the same names"),
])  # fmt: skip
def test_what_is_doubtful_is_told(text: str, words: str) -> None:
    (doubt,) = doubts(text)
    assert words in doubt


@pytest.mark.parametrize("text", [
    "steps: [{chat: hi}, {verify: {entity: t, count: 1}}]",
    "steps: [{simulate: {goal: x, criteria: [y]}}]",
    "steps: [{simulate: {goal: x, maxTurns: 2}}]",
    "steps: [{chat: hi}]\nusage: {callCount: 1}",
    "steps: [{chat: hi, created: [{entity: t, as: $x}]}, {verify: {entity: t, id: $x}}]",
    "steps: [{chat: hi, totalToolCalls: {gte: 5, lte: 5}, response: {regex: [a, '^$', '(']}}]",
    "parametrize: [{a: 1, id: y}, {a: 2}]\nsteps: [{chat: hi, totalToolCalls: 1}]",
    "steps: 5",
])  # fmt: skip
def test_what_is_clear_is_left_alone(text: str) -> None:
    """A warning without a reason teaches people to read none."""
    assert doubts(text) == []
