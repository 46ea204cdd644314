"""Nothing of ours reads our own prose: with every sentence in other words, commands end as before.

A copy of the package has its sentences exchanged where one part or process hands them to another: the proxy's log, errors, notes of calls,
answers of the control API, reports that are read back. What is counted, decided and returned must not notice.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.process import python

from .provider import Provider, load
from .support.asking import ASK
from .support.chats import chat, fill
from .support.forked import program
from .support.grown import Grown
from .support.process import clean_env

TRANSLATED = '''
"""Other words: each letter of a sentence is another one. Addresses, numbers, our sign and what stands in backquotes stay."""

import re

_KEEP = re.compile(r"(`[^`]*`|https?://\\S+|^llmproxy: |[\\w./-]*[/_\\d][\\w./-]*)", re.MULTILINE)
_PROSE = frozenset((
    "text", "note", "message", "hint", "error", "miss_texts", "unbound", "idle", "reason", "why", "notes", "reasoning",
    "refused", "place", "detail", "what",
))
_TABLE = str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza")


def translate(text):
    if not isinstance(text, str) or " " not in text.strip():
        return text
    return "".join(part if n % 2 else part.lower().translate(_TABLE) for n, part in enumerate(_KEEP.split(text)))


def translate_json(value, prose=False):
    if isinstance(value, dict):
        return {name: translate_json(each, name in _PROSE) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [translate_json(each, prose) for each in value]
    return translate(value) if prose else value
'''
HOOKS = {
    "client/control.py": """
from llmproxy.translated import translate_json
_read = ControlApiClient._parse_reply
ControlApiClient._parse_reply = lambda self, status, content: translate_json(_read(self, status, content))
""",
    "client/proxy_process.py": """
from llmproxy.translated import translate
_read = StartedProxyProcess._read_log_lines.fget
StartedProxyProcess._read_log_lines = property(lambda self: [line if line.startswith("{") else translate(line) for line in _read(self)])
""",
    "errors.py": """
from llmproxy.translated import translate
def _init(self, message, *, hint=""):
    Exception.__init__(self, translate(message))
    self.message, self.hint = translate(message), translate(hint)
LLMProxyError.__init__ = _init
""",
    "core/sessions/journal.py": """
from llmproxy.translated import translate
_row = _build_decision_row
_build_decision_row = lambda run, call: _row(run, call._replace(note=translate(call.note)))
""",
    "suite/matchers/registry.py": """
from llmproxy.translated import translate
_matcher = register_matcher
register_matcher = lambda name, objection=lambda _: "", **more: _matcher(name, objection=lambda it: translate(objection(it)), **more)
""",
    "suite/run/case_runner.py": """
from llmproxy.translated import translate
_expected = _CaseRun._apply_xfail
_CaseRun._apply_xfail = lambda self, status: tuple(map(translate, _expected(self, status)))
""",
    "core/forks/fork_rows.py": """
from llmproxy.translated import translate
_rows = _query_forks
_query_forks = lambda *asked: (replace(fork, why=translate(fork.why)) for fork in _rows(*asked))
""",
    "client/fault_sweep_judging.py": """
from llmproxy.translated import translate
_judge = judge_fault_trial
judge_fault_trial = lambda *given: (found := _judge(*given))._replace(detail=translate(found.detail))
""",
    "trace/comparing/recording_diff.py": """
from dataclasses import replace
from llmproxy.translated import translate
_pairs = _align_turns_by_key
_changes = lambda pair: tuple(replace(each, what=translate(each.what)) for each in pair.changes)
_align_turns_by_key = lambda *sides: (
    replace(pair, title=translate(pair.title), changes=_changes(pair)) for pair in _pairs(*sides)
)
""",
    "report/json_report.py": """
from llmproxy.translated import translate_json
_read_runs = read_report_runs
read_report_runs = lambda path: translate_json(_read_runs(path))
""",
}
"""File -> what is appended to it."""
TYPED = (
    f"{ASK}\n"
    """
try:
    print(ask(sys.argv[1])["content"])
except urllib.error.HTTPError as error:
    print(error.code)
"""
)
AGENT = f"""{ASK}
def answer(message):
    return ask(message)["content"]
