"""The text of a miss."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from llmproxy.advice import SuggestedCommandTemplate
from llmproxy.core.keys.normalize import canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.misses.explain import (
    LIMIT,
    LINES,
    ExplainedMiss,
    MissContext,
    RecordedElsewhere,
    build_miss_explanation,
)
from llmproxy.core.misses.nearest_recording import Nearest, NormalizeRulesSuggestion
from llmproxy.core.providers.provider_table import ClientProgram
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Request
from llmproxy.core.traffic.json_diff import SHOWN, Difference, build_difference

CONTEXT = MissContext(
    mode="replay", cassette="trip", session="trip", key="v1:" + "ab12" * 16, method="POST", provider="openai",
    operation="chat.completions", model="gpt-4o", stream=True, last_user="Book a flight", recordings=3,
    same_operation=2, again=SuggestedCommandTemplate(page="http://127.0.0.1:8080/"),
)  # fmt: skip
NEAR = Nearest(12, True, (Difference("$.messages[1].content", '"Rome"', '"Paris"'),), 0.9)

AUTO = "--mode auto --cassette trip"
OTHER_OPERATION = "none of its 3 recordings is of openai chat.completions"
NO_SERVERS, AS_BEFORE = "it was recorded without MCP servers", "unchanged, as in the recording"
RUN = SuggestedCommandTemplate("llmproxy run", " -- claude -p hi", (("cassette_dir", "tapes"),))
TOOLLESS = replace(CONTEXT, provider="tools", operation="mcp:tools/list", same_operation=0, toolless=True)


@pytest.mark.parametrize(("context", "name", "cause", "step"), [
    (replace(CONTEXT, store_exists=False), "no_store", "there is no store llmproxy.db", AUTO),
    (replace(CONTEXT, recordings=0), "empty", "nothing is recorded in it", AUTO),
    (replace(CONTEXT, recordings=0, sample=3), "empty", "nothing is recorded in it for sample 3", "--mode auto"),
    (replace(CONTEXT, same_operation=0), "operation", OTHER_OPERATION, "--mode auto"),
    (replace(TOOLLESS, again=RUN), "no_tools", NO_SERVERS,
     f"{AS_BEFORE}: llmproxy run --cassette trip --cassette-dir tapes --mcp-config none -- claude -p hi"),
    (TOOLLESS, "no_tools", NO_SERVERS, f"leave its MCP servers {AS_BEFORE}\n"),
    (replace(CONTEXT, played=2), "exhausted", "all its 2 recordings were already played", "--exhausted last"),
    (replace(CONTEXT, elsewhere=(RecordedElsewhere("rome"),)), "elsewhere", 'recorded under cassette "rome"',
     "--mode replay --cassette rome"),
    (replace(CONTEXT, elsewhere=(RecordedElsewhere("trip", 2),)), "elsewhere", "recorded under sample 2", 'use session "trip~2"'),
    (replace(CONTEXT, elsewhere=(RecordedElsewhere("trip", 1, "judge"),)), "elsewhere", 'under party "judge"', "x-llmproxy-party"),
    (CONTEXT, "different", "no recording has this key", AUTO),
    (replace(CONTEXT, incomplete=True), "different", "key; the recording is incomplete: interrupted, or", AUTO),
    (replace(CONTEXT, store_exists=False, outside_tests=True), "outside_tests", "no test with the fixture `llmproxy` was",
     "request the fixture in this test, or in every test: -o llmproxy_autouse=true"),
])  # fmt: skip
def test_states(context: MissContext, name: str, cause: str, step: str) -> None:
    """The first line says why, the steps say what to type for it."""
    first, _, rest = ExplainedMiss(context, None).text.partition("\n")
    assert ExplainedMiss(context, None).reason == name
    assert cause in first
    assert step in rest


NOTHING = "llmproxy: no recorded response for this request (openai chat.completions gpt-4o)"


def test_text() -> None:
    """The whole text: a first line that stands alone, as SDKs show it; where, what, nearest, what to do."""
    assert ExplainedMiss(CONTEXT, NEAR).text.splitlines() == [
        f'{NOTHING} in cassette "trip": the nearest recording (#12) differs at $.messages[1].content.',
        'mode replay, session "trip", store llmproxy.db, key v1:ab12ab12ab12; nothing was sent to the provider.',
        'request: POST openai chat.completions gpt-4o, streaming, last user text "Book a flight"',
        "nearest recording: #12, differs in 1 place:",
        '  $.messages[1].content: "Rome" -> "Paris"',
        "What to do:",
        "  1. record what is missing: llmproxy stop --url http://127.0.0.1:8080; llmproxy start --mode auto --cassette trip",
        "  2. look closer: llmproxy why   llmproxy show 12   http://127.0.0.1:8080/#/live/ab12ab12ab12",
    ]


def test_what_went_nowhere_is_named() -> None:
    """No provider was to hear the call of a tool."""
    for provider, operation, where in (("stdio:a", "mcp:tools/call x", "server"), ("http:a.example", "/x", "service")):
        text = ExplainedMiss(replace(CONTEXT, provider=provider, operation=operation), None).text
        assert f"nothing was sent to the {where}." in text


def test_where_nothing_is_recorded_there_is_nothing_to_look_at() -> None:
    """One step: the command that records it, which the end of a run says in its place; other misses have none."""
    empty = replace(CONTEXT, store_exists=False, again=SuggestedCommandTemplate("llmproxy run", " -- COMMAND"))
    miss = ExplainedMiss(empty, None)
    assert miss.text.endswith(f"What to do:\n  1. record what is missing: {miss.record_command}")
    assert miss.record_command.startswith("llmproxy run --mode auto")
    assert ExplainedMiss(CONTEXT, NEAR).record_command == ""


def test_rule_comes_first_if_it_suffices() -> None:
    """A rule that makes the request a hit is the first step; one that does not is the second."""
    near = replace(NEAR, suggestion=NormalizeRulesSuggestion('packs = ["dates"]', 0, of_days=True))
    assert "1. if that changes by itself" in ExplainedMiss(CONTEXT, near).text
    assert 'packs = ["dates"]' in ExplainedMiss(CONTEXT, near).text
    text = ExplainedMiss(CONTEXT, replace(NEAR, suggestion=NormalizeRulesSuggestion('packs = ["dates"]', 2))).text
    assert "2. if that changes by itself" in text
    assert "2 other differences would stay" in text
    assert "and start the proxy again" in text


def test_a_day_in_system_text_can_be_bound_instead() -> None:
    """Both ways that work are named: a rule, and a recording that knows its day."""
    days = replace(NEAR, suggestion=NormalizeRulesSuggestion('packs = ["days"]', 0, of_days=True))
    step = "2. or record again with the day declared; it then replays on any other day: llmproxy run --mode record"
    assert step in ExplainedMiss(CONTEXT, days).text
    assert (
        "know its day"
        not in ExplainedMiss(CONTEXT, replace(NEAR, suggestion=NormalizeRulesSuggestion('ignore = ["$.x"]', 0))).text
    )
    aware = replace(CONTEXT, unbound="recording #7, bound: $.system: recorded '2026-11-25', now '2026-11-26'")
    assert "know its day" not in ExplainedMiss(aware, days).text


@pytest.mark.parametrize(
    ("old", "new", "numbers"),
    [("task 7 is done", "task 12 is done", True), ("task 7 is done", "task 7 is open", False),
     (f"task 7{' ' * SHOWN}is done", f"task 12{' ' * SHOWN}is open", False)],
)  # fmt: skip
def test_who_has_a_shorter_way_is_told_what_to_replace(old: str, new: str, numbers: bool) -> None:
    """The commands that start a proxy by hand stand in the text to the letter; numbers alone may be a counter's."""
    near = replace(NEAR, differences=(build_difference("$.a", old, new), build_difference("$.b", 1, 2)))
    miss = ExplainedMiss(CONTEXT, near)
    assert miss.proxy_start_commands_by_mode["auto"] in miss.text
    assert (
        miss.proxy_start_commands_by_mode["auto"]
        == "llmproxy stop --url http://127.0.0.1:8080; llmproxy start --mode auto --cassette trip"
    )
    assert miss.differs_in_numbers is numbers
    by_run = replace(CONTEXT, again=SuggestedCommandTemplate("llmproxy run", " -- x"))
    assert ExplainedMiss(by_run, None).proxy_start_commands_by_mode == {}
    assert not ExplainedMiss(by_run, None).differs_in_numbers


