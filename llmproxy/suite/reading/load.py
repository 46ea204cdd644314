"""Loading of suites from paths: the scenarios to run, or all errors at once.

Nothing of a file is used unless all of it is valid. The order is that of the paths and of the files. A column of a
`parametrize` file that no step uses is reported as a warning.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llmproxy.did_you_mean import suggest_name
from llmproxy.scenario.values.data_files import ID, LONGEST_NAME, DataFileError, name_data_cases, read_data_file_rows
from llmproxy.suite.matchers.apply import COMPARISONS
from llmproxy.suite.matchers.registry import quote
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError, strip_dollar
from llmproxy.suite.reading.scenario_step_checks import (
    ScenarioVariableChecker,
    keep_only_dicts_of_list,
    list_capture_names,
)
from llmproxy.suite.reading.shared_parts import (
    apply_suite_defaults_to_scenario,
    find_files_of_scenarios_entry,
    find_suite_files,
    merge_included_suite_parts,
    show_path,
)
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.suite.schema.base_nodes import collect_validation_errors
from llmproxy.suite.schema.suite import ABOUT_WIRE, Defaults, Scenario, Suite
from llmproxy.yaml_reader import Problems, YamlList, YamlMapping, YamlPlace, get_yaml_place, read_yaml_file

_ASSERTING = (*ABOUT_WIRE, "response", "created")
_NOT_TOOLS = frozenset({*ToolExpect.known_keys(), *COMPARISONS})
_MOST_CELLS = 1_000
"""Maximum cells of one scenario over all sets: each is a run that costs money, and a recording."""
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_EMPTY = (
    "a suite has `name` and `scenarios`, a scenario has `id` and `steps`; `llmproxy test --init` writes a first one"
)
USER = "test-user"


def _name_axis_values(values: Sequence[object]) -> list[str]:
    texts = [_format_scalar_or_empty(each) for each in values]
    good = all(text and len(text) <= LONGEST_NAME for text in texts) and len(set(texts)) == len(texts)
    return texts if good else [str(number) for number in range(1, len(texts) + 1)]


def _format_scalar_or_empty(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, str | int | float) else ""


def _drop_parameter_set_id(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(parameters, YamlMapping):
        return {name: value for name, value in parameters.items() if name != "id"}
    made = parameters.copy_with_places()
    made.pop("id", None)
    return made


def _convert_matrix_to_parametrize(raw: YamlMapping, problems: Problems) -> YamlMapping | None:
    """Return a scenario whose `parametrize` has a set for each cell of its `matrix`; None if it is invalid."""
    if (matrix := raw.get("matrix")) is None:
        return raw
    at = get_yaml_place(raw, "matrix", key=True) or raw.place
    axes = _read_axes(matrix, problems)
    sets = raw.get("parametrize")
    known = [YamlMapping(at)] if sets is None else sets
    if not axes or not isinstance(known, list) or not known or not all(isinstance(each, YamlMapping) for each in known):
        return None  # the schema says why
    names = [_name_axis_values(values) for _, values in axes]
    own = name_data_cases(known, _format_scalar_or_empty) if sets else [""]
    number = len(known) * math.prod(len(values) for values in names)
    if number > _MOST_CELLS:
        counts = " x ".join(str(len(values)) for values in names)
        sizes = f"{counts} x {len(known)} sets of parameters" if len(known) > 1 else counts
        message = f"the matrix has {number:,} cells ({sizes}); up to {_MOST_CELLS:,} are run"
        problems.add(at, message, "take fewer values, or make several scenarios that have some of them each")
        return None
    made, cells = raw.copy_with_places(), YamlList(at)
    for name_of_set, given in zip(own, known, strict=True):
        if clash := next((name for name, _ in axes if name in given), None):
            message = f"`{clash}` is an axis of the matrix and a parameter as well"
            problems.add(at, message, "name one of them otherwise")
            return None
        for chosen in itertools.product(*(range(len(values)) for values in names)):
            cell = given.copy_with_places()
            for (name, values), place in zip(axes, chosen, strict=True):
                value_at = get_yaml_place(values, place) or given.place
                cell.put(name, values[place], value_at, value_at)
            words = [of[place] for of, place in zip(names, chosen, strict=True)]
            cell.put("id", ",".join([name_of_set, *words] if name_of_set else words), given.place, given.place)
            cells.put(cell, given.place)
    made.put("parametrize", cells, at, at)
    return made


def _read_axes(matrix: object, problems: Problems) -> list[tuple[str, YamlList]]:
    if not isinstance(matrix, YamlMapping):
        return []  # the schema says so
    found = []
    for name, values in matrix.items():
        if not isinstance(values, YamlList) or not values:
            continue  # and here
        first: dict[tuple[type, str], int] = {}
        twice = next(
            (i for i, value in enumerate(values) if first.setdefault((type(value), repr(value)), i) != i), None
        )
        if twice is None:
            found.append((name, values))
        else:
            message = f"the axis `{name}` has {quote(values[twice], 40)} twice"
            problems.add(get_yaml_place(values, twice), message, "`runs` repeats each cell")
    return found if len(found) == len(matrix) else []


def _inline_parametrize_file(
    raw: YamlMapping, path: Path, variables: object, problems: Problems, doubts: Problems
) -> tuple[YamlMapping, Path | None]:
    """Return a scenario with the rows of its `parametrize` file, and that file; else unchanged."""
    said = raw.get("parametrize")
    if not isinstance(said, str):
        return raw, None
    at, file = get_yaml_place(raw, "parametrize") or raw.place, path.parent / said
    made, rows = raw.copy_with_places(), YamlList(at)
    del made["parametrize"]
    try:
        found = read_data_file_rows(file)
    except DataFileError as error:
        place = YamlPlace(show_path(file), error.line, 1) if error.line else at
        problems.add(place, error.problem if error.line else f"{said}: {error.problem}", error.hint)
        return made, file
    for each in found:
        line = YamlPlace(show_path(file), each.line, 1)
        row = YamlMapping(line)
        for name, value in each.values.items():
            row.put(name, value, line, line)
        rows.put(row, line)
    made.put("parametrize", rows, get_yaml_place(raw, "parametrize", key=True) or at, at)
    columns = dict.fromkeys((name for name in found[0].values if name != ID), YamlPlace(show_path(file), 1, 1))
    _warn_of_unused_names(made, columns, "column", variables, doubts)
    return made, file


def _pick_one_per_shape(sets: list[YamlMapping]) -> list[YamlMapping]:
    """Return one set of each kind: equal columns with values of equal shapes are equivalent for checks."""
    found: dict[object, YamlMapping] = {}
    for number, each in enumerate(sets):
        text = "".join(str(value) for value in each.values())
        found.setdefault(number if "$" in text else _get_value_shape(each), each)
    return list(found.values())


def _warn_of_unused_names(
    scenario: Mapping[str, Any], names: Mapping[str, YamlPlace | None], what: str, variables: object, doubts: Problems
) -> None:
    text = repr({name: value for name, value in scenario.items() if name not in ("parametrize", "matrix")})
    used = {*_NAMED.findall(text + repr(variables))}
    for name, place in names.items():
        if name not in used:
            said = f"no step of `{scenario.get('id')}` uses the {what} `{name}`"
            doubts.add(place, said, f"write ${name} where it is wanted")


def _get_value_shape(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, _get_value_shape(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_get_value_shape, value))
    return type(value)


def find_probable_scenario_mistakes(scenario: YamlMapping, doubts: Problems) -> None:
    steps = keep_only_dicts_of_list(scenario.get("steps"))
    if steps and not any(_has_assertions(step) for step in steps) and "usage" not in scenario:
        at = get_yaml_place(scenario, "steps", key=True)
        doubts.add(at, "nothing is asserted: the scenario passes whatever the agent answers")
    text = repr(scenario)
    # Unused names in a setup are often for readers.
    for item in (
        each for step in steps for each in [*keep_only_dicts_of_list(step.get("created")), step.get("verify")]
    ):
        if isinstance(item, Mapping) and isinstance(item.get("as"), str):
            bare = strip_dollar(item["as"])
            if f"${bare}" not in text.replace(f"'as': '${bare}'", "") and f"${{{bare}" not in text:
                doubts.add(get_yaml_place(item, "as"), f"${bare} is captured and never used")
    for step in steps:
        for name in step["tools"] if isinstance(step.get("tools"), YamlMapping) else ():
            if name in _NOT_TOOLS:
                at = get_yaml_place(step["tools"], name, key=True)
                doubts.add(at, f"`{name}` is taken for the name of a tool here", "`totalToolCalls` counts all calls")
    for node in _walk_maps(scenario):
        _warn_of_unsatisfiable_comparison(node, doubts)
    sets = scenario.get("parametrize")
    if isinstance(sets, list) and len({frozenset(each) - {"id"} for each in sets if isinstance(each, YamlMapping)}) > 1:
        at = get_yaml_place(scenario, "parametrize", key=True)
        doubts.add(at, "the sets of `parametrize` do not have the same names")


def _has_assertions(step: Mapping[str, Any]) -> bool:
    if "chat" not in step and "simulate" not in step:
        return any(key in step for key in ("verify", "judge")) or (
            isinstance(step.get("wait"), YamlMapping) and "until" in step["wait"]
        )
    # A simulated user without criteria says in the end whether the goal was reached.
    return "simulate" in step or any(step.get(key, False) is not False for key in _ASSERTING)


def _walk_maps(value: object) -> Iterator[YamlMapping]:
    if isinstance(value, YamlMapping):
        yield value
    for each in value.values() if isinstance(value, YamlMapping) else value if isinstance(value, list) else ():
        yield from _walk_maps(each)


def _warn_of_unsatisfiable_comparison(node: YamlMapping, doubts: Problems) -> None:
    numbers = {key: node[key] for key in ("gt", "gte", "lt", "lte") if isinstance(node.get(key), (int, float))}
    low = max((numbers[key] for key in ("gt", "gte") if key in numbers), default=None)
    high = min((numbers[key] for key in ("lt", "lte") if key in numbers), default=None)
    if low is None or high is None:
        return
    open_end = numbers.get("gt") == low or numbers.get("lt") == high
    if low > high or (low == high and open_end):
        doubts.add(node.place, f"no number is {' and '.join(f'{key} {value}' for key, value in numbers.items())}")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    id: str
    """Unique in the test; ``scenario[set]`` if the scenario is parametrized."""
    scenario: Scenario
    suite: Suite
    path: Path
    folder: Path
    """The suite's folder, to which commands and databases are relative."""
    values: Mapping[str, object]
    """Variables as written: the suite's, the scenario's, the parameters."""
    captures: frozenset[str]
    title: str = ""
    description: str = ""

    @property
    def full_id(self) -> str:
        return f"{self.suite.name}/{self.id}"

    def scope(self, *, run: int = 1, user: str | None = None, env: Mapping[str, str] | None = None) -> CaseVariables:
        """Return a run's variables: `run` counts from 1, `user` is its own. Raises StepError: one has no value."""
        built_in = {"userId": user or self.scenario.user_id or USER, "runIndex": run, "scenarioId": self.id}
        return CaseVariables({**built_in, **self.values}, declared=self.captures, env=env)


