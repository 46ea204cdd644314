"""Variables as text."""

from __future__ import annotations

import json
import subprocess

import pytest

from llmproxy.client.environment.shells import render, render_unset

ODD = {"A": 'it\'s $HOME `x` "y" \\', "B": "http://127.0.0.1:1/s/a%20b/v1"}


def test_a_shell_reads_back_what_was_written() -> None:
    """Nothing in a value is executed or expanded."""
    script = render(ODD, "sh") + '\nprintf \'%s|%s\' "$A" "$B"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{ODD['A']}|{ODD['B']}"


def test_a_shell_forgets_what_was_unset() -> None:
    """`eval "$(llmproxy env --unset)"` takes them away."""
    script = render(ODD, "sh") + "\n" + render_unset(ODD, "sh") + '\necho "[${A-none}]"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[none]\n"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("fish", "set -gx A 'it\\'s';"),
        ("powershell", "$env:A = 'it''s'"),
        ("dotenv", 'A="it\'s"'),
    ],
)
def test_each_form_quotes_in_its_own_way(form: str, text: str) -> None:
    """An apostrophe is the test of every quoting."""
    assert render({"A": "it's"}, form) == text


def test_json_is_an_object() -> None:
    """Programs read it."""
    assert json.loads(render(ODD, "json")) == ODD
    assert json.loads(render_unset(ODD, "json")) == {"A": None, "B": None}


def test_dotenv_takes_the_simplest_quotes() -> None:
    """Single quotes are literal to all readers."""
    assert render({"B": ODD["B"]}, "dotenv") == f"B='{ODD['B']}'"


def test_an_unknown_form_is_refused_with_those_there_are() -> None:
    """Nothing is printed that a shell would choke on."""
    with pytest.raises(ValueError, match="sh, fish, powershell, dotenv, json"):
        render({}, "cmd")
