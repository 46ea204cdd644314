"""What the steps of a scenario say about each other."""

from __future__ import annotations

import pytest

from llmproxy.suite.reading.scenario_step_checks import ScenarioVariableChecker, list_capture_names
from llmproxy.yaml_reader import Problems, YamlMapping, read_documents
from tests.support.narrowing import narrow


def follow(text: str, **values: object) -> tuple[list[str], list[str]]:
    problems, doubts = Problems(), Problems()
    root = narrow(YamlMapping, read_documents(text, "f", problems)[0][0])
    flow = ScenarioVariableChecker(problems, doubts)
    flow.values.update(values)
    if isinstance(root.get("vars"), YamlMapping):
        flow.add_variables(root["vars"])
    flow.check_scenario(root)
    return [str(each) for each in problems], [str(each) for each in doubts]


GOOD = [
    "setup: [{insert: t, data: {a: 1}, as: $a}, {insert: t, data: {b: {ref: $a.id}}}]\nsteps: [{chat: 'about $a.title'}]",
    "steps: [{chat: x, created: [{entity: t, as: $n}]}, {verify: {entity: t, id: $n, fields: {p: $n.id}}}]",
    "steps: [{verify: {entity: t, count: 1, as: $n}}, {chat: '${n.title}!'}]",
    "steps: [{setup: [{insert: t, data: {}, as: n}]}, {wait: {entity: t, id: $n.id, until: {a: 1}}}]",
    "steps: [{chat: x}, {chat: $last.response}]",
    "steps: [{chat: x, conversation: c}, {chat: $conversation.c}]",
    "steps: [{chat: '$userId $runIndex $scenarioId ${env:HOME} $$x.y costs $5'}]",
    "vars: {a: 1, b: '$a', u: {name: x}}\nsteps: [{chat: '$b $u.name'}]",
    "steps: [{chat: x, response: {regex: '$a.b$'}}]",
    "steps: [{chat: x, response: {jsonSchema: {const: '$a.b'}}}]",
    "steps: [{chat: x, created: [{entity: t, as: $n}]}, {chat: x, created: [{entity: t, as: $n, overwrite: true}]}]",
    "steps: [{chat: x}, {chat: y, continueConversation: true}]",
    "steps: [{chat: x, conversation: c}, {verify: {entity: t, count: 1}}, {chat: y, continueConversation: true, conversation: c}]",
    "steps: [{simulate: {goal: x}}, {judge: ok}]",
    "steps: [{chat: x, conversation: c}, {judge: ok, conversation: c}]",
    "steps: [{chat: x, observe: none, response: {contains: x}}]",
]
BAD = [
    ("steps: [{chat: 'a $x.y'}]", "f:1:16: $x.y: nothing is called $x"),
    ("steps: [{chat: 'a ${x}'}]", "${x}: nothing is called $x"),
    ("steps: [{chat: '${a b}'}]", "${a b} is no reference"),
    ("setup: [{insert: t, data: {}, as: $task}]\nsteps: [{chat: $taks.id}]", "did you mean `task`?"),
    ("steps: [{verify: {entity: t, id: $x}}]", "f:1:34: $x: nothing is called $x"),
    ("steps: [{chat: x, created: [{entity: t, fields: {p: {ref: $x}}}]}]", "$x: nothing is called $x"),
    ("steps: [{chat: x, tools: {t: {input: {p: {contains: $x.y}}}}}]", "nothing is called $x"),
    ("steps: [{chat: x, tools: {t: {every: {p: {anyOf: [{not: $x.y}]}}}}}]", "nothing is called $x"),
    ("steps: [{chat: x, usage: {anyOf: [{callCount: $x.y}]}}]", "nothing is called $x"),
    ("steps: [{chat: x, response: {contains: [ok, $x.y]}}]", "f:1:45: $x.y: nothing"),
    ("steps: [{chat: x, response: {json: {a: $x.y}}}]", "nothing is called $x"),
    ("steps: [{chat: x, response: {judge: {criteria: ['names $x.y']}}}]", "nothing is called $x"),
    ("steps: [{simulate: {goal: 'find $x.y'}}]", "nothing is called $x"),
    ("steps: [{wait: {entity: t, until: {a: $x.y}}}]", "nothing is called $x"),
    ("steps: [{chat: x}]\nteardown: [{delete: t, id: $x}]", "nothing is called $x"),
    (
        "steps: [{chat: x, created: [{entity: t, as: $n, fields: {p: $n.id}}]}]",
        "$n.id is used before it is captured, at f:1:45",
    ),
    (
        "setup: [{insert: t, data: {b: $a.id}}, {insert: t, data: {}, as: $a}]\nsteps: [{chat: x}]",
        "is used before it is captured",
    ),
    ("setup: [{insert: t, data: {b: {ref: a.id}}}]\nsteps: [{chat: x}]", "`ref` takes a reference"),
    (
        "steps: [{chat: x, created: [{entity: t, as: $n}]}, {chat: x, created: [{entity: t, as: n}]}]",
        "$n is captured already, at f:1:45",
    ),
    ("vars: {n: 1}\nsteps: [{verify: {entity: t, count: 1, as: $n}}]", "$n is a variable already"),
    ("vars: {userId: 1}\nsteps: [{chat: x}]", "`userId` is built in"),
    ("vars: {a-b: 1}\nsteps: [{chat: x}]", "`a-b` is no name for a variable"),
    ("vars: {a: '${b}', b: 1}\nsteps: [{chat: x}]", "${b} is used before it has a value, at f:1:19"),
    ("vars: {u: {name: x}}\nsteps: [{chat: $u.nam}]", "did you mean `name`?"),
    ("vars: {u: 5}\nsteps: [{chat: $u.name}]", "$u is 5 and has no fields"),
    ("steps: [{chat: $last.response}]", "the agent has said nothing yet"),
    ("steps: [{chat: x}, {chat: $last.text}]", "`$last.response`: what the agent said last"),
    ("steps: [{chat: $conversation.c, conversation: c}]", "no step before has such a conversation"),
    ("steps: [{chat: $userId.name}]", "$userId has no fields"),
    ("steps: [{chat: x, continueConversation: true}]", "f:1:19: there is no conversation to continue"),
    (
        "steps: [{chat: x, conversation: a}, {chat: y, conversation: b, continueConversation: true}]",
        "`conversation: b` is not the conversation of the step before (`a`)",
    ),
    ("steps: [{chat: x}, {chat: y, conversation: b, continueConversation: true}]", "(one without a name)"),
    ("steps: [{judge: ok}]", "there is nothing to judge"),
    ("steps: [{chat: x, conversation: main}, {judge: ok, conversation: mian}]", "did you mean `main`?"),
    ("steps: [{chat: x, label: a}, {chat: y, label: a}]", "the label `a` stands here twice, first at f:1:26"),
    ("steps: [{chat: x, response: {notContains: $tsk}}]", "$tsk: nothing is called $tsk"),
    ("steps: [{chat: x, response: {not: {contains: [ok, 'costs $price']}}}]", "$price: nothing is called $price"),
    ("steps: [{verify: {entity: t, filters: {title: $titel}, count: 0}}]", "$titel: nothing is called $titel"),
    ("steps: [{chat: x, tools: {a: {count: 0, input: {title: {eq: $titel}}}}}]", "$titel: nothing is called $titel"),
    ("steps: [{simulate: {goal: g, criteria: ['names no $tsk']}}]", "$tsk: nothing is called $tsk"),
    ("vars: {x: book}\nsteps: [{chat: a, tools: {$x: {count: 0}}}]", "$x stands where a tool is named"),
    ("steps: [{chat: a, serverTools: {'${x}': 0}}]", "${x} stands where a tool is named"),
    ("steps: [{chat: a, toolOrder: [a, $x]}]", "$x stands where a tool is named"),
    ("vars: {x: a}\nsteps: [{chat: a, tools: {b: {after: $x}}}]", "$x stands where a tool is named"),
    ("mock: {get: $tsk}\nsteps: [{chat: x}]", "$tsk: nothing is called $tsk"),
    ("usage: {callCount: {lt: $tsk}}\nsteps: [{chat: x}]", "$tsk: nothing is called $tsk"),
    ("steps: [{chat: x}, {judge: names no $tsk}]", "$tsk: nothing is called $tsk"),
    ("steps: [{chat: x, response: {judge: {criteria: ['names no $tsk']}}}]", "$tsk: nothing is called $tsk"),
    ("steps: [{chat: x, observe: none, tools: {a: 0}}]", "`tools` cannot be evaluated: with `observe: none`"),
    ("observe: none\nsteps: [{chat: x, usage: {callCount: 1}}]", "`usage` cannot be evaluated"),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_hangs_together_is_taken(text: str) -> None:
    """Names after they are declared, built-ins, patterns with dollar signs, conversations that go on."""
    assert follow(text) == ([], [])


@pytest.mark.parametrize(("text", "words"), BAD, ids=[text for text, _ in BAD])
def test_what_does_not_hang_together_is_a_problem(text: str, words: str) -> None:
    """Found when the file is loaded; exactly one problem for one mistake."""
    problems, _ = follow(text)
    assert len(problems) == 1
    assert words in problems[0]


def test_a_bare_word_is_only_doubted() -> None:
    """In what is sent: prices and shell text are full of dollar signs; a near name is offered."""
    text = "setup: [{insert: t, data: {}, as: $task}]\nsteps: [{chat: 'echo $HOME and $tsk', response: {contains: $$HOME}}]"
    problems, doubts = follow(text)
    assert problems == []
    assert doubts == [
        "f:2:16: $HOME is sent as it is: nothing is called $HOME ($$ is a dollar sign)",
        "f:2:16: $tsk is sent as it is: nothing is called $tsk (did you mean `task`?)",
    ]


def test_all_names_of_a_scenario_are_found() -> None:
    """In setup, steps of setup, created rows and verify."""
    text = "setup: [{as: $a}]\nsteps: [{setup: [{as: b}]}, {created: [{as: $c}, {}]}, {verify: {as: $d}}, 5]"
    root = narrow(YamlMapping, read_documents(text, "f", Problems())[0][0])
    assert list(list_capture_names(root)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("text", [
    "steps: 5",
    "steps: [5, null, []]",
    "setup: {}\nsteps: []",
    "steps: [{chat: 5, created: 7, tools: [1], response: x, usage: 1}]",
])  # fmt: skip
def test_files_with_other_mistakes_do_not_stop_it(text: str) -> None:
    """The schema says what is wrong with them."""
    assert follow(text) == ([], [])