def test_what_started_the_proxy_is_what_to_type() -> None:
    """Who typed `llmproxy run` has no use for `llmproxy start`; names with blanks are quoted for the shell."""
    text = ExplainedMiss(replace(CONTEXT, cassette="my trip", store="/data/x y.db"), None).text
    assert "llmproxy start --mode auto --cassette 'my trip' --store '/data/x y.db'" in text
    started = replace(
        CONTEXT, again=SuggestedCommandTemplate("llmproxy run --intercept", " -- COMMAND"), store="a b.db"
    )
    command = "llmproxy run --intercept --mode auto --cassette trip --store 'a b.db' -- COMMAND"
    assert f"record what is missing: {command}\n" in ExplainedMiss(started, NEAR).text
    assert "1. record what is missing: llmproxy run" in ExplainedMiss(replace(started, store_exists=False), None).text
    assert "llmproxy start" not in ExplainedMiss(started, NEAR).text
    again = replace(NEAR, suggestion=None)  # then a trial is offered, but not by a trial
    assert "llmproxy changes" not in ExplainedMiss(replace(started, on_trial=True), again).text
    assert (
        "llmproxy changes --intercept --cassette trip --store 'a b.db' -- COMMAND\n"
        in ExplainedMiss(started, again).text
    )
    assert "llmproxy changes" not in ExplainedMiss(started, replace(again, is_other_question=True)).text
    once = ExplainedMiss(replace(CONTEXT, mode="once", complete=True), NEAR).text
    assert "1. mode once adds nothing to a complete cassette; record what is missing" in once


