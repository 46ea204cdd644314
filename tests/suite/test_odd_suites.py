"""Suites that a careless or hostile tester writes: each is refused with its place, or comes to what is true. None passes quietly."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from tests.suite.rig import cases_of, run

HEAD = "name: t\nagent: {python: 'agent.py:answer'}\n"
AGENT = """
import sys

def answer(message): return message
def nothing(message): return None
def number(message): return 7
def blank(message): return " "
def pieces(message): yield message
def leave(message): sys.exit(0)
def quit(message): raise type("Quit", (BaseException,), {})("now")
async def later(message): return message
"""


def one(steps: str, agent: str = "answer") -> str:
    """Write a suite of one scenario, whose steps begin in line 5, column 11."""
    head = HEAD.replace(":answer", f":{agent}")
    return f"{head}scenarios:\n- {{id: a, observe: none, steps: [\n          {steps}]}}\n"


def response(text: str) -> str:
    """Write a suite with one assertion about an answer, whose value begins in line 5, column 32."""
    return one(f"{{chat: hi, response: {text}}}")


REFUSED = {
    # nothing there
    "": "t.suite.yaml:1:1: the file is empty",
    "# x\n": "the file holds nothing but comments",
    "hello\n": "this is a plain value, neither a suite nor a scenario",
    HEAD: "this is neither a suite (it has no `scenarios`)",
    f"{HEAD}scenarios: []\n": "t.suite.yaml:3:12: `scenarios` takes at least one item",
    f"{HEAD}scenarios:\n": "takes a list, not null (begin",
    f"{HEAD}scenarios: [{{id: a, steps: []}}]\n": "`steps` takes at least one item",
    one("{}"): "t.suite.yaml:5:11: a step has one of chat, simulate",
    one("null"): "a step is a mapping",
    one("{chat: }"): "`chat` takes a text, not null",
    one('{chat: "  "}'): "`chat` takes a text that is not empty",
    # YAML
    f"{HEAD}scenarios:\n\t- id: a\n": "t.suite.yaml:4:1: this line is indented with a tab",
    response("{contains: nope, contains: hi}"): "t.suite.yaml:5:49: `contains` stands here twice, first at line 5",
    response("{<<: 3, contains: hi}"): "`<<` merges mappings, and this is none",
    response("*nope"): "*nope names no anchor above",
    response("&a {anyOf: [*a]}"): "*a stands inside of what it names",
    one("{chat: !!python/object/apply:os.system [ls]}"): "the tag !!python/object/apply:os.system is not known",
    one("{chat: 5}"): "not a number 5 (put it in quotes)",
    f"{HEAD}scenarios: [{{id: a, skip: no, steps: [{{chat: x}}]}}]\n": "only true and false are booleans in YAML 1.2",
    response("{not: " * 80 + "{contains: x}" + "}" * 80): "values are nested more than 64 deep",
    # words that are nearly right
    one("{chat: hi, respones: {contains: hi}}"): "did you mean `response`?",
    one("{chat: hi, resp\u043ense: {contains: hi}}"): "It holds cyrillic small letter o (U+043E).",
    one('{chat: hi, "response\u200b": {contains: hi}}'): "It holds zero width space (U+200B).",
    response("{Contains: hi}"): "did you mean `contains`?",
    # what asserts nothing
    response("{}"): "t.suite.yaml:5:32: nothing is asserted here",
    response("{ignoreCase: true}"): "nothing is asserted here",
    response("{snapshot: false}"): "nothing is asserted here",
    response("{anyOf: []}"): "takes a list with at least one matcher",
    response("{allOf: []}"): "takes a list with at least one matcher",
    response("{anyOf: [{}]}"): "nothing is asserted here",
    response("{not: {in: []}}"): "takes a list with at least one value",
    response('{regex: "(nope|)"}'): "is found in every text",
    response('{contains: ""}'): "an empty text is in every text",
    response("{notContains: []}"): "an empty list asserts nothing",
    response("{json: {}}"): "asserts nothing: it is empty",
    response("{jsonSchema: {}}"): "this schema holds for every JSON, so it asserts nothing",
    response("{jsonSchema: {title: x, $comment: y}}"): "this schema holds for every JSON",
    response('{json: {"$..a": {exists: false}}}'): "'$..a' is a path that is not understood here",
    response('{json: {"a[*].b": {notContains: x}}}'): "from '[*].b' on",
    response("{not: {json: {error: {exists: true}}}}"): "it is no matcher: write a JSON Schema",
    response("{anyOf: [{json: [{a: {gt: 5, lt: 7}}]}]}"): "takes a value as it stands",
    response("{contains: $last.response}"): "is this very answer, which is like itself",
    response("{eq: {ref: $last.response}}"): "is this very answer",
    response("{json: {a: $last.response}}"): "is this very answer",
    one("{chat: hi, toolOrder: [f]}").replace("observe: none, ", ""): "t.suite.yaml:5:33: `toolOrder` takes at least 2",
    one("{chat: hi, usage: {}}").replace("observe: none, ", ""): "t.suite.yaml:5:29: nothing is asserted here (takes input",
    **{
        one(f"{{chat: hi, tools: {{f: {count}}}}}").replace("observe: none, ", ""): words
        for count, words in {
            '"2"': "mind the quotes", '{count: "2"}': "takes a whole number", "-1": "takes a whole number",
            "1.5": "takes a whole number", "true": "takes a whole number", ".inf": "takes a whole number",
            "{lt: .nan}": "not negative", "{gte: 0}": "t.suite.yaml:5:33: every number is `gte: 0`",
            "{status: requested}": "every call is requested; write a count",
            "{lte: .inf}": "every number is `lte: Infinity`", "{}": "nothing is asserted here",
            "{every: true}": "nothing else is said",
            '{input: {"items[0].*": x}}': "is a path that is not understood here",
            '{every: {"$..a": x}}': "is a path that is not understood here",
        }.items()
    },
    # names
    f"name: t\nvars: {{a: $b, b: $a}}\n{one('{chat: $a}')[8:]}": "$b is used before it has a value, at t.suite.yaml:2:15",
    f"name: t\nvars: {{a: x $a}}\n{one('{chat: $a}')[8:]}": "$a is used before it has a value",
    one('{chat: "$nope.id"}'): "$nope.id: nothing is called $nope",
    # numbers of runs
    **{
        f"{HEAD}scenarios: [{{id: a, {key}, steps: [{{chat: x}}]}}]\n": words
        for key, words in {
            "runs: 0": "takes a whole number from 1", "minPassRate: 2": "above 0, up to 1",
            "minPassRate: 0": "0 is reached whatever the agent does", "minPassRate: .nan": "above 0, up to 1",
            "timeout: 0": "milliseconds (more than 0)", "parametrize: []": "at least one item",
            "matrix: {m: []}": "takes at least one item, not an empty list",
        }.items()
    },
}  # fmt: skip


TWICE = {
    *map(response, ("{ignoreCase: true}", "{anyOf: []}", "{allOf: []}")),
    one("{chat: !!python/object/apply:os.system [ls]}"),
}
"""What is wrong in two ways, each of which is told."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused_with_its_place_and_what_to_do(text: str) -> None:
    with pytest.raises(SuiteError) as caught:
        cases_of(Path(), text)
    lines = str(caught.value).splitlines()
    assert REFUSED[text] in "\n".join(lines)
    assert all(line.startswith("t.suite.yaml:") for line in lines)
    assert len(lines) == (2 if text in TWICE else 1)


