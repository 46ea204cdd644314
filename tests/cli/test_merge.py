"""`llmproxy merge`: what ten parts of a test left behind, put together at a command line."""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.provider import Provider, load
from tests.support.asking import ASK
from tests.support.proxy import near
from tests.support.recordings import filled, interaction, reopened
from tests.support.reports import bare

AGENT = f"""{ASK}
def answer(message):
    return ask(message)["content"]
"""
NAMES = [f"s{n:02}" for n in range(12)]
SUITE = "name: t\nagent: {python: 'agent.py:answer'}\nscenarios:\n" + "".join(
    f"  - {{id: {name}, runs: {2 if n == 3 else 1}, steps: [{{chat: hi, response: {{contains: {'nope' if n == 5 else 'hi'}}}}}]}}\n"
    for n, name in enumerate(NAMES)
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "t.suite.yaml").write_text(SUITE)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return that folder with its suite recorded, and a proxy that replays it; what was recorded is in `recorded.db`."""
    says = load({"ordered": False, "steps": [{"user": "hi", "say": "hi there", "times": None}]})
    with Provider(says) as upstream, near("record", tmp_path / "recorded.db", upstreams={"openai": upstream.url}) as px:
        monkeypatch.setenv("LLMPROXY_URL", px.url)
        assert main(["test", "--report", "json=recorded.json"]) == 1
    with near("replay", tmp_path / "recorded.db") as px:
        monkeypatch.setenv("LLMPROXY_URL", px.url)
        yield tmp_path


def test_ten_parts_of_a_test_are_the_whole_test(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Report and end, whatever order they come in; then without one of them."""
    assert main(["test", "--report", "json=whole.json"]) == 1
    whole = json.loads((project / "whole.json").read_text())
    assert set(whole["times"]) == set(NAMES)
    runs = [run["finished"] for each in whole["scenarios"] for run in each["runs"]]
    assert sum(each["usage"]["agent"]["input_tokens"] for each in runs) > 0
    shards = [
        ["--shard", f"{n}/10", "--report", f"json=shards/{n}/r.json", "--report", f"junit=shards/{n}/r.xml"]
        for n in range(1, 11)
    ]
    assert sorted([main(["test", *words, "--shard-times", "recorded.json"]) for words in shards]) == [0] * 9 + [1]
    capsys.readouterr()
    files = [f"shards/{n}" for n in range(1, 11)]
    made = set()
    for seed in range(2):
        mixed = [*random.Random(seed).sample(files, 10), "shards/4"]
        assert main(["merge", *mixed, "--report", "json=all.json", "--report", "junit=all.xml"]) == 1
        assert "10 of 10 parts merged into all.json, all.xml; the test ends with 1." in capsys.readouterr().out
        made.add((project / "all.json").read_bytes() + (project / "all.xml").read_bytes())
        assert bare(json.loads((project / "all.json").read_text())) == bare(whole)
    assert len(made) == 1
    shutil.rmtree(project / "shards/7")
    assert main(["merge", "shards", "--report", "html=all.html"]) == 3
    assert "llmproxy: part 7/10 is missing: nothing is known of s" in capsys.readouterr().err
    assert "part 7/10 is missing" in (project / "all.html").read_text()


def test_a_part_without_a_scenario_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """CI asks for ten parts of three scenarios; each leaves a report, so that none is missing."""
    assert main(["test", "--shard", "13/13", "--report", "json=r.json", "--report", "junit=r.xml"]) == 0
    assert "part 13/13 has none of 12 scenarios: nothing to run" in capsys.readouterr().err
    assert main(["merge", "r.json", "--report", "junit=all.xml"]) == 3
    assert capsys.readouterr().err.count("is missing: nothing is known of s") == 12
    assert main(["merge", "r.xml", "--report", "junit=all.xml"]) == 2
    assert "Let the parts write --report json=FILE" in capsys.readouterr().err


def test_stores_of_the_parts_are_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Journals beside them stay where they are; what is there already is not written over."""
    for name, n in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        CallDecisionJournalWriter.open(tmp_path / name / "llmproxy.db.state.db", partial(float, n)).close()
        with reopened(tmp_path / name / "llmproxy.db", writable=True) as store:
            store.add_interaction(interaction(n, cassette=name), supersede=False)
    assert main(["merge", "a", "b", "--store", "all.db"]) == 0
    assert "2 cassettes with 2 interactions of 2 stores in all.db." in capsys.readouterr().out
    assert not (tmp_path / "all.db.state.db").exists()
    with SqliteCassetteStore.open(tmp_path / "all.db", writable=False, now=lambda: 0.0) as made:
        assert [info.name for info in made.cassettes()] == ["a", "b"]
    assert main(["merge", "a", "b", "--store", "all.db"]) == 2
    assert "all.db is there already" in capsys.readouterr().err


def test_folders_of_cassettes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They come together in the folder of the project."""
    for n, name in enumerate(("a", "b"), 1):
        with reopened(tmp_path / f"{name}.db", writable=True) as store:
            store.add_interaction(interaction(n, cassette=name), supersede=False)
        assert main(["export", "--all", f"parts/{name}/tests/cassettes", "--store", f"{name}.db"]) == 0
    capsys.readouterr()
    assert main(["merge", "parts/a", "parts/b", "--cassette-dir", "tests/cassettes"]) == 0
    assert capsys.readouterr().out == "2 cassette files written to tests/cassettes, 0 as before.\n"
    assert sorted(each.name for each in (tmp_path / "tests/cassettes").iterdir()) == ["a.yaml", "b.yaml"]
    assert main(["merge", "parts/a", "parts/b", "--cassette-dir", "tests/cassettes"]) == 0
    assert capsys.readouterr().out == "0 cassette files written to tests/cassettes, 2 as before.\n"


@pytest.mark.parametrize(("words", "said"), [
    (["x.db"], "merge was not told what to write"),
    (["none", "--report", "json=a"], "There is no file or folder none."),
    (["notes.txt", "--report", "json=a"], "notes.txt is nothing that can be merged"),
    (["x.db", "--report", "json=a"], "no report of a part of a test was given"),
    (["x.db", "--cassette-dir", "d"], "no folder that was given holds cassette files"),
    (["empty", "--store", "s.db"], "no store was given"),
    (["whole.json", "--report", "json=a"], "whole.json is the report of a whole test"),
])  # fmt: skip
def test_what_cannot_be_merged_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and nothing written."""
    filled(tmp_path / "x.db")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    whole = {
        "format": 1, "title": "t", "mode": "", "at": 1.0, "exit_code": 0, "seconds": 1.0, "notes": [], "summary": [],
        "scenarios": [],
    }  # fmt: skip
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    assert main(["merge", *words]) == 2
    assert said in capsys.readouterr().err
    assert not {"a", "s.db"} & {each.name for each in tmp_path.iterdir()}


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """In a line: nothing of ours is broken. A socket is there, and nobody can open it, root neither."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("part.json")
        assert main(["merge", "part.json", "--report", "json=whole.json"]) == 3
    assert "llmproxy: part.json cannot be read: " in capsys.readouterr().err
