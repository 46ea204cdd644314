"""`llmproxy ui`: what it looks at, and what it says where there is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli.parts.options import LAST_REPORT, STORE
from llmproxy.cli.ui import find_or_import_store_for_viewer, make_viewer_query_function
from llmproxy.core.cassettes.anonymized_export import anonymize_recordings_for_file
from llmproxy.core.cassettes.formats.vcr import dumps
from llmproxy.report import html
from llmproxy.report.events import Selected
from llmproxy.report.report_kinds import create_report_event_handler
from tests.report import samples as report_samples
from tests.support.chats import chat, fill, run
from tests.ui import samples


def test_a_store_a_cassette_and_a_file_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is there: a database, a file of recordings, else a name in the store."""
    store = samples.store(tmp_path / "x.db")
    file = tmp_path / "weather.yaml"
    file.write_text(dumps(anonymize_recordings_for_file([chat()]), "weather"))
    with find_or_import_store_for_viewer(str(store), None) as seen:
        assert (seen.store, seen.start["store"], seen.start["store_words"]) == (store, str(store), f" --store {store}")
    with find_or_import_store_for_viewer("hostile", store) as seen:
        assert seen.start["start"] == "#/c/hostile"
    with find_or_import_store_for_viewer(str(file), None) as seen:
        assert seen.start == {"store": "weather.yaml", "file": str(file)}
        assert [each["name"] for each in make_viewer_query_function(seen.store)("cassettes", {})["cassettes"]] == [
            "weather"
        ]
    assert not seen.store.exists()


def test_what_tests_left_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder where only tests ran: their report, with their store; beside a store of calls that one, with the tests."""
    monkeypatch.chdir(tmp_path)
    writer = create_report_event_handler(f"jsonl={LAST_REPORT}")
    writer.handle(Selected(title="tasks", scenarios=1, runs=1))
    writer.close()
    with find_or_import_store_for_viewer(None, None) as seen:
        assert (seen.start["start"], seen.start["recordings"], seen.report) == (
            "#/report", False, tmp_path / LAST_REPORT,
        )  # fmt: skip
    samples.store(tmp_path / STORE)
    with find_or_import_store_for_viewer(None, None) as seen:  # the tests' own, which their report stands on
        assert (seen.store, seen.start["start"], seen.start["recordings"]) == (tmp_path / STORE, "#/report", True)
    with find_or_import_store_for_viewer("agent", None) as seen:
        assert seen.start["store_words"] == f" --store {STORE}"
    fill(tmp_path / "llmproxy.db", chat())
    with find_or_import_store_for_viewer(None, None) as seen:
        assert (seen.start["store"], seen.start["store_words"], seen.start["tests"]) == ("llmproxy.db", "", True)
        assert make_viewer_query_function(seen.store, seen.report)("report", {})["title"] == "tasks"
    with find_or_import_store_for_viewer(str(LAST_REPORT), None) as seen:
        assert (seen.store, seen.start["store_words"]) == (tmp_path / STORE, f" --store {STORE}")


@pytest.mark.parametrize(("name", "text", "said"), [
    ("report.html", html.render_html_report(report_samples.story()), "is the viewer itself, with its report inside"),
    ("report.xml", "<testsuites/>", "says too little to look at"),
    ("report.json", '{"format": 2, "exit_code": 0, "scenarios": []}', "a report of format 2; this version reads 1"),
])  # fmt: skip
def test_reports_of_other_kinds_and_versions_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    code, told = run(capsys, tmp_path / "x.db", "ui", str(tmp_path / name), "--no-browser")
    assert (code, said in told) == (2, True), told


def test_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what there is; nothing is served, nothing is made."""
    path = tmp_path / "x.db"
    code, said = run(capsys, path, "ui")
    assert code == 3
    assert "x.db" in said
    code, said = run(capsys, path, "ui", str(tmp_path / "other.db"))
    assert (code, "There is no store at" in said, "other.db" in said) == (3, True, True)
    code, said = run(capsys, path, "ui", "weather")
    assert (code, "There is no file weather, and no store" in said) == (3, True)
    fill(path, chat())
    code, said = run(capsys, path, "ui", "weather")
    assert code == 3
    assert "there is no file and no cassette weather" in said
    assert "default" in said
    assert [each.name for each in tmp_path.iterdir()] == ["x.db"]
    (tmp_path / "x.db").write_bytes(path.read_bytes()[:9000])
    code, said = run(capsys, path, "ui")
    assert (code, "is damaged" in said) == (3, True)
    (tmp_path / "notes.txt").write_text("hello")
    code, said = run(capsys, path, "ui", str(tmp_path / "notes.txt"))
    assert (code, "not a file of recordings of any format" in said, "--format forces" in said) == (3, True, False), said
