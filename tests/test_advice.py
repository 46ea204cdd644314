"""Every command that the product prints is found here by itself: it is made in one of two places, which keep what was typed, or says why not.

A text that names ``llmproxy why`` without the store, or ``llmproxy start`` without the upstream, does something else than it says when it is
typed: it looks into another store, or sends a gateway's key to the provider's public host. `core.traffic.advice.suggest_command` keeps the store,
`core.misses.again.Again` everything. What is written by hand stands in `BY_HAND`, with the reason why there is nothing to keep.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.cli.commands import COMMANDS
from llmproxy.core.misses.context import Again
from llmproxy.core.traffic.advice import suggest_command

PACKAGE = Path(__file__).resolve().parents[1] / "llmproxy"
NOTHING_TO_KEEP = frozenset(
    {"addon", "cache", "demo", "doctor", "env", "faults", "judge", "label", "mcp", "settings", "suite", "test", "ui"}
)
"""Commands that neither read the store of the advice nor record, and `test`, whose runs say themselves how they were started."""
MADE = re.compile(rf"\bllmproxy ({'|'.join(sorted(set(COMMANDS) - NOTHING_TO_KEEP, key=len, reverse=True))})\b")
DESCRIBES = frozenset({"help", "description", "epilog", "metavar"})
"""Arguments that describe an option or a command: nothing has happened yet that advice could keep."""
BY_HAND = {
    "cli/demo.py": "how one begins, in a folder of one's own",
    "cli/start.py": "nothing is installed yet: how to install it and start",
    "cli/faults.py": "how kinds and presets are written, with KIND in their places",
    "cli/scan.py": "the store stands in {store}; paths of files in its way of writing",
    "client/doctor.py": "for any command of the shell that is examined, whose own proxy it is",
    "client/known_clients.py": "what `run` can do for a language",
    "client/tools/agents.py": "the name of the command that starts the agent already",
    "client/tools/mcp_config.py": "how an agent is given its configuration of tools",
    "client/process.py": "how a command is written as words",
    "core/faults/reading.py": "how faults are written; a rule was refused before anything ran",
    "core/providers/hosts.py": "another way to record altogether, under interception",
    "core/store/file/connect.py": "sqlite_file puts the path in, quoted, as {typed}",
    "mitm/addon.py": "instead of mitmproxy, with options of its own",
    "mitm/build.py": "the name of the command itself",
    "core/websocket.py": "123 bytes of a close frame; the miss itself names the store",
    "core/misses/context.py": "the name of the command itself",
    "core/misses/explain.py": "the name of the command that `by` completes",
    "cli/parts/options.py": "the name of the command that `Again` completes",
    "cli/parts/importing.py": "who holds the store while it writes",
    "cli/rerecord.py": "who holds the store while it writes",
    "cli/replay.py": "the name of the command, in a refusal and before `Again`",
    "cli/learn.py": "the name of the command that starts a proxy",
    "cli/run.py": "an example with another model",
    "cli/parts/run_options.py": "the name of the command that `Again` completes",
    "cli/parts/run_ending.py": "the name of the command that `Again` completes, and what the command never used",
    "cli/parts/session_setup.py": "the name of the command around this one, and an option for either",
    "cli/parts/fault_sweep.py": "the name of the command, in a refusal",
    "core/sessions/exchange.py": "the name of the command that `by` completes",
    "scenario/cluster/runner.py": "what the commands that a miss names look at: there is nothing to type",
    "scenario/session.py": "the proxy that LLMPROXY_URL names is somebody else's",
    "cli/merge.py": "several stores are read, and their names typed",
    "cli/parts/demo_tools.py": "how one goes on, with an agent of one's own",
    "core/cassettes/uniting.py": "several stores, of which the text names the one that is meant, or the user chooses",
    "core/store/server/schema.py": "the store stands in the text, without its password",
    "core/store/server/store.py": "where the server is was said with its password, which no text repeats",
    "pytest/options.py": "what options do",
    "ui/answers.py": "the name of the command, when the page itself broke",
    "trace/observing/tools.py": "by what servers of tools are seen",
    "suite/selection.py": "a pattern that finds the command in a miss",
}
"""File -> why its texts keep nothing."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string that is no docstring and no description: (line, text), with {...} for what is put in."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.keyword) and node.arg in DESCRIBES:
            skipped.update(id(each) for each in ast.walk(node.value))
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(id(each) for each in node.values)
            yield node.lineno, "".join(_part(each) for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "{...}"


@functools.cache
def found() -> dict[str, list[str]]:
    """Return the texts of the product that name such a command, by file."""
    where: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for at, text in texts(ast.parse(path.read_text("utf-8"))):
            if MADE.search(text):
                where.setdefault(path.relative_to(PACKAGE).as_posix(), []).append(f"{at}: {text[:160]}")
    return where


def test_no_command_is_printed_that_forgets_what_was_typed() -> None:
    """A new text with a command in it is made by `suggest_command` or `Again`, or says here why it keeps nothing."""
    assert {name: lines for name, lines in found().items() if name not in BY_HAND} == {}


def test_the_table_names_nothing_that_is_gone() -> None:
    """A reason without its text would hide the next one."""
    assert sorted(set(BY_HAND) - set(found())) == []


def test_a_text_is_found_in_whatever_form_it_is_written() -> None:
    """Plain, joined, with values, over lines; docstrings and help are none."""
    source = '''
"""llmproxy why: a docstring."""
a = "see llmproxy why"
b = f"llmproxy show {x} --store {y}"
c = ("then: "
     "llmproxy verify --rekey")
d = option(help="as of llmproxy start")
e = "llmproxy settings lists them"
'''
    hits = [text for _, text in texts(ast.parse(source)) if MADE.search(text)]
    assert hits == ["see llmproxy why", "llmproxy show {...} --store {...}", "then: llmproxy verify --rekey"]


@pytest.mark.parametrize("store", ["x.db", "a b.db", "it's.db", "-.db", "\x1b[31m.db"])
def test_a_store_of_any_name_is_typed_as_one_word(store: str) -> None:
    """Quoted, and without what moves a cursor; the default one needs no word."""
    words = shlex.split(suggest_command("show 12", store))
    assert words[:4] == ["llmproxy", "show", "12", "--store"]
    assert len(words) == 5
    assert "\x1b" not in suggest_command("why", store)
    assert suggest_command("why", "llmproxy.db") == suggest_command("why", Path.cwd() / "llmproxy.db") == "llmproxy why"


def test_a_command_beside_the_running_proxy_does_not_take_its_port() -> None:
    """It has a proxy of its own: upstream, folder and rules are kept, the address is not."""
    again = Again(options=(("port", "9"), ("host", "::"), ("upstream", "a=http://a"), ("cassette_dir", "c c")))
    typed = again.by("llmproxy learn x").command("", store="s.db")
    assert typed == "llmproxy learn x --store s.db --upstream a=http://a --cassette-dir 'c c' -- COMMAND"
