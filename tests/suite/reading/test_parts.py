"""Parts of other files, and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.load import LoadedSuites, load_suites
from llmproxy.suite.reading.shared_parts import find_files_of_scenarios_entry, find_suite_files, show_path
from llmproxy.suite.schema.assertions import JudgeAssertion
from llmproxy.suite.schema.suite import ChatStep, JudgeStep
from llmproxy.yaml_reader import Problems

SCENARIO = "scenarios: [{id: a, steps: [{chat: hi, totalToolCalls: 1}]}]\n"


def made(folder: Path, **files: str) -> LoadedSuites:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return load_suites([folder / "suite.yaml"])


def test_what_is_included_is_added_and_what_stands_here_wins(tmp_path: Path) -> None:
    """Variables, defaults and tags are merged; agent and store are taken whole; the last file of several goes first."""
    loaded = made(
        tmp_path,
        suite=f"name: s\ninclude: [one.yaml, two.yaml]\nvars: {{a: 1, url: $host/x}}\ndefaultTags: [own]\ndefaults: {{runs: 2}}\n{SCENARIO}",
        one="vars: {a: 9, b: 1, host: h}\nagent: {url: one}\ndefaultTags: [one]\ndefaults: {runs: 9, userId: u}\n",
        two="include: three.yaml\nvars: {b: 2}\nagent: {url: two}\n",
        three="vars: {c: 3}\nhooks: {beforeAll: [{command: make}]}\n",
    )
    (suite,) = loaded.suites
    (case,) = loaded.scenarios
    assert case.values == {"a": 1, "b": 2, "c": 3, "host": "h", "url": "$host/x"}
    assert case.scope(env={}).lookup_value("$url") == "h/x"
    assert suite.agent == {"url": "two"}
    assert (case.scenario.runs, case.scenario.user_id, case.scenario.tags) == (2, "u", ("one", "own"))
    assert suite.hooks is not None
    assert suite.hooks.before_all[0].command == "make"
    assert sorted(path.name for path in loaded.files) == ["one.yaml", "suite.yaml", "three.yaml", "two.yaml"]


@pytest.mark.parametrize(("part", "words"), [
    ("include: suite.yaml", "includes itself (suite.yaml -> part.yaml -> suite.yaml)"),
    ("include: part.yaml", "includes itself"),
    ("include: nothing.yaml", "there is no file"),
    ("name: x", "unknown key `name`"),
    ("defaults: {runs: no}", "part.yaml:1:18: `runs` takes a whole number"),
    ("[1]", "a file to include is one mapping"),
    ("a: 1\n---\nb: 1", "a file to include is one mapping"),
    ("", "the file is empty"),
    ("a: [", "this is no YAML"),
])  # fmt: skip
def test_a_part_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuiteError) as caught:
        made(tmp_path, suite=f"name: s\ninclude: part.yaml\n{SCENARIO}", part=part)
    assert words in str(caught.value)


DEFAULTS = """\
name: s
defaults: {userId: u, runs: 3, minPassRate: 0.5, timeout: 1m, settle: 50, observe: none, stepTimeout: 5s, waitTimeout: 2s,
  pollInterval: 10, ignoreCase: true, minEvidence: inferred, judgeModel: m/j, simulatorModel: m/s}
defaultTags: [all, x]
scenarios:
- &a
  id: a
  tags: x
  steps:
  - {chat: hi, response: {contains: A}}
  - {chat: hi, response: {contains: A, ignoreCase: false}, timeout: 1}
  - {chat: hi, response: {json: {a: 1}}}
  - {wait: {entity: t, until: {a: 1}}}
  - {wait: {entity: t, until: {a: 1}, timeout: 1, pollInterval: 2}}
  - {wait: {ms: 5}}
  - {judge: {criteria: [x]}}
  - {simulate: {goal: x, model: own}}
- id: b
  userId: own
  runs: 1
  observe: wire
  timeout: 5
  steps: [{chat: hi, messageProcessing: {pruner: {activated: true}}}]
