"""What travels to a node: what is named, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.scenario.cluster.parcel import pack_files, sent_files
from llmproxy.suite.reading.load import load
from llmproxy.suite.run.cluster.baggage import agent_files, named_variables


def test_files_are_named_relative_to_the_folder(tmp_path: Path) -> None:
    """One outside of it would be missing there: it is refused here."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.py").write_bytes(b"a")
    assert pack_files([tmp_path / "lib/a.py", tmp_path / "lib" / ".." / "lib/a.py"], tmp_path) == {"lib/a.py": b"a"}
    with pytest.raises(SuiteError, match="lies outside of"):
        pack_files([tmp_path / "lib/a.py"], tmp_path / "other")
    with pytest.raises(SuiteError, match=r"none\.py cannot be sent to a node"):
        pack_files([tmp_path / "none.py"], tmp_path)


def test_patterns_name_files_and_never_a_folder(tmp_path: Path) -> None:
    """A folder holds keys and stores; who wants its files names them."""
    (tmp_path / "lib/deep").mkdir(parents=True)
    for name in ("lib/a.py", "lib/deep/b.py", "lib/c.db"):
        (tmp_path / name).write_text(name)
    found = [path.relative_to(tmp_path).as_posix() for path in sent_files(["lib/**/*.py", "lib/c.db"], tmp_path)]
    assert found == ["lib/a.py", "lib/deep/b.py", "lib/c.db"]
    for pattern in ("lib", "none.txt", ""):
        with pytest.raises(SuiteError, match="there is no such file"):
            list(sent_files([pattern], tmp_path))


@pytest.mark.parametrize("agent", ['{python: "agent.py:answer"}', "{command: [python, agent.py]}"])
def test_files_that_an_agent_names_come_along(agent: str, tmp_path: Path) -> None:
    """The file of a function, the words of a command that are files."""
    (tmp_path / "agent.py").write_text("def answer(message): return message")
    (tmp_path / "other.py").write_text("")
    suite = tmp_path / "t.suite.yaml"
    suite.write_text(f"name: t\nagent: {agent}\nscenarios: [{{id: a, steps: [{{chat: hi}}]}}]\n")
    assert agent_files(load([suite]).scenarios) == [tmp_path / "agent.py"]
    more = [({"python": "other.py:answer"}, tmp_path), (None, tmp_path)]
    assert agent_files([], more) == [tmp_path / "other.py"]


def test_variables_that_suites_name_come_along() -> None:
    """And no others: no key that the run does not need."""
    env = {"URL": "u", "OPENAI_API_KEY": "secret"}
    assert named_variables([b"agent: {http: '${env:URL}'}", b"x: ${env:NOT_SET}"], env) == {"URL": "u"}
