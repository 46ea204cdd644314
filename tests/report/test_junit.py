"""JUnit files that CI systems accept, and that tell a failed agent from a failed environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llmproxy.report.events import Completed, Finished, Started, Status
from llmproxy.report.junit import render_junit
from llmproxy.report.report_kinds import WholeFileReportWriter
from llmproxy.report.run_tree import EventsGroupedByRun
from tests.report import samples
from tests.support.narrowing import known

SCHEMA = Path(__file__).with_name("junit.xsd")


def tree() -> ET.Element:
    return ET.fromstring(render_junit(samples.story()))


def case(name: str) -> ET.Element:
    return next(each for each in tree().iter("testcase") if each.get("name", "").startswith(name))


def test_the_file_is_valid_by_the_schema_of_ci_systems(tmp_path: Path) -> None:
    """Every element and attribute is one that Jenkins accepts; a broken file is refused by the same schema."""
    import xmlschema

    out = tmp_path / "a" / "junit.xml"
    samples.feed(WholeFileReportWriter(out, render_junit))
    schema = xmlschema.XMLSchema(str(SCHEMA))
    schema.validate(str(out))
    broken = out.read_text("utf-8").replace("<failure", "<failed").replace("</failure", "</failed")
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(broken)


def test_counts_are_those_of_the_cases() -> None:
    """What a CI system shows as totals is what stands in the file, suite by suite."""
    root = tree()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("10", "1", "4")
    for suite in root:
        kinds = [child.tag for each in suite for child in each]
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "-1")) == kinds.count(tag)


def test_a_failure_says_what_was_expected_and_how_to_run_it_again() -> None:
    """The message is the failed check, the text has all of them, the criteria with their reasons and the command."""
    problem = known(case("wrong").find("failure"))
    assert "the new task is called 'Review PRs', not 'Review PR'" in problem.get("message", "")
    text = problem.text or ""
    assert "cannot be seen: the provider keeps the history (evidence: unobservable)" in text
    assert samples.CHINESE in text
    assert "llmproxy test tasks.yaml --id wrong" in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [("flaky Scenario flaky [2 of 5]", "agent_error"), ("missed", "environment_error"), ("cut", "environment_error")],
)
def test_errors_are_told_apart(name: str, kind: str) -> None:
    """A crashed agent is no failed environment, and an interrupted run is no pass."""
    problem = known(case(name).find("error"))
    assert problem.get("type") == kind


def test_what_xml_cannot_say_is_escaped() -> None:
    """A null byte or an escape sequence of a terminal in an answer does not break the file."""
    said = case("fine").findtext("system-out") or ""
    assert "\\x00\\x1b[31m" in said
    assert "<script>alert('x')</script>" in said


def test_faults_on_purpose_are_named() -> None:
    """With whatever else marks a run, before what was said."""
    label = "step 1: call 1 met fault http-429 (rule 1)"
    told = samples.story(
        replace(each, labels=[label]) if isinstance(each, Finished) else each for each in samples.events()
    )
    said = [each.text or "" for each in ET.fromstring(render_junit(told)).iter("system-out")]
    assert len([text for text in said if label in text]) == len(
        [1 for each in samples.events() if isinstance(each, Finished)]
    )


def test_nothing_at_all_is_still_a_file() -> None:
    import xmlschema

    assert xmlschema.XMLSchema(str(SCHEMA)).is_valid(render_junit(EventsGroupedByRun()).decode())


@pytest.mark.parametrize(("verdict", "failures"), [("passed", "0"), ("flaky", "1")])
def test_a_run_that_its_scenario_can_do_without_is_no_failure(verdict: str, failures: str) -> None:
    """With `minPassRate` the exit code is 0, and so the file's counts are; what was wrong stands in the output."""
    story = EventsGroupedByRun()
    for number, status in enumerate((Status.PASSED, Status.FAILED), 1):
        story.add_event(Started(run_id=f"r{number}", scenario="s", name="s", sample=number, runs=2))
        story.add_event(Finished(run_id=f"r{number}", scenario="s", status=status, error="it said no"))
    story.add_event(Completed(exit_code=0, seconds=1.0, scenarios=[{"scenario": "s", "status": verdict}]))
    root = ET.fromstring(render_junit(story))
    assert (root.get("failures"), len(list(root.iter("failure")))) == (failures, int(failures))
    said = "".join(root.itertext())
    assert "it said no" in said
    assert ("failed, and the scenario passes with its other runs" in said) is (verdict == "passed")