"""


def test_defaults_hold_where_nothing_else_is_said(tmp_path: Path) -> None:
    """For scenarios, for steps, and deep inside of steps."""
    one, two = (case.scenario for case in made(tmp_path, suite=DEFAULTS).scenarios)
    assert (one.user_id, one.runs, one.min_pass_rate, one.timeout, one.settle, one.observe) == (
        "u", 3, 0.5, 60_000, 50, "none",
    )  # fmt: skip
    assert (two.user_id, two.runs, two.timeout, two.observe) == ("own", 1, 5, "wire")
    assert (one.tags, two.tags) == (("x", "all"), ("all", "x"))
    steps = [step.model_dump() for step in one.steps]
    assert [step["timeout"] for step in (steps[0], steps[1])] == [5000, 1]
    assert [step["response"]["ignore_case"] for step in steps[:3]] == [True, False, False]
    assert [(step["wait"]["timeout"], step["wait"]["poll_interval"]) for step in steps[3:5]] == [(2000, 10), (1, 2)]
    assert steps[5]["wait"]["ms"] == 5
    assert steps[6]["judge"]["model"] == "m/j"
    assert steps[7]["simulate"]["model"] == "own"
    assert two.steps[0].model_dump()["message_processing"]["min_evidence"] == "inferred"


def test_a_wrong_default_is_told_once(tmp_path: Path) -> None:
    """Where it stands, not at every scenario that it is for."""
    with pytest.raises(SuiteError) as caught:
        made(tmp_path, suite=DEFAULTS.replace("runs: 3", "runs: '3'"))
    assert str(caught.value).splitlines() == [
        f'{tmp_path}/suite.yaml:2:29: `runs` takes a whole number from 1, not text "3" (mind the quotes)'
    ]


def judging_of(loaded: LoadedSuites) -> JudgeAssertion:
    step = loaded.scenarios[0].scenario.steps[1]
    if isinstance(step, JudgeStep):
        return step.judge
    assert isinstance(step, ChatStep)
    assert step.response is not None
    assert step.response.judge is not None
    return step.response.judge


@pytest.mark.parametrize("said", ["It is kind", "[It is kind]", "{criteria: [It is kind]}"])
@pytest.mark.parametrize("place", ["{judge: SAID}", "{chat: hi, response: {judge: SAID}}"])
def test_the_suites_judge_model_is_for_every_form(tmp_path: Path, said: str, place: str) -> None:
    """Short ones too; a model that is named stays."""
    steps = f"[{{chat: hi, totalToolCalls: 0}}, {place.replace('SAID', said)}]"
    text = f"name: s\ndefaults: {{judgeModel: openai/gpt-4o-mini}}\nscenarios: [{{id: a, steps: {steps}}}]\n"
    judging = judging_of(made(tmp_path, suite=text))
    assert (judging.criteria, judging.model) == (("It is kind",), "openai/gpt-4o-mini")
    own = text.replace(said, "{criteria: [It is kind], model: openai/gpt-4.1}")
    assert judging_of(made(tmp_path, suite=own)).model == "openai/gpt-4.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "suite.yaml",
        "b.suite.yaml",
        "a.yaml",
        "deep/x.suite.yml",
        ".hidden/suite.yaml",
        "node_modules/suite.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("name: s", encoding="utf-8")
    return tmp_path


def names(paths: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_a_folder_means_its_suites(folder: Path) -> None:
    """`suite.yaml` and `*.suite.yaml`, also deeper; hidden folders and packages are passed over."""
    problems = Problems()
    assert names(find_suite_files([folder], problems), folder) == ["b.suite.yaml", "suite.yaml", "deep/x.suite.yml"]
    assert not list(problems)


def test_files_keep_their_order_and_come_once(folder: Path) -> None:
    """As typed, then as sorted; a file that two of them mean is read once."""
    made = find_suite_files([folder / "suite.yaml", f"{folder}/*.yaml", folder / "deep" / ".." / "a.yaml"], Problems())
    assert [path.name for path in made] == ["suite.yaml", "a.yaml", "b.suite.yaml"]


def test_what_means_nothing_is_a_problem(folder: Path) -> None:
    """A path with a slip, an empty glob, a folder without a suite."""
    problems = Problems()
    (folder / "empty").mkdir()
    assert find_suite_files([folder / "siute.yaml", f"{folder}/*.txt", folder / "empty"], problems) == []
    assert load_suites([]).scenarios == []
    with pytest.raises(SuiteError, match="there is no such file"):
        load_suites(["nowhere/suite.yaml"])
    told = [str(problem) for problem in problems]
    assert len(told) == 3
    assert "there is no such file (did you mean `suite.yaml`?)" in told[0]
    assert "no suite in this folder" in told[2]
    assert "llmproxy test --init" in told[2]


def test_entries_are_relative_to_their_folder(folder: Path) -> None:
    """Names and globs; one that means nothing is a problem."""
    problems = Problems()
    assert names(find_files_of_scenarios_entry(folder, "a.yaml", None, problems), folder) == ["a.yaml"]
    assert names(find_files_of_scenarios_entry(folder, "**/*.yml", None, problems), folder) == ["deep/x.suite.yml"]
    assert not list(problems)
    for entry in ("c.yaml", "*.json"):
        assert find_files_of_scenarios_entry(folder, entry, None, problems) == []
    assert ["no file is called so" in str(problem) for problem in problems] == [True, False]


def test_a_folder_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    (folder / "x.yaml").write_text("id: a", encoding="utf-8")
    assert len(find_files_of_scenarios_entry(folder, "*.yaml", None, Problems())) == 1


def test_paths_are_shown_as_they_are_typed(tmp_path: Path) -> None:
    assert show_path(Path("tests/x.yaml")) == "tests/x.yaml"
    assert show_path(tmp_path / "x.yaml") == str(tmp_path / "x.yaml")
