"""Suites and scenarios as a whole."""

from __future__ import annotations

from tests.suite.fragment import load_fragment

STEPS = "steps: [{chat: hi}]"


def test_a_scenario_says_little_and_means_much() -> None:
    made = load_fragment("scenario", f"{{id: a, {STEPS}}}")
    assert (made.title, made.tags, made.runs, made.min_pass_rate, made.skip, made.xfail, made.observe) == (
        "a", (), 1, 1.0, False, False, "wire",
    )  # fmt: skip
    assert (made.user_id, made.timeout, made.setup, made.teardown, made.parametrize) == (None, None, (), (), None)


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
