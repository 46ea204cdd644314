"""Typical mistakes, as a newcomer types them: each is told in a few lines, with what to type, and without a traceback."""

from __future__ import annotations

import gc
import os
import shlex
import socket
from pathlib import Path

import pytest

from llmproxy.cli import main

FILES = {
    "afile": "hi\n",
    "bad.db": "garbage\n",
    "bad.yaml": "interactions: [",
    "broken.suite.yaml": "scenarios: [",
    "noname.suite.yaml": "scenarios:\n  - id: a\n    steps:\n      - chat: hi\n",
    "typo.suite.yaml": "name: t\nagent: {url: 'http://127.0.0.1:9/v1'}\nscenarios:\n  - id: a\n    steps:\n"
    "      - chat: hi\n        reponse: {contains: x}\n",
    "cut.har": '{"log": {"version": "1.2", "ent',
    "none.har": '{"log": {"version": "1.2", "entries": []}}',
    "empty.har": "",
    "good.suite.yaml": "name: t\nagent: {url: 'http://127.0.0.1:9/v1'}\nscenarios:\n  - id: a\n    steps:\n      - chat: hi\n",
}
NOBODY = "no llmproxy answers at http://127.0.0.1:9: Connection refused Start one: llmproxy start --port 9"
MISTAKES = [
    ("run --mod auto -- true", 2, "No such option: --mod. Did you mean '--mode'?"),
    ("run --mode reply -- true", 2, "did you mean 'replay'?"),
    ("run -- pyhton agent.py", 127, "pyhton: command not found"),
    ("run 'python agent.py'", 127, "llmproxy run -- npm test"),
    ("run", 2, "Missing argument '-- COMMAND'"),
    ("run --var x -- true", 2, "NAME=VALUE"),
    ("run --json adir -- true", 3, "--json adir cannot be written"),
    ("run --faults http-430 -- true", 2, "did you mean 'http-503'?"),
    ("run --only-allow localhost:1 -- true", 2, "--only-allow says what --only lets through"),
    ("run --only --faults sweep -- true", 2, "--only makes no network for a sweep."),
    ("faults stal", 2, "did you mean 'stall'?"),
    ("addon inject_fault", 2, "did you mean 'inject_faults'?"),
    ("strat", 2, "Did you mean 'start', 'status'?"),
    ("start --mode reply", 2, "did you mean 'replay'? It was set by flag --mode"),
    ("start --mod auto", 2, "Did you mean '--mode'?"),
    ("start --speed=-1", 2, "'-1' is not a speed"),
    ("start --quiet --verbose", 2, "exclude each other"),
    ("start --port TAKEN", 3, "End it: llmproxy stop --url http://127.0.0.1:"),
    ("start --port 99999", 2, "1 to 65535, or 0"),
    ("start --upstream openai", 2, "NAME=URL"),
    ("start --port 0 --cassette-dir afile", 3, "--cassette-dir"),
    ("start --store adir", 3, "Give a file name with --store."),
    ("ls --store bad.db", 3, "llmproxy import"),
    ("ls --store nothere.db", 3, "Record one first: llmproxy start --mode record --store"),
    ("show 7", 3, "Record one first"),
    ("import nothere.yaml", 3, "There is no file nothere.yaml."),
    ("import bad.yaml", 3, "bad.yaml, line 2"),
    ("import afile", 3, "`llmproxy import --format KIND` forces one"),
    ("import cut.har", 3, "It ends in the middle: it was cut."),
    ("import empty.har", 3, "empty.har: the file is empty."),
    ("import none.har", 0, "Nothing was imported: no exchange is in it"),
    ("import cut.har --format harr", 2, "Known: review, jsonl, har"),
    ("export", 2, "Missing argument 'FILE'"),
    ("export x.toml", 2, "Name it .yaml, .jsonl, .har or .html, or say what to write: --format review|jsonl|har|vcr"),
    ("export x.txt", 2, "x.txt: no format has files that end in .txt. Name it .yaml, .jsonl, .har or .html, or say"),
    ("export x.flow --format mitmproxy", 2, "Written are: review, jsonl, har, vcr."),
    ("ls --store mysql://me@db/x", 2, "A store is a file, or postgresql://USER@HOST/DATABASE."),
    ("test good.suite.yaml --shrad 1/2", 2, "Did you mean '--shard'?"),
    ("test good.suite.yaml --shard 3", 2, "such as 3/10"),
    ("test good.suite.yaml --shard 0/10", 2, "there is no part 0 of 10"),
    ("test good.suite.yaml --shard 3/2", 2, "there is no part 3 of 2"),
    ("test good.suite.yaml --shard 1/2 --shard-times no.json", 2, "--shard-times no.json cannot be read"),
    ("test good.suite.yaml --send x", 2, "they go with --on ray"),
    ("test good.suite.yaml --on ray --update", 2, "--update runs here"),
    ("test good.suite.yaml --on ray --faults sweep", 2, "--faults sweep runs here"),
    ("test good.suite.yaml --on ray --send none.py", 2, "--send 'none.py': there is no such file"),
    ("test good.suite.yaml --on dask", 2, "it can be `ray`"),
    ("merge afile", 2, "llmproxy merge parts --report html=report.html (or --store"),
    ("merge adir --report html=x.html", 2, "Let the parts write --report json=FILE"),
    ("push weather", 2, "--store postgresql://USER@HOST/DATABASE"),
    ("replay --live --store postgresql://me@127.0.0.1:9/x -- true", 2, "--live needs a store in a file"),
    ("replay --override-tool x -- true", 2, "--override-tool get_weather="),
    ("replay --override-llm x=1 -- true", 2, "--override-llm 0="),
    ("fork weather --at 1", 3, "Record one first"),
    ("test nothere.suite.yaml", 2, "there is no such file"),
    ("test broken.suite.yaml", 2, "this is no YAML"),
    ("test noname.suite.yaml", 2, "`name` is missing"),
    ("test typo.suite.yaml", 2, "typo.suite.yaml:7:9: unknown key `reponse` (did you mean `response`?)"),
    ("test good.suite.yaml --id b", 2, "known here: a"),
    ("suite validate adir", 2, "llmproxy test --init"),
    ("ui nothere.db", 3, "Record one first"),
    ("status --url http://127.0.0.1:9", 3, NOBODY),
    ("stop --url http://127.0.0.1:9", 3, NOBODY),
    ("env --url http://127.0.0.1:9", 3, NOBODY),
    ("learn default --var a=b -- true", 3, "Record it first: llmproxy run --mode record"),
    ("replay -- true", 3, "llmproxy run --mode record"),
    ("rm nope -y", 3, "Record one first"),
    ("diff 1 2", 3, "Record one first"),
    ("diff 1 2 --format xml", 2, "--format xml: it can be text, json, markdown."),
    ("label cut.har", 2, "cut.har is no JSON report of tests."),
    ("mcp some-server -y", 2, "llmproxy mcp -- npx -y some-server"),
    ("verify adir", 3, "there is nothing to verify in adir"),
    ("verify --store adir", 3, "/adir: no store, and no file of recordings"),
]
SETTINGS = [
    ({"LLMPROXY_MODE": "rec"}, "", "did you mean 'record'?"),
    ({"LLMPROXY_MODE": "rec"}, "", "llmproxy: mode: 'rec'"),
    ({"LLMPROXY_MOD": "auto"}, "", "did you mean 'LLMPROXY_MODE'?"),
    ({}, '[tool.llmproxy]\nmodus = "auto"\n', "did you mean 'mode'?"),
    ({}, "[tool.llmproxy\n", "cannot read"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with files that are not what they should be, as the working folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "adir").mkdir()
    for name in [each for each in os.environ if each.startswith("LLMPROXY_")] + ["CI", "GITHUB_ACTIONS"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_told(said: str) -> bool:
    """Return whether it is short, and no accident of the program."""
    return "Traceback" not in said and "internal error" not in said and 0 < len(said.splitlines()) <= 6


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("typed", "code", "says"), MISTAKES)
def test_a_mistake_is_told_with_what_to_type(
    typed: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong options and modes, missing files, a port in use, YAML that is none, a proxy that does not run."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(shlex.split(typed.replace("TAKEN", str(taken.getsockname()[1])))) == code
    said = "".join(capsys.readouterr())
    assert is_told(said), said
    assert says in " ".join(said.split())
    assert gc.isenabled()  # it rests while a proxy starts, and no longer
    assert not Path(".llmproxy").exists() or "--on" in typed


@pytest.mark.parametrize(("env", "file", "says"), SETTINGS)
def test_a_wrong_setting_is_told_with_its_place(
    folder: Path,
    env: dict[str, str],
    file: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the environment and in the project's file."""
    if file:
        (folder / "pyproject.toml").write_text(file)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert is_told(said), said
    assert says in said