ENDS = {
    one("{chat: hi}", "leave"): ("agent_error", "the agent agent.py:leave called sys.exit(0) instead of answering"),
    one("{chat: hi}", "quit"): ("agent_error", "the agent agent.py:quit crashed: Quit: now"),
    one("{chat: hi}", "nothing"): ("agent_error", "the agent agent.py:nothing returned null (NoneType)"),
    one("{chat: hi}", "number"): ("agent_error", "returned 7 (int)"),
    one("{chat: hi}", "pieces"): ("agent_error", "(generator)"),
    one("{chat: hi}", "blank"): ("agent_error", "gave an empty answer to 'hi'"),
    one("{chat: hi, response: {contains: hi}}", "later"): ("passed", ""),
    one("{chat: hi}").replace("agent.py:answer", "gone.py:answer"): ("environment_error", "there is no file gone.py"),
    one("{chat: hi}").replace("agent.py:answer", "exits.py:answer"): ("agent_error", "called sys.exit(0) while it was"),
    one("{chat: hi}").replace("{python: 'agent.py:answer'}", "{}"): ("environment_error", "t.suite.yaml:2:8: agent: there"),
    one("{chat: hi}").replace("{python", "{http: x, python"): ("environment_error", "t.suite.yaml:2:8: agent: http and"),
    one("{verify: {entity: x, count: 0, filters: {a: 1}}}"): ("environment_error", "no store is configured"),
    response("{not: {not: {not: {contains: hi}}}}"): ("failed", "should not hold, and does"),
    response("{not: {not: {not: {gt: 5}}}}"): ("environment_error", "cannot be denied"),
    response("{not: {regex: '(a+)+$'}}").replace("chat: hi", f"chat: {'a' * 60}b"): ("passed", ""),
    one("""{chat: '{"a": 1}', response: {json: {"$.a": {exists: false}}}}"""): ("failed", "exists"),
    one("""{chat: '{"a": [{"b": 1}]}', response: {json: {"$.a[0].b": 1, "$": {exists: true}}}}"""): ("passed", ""),
    one("""{chat: '{"$": 1, "a": 2}', response: {json: {"$.a": 2}}}"""): ("failed", ""),
    one("{chat: '${env:LLMPROXY_NEVER_SET}'}"): ("environment_error", "has no variable LLMPROXY_NEVER_SET"),
    response("{contains: '${env:LLMPROXY_NEVER_SET}'}"): ("environment_error", "has no variable LLMPROXY_NEVER_SET"),
}  # fmt: skip


@pytest.mark.parametrize("text", ENDS, ids=range(len(ENDS)))
def test_it_comes_to_what_is_true(text: str) -> None:
    """Without a traceback, and in words of whoever writes YAML."""
    Path("agent.py").write_text(AGENT)
    Path("exits.py").write_text(f"{AGENT}\nsys.exit(0)\n")
    status, words = ENDS[text]
    found = run(cases_of(Path(), text))
    assert (found.statuses, words in found.why) == ([status], True), found.why
    assert found.tested.exit_code in {"passed": {0}, "environment_error": {2, 3}}.get(status, {1})
    assert "class " not in found.why