"""
SUITE = "name: t\nagent: {python: 'agent.py:answer'}\nscenarios:\n" + "".join(
    f"  - {{id: {name}, steps: [{{chat: {said}, response: {{contains: there}}}}]}}\n"
    for name, said in (("good", "hi"), ("bad", "hello"), ("missed", "hi"), ("fine", "hi"))
)
EXPECTED = SUITE.replace("id: bad,", "id: bad, xfail: the agent is rude,")
NONSENSE = SUITE.replace("{contains: there}", "{contains: [], gt: x, jsonSchema: 1}")
CRASHES = f"{ASK}\nprint({{'hi there': 'hi there'}}[ask(sys.stdin.read())['content']])"
COMMAND = f"command: {{run: [{json.dumps(python())}, crashes.py], lines: false}}"
MISSED = f"""{ASK}
import pytest

def test_quoted(llmproxy):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask("one")
    raise RuntimeError(f"Error code: 404 - {{json.load(caught.value)}}")

def test_refused(llmproxy):
    with pytest.raises(urllib.error.HTTPError):
        ask("two")
"""
RUNS = {
    "hit": (0, ["run", "--json", "r.json", "--", python(), "ask.py", "hi"]),
    "miss": (4, ["run", "--json", "r.json", "--fail-on-miss", "--mode", "replay", "--", python(), "ask.py", "what?"]),
    "nothing recorded": (0, ["run", "--json", "r.json", "--cassette", "new", "--mode", "replay", "--", python(), "ask.py", "hi"]),
    "strict": (0, ["run", "--json", "r.json", "--strict", "--mode", "replay", "--", python(), "ask.py", "hi"]),
    "never used": (4, ["run", "--json", "r.json", "--fail-on-miss", "--mode", "replay", "--", python(), "-c", "pass"]),
    "why": (0, ["why"]),
    "faulty": (0, ["run", "--json", "r.json", "--faults", "http-429", "--mode", "replay", "--", python(), "ask.py", "hi"]),
    "swept": (0, ["run", "--faults", "sweep:slow-start", "--mode", "replay", "--", python(), "ask.py", "hi"]),
    "differ": (0, ["diff", "default", "other"]),
    "replay": (0, ["replay", "--override-llm", "0=bye", "--", python(), "ask.py", "hi"]),
    "replay that leaves": (4, ["replay", "--", python(), "ask.py", "what?"]),
    "why a fault": (0, ["why"]),
    "live": (0, ["run", "--json", "r.json", "--live", "http", "--", python(), "ask.py", "hi"]),
    "recorded elsewhere": (0, ["run", "--cassette", "new", "--mode", "replay", "--", python(), "ask.py", "hi"]),
    "why elsewhere": (0, ["why", "--json"]),
    "learn": (0, ["learn", "default", "--accept", "--", python(), "ask.py", "hi"]),
    "learn in vain": (4, ["learn", "default", "--accept", "--", python(), "ask.py", "what?"]),
}  # fmt: skip
"""Commands over a store that has one question, each with its exit code."""
NUMBERS = (
    "hits", "misses", "recorded", "passed", "refused", "failed", "command_exit_code", "exit_code", "mode", "cassette",
)  # fmt: skip


class Ended(NamedTuple):
    code: int
    lines: tuple[int, int]
    """Of what it printed, on stdout and stderr."""
    told: dict[str, object]
    """What stands in its file, without its sentences."""


def run(folder: Path, env: dict[str, str], *words: str, name: str = "llmproxy") -> Ended:
    (folder / "r.json").unlink(missing_ok=True)
    done = subprocess.run(
        [*([str(Path(env["LLMPROXY_COMMAND"]).with_name(name))] if env else program(name)), *words],
        cwd=folder, env=clean_env(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told = json.loads((folder / "r.json").read_text()) if (folder / "r.json").is_file() else {}
    lines = (len(done.stdout.splitlines()), len(done.stderr.splitlines()))
    return Ended(done.returncode, lines, {name: told[name] for name in NUMBERS if name in told})


def statuses(path: Path) -> dict[str, list[str]]:
    return {
        each["id"]: [run["finished"]["status"] for run in each["runs"]]
        for each in json.loads(path.read_text())["scenarios"]
    }


def outcomes(folder: Path, env: dict[str, str]) -> dict[str, Ended]:
    folder.mkdir()
    (folder / "ask.py").write_text(TYPED)
    fill(folder / "llmproxy.db", chat("hi", "Hello there."), chat("hi", "Bye.", cassette="other"))
    return {name: run(folder, env, *words) for name, (_, words) in RUNS.items()}


def suites(folder: Path, env: dict[str, str]) -> dict[str, object]:
    """Record a suite but for one scenario; test it whole, and in two parts that are merged."""
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    (folder / "t.suite.yaml").write_text(SUITE)
    says = load({"ordered": False, "steps": [
        {"user": "hi", "say": "hi there", "times": None}, {"user": "hello", "say": "no", "times": None},
    ]})  # fmt: skip
    ids = ("--id", "good", "--id", "bad", "--id", "fine")
    with Provider(says) as upstream:
        recorded = run(folder, env, "test", *ids, "--mode", "record", "--upstream", f"openai={upstream.url}")
    whole = run(folder, env, "test", "--report", "json=whole.json")
    parts = [run(folder, env, "test", "--shard", f"{n}/2", "--report", f"json=parts/{n}.json") for n in (1, 2)]
    merged = run(folder, env, "merge", "parts", "--report", "json=merged.json")
    (folder / "t.suite.yaml").write_text(EXPECTED)
    expected = run(folder, env, "test")
    (folder / "t.suite.yaml").write_text(NONSENSE)
    refused = run(folder, env, "test")
    (folder / "crashes.py").write_text(CRASHES)
    (folder / "t.suite.yaml").write_text(SUITE.replace("python: 'agent.py:answer'", COMMAND))
    swept = run(folder, env, "test", "--id", "good", "--faults", "sweep:content-filter").code
    return {
        "recorded": recorded, "whole": whole, "parts": parts, "merged": merged,
        "expected": expected, "refused": refused, "swept": swept,
        "statuses": statuses(folder / "whole.json"), "statuses merged": statuses(folder / "merged.json"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    """Yield a copy in whose processes every sentence that is handed over is in other words."""
    made = Grown(tmp_path_factory.mktemp("translated"))
    made.write("translated.py", TRANSLATED)
    for file, hook in HOOKS.items():
        made.write(file, hook)
    with made.forking():
        yield made


def test_sentences_are_exchanged(translated: Grown) -> None:
    """Else the rest of this proves nothing: an error says the same in other words."""
    code = "from llmproxy.errors import MissError; print(MissError('llmproxy: nothing is recorded', hint='Run `llmproxy run`'))"
    assert translated.python(code) == "llmproxy: opuijoh jt sfdpsefe\nsvo `llmproxy run`\n"


@pytest.mark.slow
def test_commands_end_as_they_do(translated: Grown, tmp_path: Path) -> None:
    """`run`, `replay` and `learn`: hits, misses, faults, nothing recorded, a proof asked for, a proxy never used."""
    plain = outcomes(tmp_path / "plain", {})
    assert outcomes(tmp_path / "translated", translated.env) == plain
    assert [each.code for each in plain.values()] == [code for code, _ in RUNS.values()]


@pytest.mark.slow
def test_suites_and_their_parts_end_as_they_do(translated: Grown, tmp_path: Path) -> None:
    """One that passes, one that fails, one that was never recorded; whole and in parts. A command breaks in a sweep."""
    plain = suites(tmp_path / "plain", {})
    assert suites(tmp_path / "translated", translated.env) == plain
    assert (plain["swept"], plain["statuses"]) == (1, plain["statuses merged"])
    assert plain["statuses"] == {
        "good": ["passed"], "bad": ["failed"], "missed": ["environment_error"], "fine": ["passed"],
    }  # fmt: skip


@pytest.mark.slow
def test_a_test_that_failed_tells_a_miss_once(translated: Grown, tmp_path: Path) -> None:
    """Where an SDK quotes it, in as many lines; what a passed test was refused stands in the summary."""
    (tmp_path / "test_it.py").write_text(MISSED)
    plain, other = (run(tmp_path, env, "-p", "no:cacheprovider", name="pytest") for env in ({}, translated.env))
    assert (plain, plain.code) == (other, 1)
