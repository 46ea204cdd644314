"""What a shared report stands on: its recordings and the tests before it, in the one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.report.choices import handler_of
from llmproxy.report.events import Assertion, Completed, Event, Finished, Selected, Started, Status, Step
from llmproxy.report.evidence import evidence_of
from llmproxy.report.history.trend import Trend
from llmproxy.report.story import Story
from tests.ui import samples

CHECK = Assertion(name="tools.write_file", status=Status.FAILED, where="interaction 3")


def told(scenario: str, cassette: str, status: Status) -> list[Event]:
    """Return a run that stands on a cassette."""
    run = f"{scenario}-1"
    step = Step(run_id=run, index=0, kind="chat", status=status, assertions=(CHECK,), interactions=(1, 3))
    return [
        Started(run_id=run, scenario=scenario, name=scenario, cassette=cassette),
        step,
        Finished(run_id=run, scenario=scenario, status=status),
    ]


def story(*runs: list[Event]) -> Story:
    """Return a story that ended."""
    made = Story()
    for event in (event for run in runs for event in run):
        made.add(event)
    made.add(Completed(exit_code=1, seconds=1.0))
    return made


PASSED, FAILED = told("good", "forked", Status.PASSED), told("bad", "agent", Status.FAILED)


def test_calls_of_the_runs_are_in_it_and_of_nobody_else(tmp_path: Path) -> None:
    """Failed runs first; a cassette that no run used stays where it is."""
    found = evidence_of(story(PASSED, FAILED), samples.store(tmp_path / "x.db"))
    assert [each["name"] for each in found["cassettes"]] == ["agent", "forked"]
    assert found["calls"][3]["cassette"] == "agent"
    assert found["left"] == []


def test_what_there_is_no_room_for_is_counted_with_the_command_that_shows_it(tmp_path: Path) -> None:
    """The failed run has the room, the passed one's recording is named."""
    path = samples.store(tmp_path / "x.db")
    found = evidence_of(story(PASSED, FAILED), path, 12_000)
    (kept,) = found["cassettes"]
    assert (kept["name"], kept["live"]) == ("agent", 5)
    assert 0 < len(kept["rows"]) < 5
    assert kept["left"] == 5 - len(kept["rows"])
    assert {row["id"] for row in kept["rows"]} == set(found["calls"]) == {each[0] for each in kept["strip"]}
    assert found["left"] == [
        {"told": f"{kept['left']} of 5 calls of agent: there was no room for them.", "command": f"llmproxy ui agent --store {path}"},
        {"told": "1 recording (forked): there was no room for them.", "command": f"llmproxy ui --store {path}"},
    ]  # fmt: skip


def test_one_call_that_would_fill_it_leaves_room_for_the_others(tmp_path: Path) -> None:
    """It is left out, and what came after it is there."""
    large = samples.call(1, [{"role": "user", "content": "word " * 20_000}], samples.says(text="Read."), at=0)
    small = samples.call(2, [{"role": "user", "content": "And?"}], samples.says(text="Nothing."), at=9)
    found = evidence_of(story(FAILED), samples.store(tmp_path / "x.db", large, small), 100_000)
    assert [row["asked"] for row in found["cassettes"][0]["rows"]] == ["And?"]
    assert found["cassettes"][0]["left"] == 1


@pytest.mark.parametrize("content", [None, b"no database at all, and longer than its head" * 40])
def test_a_report_is_not_lost_to_a_store(tmp_path: Path, content: bytes | None) -> None:
    """One that is not there says nothing, one that is damaged says so in the report."""
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    found = evidence_of(story(FAILED), path)
    assert [each["told"].startswith("The recordings are not in this file") for each in found.get("left", ())] == (
        [] if content is None else [True]
    )
    assert "cassettes" not in found


def test_the_handler_asks_for_the_store_when_all_is_over(tmp_path: Path) -> None:
    """Not before a test ended, and with the tests before it; nobody's home is in the file."""
    path, file = tmp_path / "x.db", tmp_path / "report.html"
    asked: list[int] = []

    def store() -> Path:
        asked.append(len(asked))
        return path

    handler = handler_of(f"html={file}", store)
    assert asked == []
    samples.store(path, samples.personal())
    for at, status in ((60.0, "passed"), (120.0, "failed")):
        kept = Trend(tmp_path / "x.db.state.db", lambda why: pytest.fail(str(why)))
        kept.handle(Selected(title="t", scenarios=1, runs=1, at=at))
        kept.handle(Completed(exit_code=1, seconds=1.0, scenarios=[{"scenario": "bad", "status": status, "runs": 1, "passed": 0}]))  # fmt: skip
    for event in [*told("bad", "personal", Status.FAILED), Completed(exit_code=1, seconds=1.0)]:
        handler.handle(event)
    handler.close()
    text = file.read_text("utf-8")
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert asked == [0]
    assert [test["statuses"] for test in data["report"]["trend"]] == [{"bad": "passed"}, {"bad": "failed"}]
    assert data["recordings"]
    assert "gertrude" not in text
