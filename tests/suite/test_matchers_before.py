"""A matcher that cannot be meant is refused before anything runs."""

from __future__ import annotations

import pytest

from llmproxy.suite.matchers.apply import validate_expected_count, validate_matcher
from llmproxy.suite.matchers.registry import MODIFIERS, REGISTRY
from llmproxy.yaml_reader import Problems, YamlMapping, YamlPlace, read_documents


def objections(text: str) -> list[str]:
    problems = Problems()
    made = read_documents(text, "f", problems)[0][0]
    assert isinstance(made, YamlMapping)
    for key in made:
        validate_matcher(made[key], problems, YamlPlace("f", 1, 1))
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x: {contians: a}", "f:1:5: there is no matcher `contians` (did you mean `contains`?)"),
        ("x: {title: a}", "`path.title: ...` looks inside"),
        ("x: {}", "f:1:4: nothing is asserted here"),
        ("x: {ignoreCase: true}", "`ignoreCase` changes nothing here"),
        ("x: {contains: a, ignoreCase: 1}", "takes true or false"),
        ("x: {regex: a, flags: q}", "takes letters of i, m, s, x"),
        ("x: {contains: []}", "an empty list asserts nothing"),
        ("x: {contains: ''}", "an empty text is in every text"),
        ("x: {contains: [a, '']}", "an empty text is in every text"),
        ("x: {contains: {a: 1}}", "takes a text, a number or a list"),
        ("x: {regex: '(['}", "f:1:12: `regex`: the pattern '([' does not compile"),
        ("x: {regex: ''}", "found in every text"),
        ("x: {regex: '#ticket', flags: x}", "f:1:12: `regex`: '#ticket' with `flags: x` is found in every text"),
        ("x: {regex: [a, 5]}", "takes a pattern or a list of patterns, not a number"),
        ("x: {regex: 'for $name'}",
         "found in no text: $name is no name here, but the end of the text with letters after it"),
        ("x: {not: {regex: '${task.title}'}}", "found in no text"),
        ("x: {gt: big}", 'takes a number or a date (2026-01-31, 2026-01-31T10:00:00Z), not text "big"'),
        ("x: {gt: '5'}", "takes a number or a date"),
        ("x: {not: {gt: .nan}}", "takes a number or a date"),
        ("x: {exists: no}", 'takes true or false, not "no"'),
        ("x: {in: []}", "takes a list with at least one value"),
        ("x: {anyOf: []}", "takes a list with at least one matcher"),
        ("x: {allOf: a}", "takes a list with at least one matcher"),
        ("x: {anyOf: [a, {b: 1}]}", "f:1:17: there is no matcher `b`"),
        ("x: {not: {not: {regex: '('}}}", "does not compile"),
        ("x: {ref: task.id}", "takes a reference such as $name.field"),
        ("x: {jsonSchema: {type: strin}}", "this is no JSON Schema"),
        ("x: {jsonSchema: {requierd: [id]}}",
         "`requierd`, which is no keyword of this draft of JSON Schema, so it would assert nothing (did you mean `requ"),
        ("x: {jsonSchema: {not: {one_of: [false]}}}", "at $.not there is `one_of`"),
        ("x: {jsonSchema: {Type: string}}", "(did you mean `type`?)"),
        ("x: {jsonSchema: {tipe: string}}", "at $ there is `tipe`"),
        ("x: {jsonSchema: {prefixItems: [true], additionalItems: false}}", "`additionalItems`"),
        ("x: {jsonSchema: {x-note: 1}}", "holds for every JSON"),
        ("x: {jsonSchema: {properties: {a: {format: iban}}}}",
         'at $.properties.a the format "iban" is none that is checked'),
        ("x: {jsonSchema: []}", "takes a JSON Schema, not a list"),
    ],
)  # fmt: skip
def test_a_matcher_that_cannot_be_meant_is_refused_with_its_place(text: str, told: str) -> None:
    """Before anything runs: unknown names, operands of the wrong kind, and all that would assert nothing."""
    (said,) = objections(text)
    assert told in said


@pytest.mark.parametrize("text", [
    "x: {gte: 1, lt: 10}", "x: {gt: $task.count}", "x: {contains: $word}", "x: {contains: {ref: $task.title}}",
    "x: {eq: {contains: 1}}", "x: {json: {any: thing}}", "x: [1, 2]", "x: {regex: '^\\d+$ # (', flags: imx}",
    "x: {anyOf: [null, {exists: true}]}",
])  # fmt: skip
def test_what_can_be_meant_is_taken(text: str) -> None:
    assert objections(text) == []


@pytest.mark.parametrize(("wanted", "told"), [
    (1, ""),
    (0, ""),
    ("$limit", ""),
    ({"gte": 1, "lte": 2.5}, ""),
    ({"eq": "$limit"}, ""),
    (-1, "takes a whole number"),
    (1.5, "takes a whole number"),
    (True, "takes a whole number"),
    ("1", "mind the quotes"),
    (None, "takes a whole number"),
    ([], "takes a whole number"),
    ({}, "nothing is asserted"),
    ({"min": 1}, "unknown key `min`"),
    ({"gte": "1"}, "takes a number that is not negative"),
    ({"gte": float("nan")}, "takes a number that is not negative"),
])  # fmt: skip
def test_numbers_of_something(wanted: object, told: str) -> None:
    """A count, comparisons or a reference; the text "5" is no number."""
    problems = Problems()
    validate_expected_count(wanted, problems, None)
    assert told in " ".join(map(str, problems))
    assert bool(told) == bool(list(problems))


def test_modifiers_serve_matchers_that_exist() -> None:
    assert {name for _, _, serves in MODIFIERS.values() for name in serves} <= REGISTRY.keys()
    assert all(known.help for known in REGISTRY.values())