def load_suites(paths: Iterable[str | Path]) -> LoadedSuites:
    """Read suites from files, folders (``suite.yaml``, ``*.suite.yaml``), globs. Raises SuiteError with all places."""
    loaded = LoadedSuites()
    for path in find_suite_files(paths, loaded.problems):
        loaded.load_file(path)
    loaded.problems.raise_if_any()
    return loaded


@dataclass(slots=True)
class LoadedSuites:
    problems: Problems = field(default_factory=Problems)
    warnings: Problems = field(default_factory=Problems)
    """Valid but probably unintended content."""
    suites: list[Suite] = field(default_factory=list)
    scenarios: list[SuiteCase] = field(default_factory=list)
    files: dict[Path, None] = field(default_factory=dict)
    ids: dict[str, YamlPlace | None] = field(default_factory=dict)

    def load_file(self, path: Path) -> None:
        bare: list[YamlMapping] = []
        for document in self.read_documents(path):
            if "scenarios" in document:
                self.load_suite(document, path)
            else:
                bare.append(document)
        if bare:
            made = YamlMapping(bare[0].place)
            for key, value in (("name", path.stem.removesuffix(".suite")), ("scenarios", bare)):
                made.put(key, value, bare[0].place, bare[0].place)
            self.load_suite(made, path)

    def read_documents(self, path: Path) -> Iterator[YamlMapping]:
        self.files[path] = None
        for value, place in read_yaml_file(path, self.problems, show_path(path), self.warnings, empty_hint=_EMPTY):
            if not isinstance(value, YamlMapping):
                what = "a list" if isinstance(value, list) else "a plain value"
                hint = "a suite lists them below `scenarios:`" if isinstance(value, list) else ""
                self.problems.add(place, f"this is {what}, neither a suite nor a scenario", hint)
            elif not value.keys() & {"scenarios", "steps"}:
                hints = (suggest_name(key, ("scenarios", "steps"), listing=False) for key in value)
                near = next(filter(None, hints), "")
                message = "this is neither a suite (it has no `scenarios`) nor a scenario (it has no `steps`)"
                self.problems.add(place, message, near)
            else:
                yield value

    def load_suite(self, document: YamlMapping, path: Path) -> None:
        whole = merge_included_suite_parts(document, path, self.problems, self.files)
        defaults, variables = self.get_suite_defaults_if_valid(whole), whole.get("vars")
        base = whole.get("baseDir", ".")
        folder = path.parent / base if isinstance(base, str) else path.parent
        entries, taken, made = whole["scenarios"], list[str | Scenario](), list[tuple[Scenario, Path, YamlMapping]]()
        read = {path.resolve()}
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, str):
                taken.append(entry)
                found = self.read_scenario_files(folder, entry, get_yaml_place(entries, i) or document.place, read)
            else:
                found = [(entry, path)] if isinstance(entry, YamlMapping) else []
                if not found:
                    message = "a scenario is a mapping with `id` and `steps`, or the name of a file"
                    self.problems.add(get_yaml_place(entries, i), message)
            for given, where in found:
                before = len(self.problems)
                raw, data = _inline_parametrize_file(given, where, variables, self.problems, self.warnings)
                if data is not None:
                    self.files[data] = None
                matrix, at = raw.get("matrix"), get_yaml_place(raw, "matrix")
                names = matrix if isinstance(matrix, YamlMapping) else ()
                axes = {name: get_yaml_place(matrix, name, key=True) or at for name in names}
                _warn_of_unused_names(raw, axes, "axis", variables, self.warnings)
                expanded = _convert_matrix_to_parametrize(raw, self.problems)
                known = expanded is not None and len(self.problems) == before
                raw = expanded or raw
                filled = apply_suite_defaults_to_scenario(raw, defaults, whole.get("defaultTags"))
                scenario = self.validate_scenario(filled, variables, known=known)
                if "parametrize" not in raw and isinstance(raw.get("id"), str):  # told with whatever else is wrong
                    self.register_scenario_id(raw["id"], get_yaml_place(raw, "id"))
                if scenario is not None:
                    made.append((scenario, where, filled))
                    taken += [scenario] if isinstance(entry, YamlMapping) else []
        whole["scenarios"] = taken or (["?"] if isinstance(entries, list) and entries else entries)
        if (suite := self.validate_model(Suite, whole)) is not None:
            self.suites.append(suite)
            for scenario, where, filled in made:
                self.expand_scenario_into_cases(scenario, filled, suite, where, path.parent)

    def register_scenario_id(self, name: str, at: YamlPlace | None) -> None:
        if name in self.ids:
            first = f"the id `{name}` stands here twice, first at {self.ids[name]}"
            self.problems.add(at, first, "ids are unique in a run")
        self.ids.setdefault(name, at)

    def read_scenario_files(
        self, folder: Path, entry: str, at: YamlPlace | None, read: set[Path]
    ) -> list[tuple[YamlMapping, Path]]:
        """Read the scenarios of an entry's files, without those already read or the suite's own."""
        made: list[tuple[YamlMapping, Path]] = []
        for path in find_files_of_scenarios_entry(folder, entry, at, self.problems):
            if path.resolve() in read:
                continue
            read.add(path.resolve())
            for document in self.read_documents(path):
                if "scenarios" in document:
                    message = "this is a suite, where a scenario is expected"
                    self.problems.add(document.place, message, f"it is named at {at}")
                else:
                    made.append((document, path))
        return made

    def get_suite_defaults_if_valid(self, suite: YamlMapping) -> YamlMapping | None:
        given = suite.get("defaults")
        quiet = Problems()
        try:
            Defaults.model_validate(given, context=quiet)
        except ValidationError:
            return None
        return given if isinstance(given, YamlMapping) and not quiet else None

    def validate_scenario(self, raw: YamlMapping, variables: object, *, known: bool = True) -> Scenario | None:
        """Validate a scenario; if its sets of parameters are `known`, check its steps with each of them."""
        sets = raw.get("parametrize")
        usable = [each for each in sets if isinstance(each, YamlMapping)] if isinstance(sets, list) else []
        named = {name for each in usable for name in each}
        for parameters in (_pick_one_per_shape(usable) or [YamlMapping(raw.place)]) if known else ():
            flow = ScenarioVariableChecker(self.problems, self.warnings)
            for part in (variables, raw.get("vars")):
                if isinstance(part, YamlMapping):
                    flow.add_variables(part, sure=True)
            flow.add_variables(_drop_parameter_set_id(parameters))
            flow.of_data = bool(usable)
            flow.lacking = dict.fromkeys(named - parameters.keys(), parameters.place)
            flow.check_scenario(raw)
        find_probable_scenario_mistakes(raw, self.warnings)
        return self.validate_model(Scenario, raw)

    def validate_model[Model: (Suite, Scenario)](self, model: type[Model], raw: YamlMapping) -> Model | None:
        before = len(self.problems)
        try:
            made = model.model_validate(raw, context=self.problems)
        except ValidationError as error:
            collect_validation_errors(error, raw, self.problems)
            if len(self.problems) == before:  # what is left out must not be left unsaid
                self.problems.add(raw.place, f"this is not valid: {error.errors(include_url=False)[0]['msg']}")
            return None
        return made if len(self.problems) == before else None

    def expand_scenario_into_cases(
        self, scenario: Scenario, raw: YamlMapping, suite: Suite, path: Path, folder: Path
    ) -> None:
        names = frozenset(list_capture_names(raw))
        base = {**suite.vars, **scenario.vars}
        sets = scenario.parametrize
        suffixes = name_data_cases(sets) if sets else []
        for i, parameters in enumerate(sets or ({},)):
            name = f"{scenario.id}[{suffixes[i]}]" if sets else scenario.id
            if sets:
                self.register_scenario_id(name, scenario.at("parametrize", i))
            values = {**base, **_drop_parameter_set_id(parameters)}
            title, about = (_format_title(text, values, name) for text in (scenario.title, scenario.description or ""))
            if sets and title == scenario.title:
                title = f"{title} [{suffixes[i]}]"
            self.scenarios.append(SuiteCase(name, scenario, suite, path, folder, values, names, title, about))


def _format_title(text: str, values: Mapping[str, object], name: str) -> str:
    try:
        return CaseVariables({"scenarioId": name, **values}, env={}).interpolate_text(text)
    except StepError:
        return text
