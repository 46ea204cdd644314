"""Parts of scenarios from elsewhere: included files, and the suite's defaults.

Both work on the YAML as written, before validation: included parts keep their places.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.schema.base_nodes import collect_validation_errors
from llmproxy.suite.schema.suite import IncludedPart
from llmproxy.yaml_reader import Problems, YamlList, YamlMapping, YamlPlace, get_yaml_place, read_yaml_file

SUITES = ("suite.yaml", "suite.yml", "*.suite.yaml", "*.suite.yml")
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages"})
_MAGIC = frozenset("*?[")
_MERGED = ("vars", "defaults", "hooks")
"""Keys whose members are merged one by one."""
_DEEPEST = 20
_SCENARIO = ("userId", "runs", "minPassRate", "timeout", "settle", "observe")
_TEXTS = frozenset({"contains", "containsAny", "notContains", "regex", "eq"})


def show_path(path: Path) -> str:
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def find_suite_files(paths: Iterable[str | Path], problems: Problems) -> list[Path]:
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = []
            for root, folders, files in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
                suites = (name for name in sorted(files) if any(Path(name).match(pattern) for pattern in SUITES))
                inside += [Path(root, name) for name in suites]
            if not inside:
                called = f"suites are called {', '.join(SUITES)}; `llmproxy test --init` writes a first one"
                problems.add(None, f"{given}: no suite in this folder", called)
        elif os.path.isfile(path):  # noqa: PTH113 - of a name that is too long, Path raises
            inside = [path]
        elif not (inside := _expand_pattern(str(given))):
            problems.add(None, f"{given}: there is no such file", _suggest_file(path))
        for each in inside:
            found.setdefault(each.resolve(), each)
    return list(found.values())


def find_files_of_scenarios_entry(folder: Path, entry: str, at: YamlPlace | None, problems: Problems) -> list[Path]:
    path = folder / entry
    if os.path.isfile(path):  # noqa: PTH113 - of a name that is too long, Path raises
        return [path]
    matches = _expand_pattern(str(Path(glob.escape(str(folder))) / entry)) if _MAGIC & set(entry) else []
    if not matches:
        what = "no file is called so" if not _MAGIC & set(entry) else "no file matches"
        problems.add(at, f"{entry}: {what} in {show_path(folder)}", "" if _MAGIC & set(entry) else _suggest_file(path))
    return matches


def _expand_pattern(pattern: str) -> list[Path]:
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - `Path.glob` takes no absolute pattern
    return [Path(each) for each in sorted(found) if Path(each).is_file()]


def _suggest_file(path: Path) -> str:
    try:
        others = [each.name for each in path.parent.iterdir() if each.suffix in {".yaml", ".yml"}]
    except OSError:
        return f"there is no folder {path.parent} either"
    return suggest_name(path.name, others, listing=False)


def merge_included_suite_parts(
    suite: YamlMapping, path: Path, problems: Problems, files: dict[Path, None], chain: tuple[Path, ...] = ()
) -> YamlMapping:
    """Return the suite with its included parts; its own content takes precedence, then the last included file.

    `path` is its file; `files` gets every file that is read; `chain` are the including files.
    """
    names = suite.get("include")
    made = suite.copy_with_places()
    for i, name in reversed([*enumerate(names if isinstance(names, list) else [names])]):
        at = get_yaml_place(names, i) or get_yaml_place(suite, "include")
        if not isinstance(name, str) or not name:
            continue  # the schema says what is wrong
        other = path.parent / name
        if other.resolve() in {each.resolve() for each in (*chain, path)} or len(chain) > _DEEPEST:
            problems.add(at, f"{name} includes itself", " -> ".join(show_path(each) for each in (*chain, path, other)))
            continue
        if (part := _read_part(other, at, problems)) is None:
            continue
        files[other] = None
        _merge_part_into_suite(made, merge_included_suite_parts(part, other, problems, files, (*chain, path)))
    return made


def _read_part(path: Path, at: YamlPlace | None, problems: Problems) -> YamlMapping | None:
    if not path.is_file():
        problems.add(at, f"there is no file {show_path(path)} to include")
        return None
    documents = read_yaml_file(path, problems, show_path(path))
    if len(documents) != 1 or not isinstance(documents[0][0], YamlMapping):
        if documents:
            problems.add(
                documents[-1][1], "a file to include is one mapping", f"it takes {', '.join(IncludedPart.known_keys())}"
            )
        return None
    try:
        IncludedPart.model_validate(documents[0][0], context=problems)
    except ValidationError as error:
        collect_validation_errors(error, documents[0][0], problems)
    return documents[0][0]


def _merge_part_into_suite(suite: YamlMapping, part: YamlMapping) -> None:
    for key, value in part.items():
        if key == "include" or key not in IncludedPart.known_keys():
            continue
        mine = suite.get(key)
        if key not in suite:
            suite.put(key, value, part.keys_at[key], part.values_at[key])
        elif key in _MERGED and isinstance(mine, YamlMapping) and isinstance(value, YamlMapping):
            both = YamlMapping(mine.place)
            for source in (value, mine):  # what is included comes first, so that variables may build on it
                for name in source:
                    first, second = both.get(name), source[name]
                    if key == "hooks" and isinstance(first, YamlList) and isinstance(second, YamlList):
                        both[name] = _join_lists(first, second)
                    else:
                        both.put(name, second, source.keys_at[name], source.values_at[name])
            suite[key] = both
        elif key == "defaultTags" and isinstance(mine, YamlList) and isinstance(value, YamlList):
            suite[key] = _join_lists(value, mine)


def _join_lists(first: YamlList, second: YamlList) -> YamlList:
    made = YamlList(first.place)
    for source in (first, second):
        for i, item in enumerate(source):
            made.put(item, source.items_at[i])
    return made


def apply_suite_defaults_to_scenario(scenario: YamlMapping, defaults: YamlMapping | None, tags: object) -> YamlMapping:
    """Return a scenario with the suite's defaults applied; `defaults` must be valid."""
    made = scenario.copy_with_places()
    for key in _SCENARIO:
        _fill_key_from_defaults(made, key, defaults, key)
    if isinstance(tags, (list, str)) and tags:
        mine = made.get("tags", [])
        if isinstance(mine, (list, str)):
            both = [*([mine] if isinstance(mine, str) else mine), *([tags] if isinstance(tags, str) else tags)]
            made["tags"] = list(dict.fromkeys(both)) if all(isinstance(each, str) for each in both) else both
    if isinstance(made.get("steps"), YamlList) and defaults:
        steps = YamlList(made["steps"].place)
        for step, at in zip(made["steps"], made["steps"].items_at, strict=True):
            steps.put(_copy_step_with_defaults(step, defaults) if isinstance(step, YamlMapping) else step, at)
        made["steps"] = steps
    return made