def test_four_differences_are_shown() -> None:
    """The first four differences are shown, the rest is counted: a miss has at most twelve lines."""
    text = ExplainedMiss(
        CONTEXT, replace(NEAR, differences=tuple(Difference(f"$.a{n}", "1", "2") for n in range(9)))
    ).text
    assert "$.a3: 1 -> 2" in text
    assert "$.a4" not in text
    assert "and 5 more" in text
    assert text.count("\n") < LINES


TEXT = st.text(max_size=3000)


@given(TEXT, TEXT, TEXT, TEXT)
def test_is_short_and_plain_whatever_comes(name: str, model: str, user: str, value: str) -> None:
    """At most 2,000 characters, and nothing but printable characters and line ends."""
    context = replace(CONTEXT, cassette=name, session=name, model=model, last_user=user, store=name, operation=model)
    differences = tuple(Difference("$." + model, value, value, "date/time") for _ in range(9))
    text = ExplainedMiss(context, replace(NEAR, differences=differences)).text
    assert len(text) <= LIMIT
    assert text.startswith("llmproxy: ")
    assert all(line.isprintable() for line in text.split("\n"))


def test_explain_joins_all() -> None:
    """One call gives the text and what the journal keeps."""
    headers = (("content-type", "application/json"),)

    def form(user: str) -> Request:
        body = json.dumps({"messages": [{"role": "user", "content": user}]}).encode()
        return Request("POST", "/v1/chat/completions", headers, body)

    where = route("/v1/chat/completions", headers)
    wanted, recorded = (
        canonicalize_request(form(text), where, Rules(), lambda _: None) for text in ("to Rome", "to Paris")
    )
    miss = build_miss_explanation(CONTEXT, wanted, [(5, recorded)])
    assert "#5" in miss.text
    value = json.loads(json.dumps(miss.to_dict()))
    assert (value["reason"], value["cassette"]) == ("different", "trip")
    assert value["nearest"]["differences"][0]["old"] == '"to Paris"'


def test_another_order_of_what_ran_at_once_says_so() -> None:
    """It names the concurrent recordings; a Python program may take the order from a set; no rule, no other order is advised."""
    near = replace(NEAR, reordered="$.messages")
    text = ExplainedMiss(replace(CONTEXT, concurrent=((4, 7, 5), (20, 21)), is_python=True), near).text
    assert "it is the same messages as #12 in another order, at $.messages: #4 to #7 ran at the same time." in text
    assert "PYTHONHASHSEED=0" in text
    assert "--mode auto" not in text
    words = replace(NEAR, reordered="$.messages[1].content", is_word_order=True)
    assert "the same words as #12" in ExplainedMiss(CONTEXT, words).text
    alone = ExplainedMiss(CONTEXT, replace(NEAR, reordered="$.tools")).text
    assert "it is the same members as #12 in another order, at $.tools." in alone
    assert "PYTHONHASHSEED" not in alone


@pytest.mark.parametrize(("placeholder", "recorded", "told"), [(True, 0, True), (True, 2, False), (False, 0, False)])
def test_a_miss_of_a_provider_that_was_chosen_by_a_placeholder_says_so(
    placeholder: bool, recorded: int, told: bool
) -> None:
    """Where nothing of that provider is recorded: a program that goes by which key is set chose another one."""
    context = replace(CONTEXT, is_placeholder=placeholder, recordings=5, same_operation=recorded)
    assert ("its key is the placeholder that replay sets" in ExplainedMiss(context, None).text) is told


def test_a_miss_names_both_clients_where_they_differ() -> None:
    """An upgraded agent is said with both versions; an equal one, or one that says nothing, is not mentioned."""
    then, now = ClientProgram("Claude Code", "2.1.197"), ClientProgram("Claude Code", "2.1.332")
    text = ExplainedMiss(replace(CONTEXT, client=now, recorded_by=then), NEAR).text
    assert "recorded by Claude Code 2.1.197, asked by 2.1.332\n" in text
    other = replace(CONTEXT, client=ClientProgram("Codex", "0.63.0"), recorded_by=then)
    assert "recorded by Claude Code 2.1.197, asked by Codex 0.63.0\n" in ExplainedMiss(other, NEAR).text
    for same in (replace(CONTEXT, client=then, recorded_by=then), replace(CONTEXT, client=now)):
        assert "recorded by" not in ExplainedMiss(same, NEAR).text
