"""``llmproxy suite``: looks at suites without running them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.cli import main
from tests.support.chats import chat, fill

SUITE = """
name: My suite
scenarios:
  - {id: one, name: First, tags: [smoke], runs: 3, steps: [{chat: hi}]}
  - {id: two, steps: [{chat: "it costs $5 and $word"}]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.suite.yaml").write_text(SUITE)
    return tmp_path


def test_validate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Says what there is, what is doubtful, or everything that is wrong."""
    assert main(["suite", "validate"]) == 0
    said = capsys.readouterr().out
    assert "1 suite, 2 scenarios: nothing is wrong" in said
    assert "$word" in said
    (folder / "t.suite.yaml").write_text(SUITE.replace("steps", "stebs"))
    assert main(["suite", "validate"]) == 2
    assert "did you mean" in capsys.readouterr().err.lower()


def test_an_agent_that_cannot_be_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told with file, line and column, before anything runs; what the environment is to say is left to the run."""
    for agent, code in (("{url: {url: x}}", 2), ("{url: 'ftp://x'}", 2), ("{url: '${env:NOWHERE}'}", 0)):
        text = f"name: t\nagent: {agent}\nscenarios: [{{id: a, steps: [{{chat: hi, response: {{contains: h}}}}]}}]\n"
        (folder / "t.suite.yaml").write_text(text)
        assert main(["suite", "validate"]) == code, agent
        assert not code or "t.suite.yaml:2:8: " in capsys.readouterr().err


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """It is JSON."""
    assert main(["suite", "schema"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Ids, names, tags, runs; as JSON with what each is recorded as."""
    assert main(["suite", "list"]) == 0
    assert "one  First  [smoke]  x3" in capsys.readouterr().out
    assert main(["suite", "list", "--json", "--tag", "smoke"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["runs"], row["cassette"].endswith("/one")) == ("one", 3, True)
    assert main(["suite", "list", "--grep", "nothing"]) == 5


def test_from_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A suite and its recording; nothing is written over unless it is asked for."""
    fill(folder / "llmproxy.db", chat("How are you?", "Fine, thanks.", cassette="talk"))
    assert main(["suite", "from-session", "talk", "--agent", "http://127.0.0.1:8000/v1"]) == 0
    text = (folder / "tests" / "talk.suite.yaml").read_text()
    assert '- chat: "How are you?"' in text
    assert 'response: {contains: "Fine, thanks."}' in text
    (cassette,) = (folder / "tests" / "cassettes").glob("*.yaml")
    assert "talk/talk" in cassette.read_text()
    assert f"wrote {Path('tests/cassettes', cassette.name)}: its recording\n" in capsys.readouterr().out
    assert main(["suite", "from-session", "talk"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["suite", "from-session", "talk", "--force", "-o", "tests/talk.suite.yaml"]) == 0
    assert main(["suite", "from-session", "other"]) == 3