def _copy_step_with_defaults(step: YamlMapping, defaults: YamlMapping | None) -> YamlMapping:
    made = step.copy_with_places()
    if "chat" in made or "simulate" in made:
        _fill_key_from_defaults(made, "timeout", defaults, "stepTimeout")
        for key, name in (("response", "ignoreCase"), ("messageProcessing", "minEvidence")):
            inner = made.get(key)
            if isinstance(inner, YamlMapping) and (key != "response" or inner.keys() & _TEXTS):
                made[key] = _copy_with_default(inner, name, defaults, name)
    elif isinstance(made.get("wait"), YamlMapping) and not made["wait"].keys() & {"seconds", "ms"}:
        waiting = _copy_with_default(made["wait"], "timeout", defaults, "waitTimeout")
        made["wait"] = _copy_with_default(waiting, "pollInterval", defaults, "pollInterval")
    if isinstance(made.get("simulate"), YamlMapping):
        made["simulate"] = _copy_with_default(made["simulate"], "model", defaults, "simulatorModel")
    if "judge" in made:
        made["judge"] = _copy_judge_with_defaults(made, defaults)
    elif isinstance(made.get("response"), YamlMapping) and "judge" in made["response"]:
        made["response"] = made["response"].copy_with_places()
        made["response"]["judge"] = _copy_judge_with_defaults(made["response"], defaults)
    return made


def _copy_judge_with_defaults(node: YamlMapping, defaults: YamlMapping | None) -> object:
    said = node["judge"]
    if isinstance(said, (str, YamlList)) and defaults is not None and "judgeModel" in defaults:
        at = node.values_at["judge"]
        criteria, said = said, YamlMapping(at)
        if isinstance(criteria, str):
            criteria = YamlList(at)
            criteria.put(node["judge"], at)
        said.put("criteria", criteria, at, at)
    return _copy_with_default(said, "model", defaults, "judgeModel") if isinstance(said, YamlMapping) else said


def _copy_with_default(node: YamlMapping, key: str, defaults: YamlMapping | None, name: str) -> YamlMapping:
    made = node.copy_with_places()
    _fill_key_from_defaults(made, key, defaults, name)
    return made


def _fill_key_from_defaults(node: YamlMapping, key: str, defaults: YamlMapping | None, name: str) -> None:
    if defaults is not None and name in defaults and key not in node:
        node.put(key, defaults[name], defaults.keys_at[name], defaults.values_at[name])
