"""Where a recording is missing it is said once, with the command that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import Exit, SuiteError
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.selection import (
    FILE,
    SelectionOptions,
    add_record_command_to_miss,
    advise_recording,
    append_runs_flag,
    build_case_cassette_name,
    build_run_not_recorded_error,
    check_cost_estimate_before_run,
    list_case_steps_up_to_label,
    parse_tag_expression,
    read_last_failed,
    save_failed_case_ids,
    select_cases,
    sum_recorded_case_costs,
)
from tests.suite import rig
from tests.support.messages import said, user
from tests.trace.observing.chats import NOW, Chats

TEXT = """
name: t
scenarios:
  - {id: a, name: First thing, tags: [smoke, fast], steps: [{chat: x, label: one}, {chat: y, label: two}]}
  - {id: b, description: About milk, tags: [smoke, slow], steps: [{chat: x}]}
  - {id: c, tags: [tasks], parametrize: [{n: 1}, {n: 2}], steps: [{chat: x}]}
"""


@pytest.fixture
def cases(tmp_path: Path) -> Sequence[SuiteCase]:
    return rig.cases_of(tmp_path, TEXT)


@pytest.mark.parametrize(("wanted", "ids"), [
    (SelectionOptions(), ["a", "b", "c[1]", "c[2]"]),
    (SelectionOptions(tags="smoke and not slow"), ["a"]),
    (SelectionOptions(tags="slow or tasks"), ["b", "c[1]", "c[2]"]),
    (SelectionOptions(tags="smoke and (slow or fast) and not tasks"), ["a", "b"]),
    (SelectionOptions(tag=("smoke", "slow")), ["b"]),
    (SelectionOptions(ids=("b",)), ["b"]),
    (SelectionOptions(ids=("c",)), ["c[1]", "c[2]"]),
    (SelectionOptions(ids=("c[2]", "a")), ["a", "c[2]"]),
    (SelectionOptions(grep="MILK"), ["b"]),
    (SelectionOptions(grep="first"), ["a"]),
    (SelectionOptions(grep="first", tag=("slow",)), []),
    (SelectionOptions(only={"t/c[1]", "c[2]", "t/gone"}), ["c[1]"]),
    (SelectionOptions(label="two"), ["a"]),
])  # fmt: skip
def test_what_is_selected(cases: Sequence[SuiteCase], wanted: SelectionOptions, ids: list[str]) -> None:
    assert [case.id for case in select_cases(cases, wanted)] == ids


@pytest.mark.parametrize(("wanted", "message"), [
    (SelectionOptions(tags="smok"), "did you mean 'smoke'"),
    (SelectionOptions(tag=("nope",)), "Known tags: fast, slow, smoke, tasks"),
    (SelectionOptions(ids=("x",)), "no such scenario"),
    (SelectionOptions(label="three"), "no selected scenario has a step"),
    (SelectionOptions(tags="smoke and"), "is no expression"),
    (SelectionOptions(tags="(smoke"), "is no expression"),
    (SelectionOptions(tags="smoke slow"), "is no expression"),
    (SelectionOptions(tags="or smoke"), "is no expression"),
    (SelectionOptions(tags="smoke (slow)"), "is no expression"),
    (SelectionOptions(tags="()"), "is no expression"),
    (SelectionOptions(tags="not " * 20_000 + "smoke"), "is no expression"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(cases: Sequence[SuiteCase], wanted: SelectionOptions, message: str) -> None:
    """A misspelt tag would select nothing, or with `not` everything."""
    with pytest.raises(SuiteError, match=message.replace("(", r"\(")):
        select_cases(cases, wanted)


@given(st.sets(st.sampled_from("abc")))
def test_and_binds_more_than_or(tags: set[str]) -> None:
    """And `not` binds most; a double negation is none."""
    assert parse_tag_expression("a or b and not c")(tags) == ("a" in tags or ("b" in tags and "c" not in tags))
    assert parse_tag_expression("not not a")(tags) == ("a" in tags)
    assert parse_tag_expression("not (a or b)")(tags) == parse_tag_expression("not a and not b")(tags)


def test_steps_up_to_a_label(cases: Sequence[SuiteCase]) -> None:
    """All of them without one; a label that is not there is an error."""
    assert [len(list_case_steps_up_to_label(cases[0], label)) for label in ("", "one", "two")] == [2, 1, 2]
    with pytest.raises(SuiteError, match="no step with the label"):
        list_case_steps_up_to_label(cases[0], "three")


def test_names_of_cassettes_never_meet() -> None:
    """They can be read, stand in a URL, and what slugging lost is told apart."""
    names = {
        build_case_cassette_name(suite, case)
        for suite in ("My suite", "my-suite")
        for case in ("a", "a[1]", "a[2]", "ä")
    }
    assert len(names) == 8
    assert build_case_cassette_name("tasks", "create") == "tasks/create"
    assert all(name.isascii() and "#" not in name for name in names)


def test_failed_ones_stay_until_they_pass(tmp_path: Path) -> None:
    assert read_last_failed(tmp_path) is None
    save_failed_case_ids(tmp_path, ["a", "b", "c"], ["a", "b"])
    save_failed_case_ids(tmp_path, ["a"], [])
    assert read_last_failed(tmp_path) == ["b"]
    save_failed_case_ids(tmp_path, ["b", "d"], ["d"])
    assert read_last_failed(tmp_path) == ["d"]


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    """It is nobody's work; and a folder that cannot be written is left alone."""
    save_failed_case_ids(tmp_path, ["a"], ["a"])
    for text in ("{", "[]", '{"failed": 7}', "[" * 100_000):
        (tmp_path / FILE).write_text(text)
        assert read_last_failed(tmp_path) is None
    save_failed_case_ids(tmp_path / "nowhere" / "at all", ["a"], ["a"])


