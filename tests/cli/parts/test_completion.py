"""What a shell completes, asked as bash asks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.chats import chat, fill
from tests.support.process import llmproxy, needed


@pytest.mark.parametrize(("typed", "offered"), [
    ("llmproxy re", ["rename", "replay", "rerecord", "review"]),
    ("llmproxy show w", ["weather", "weather~2"]),
    ("llmproxy run --cassette w", ["weather", "weather~2"]),
    ("llmproxy run --mode pa", ["passthrough"]),
    ("llmproxy judge calibrate --model o", ["openai/gpt-4o"]),
])  # fmt: skip
def test_names_are_completed(tmp_path: Path, typed: str, offered: list[str]) -> None:
    """Commands, cassettes and their samples, words of an option, models that were recorded."""
    fill(tmp_path / "llmproxy.db", chat(cassette="weather"), chat(cassette="weather", sample=2), chat())
    assert sorted(complete(typed, tmp_path)) == offered


@pytest.mark.parametrize(("words", "offered"), [
    (["show", "te"], [r"tests/test_a.py::test_b\[one\ two\]", "tests/test_a.py::test_c"]),
    (["show", "tests/test_a.py", ":"], [r":test_b\[one\ two\]", ":test_c"]),
    (["show", "tests/test_a.py", "::"], [r"test_b\[one\ two\]", "test_c"]),
    (["show", "tests/test_a.py", "::", r"test_b\[o"], [r"test_b\[one\ two\]"]),
    (["ls", "--cassette", "tests/test_a.py", "::", "test_c"], ["test_c"]),
])  # fmt: skip
def test_names_of_pytest_are_completed_over_their_colons(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    """Bash parts words at colons, and inserts what it gets as it is."""
    names = ["tests/test_a.py::test_b[one two]", "tests/test_a.py::test_c"]
    fill(tmp_path / "llmproxy.db", *(chat(cassette=name) for name in names))
    assert sorted(complete("\n".join(["llmproxy", *words]), tmp_path)) == offered


def test_a_store_that_cannot_be_read_completes_nothing(tmp_path: Path) -> None:
    assert complete("llmproxy show w", tmp_path) == []
    (tmp_path / "llmproxy.db").write_text("no store")
    assert complete("llmproxy show w", tmp_path) == []


ARGUMENTS = """_arguments() { eval "ws=( ${${1#*: :}[3,-3]} )"; print -rl -- $ws }; eval $(cat)"""
"""What zsh makes of what it is given: `_arguments` evaluates a list of words just so."""


def test_zsh_is_offered_no_name_that_it_would_run(tmp_path: Path) -> None:
    """A cassette of a cloned repository may have any name: Tab runs no word of it, and every name that is offered arrives as it is."""
    zsh = shutil.which("zsh") or needed("zsh", "zsh", rare=True)
    plain = [
        "it", "tests/test_a.py::test_b[one two]", "a$HOME `id` =(id) <(id) $(id); id", "star* !x {a,b} ~root", "天気",
    ]  # fmt: skip
    hostile = [
        'a\\" =(touch owned) \\"x', 'a\\\\" =(touch owned) ', 'a" =(touch owned) "', "' ) ; touch owned ; ( '", "a  b",
        "it's",
    ]  # fmt: skip
    fill(tmp_path / "llmproxy.db", *(chat(cassette=name) for name in (*plain, *hostile)))
    asked = {"_LLMPROXY_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "llmproxy show "}
    given = "\n".join(answered(asked, tmp_path))
    done = subprocess.run(
        [zsh, "-fc", ARGUMENTS], input=given, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert not (tmp_path / "owned").exists()
    assert sorted(done.stdout.replace("\\:", ":").splitlines()) == sorted(plain), done.stderr


def complete(typed: str, folder: Path) -> list[str]:
    asked = {
        "_LLMPROXY_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split("\n" if "\n" in typed else None)) - 1),
    }
    return answered(asked, folder)


def answered(asked: dict[str, str], folder: Path) -> list[str]:
    done = llmproxy(cwd=folder, env=asked)
    assert done.stderr == ""
    return list(filter(None, done.stdout.splitlines()))
