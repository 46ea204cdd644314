"""The documentation is short and plain: words a page and in all, the length of sentences, no word that CONTRIBUTING.md rules out."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from tests.support.process import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
ALL, PAGE, SENTENCE, LONGEST = 40_000, 1_500, 18, 50
"""Words in all, of a page, of a sentence in the middle, of any sentence."""
REFERENCES = {"keys.md": "the tables of what counts, made from the rules", "suites.md": "every key of the format"}
"""Pages that are looked up, not read: they may be longer."""
PLAIN = {
    "hear": "a verb of plain English", "heard": "likewise", "tell": "likewise", "tells": "likewise",
    "say": "likewise", "looks": "likewise", "voice": "a feature of LangWatch Scenario",
}  # fmt: skip
"""Words that no name may have, and prose may."""


def prose(text: str) -> str:
    """Return a page without what is no prose: blocks, tables, headings, comments, targets of links, code in a line."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|<picture>.*?</picture>", "\n", text, flags=re.DOTALL | re.MULTILINE)
    lines = (line for line in text.splitlines() if not line.startswith(("    ", "|", "#")))
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose; a list's entry begins one, and so does a paragraph."""
    parts = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose(text), flags=re.MULTILINE)
    ends = r"(?<=[.!?])[*)\"]* +(?=[*(`\"\[]*[A-Z`])"
    found = [sentence for part in parts for sentence in re.split(ends, " ".join(part.split()))]
    return [each for each in found if len(each.split()) > 1]


def ruled_out() -> set[str]:
    """Return the words of which the glossary says that they are not used."""
    listed = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Words that are not used")[2]
    cells = [row.split("|")[1] for row in listed.splitlines() if row.startswith("| ")][1:]
    return {word.strip() for cell in cells for word in cell.split(",")}


def test_all_pages_together_are_read_in_three_hours() -> None:
    """As `wc -w README.md docs/*.md` counts."""
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= ALL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short_and_its_sentences_are(page: Path) -> None:
    """References may be long; none has a sentence that is read twice."""
    text = page.read_text("utf-8")
    found = sentences(text)
    lengths = [len(each.split()) for each in found]
    assert page.name in REFERENCES or len(text.split()) <= PAGE
    assert not lengths or median(lengths) <= SENTENCE
    assert [each for each, length in zip(found, lengths, strict=True) if length > LONGEST] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_names_its_subject(page: Path) -> None:
    """It says "Values that tools make", not "What tools make"; a question may begin so, and the title of a link."""
    opened = [each for each in sentences(page.read_text("utf-8")) if re.match(r"\W*(What|Whatever|Whoever)\b", each)]
    assert [each for each in opened if not each.startswith(("[", "(")) and not each.rstrip("*").endswith("?")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_word_that_the_glossary_rules_out(page: Path) -> None:
    """Prose says it in the words of the right column."""
    text = page.read_text("utf-8").partition("## Words that are not used")[0]
    words = set(re.findall(r"[a-z_]+", re.sub(r"`[^`]*`", "", prose(text)).lower()))
    assert words & (ruled_out() - PLAIN.keys()) == set()


def test_what_is_wrong_is_seen() -> None:
    """A long sentence, a list's entry and a table, told apart; references are pages that are long."""
    assert sentences("# Title\n\nOne two. Three four\nfive: `a. b` six.\n\n- Seven eight.\n| no | no |\n") == [
        "One two.", "Three four five: `a. b` six.", "Seven eight.",
    ]  # fmt: skip
    assert {"circumstance", "struck", "witness"} <= ruled_out()
    assert PLAIN.keys() <= ruled_out()
    names = {page.name: len(page.read_text("utf-8").split()) for page in PAGES}
    assert [name for name in REFERENCES if names[name] <= PAGE] == []
