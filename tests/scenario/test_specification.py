"""Which test proves which sentence: the specification's sections, and each known weakness of the original.

A table that names tests which do not exist, or leaves a row out, fails here; what a test proves, it says itself.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WEAKNESSES = {
    1: "test_acceptance::test_a_run_comes_back_offline_in_another_process "
    "test_cache::test_row_1_a_second_run_calls_nothing",
    2: "test_cache::test_row_2_keywords_and_defaults_count",
    3: "test_cache::test_row_3_functions_are_told_apart",
    4: "test_cache::test_row_4_declared_state_counts",
    5: "test_cache::test_row_5_none_and_empty_switch_it_off "
    "running/test_run::test_cache_key_none_is_off_although_configure_says_on",
    6: "test_cache::test_row_6_an_empty_folder_switches_it_off_at_once",
    7: "test_cache::test_row_7_no_secret_reaches_the_file test_cache::test_row_7_a_hostile_file_runs_nothing",
    8: "test_cache::test_row_8_only_what_means_something_counts",
    9: "test_cache::test_row_9_outside_a_scenario_it_is_simply_called",
    10: "test_cache::test_row_10_strict_replay_statistics_and_single_flight",
    11: "running/test_conversation::test_typed_text_is_what_the_user_says",
    12: "values/test_criteria::test_an_answer_in_another_order_means_the_same "
    "test_judge_agent::test_a_missing_criterion_is_no_success",
    13: "values/test_criteria::test_criteria_never_collide",
    14: "test_judge_agent::test_it_knows_its_last_turn "
    "test_judge_agent::test_without_criteria_a_run_ends_without_conclusion",
    15: "test_judge_agent::test_an_open_verdict_at_the_end_lists_every_criterion",
    16: "test_judge_agent::test_the_result_has_the_conversation",
    17: "test_judge_agent::test_it_sees_a_transcript_and_ends_on_the_user "
    "test_prompts::test_tool_calls_are_written_as_calls_in_order",
    18: "models/test_models::test_what_an_agent_says_itself_wins "
    "test_judge_agent::test_an_explicit_zero_is_not_overridden",
    19: "models/test_models::test_the_api_key_is_sent",
    20: "models/test_models::test_calls_do_not_wait_for_each_other "
    "running/test_run::test_parallel_runs_do_not_serialise_on_a_loop",
    21: "running/test_worker::test_a_blocked_run_is_left_and_reported "
    "running/test_worker::test_context_variables_are_copied_into_the_thread "
    "running/test_executor::test_a_run_has_a_limit_of_time",
    22: "running/test_conversation::test_succeed_and_fail_have_their_words "
    "running/test_conversation::test_any_agent_may_end_the_run",
    23: "running/test_executor::test_langwatch_events_of_a_run running/test_event_emitter::test_the_events_of_a_run",
    24: "../pytest/test_plugin_scenarios::test_every_run_is_in_the_report",
    25: "../pytest/test_plugin_scenarios::test_without_a_scenario_nothing_is_said "
    "../pytest/test_plugin_scenarios::test_debug_mode_needs_a_terminal_and_reports_need_a_file",
    26: "running/test_executor::test_verbose_prints_the_conversation "
    "../report/test_scenario_console::test_every_line_names_its_scenario_from_two_on "
    "../report/test_scenario_console::test_colours_are_for_terminals",
    27: "running/test_conversation::test_text_for_the_judge_is_context_and_no_message "
    "running/test_conversation::test_empty_text_is_said_too "
    "test_script::test_every_way_to_fail_inside_a_step test_script::test_async_steps_and_steps_that_return_steps "
    "running/test_conversation::test_an_open_verdict_in_mid_script_lets_the_script_go_on",
    28: "running/test_conversation::test_a_scripted_user_needs_no_simulator",
    29: "running/test_conversation::test_what_an_adapter_does_to_its_messages_stays_with_it",
    30: "values/test_messages::test_what_becomes_of_each_type",
    31: "test_user_simulator_agent::test_tool_internals_are_hidden test_prompts::test_tools_can_be_shown",
    32: "test_user_simulator_agent::test_the_goal_is_done "
    "test_user_simulator_agent::test_an_empty_answer_is_asked_for_again "
    "models/test_answer::test_reasoning_is_stripped",
    33: "test_api_examples::test_importing_opens_nothing_and_needs_no_llm_library",
    34: "repeats/test_verdicts::test_agent_errors_count_and_environment_errors_do_not "
    "repeats/test_statistics::test_wilson_holds_the_rate_and_stays_a_share",
    35: "running/test_participants::test_an_object_with_a_life_belongs_to_one_run_at_a_time "
    "running/test_participants::test_classes_and_functions_make_an_adapter_for_each_run",
    36: "running/test_conversation::test_on_turn_is_called_when_a_turn_begins "
    "running/test_conversation::test_on_turn_end_is_called_when_a_turn_has_ended",
    37: "test_judging::test_a_malformed_answer_is_repaired_once test_judging::test_malformed_twice_is_a_typed_error "
    "test_judge_agent::test_a_judge_that_makes_no_sense_is_a_typed_error",
}
"""Rows of the list of weaknesses of LangWatch Scenario, with the tests that show ours without them."""
SECTIONS = {
    "1.1 public surface": "test_api_examples::test_public_names test_api_examples::test_places_exist",
    "1.2 run": "running/test_run::test_the_documented_signature "
    "running/test_run::test_run_has_a_thread_and_a_loop_of_its_own "
    "running/test_run::test_arun_stays_on_the_callers_loop "
    "running/test_worker::test_run_sync_works_with_and_without_a_loop "
    "test_script::test_no_script_and_an_empty_one_proceed "
    "running/test_worker::test_cancelling_the_awaiter_cancels_the_run",
    "1.3 configuration": "test_config::test_documented_defaults test_config::test_configure_accumulates "
    "test_config::test_the_exported_default_is_a_copy_from_import_time "
    "running/test_conversation::test_no_turns_means_ten",
    "1.4 types": "test_types::test_roles_have_their_words test_types::test_the_repr_of_a_result "
    "test_types::test_documented_defaults_of_a_result "
    "test_types::test_a_user_message_that_is_no_text_is_an_error_with_advice "
    "test_scenario_state::test_no_message_is_an_error "
    "test_scenario_state::test_the_last_tool_call_is_the_newest_message_and_its_first",
    "1.5 turns": "running/test_conversation::test_random_cases_go_as_in_the_original "
    "running/test_conversation::test_order_inside_a_turn_is_by_role "
    "running/test_conversation::test_max_turns_is_so_many_whole_turns "
    "running/test_conversation::test_proceed_counts_the_turn_of_its_first_step "
    "running/test_conversation::test_on_step_is_called_after_every_call "
    "running/test_conversation::test_steps_can_be_taken_without_run",
    "1.6 broadcast": "running/test_conversation::test_scripted_text_is_heard_by_all_also_by_whose_role_it_plays "
    "running/test_conversation::test_an_agent_that_fails_has_not_heard_its_messages "
    "running/test_conversation::test_messages_hold_nothing_but_what_was_said",
    "1.7 return types": "values/test_messages::test_what_is_no_message_is_refused "
    "running/test_calling::test_a_call_that_is_not_async_is_told_how",
    "1.8 script": "running/test_conversation::test_a_role_that_nobody_plays_is_an_error_that_says_what_to_add "
    "running/test_conversation::test_message_adds_any_role "
    "test_script::test_the_end_of_a_script_is_a_failure_with_advice",
    "1.9 simulator": "test_user_simulator_agent::test_it_sees_the_conversation_with_roles_reversed "
    "test_user_simulator_agent::test_no_model_is_refused_when_it_is_made "
    "models/test_models::test_no_tools_key_without_tools "
    "models/test_models::test_a_temperature_that_nobody_chose_is_dropped",
    "1.10 judge": "test_judging::test_openai_gets_the_schema_strict "
    "test_judging::test_anthropic_gets_the_schema_in_its_form "
    "test_judging::test_gemini_gets_the_schema_in_its_form "
    "test_judge_agent::test_without_criteria_a_demanded_verdict_fails_without_a_call",
    "1.11 times": "running/test_conversation::test_the_agents_time_is_the_agents_alone",
    "1.12 thread ids": "values/test_run::test_thread_ids_of_a_recording_are_the_same_tomorrow "
    "running/test_run_lifecycle::test_samples_and_fresh_ids",
    "1.13 cache": "test_cache::test_the_documented_examples_call_nothing_the_second_time "
    "test_cache::test_samples_are_kept_apart "
    "test_cache::test_a_run_says_what_the_cache_answered",
    "1.14 debug": "running/test_conversation::test_scripted_text_asks_nobody "
    "running/test_conversation::test_a_person_can_end_it",
    "1.15 verbose": "../report/test_scenario_console::test_what_is_printed",
    "1.16 pytest": "../pytest/test_scenario_report::test_the_report_has_the_original_s_words "
    "../pytest/test_scenario_report::test_nothing_is_printed_when_nothing_ran "
    "../pytest/test_scenario_report::test_the_rate_has_a_colour_on_a_terminal",
    "1.17 events": "../report/test_langwatch::test_without_an_endpoint_there_is_no_thread_and_no_word "
    "../report/test_langwatch::test_an_event_is_tried_again "
    "../report/test_langwatch::test_an_event_is_posted_with_the_key",
    "1.18 errors": "running/test_worker::test_what_an_adapter_raises_comes_out_as_it_is "
    "running/test_executor::test_an_exception_is_told_before_it_comes_out",
    "1.19 models and turns": "models/test_route::test_each_provider_has_its_base_url "
    "models/test_route::test_vertex_is_refused_with_what_to_write "
    "test_session::test_agents_in_one_process_land_in_their_own_runs_in_one_loop "
    "running/test_run_lifecycle::test_a_miss_is_an_error_whatever_the_agent_says "
    "values/test_run::test_whose_fault repeats/test_statistics::test_pass_k_is_what_enumeration_counts "
    "test_session::test_the_proxy_is_the_runs_the_configured_one_or_the_environments",
    "bad input": "running/test_calling::test_what_is_no_message_is_an_error_that_names_the_class "
    "running/test_calling::test_who_hangs_is_given_up "
    "test_judge_agent::test_odd_criteria_are_judged_each_on_its_own "
    "test_judge_agent::test_an_empty_criterion_is_refused "
    "test_judging::test_a_refused_choice_is_asked_as_required models/test_models::test_no_model_anywhere "
    "running/test_conversation::test_what_an_adapter_does_to_its_messages_stays_with_it",
}
"""Sections of its behaviour, with the tests of their sentences."""


@cache
def defined_in(module: str) -> frozenset[str]:
    """Return the names of the tests in a module of this folder."""
    path = HERE / f"{module}.py"
    tree = ast.parse(path.read_text("utf-8")) if path.exists() else ast.parse("")
    return frozenset(
        each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    )


@pytest.mark.parametrize("what", [*WEAKNESSES, *SECTIONS], ids=str)
def test_what_is_specified_is_tested(what: int | str) -> None:
    """Every test that the table names exists."""
    named = WEAKNESSES[what] if isinstance(what, int) else SECTIONS[what]
    missing = [each for each in named.split() if each.partition("::")[2] not in defined_in(each.partition("::")[0])]
    assert not missing


def test_no_row_is_left_out() -> None:
    """All 37 weaknesses, and all sections from 1.1 to 1.19."""
    assert list(WEAKNESSES) == list(range(1, 38))
    assert [name.split()[0] for name in SECTIONS if name[0] == "1"] == [f"1.{number}" for number in range(1, 20)]
