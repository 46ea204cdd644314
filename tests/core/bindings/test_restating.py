"""What really differs between a recorded request and one that missed."""

from __future__ import annotations

import json
from typing import Any

from llmproxy.core.bindings import Bindings, RunVariable, VolatileField
from llmproxy.core.bindings.volatile_learning import RestatedRequest, restate
from llmproxy.core.traffic.differences import differences

A, B = (RunVariable("cwd", "/tmp/a"),), (RunVariable("cwd", "/srv/ci/w"),)
CHUNK = VolatileField("chunk", "hex", "sh", "line", "Chunk ID: ")


def asked(cwd: str, result: str, question: str, command: str = "run") -> Any:  # noqa: ANN401 - a tree of JSON
    """Return a request after one call of a tool."""
    function = {"name": "sh", "arguments": json.dumps({"cmd": command})}
    return {
        "messages": [
            {"role": "system", "content": f"You work in {cwd}."},
            {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
            {"role": "user", "content": question},
        ]
    }


def told(old: Any, new: Any, *slots: VolatileField) -> tuple[RestatedRequest, list[tuple[str, str, str]]]:  # noqa: ANN401 - trees
    """Return the recorded one in this run's words, and what is left different."""
    made = restate(Bindings(A, B, slots), old, new)
    return made, [(each.path, each.old, each.new) for each in differences(made.tree, new)]


def test_a_slot_that_fits_is_no_difference() -> None:
    """Neither is a folder; both are named as bound."""
    new = asked("/srv/ci/w", "Chunk ID: aa11bb\nof /srv/ci/w", "delete it")
    made, left = told(asked("/tmp/a", "Chunk ID: 98e1ef\nof /tmp/a", "list it"), new, CHUNK)
    assert left == [("$.messages[3].content", '"list it"', '"delete it"')]
    assert (made.bound, made.varying) == (("chunk", "cwd"), ())


def test_what_differs_behind_a_slot_in_one_text_is_shown_there() -> None:
    """As far as the text fits it stands as it is now; behind that, the folder is this run's."""
    new = asked("/srv/ci/w", "Chunk ID: aa11bb\n8 of /srv/ci/w", "list")
    _, left = told(asked("/tmp/a", "Chunk ID: 98e1ef\n7 of /tmp/a", "list"), new, CHUNK)
    (_, before, after) = left[0]
    assert (before, after) == (r'"Chunk ID: aa11bb\n7 of /srv/ci/w"', r'"Chunk ID: aa11bb\n8 of /srv/ci/w"')


def test_what_could_be_learned_comes_apart_where_something_else_differs() -> None:
    """And stays the difference where it is the only one."""
    old = asked("/tmp/a", "Chunk ID: 98e1ef\n", "list")
    made, left = told(old, asked("/srv/ci/w", "Chunk ID: aa11bb\n", "delete"))
    assert [path for path, _, _ in left] == ["$.messages[3].content"]
    assert [(each.recorded, each.present) for each in made.varying] == [("98e1ef", "aa11bb")]
    made, left = told(old, asked("/srv/ci/w", "Chunk ID: aa11bb\n", "list"))
    assert (len(left), made.varying) == (1, ())
    assert "98e1ef" in left[0][1]


def test_a_value_that_leaked_is_a_difference() -> None:
    """What must stand there against what does."""
    minted = VolatileField("made", "uuid", "sh")
    ids = [f"{n}f2b9c1e-0000-4000-8000-00000000000a" for n in range(2)]
    old, new = asked("/tmp/a", ids[0], f"rm {ids[0]}"), asked("/srv/ci/w", ids[1], f"rm {ids[0]}")
    _, left = told(old, new, minted)
    assert left == [("$.messages[3].content", f'"rm {ids[1]}"', f'"rm {ids[0]}"')]


def test_another_shape_is_told_as_it_is() -> None:
    """A message more; and a body that is no object."""
    old = asked("/tmp/a", "Chunk ID: 98e1ef\n", "list")
    new = asked("/srv/ci/w", "Chunk ID: aa11bb\n", "list")
    new["messages"].append({"role": "user", "content": "and then?"})
    _, left = told(old, new, CHUNK)
    assert [path for path, _, _ in left] == ["$.messages[4]"]
    assert told(["a"], ["b"])[0].tree == ["a"]
