"""The volatile fields that ship."""

from __future__ import annotations

import pytest

from llmproxy.core.bindings import Bindings, Fit, RunVariable, fit_request
from llmproxy.core.bindings.volatile_fields import OUTSIDE, SYSTEM, list_builtin

NOTICE = """<system-reminder>
<task-notification>
<task-id>{id}</task-id>
<result>{said}</result>
<usage><subagent_tokens>{tokens}</subagent_tokens><tool_uses>{uses}</tool_uses><duration_ms>{ms}</duration_ms></usage>
</task-notification>
</system-reminder>"""
LAUNCHED = """Async agent launched successfully.
agentId: {id} (internal ID - do not mention to user.)
output_file: /tmp/claude-0/-work/{session}/tasks/{id}.output"""
HEARD = (
    "milk\nagentId: {id} (use SendMessage with to: '{id}')\n<usage>subagent_tokens: {tokens}\nduration_ms: {ms}</usage>"
)
THEN = {"id": "afc1dec468ae4304c", "tokens": "30", "uses": "1", "ms": "358", "said": "milk",
        "session": "8da5fde3-07c8-4337-baf3-8237183a13fd"}  # fmt: skip
NOW = {"id": "ae9a6b5372240d050", "tokens": "31", "uses": "1", "ms": "2666", "said": "milk",
       "session": "d619ba93-0f58-4173-bc9b-691bf5b00000"}  # fmt: skip


def ask(result: str, said: str, values: dict[str, str]) -> dict[str, object]:
    """Return a request after a sub-agent was started, and has spoken."""
    call = {"type": "tool_use", "id": "call#1", "name": "Agent", "input": {"prompt": "Look!"}}
    answer = {"type": "tool_result", "tool_use_id": "call#1", "content": result.format(**values)}
    return {"messages": [
        {"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]},
        {"role": "user", "content": said.format(**values)},
    ]}  # fmt: skip


@pytest.mark.parametrize("result", [LAUNCHED, HEARD])
@pytest.mark.parametrize(("said", "changed", "fits"), [
    (NOTICE, {}, True),
    (NOTICE, {"uses": "2"}, False),
    (NOTICE, {"said": "bread"}, False),
    ("It took <duration_ms>{ms}</duration_ms></usage>. Too long?", {}, False),
    (NOTICE.replace("system-reminder", "user-message"), {}, False),
])  # fmt: skip
def test_what_claude_code_notes_of_its_sub_agents_varies(
    result: str, said: str, changed: dict[str, str], *, fits: bool
) -> None:
    """Ids, tokens and milliseconds, where the agent writes them; nothing that an agent or a user said."""
    found = fit_request(Bindings((), (), list_builtin()), ask(result, said, THEN), ask(result, said, NOW | changed))
    assert isinstance(found, Fit) is fits, found


def test_each_shipped_slot_is_anchored_by_words_of_its_agent() -> None:
    """None may vary something of an agent that nobody looked at: each has a text before it, or stands in its own tool's."""
    slots = list_builtin()
    assert {slot.name for slot in slots} >= {"chunk_id", "git_user"}
    loose = [slot for slot in slots if len(slot.before) < len("Chunk ID") or slot.arguments]
    assert [slot for slot in loose if slot.tool != "multi_agent_v1__spawn_agent" or not slot.at.startswith("$.")] == []


SPAWNED = '{{"agent_id":"{id}","nickname":"{nick}"}}'
TASK = '<task id="{id}" state="completed">\n<task_result>\n{said}\n</task_result>\n</task>'
CARVER = {"id": THEN["session"], "nick": "Carver", "said": "milk"}
HUME = {"id": NOW["session"], "nick": "Hume", "said": "milk"}


@pytest.mark.parametrize(("tool", "result", "changed", "fits"), [
    ("multi_agent_v1__spawn_agent", SPAWNED, {}, True),
    ("multi_agent_v1__spawn_agent", SPAWNED, {"nick": ""}, False),
    ("find_person", SPAWNED, {}, False),
    ("task", TASK, {}, True),
    ("task", TASK, {"said": "bread"}, False),
    ("read", TASK, {}, False),
])  # fmt: skip
def test_what_codex_and_opencode_note_of_their_sub_agents_varies(
    tool: str, result: str, changed: dict[str, str], *, fits: bool
) -> None:
    """Ids and nicknames that the agent itself gives, in the results of its own tool; nothing that a sub-agent said."""

    def said(values: dict[str, str]) -> dict[str, object]:
        call = {"id": "call#1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        answer = {"role": "tool", "tool_call_id": "call#1", "content": result.format(**values)}
        return {"messages": [{"role": "assistant", "tool_calls": [call]}, answer]}

    found = fit_request(Bindings((), (), list_builtin()), said(CARVER), said(HUME | changed))
    assert isinstance(found, Fit) is fits, found


SESSION = "Session folder: {home}/.copilot/session-state/"
COPILOT = (SESSION.replace("{home}", "{0}") + "{1}\n\nContents:", "<current_datetime>{2}</current_datetime>\n\n{3}")


@pytest.mark.parametrize(("now", "fits"), [
    (("/srv/kim", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What?"), True),
    (("/srv/kim", "another", "2027-01-03T11:00:01.464+02:00", "What?"), False),
    (("/srv/lee", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What?"), False),
    (("/srv/kim", NOW["session"], "yesterday", "What?"), False),
    (("/srv/kim", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What else?"), False),
])  # fmt: skip
def test_copilot_s_session_and_clock_vary(now: tuple[str, ...], *, fits: bool) -> None:
    """The session's uuid below this run's home, and the time in the agent's own block; never the question."""
    then = ("/home/ann", THEN["session"], "2026-11-28T03:15:59.464+00:00", "What?")
    requests = [
        {
            "messages": [
                {"role": role, "content": text.format(*each)}
                for role, text in zip(("system", "user"), COPILOT, strict=True)
            ]
        }
        for each in (then, now)
    ]
    homes = [RunVariable("home", "/home/ann")], [RunVariable("home", "/srv/kim")]
    found = fit_request(Bindings(*homes, list_builtin()), requests[0], requests[1])
    assert isinstance(found, Fit) is fits, found


def test_outside_of_results_ours_are_of_system_text() -> None:
    """Claude Code names git's user there, Copilot its session; nothing else that ships stands outside."""
    assert [slot.before for slot in list_builtin() if slot.tool in (OUTSIDE, SYSTEM)] == ["Git user: ", SESSION]
    assert [slot for slot in list_builtin() if slot.tool == OUTSIDE] == []
