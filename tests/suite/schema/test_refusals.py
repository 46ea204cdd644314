"""What cannot be meant is refused when a suite is read, with its place, its reason and what was probably meant."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from tests.suite.fragment import load_fragment

STEPS = "steps: [{chat: hi}]"
CASE = f"scenarios: [{{id: a, {STEPS}}}]"
REFUSED: dict[str, list[tuple[str, ...]]] = {
    "suite": [
        ("{name: s}", "`scenarios` is missing"),
        (f"{{name: s, version: 2, {CASE}}}", "version 2 of the format, and version 1 is known"),
        (f"{{name: s, hooks: {{beforeAll: [{{run: x}}]}}, {CASE}}}", "unknown key `run`"),
        (f"{{name: s, hooks: {{beforeAll: [{{timeout: 5}}]}}, {CASE}}}", "either `command` or `python`"),
        (f"{{name: s, defaults: {{retries: 5}}, {CASE}}}", "unknown key `retries`"),
    ],
    "scenario": [
        (f"{{{STEPS}}}", "`id` is missing"),
        ("{id: a}", "`steps` is missing"),
        (f"{{id: $x, {STEPS}}}", "an id is a plain text"),
        (f"{{id: a, parametrize: {{x: 1}}, {STEPS}}}", "takes a list"),
        (f"{{id: a, vars: [1], {STEPS}}}", "takes a mapping"),
        (f"{{id: a, teardown: [{{delete: t}}], {STEPS}}}", "`delete` needs `id` or `filters`"),
        (f"{{id: a, teardown: [{{delete: t, command: x}}], {STEPS}}}", "one of `delete`, `command` and `python`"),
        (f"{{id: a, user_id: x, {STEPS}}}", "did you mean `userId`?"),
    ],
    "step": [
        ("{}", "a step has one of chat, simulate, judge, verify, wait, setup, and this has nothing"),
        ("{label: x}", "and this has label"),
        ("{Chat: hi}", "did you mean `chat`?"),
        ("{chat: hi, wait: {ms: 1}}", "this is `chat` and `wait` (make it several steps)"),
        ("{chat: ''}", "`chat` takes a text that is not empty"),
        ("{chat: hi, label: 5}", "`label` takes a text"),
        ("{chat: hi, tools: {a: {before: a}}}", "cannot all hold: a before a"),
        ("{chat: hi, tools: {a: {after: a}}}", "cannot all hold: a before a"),
        ("{chat: hi, tools: {a: {before: b}, b: {before: a}}}", "cannot all hold: "),
        ("{chat: hi, tools: {a: {before: b, after: b}}}", "cannot all hold: "),
        ("{chat: hi, tools: {a: {before: b}, b: {before: c}, a2: 1, c: {before: a}}}", "cannot all hold: "),
        ("{chat: hi, onlyTools: true}", "`onlyTools` needs `tools`"),
        ("{chat: hi, observe: no}", "takes one of 'wire' or 'none'"),
        ("{chat: hi, created: []}", "`created` takes at least one item, not an empty list"),
        ("{chat: hi, toolsSnapshot: yes}", "takes true, `names` or `arguments`"),
        ("{chat: hi, toolsSnapshot: [names]}", "takes true, `names` or `arguments`, not a list"),
        ("{chat: hi, totalToolCalls: {lte: many}}", "takes a number that is not negative"),
        ("{simulate: {persona: x}}", "`goal` is missing"),
        ("{simulate: {goal: x, maxTurns: 0}}", "a whole number from 1"),
        ("{verify: {entity: t, count: 1}, tools: {a: 1}}", "unknown key `tools`"),
        ("{verify: {entity: t}}", "`verify` selects nothing"),
        ("{verify: {entity: t, as: $x}}", "`verify` selects nothing"),
        ("{verify: {entity: t, exists: false, filters: {a: 1}, fields: {b: 2}}}", "leaves no row whose fields"),
        ("{verify: {count: 1}}", "`entity` is missing"),
        ("{verify: tasks}", "takes a mapping"),
        ("{wait: {entity: t}}", "`until` is missing"),
        ("{wait: {entity: t, until: {a: {gt: x}}}}", "takes a number or a date"),
        ("{wait: {seconds: 1, ms: 2}}", "either `seconds` or `ms`"),
        ("{wait: {seconds: 1, until: {a: 1}}}", "unknown key `until`"),
        ("{wait: 5}", "takes a mapping"),
        ("{setup: []}", "at least one item"),
        ("{setup: [{insert: t}]}", "`data` is missing"),
        ("{setup: [{insert: t, data: [1]}]}", "takes a mapping"),
        ("{setup: [{inserts: t, data: {}}]}", "did you mean `insert`?"),
        ("{wait: {entity: x, fields: {a: 1}, timeoutSeconds: 5}}", "unknown key `timeoutSeconds`"),
        ("{verify: {tasks: [{title: x}]}}", "unknown key `tasks`"),
        ("{verify: {entity: tasks, fields: {a: 1}}}", "`verify` selects nothing"),
        ("{chat: hi, continueConversation: yes}", "only true and false are booleans"),
        ("{http: {url: x}}", "steps that call HTTP are not part of the format"),
        ("{sql: x}", "steps that run SQL are not part of the format"),
        ("chat", "a step"),
    ],
    "steps": [("[]", "at least one item")],
    "fields": [("{title: {matches: x}}", "there is no matcher `matches`"), ("{}", "asserts nothing")],
    "tools": [
        ("{a: {gte: 1, input: {x: 1}}}", "write it below `count`"),
        ("{a: [1]}", "takes how often the tool is called"),
        ("{a: null}", "takes how often the tool is called"),
        ("{a: {status: requested}}", "nothing is asserted here"),
        ("{a: {count: 1, status: done}}", "takes one of 'requested', 'executed' or 'errored'"),
        ("{a: {input: {}}}", "asserts nothing"),
        ("{a: {input: {x: {contains: []}}}}", "an empty list asserts nothing"),
        ("{a: {every: {x: {contains: []}}}}", "an empty list asserts nothing"),
        ("{a: {every: 5, count: 1}}", "takes a mapping of paths to matchers, true or false"),
        ("{a: {every: {}, count: 1}}", "asserts nothing: it is empty"),
        ("{a: {every: false}}", "nothing else is said"),
        ("{a: {every: true, status: executed}}", "nothing else is said"),
        ("{x: {min: 1}}", "unknown key `min`"),
        ("[{name: x, count: 1}]", "takes a mapping"),
        ("{}", "at least one item"),
    ],
    "response": [
        ("{regex: '(['}", "fragment:1:9: ", "does not compile"),
        ("{regex: [ok, '([']}", "fragment:1:9: ", "does not compile"),
        ("{contains: [a], flags: i}", "fragment:1:17: ", "changes nothing here"),
        ("{judge: {criteria: []}}", "fragment:1:20: ", "at least one item"),
        ("{judge: []}", "fragment:1:9: ", "at least one item"),
        ("{json: {}}", "fragment:1:8: ", "asserts nothing"),
        ("{snapshot: yes}", "fragment:1:12: ", "only true and false"),
        ("{anyOf: []}", "fragment:1:9: ", "at least one"),
        ("{not: {foo: 1}}", "fragment:1:8: ", "there is no matcher `foo`"),
        ("just text", "fragment:1:1: ", "takes a mapping"),
        ("{mentions: x}", "unknown key `mentions`"),
        ("{matches: x}", "unknown key `matches`"),
        ("{ignoreCase: true}", "changes nothing here"),
    ],
    "usage": [
        ("{tokens: 5}", "unknown key `tokens`"),
        ("{inputTokens: '5'}", "mind the quotes"),
        ("{anyOf: [{}]}", "nothing is asserted here"),
        ("{allOf: {callCount: 1}}", "takes a list"),
        ("{anyOf: []}", "takes at least one item"),
        ("{estimate: true}", "nothing is asserted here"),
    ],
    "created": [
        ("[{fields: {a: 1}}]", "`entity` is missing"),
        ("[{entity: t, fields: {}}]", "asserts nothing"),
        ("[{entity: t, as: '1x'}]", "takes a name such as $task"),
        ("[{entity: t, within: soon}]", "takes milliseconds"),
    ],
    "messageProcessing": [
        ("{}", "nothing is asserted here"),
        ("{minEvidence: proven}", "nothing is asserted here"),
        ("{condensor: {activated: true}}", "did you mean `condenser`?"),
        ("{condenser: {}}", "nothing is asserted here"),
        ("{condenser: {activated: yes}}", "only true and false"),
        ("{pruner: {summaryContains: x}}", "unknown key `summaryContains`"),
        ("{pruner: {activated: true}, minEvidence: sure}", "takes one of 'declared', 'proven' or 'inferred'"),
    ],
}
"""What is written, and words of what is said about it, by the kind of the fragment."""


@pytest.mark.parametrize(
    ("kind", "row"), [pytest.param(kind, row, id=f"{kind} {row[0]}") for kind, rows in REFUSED.items() for row in rows]
)
def test_what_cannot_be_meant_is_refused(kind: str, row: tuple[str, ...]) -> None:
    text, *words = row
    with pytest.raises(SuiteError) as caught:
        load_fragment(kind, text)
    assert [each for each in ("fragment:1:", *words) if each not in str(caught.value)] == []