TEXT_cost = "name: t\nscenarios: [{id: one, runs: 3, steps: [{chat: x}]}, {id: two, steps: [{chat: x}]}]\n"


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Sequence[SuiteCase]]:
    """Return a store in which the first of two cases is recorded."""
    _, made = Chats().chat([user("x")], said("y"), usage={"prompt_tokens": 100_000, "completion_tokens": 1000})
    assert made is not None
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as store:
        store.add_interaction(replace(made, cassette="t/one"), supersede=False)
    return tmp_path / "x.db", rig.cases_of(tmp_path, TEXT_cost)


def test_recordings_are_added_up(recorded: tuple[Path, Sequence[SuiteCase]]) -> None:
    """Once for each run; what was never recorded is unknown."""
    one, _ = sum_recorded_case_costs(recorded[0], recorded[1][:1], runs=1)
    assert one > 0
    assert sum_recorded_case_costs(*recorded) == (one * 3, ["two"])
    assert sum_recorded_case_costs(recorded[0].with_name("none.db"), recorded[1])[1] == ["one", "two"]


def test_too_much_is_refused(recorded: tuple[Path, Sequence[SuiteCase]]) -> None:
    """Before anything runs; in replay nothing is spent."""
    store, cases = recorded
    for mode, limit in (("replay", "0"), (None, "0"), ("record", "1000")):
        check_cost_estimate_before_run(store, cases, SuiteCommandOptions(mode=mode, max_cost=Decimal(limit)))
    with pytest.raises(SuiteError, match="this would cost"):
        check_cost_estimate_before_run(store, cases, SuiteCommandOptions(mode="record", max_cost=Decimal("0.0001")))
    (doubt, *_) = check_cost_estimate_before_run(store, cases, SuiteCommandOptions(mode="auto", max_cost=Decimal(9)))
    assert "nothing is known about the cost of two" in doubt
    assert check_cost_estimate_before_run(store, cases, SuiteCommandOptions(mode="auto")) == []


