"""Suites and scenarios as a whole."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from tests.suite.fragment import load_fragment

STEPS = "steps: [{chat: hi}]"


def test_a_scenario_says_little_and_means_much() -> None:
    """What it leaves out has a value."""
    made = load_fragment("scenario", f"{{id: a, {STEPS}}}")
    assert (made.title, made.tags, made.runs, made.min_pass_rate, made.skip, made.xfail, made.observe) == (
        "a", (), 1, 1.0, False, False, "wire",
    )  # fmt: skip
    assert (made.user_id, made.timeout, made.setup, made.teardown, made.parametrize) == (None, None, (), (), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{{{STEPS}}}", "`id` is missing"),
        ("{id: a}", "`steps` is missing"),
        ("{id: a, steps: []}", "at least one item"),
        (f"{{id: $x, {STEPS}}}", "an id is a plain text"),
        (f"{{id: a, minPassRate: 2, {STEPS}}}", "above 0, up to 1"),
        (f"{{id: a, parametrize: [], {STEPS}}}", "at least one item"),
        (f"{{id: a, parametrize: {{x: 1}}, {STEPS}}}", "takes a list"),
        (f"{{id: a, vars: [1], {STEPS}}}", "takes a mapping"),
        (f"{{id: a, teardown: [{{delete: t}}], {STEPS}}}", "`delete` needs `id` or `filters`"),
        (f"{{id: a, teardown: [{{delete: t, command: x}}], {STEPS}}}", "one of `delete`, `command` and `python`"),
        (f"{{id: a, user_id: x, {STEPS}}}", "did you mean `userId`?"),
    ],
)
def test_what_is_no_scenario_is_refused(text: str, words: str) -> None:
    """With what it takes."""
    with pytest.raises(SuiteError) as caught:
        load_fragment("scenario", text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{{scenarios: [{{id: a, {STEPS}}}]}}", "`name` is missing"),
        ("{name: s}", "`scenarios` is missing"),
        ("{name: s, scenarios: []}", "at least one item"),
        (
            f"{{name: s, version: 2, scenarios: [{{id: a, {STEPS}}}]}}",
            "version 2 of the format, and version 1 is known",
        ),
        (f"{{name: s, hooks: {{beforeAll: [{{run: x}}]}}, scenarios: [{{id: a, {STEPS}}}]}}", "unknown key `run`"),
        (
            f"{{name: s, hooks: {{beforeAll: [{{timeout: 5}}]}}, scenarios: [{{id: a, {STEPS}}}]}}",
            "either `command` or `python`",
        ),
        (f"{{name: s, defaults: {{retries: 5}}, scenarios: [{{id: a, {STEPS}}}]}}", "unknown key `retries`"),
    ],
)
def test_what_is_no_suite_is_refused(text: str, words: str) -> None:
    """With what it takes."""
    with pytest.raises(SuiteError) as caught:
        load_fragment("suite", text)
    assert words in str(caught.value)


def test_everything_a_suite_may_say() -> None:
    """All keys at once; agent, store and proxy are for those who use them."""
    made = load_fragment(
        "suite",
        f"""
name: s
version: 1
baseDir: ./scenarios
vars: {{a: 1, b: [1, {{c: 2}}]}}
agent: {{http: "http://127.0.0.1:1/v1"}}
store: {{memory: {{}}}}
proxy: {{mode: replay}}
defaults: {{userId: u, runs: 2, minPassRate: 0.5, timeout: 1m, stepTimeout: 5s, settle: 0, observe: none, judgeModel: m/x}}
defaultTags: [t]
hooks: {{beforeAll: [{{command: [make, db]}}], afterEach: [{{python: "my:clean", timeout: 2s}}]}}
scenarios: [a.yaml, "more/*.yaml", {{id: a, {STEPS}, skip: later, teardown: [{{delete: t, id: 1}}]}}]
""",
    )
    assert made.base_dir == "./scenarios"
    assert made.scenarios[:2] == ("a.yaml", "more/*.yaml")
    assert made.scenarios[2].skip == "later"
    assert made.hooks.before_all[0].command == ("make", "db")
    assert made.hooks.after_each[0].timeout == 2000
    assert made.vars == {"a": 1, "b": [1, {"c": 2}]}
