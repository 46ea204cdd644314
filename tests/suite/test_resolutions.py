"""Which test proves which resolution of what the guide of the format leaves open.

A table that names tests which do not exist, or leaves a row out, fails here; what a test proves, it says itself.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RESOLUTIONS = {
    "1 scenarios inline, by path and by glob; baseDir is for files": "reading/test_load::test_inline_scenarios_are_not_dropped "
    "reading/test_load::test_scenarios_come_from_files_and_globs_too reading/test_parts::test_entries_are_relative_to_their_folder",
    "2 ids are unique over everything that is run": "reading/test_load::test_what_cannot_be_meant_is_refused",
    "3 contains minds case unless told": "matchers/test_table::test_the_table_of_matchers matchers/test_text::test_case_is_folded_for_every_language",
    "4 a list of contains means all of them": "matchers/test_table::test_the_table_of_matchers",
    "5 regex searches, in Python's dialect": "matchers/test_text::test_patterns_are_those_of_python",
    "6 count and input of a tool": "checks/test_tools::test_what_is_expected_of_a_tool",
    "7 tools are those of this step": "../trace/observing/test_wire::test_history_is_never_counted",
    "8 other tools may be called": "checks/test_tools::test_other_tools_may_be_called_unless_only_these_may",
    "9 what counts as created": "checks/test_created::test_a_row_that_was_there_before_is_not_created "
    "checks/test_created::test_count_is_of_the_rows_that_have_the_fields checks/test_created::test_within_waits_for_agents_that_write_later",
    "10 fields without an id hold for every row": "checks/test_verify::test_fields_hold_for_every_selected_row",
    "11 verify wants a row": "checks/test_verify::test_no_row_is_no_pass",
    "12 wait may begin before there is a row, and needs until": "checks/test_verify::test_wait_ends_as_soon_as_it_holds "
    "reading/test_load::test_what_cannot_be_meant_is_refused",
    "13 timeouts stand in wait and in chat": "checks/test_verify::test_wait_ends_when_the_time_is_over schema/test_steps::test_every_kind_of_step_loads",
    "14 a name alone is its id": "matchers/test_variables::test_references_are_written_out",
    "15 what has no value is an error": "matchers/test_variables::test_what_has_no_value_is_never_sent run/test_runner::test_a_name_without_a_value_is_never_sent",
    "16 setup goes in order": "checks/test_looking::test_setup_inserts_in_order_and_names_whole_rows",
    "17 clean-up": "checks/test_cleanup::test_each_way_of_leaving_the_store run/test_runner::test_rows_are_removed_whatever_happened",
    "18 what userId means": "checks/test_looking::test_setup_rows_belong_to_the_runs_user checks/test_row_selection::test_filters_are_matchers_and_narrow_to_the_user "
    "run/test_runner::test_runs_with_users_of_their_own_go_on_at_the_same_time",
    "19 usage is the step's": "checks/test_usage::test_numbers_are_compared",
    "20 what stands beside anyOf counts too": "checks/test_usage::test_any_branch_is_enough",
    "21 all runs have to pass": "run/test_verdicts::test_a_scenario_passes_if_all_its_runs_do",
    "22 what continueConversation goes on with": "run/test_conversations::test_there_must_be_something_to_go_on_with "
    "run/test_conversations::test_a_step_opens_a_conversation_of_its_own",
    "23 which table an entity is": "stores/test_sql_map::test_an_entity_is_mapped",
    "24 the traps of YAML 1.1": "../test_yaml_reader::test_plain_values_are_those_of_the_core_schema",
    "25 a value that looks like a matcher": "matchers/test_table::test_the_table_of_matchers",
}
"""The rows, with the tests that show them."""


@cache
def defined_in(module: str) -> frozenset[str]:
    """Return the names of the tests in a module of this folder."""
    tree = ast.parse((HERE / f"{module}.py").read_text("utf-8"))
    return frozenset(
        each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    )


@pytest.mark.parametrize("row", RESOLUTIONS)
def test_what_was_resolved_is_tested(row: str) -> None:
    missing = [
        each for each in RESOLUTIONS[row].split() if each.partition("::")[2] not in defined_in(each.partition("::")[0])
    ]
    assert not missing


def test_no_row_is_left_out() -> None:
    """All 25 of them, in order."""
    assert [int(row.split()[0]) for row in RESOLUTIONS] == list(range(1, 26))