@pytest.mark.parametrize(("cases", "selected", "partly", "said"), [
    (["a"], 1, False, "nothing is recorded for a; record it: llmproxy test --mode record"),
    (["a"], 1, True, "nothing is recorded for a; record it: llmproxy test --id a --mode record"),
    (
        ["a", "b c"],
        2,
        True,
        "nothing is recorded for 2 of 2 scenarios: a, b c; record them: llmproxy test --id a --id 'b c' --mode record",
    ),
    (["a", "b"], 5, False,
     "nothing is recorded for 2 of 5 scenarios: a, b; record them: llmproxy test --mode auto"),
])  # fmt: skip
def test_one_command_for_all(cases: list[str], selected: int, partly: bool, said: str) -> None:
    """What is recorded already is kept, and what was not asked for is not recorded."""
    assert advise_recording(cases, selected, "llmproxy test", partly=partly) == said


def test_how_often_each_runs_is_kept() -> None:
    """The command records as many runs as were asked for, and keeps those that are recorded."""
    assert append_runs_flag("llmproxy test", None) == "llmproxy test"
    assert append_runs_flag("llmproxy test", 3) == "llmproxy test --runs 3"
    said = advise_recording(["a"], 1, "llmproxy test --runs 3", partly=False, some_runs=True)
    assert said == "not every run is recorded of a; record it: llmproxy test --runs 3 --mode auto"


def test_a_long_list_is_cut() -> None:
    """And the command stays one that can be typed."""
    said = advise_recording([f"s-{n}" for n in range(200)], 200, "llmproxy test", partly=True)
    assert "and 190 more; record them: llmproxy test --last-failed --mode auto" in said


def test_one_run() -> None:
    """By itself it says which run, and ends with 4."""
    error = build_run_not_recorded_error("a", "llmproxy test --id a", 2, 3)
    assert str(error) == "nothing is recorded for a, run 2; record it: llmproxy test --id a --mode auto --runs 3"
    assert error.exit_code is Exit.MISS


def test_a_miss_leads_with_the_command_of_the_test() -> None:
    """The proxy's own way, which starts a proxy, is replaced; what else it says stays."""
    auto = "llmproxy start --mode auto --cassette a/b --store x.db"
    text = f"llmproxy: no recorded response\n  1. add it: {auto}\n  2. look: llmproxy why"
    starts = {"auto": auto, "record": "llmproxy start --mode record"}
    assert add_record_command_to_miss(text, "llmproxy test --id a", starts=starts).splitlines() == [
        "a request of the agent was never recorded; to add it: llmproxy test --id a --mode auto",
        "llmproxy: no recorded response",
        "  1. add it: llmproxy test --id a --mode auto",
        "  2. look: llmproxy why",
    ]


MISS = "llmproxy: no recorded response for this request\nWhat to do:\n  1. keep it: llmproxy start --mode auto --cassette x"


def test_a_counter_that_moved_is_said_with_what_to_do() -> None:
    """Where the store counts keys up; nowhere else."""
    said = add_record_command_to_miss(MISS, "llmproxy test", counted=["tasks"])
    for word in ("keys of tasks", "reset: truncate", "ids: deterministic"):
        assert word in said
    assert "counter" not in add_record_command_to_miss(MISS, "llmproxy test")


def test_under_pytest_its_own_option_is_advised() -> None:
    """For a miss and for a run without any recording."""
    again = 'pytest "t.suite.yaml::a"'
    told = add_record_command_to_miss(
        MISS, again, flag="--llmproxy-mode", starts={"auto": "llmproxy start --mode auto --cassette x"}
    )
    assert told.count(f"{again} --llmproxy-mode auto") == 2
    assert "llmproxy start" not in told
    error = build_run_not_recorded_error("a", again, 1, 3, flag="--llmproxy-mode")
    assert str(error).endswith(f"{again} --llmproxy-mode auto")
