"""The documentation as a site: it builds without a warning, and nothing in it comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.process import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; a link to a page or a heading that is not there ends the build."""
    target = tmp_path_factory.mktemp("site") / "out"
    words = [sys.executable, str(ROOT / "scripts/site"), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    """Those of docs/ and of the root, and what a model reads."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"overview", "SECURITY", "CHANGELOG", "CONTRIBUTING"}
    assert pages <= {path.stem for path in site.glob("*.html")}
    assert (site / "llms.txt").is_file()


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """No font, script, style or picture of another host: it reads the same offline."""
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//(?!www\.example)"""
    )
    styles = re.compile(r"""(?:url\(|@import\s)["']?(?:https?:)?//""")
    foreign = [path.name for path in site.rglob("*.html") if loads.search(path.read_text("utf-8"))]
    foreign += [path.name for path in site.rglob("*.css") if styles.search(path.read_text("utf-8"))]
    assert foreign == []


def test_no_link_leaves_the_site(site: Path) -> None:
    """What a page links to without a host lies in the site, also what links from docs/ to the root."""
    hrefs = re.compile(r"""<a[^>]*\shref=["']?(?!https?:|mailto:|[#/])([^"'#?\s>]+)""")
    pages = {path: set(hrefs.findall(path.read_text("utf-8"))) for path in site.rglob("*.html")}
    assert sum(map(len, pages.values())) > 100
    assert [
        (page.name, link) for page, links in pages.items() for link in links if not (page.parent / link).exists()
    ] == []


def test_every_page_stands_in_the_navigation_and_in_the_list_for_models() -> None:
    nav = re.findall(r'"([a-zA-Z/-]+\.md)"', (ROOT / "zensical.toml").read_text("utf-8"))
    assert tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["theme"]["font"] is False
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - set(nav) == set()
    listed = set(re.findall(r"\(([a-z/-]+\.md)[#)]", (ROOT / "docs/llms.txt").read_text("utf-8")))
    assert (listed - pages, pages - listed) == (set(), set())


UNDO = "## What it writes\n"


def test_each_page_that_tells_how_says_what_is_written_and_how_to_undo_it() -> None:
    """At its end, in a few lines; nobody has to find out by looking for new files."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    how_to = [row for each in nav for kind in ("Tutorials", "How to") for row in each.get(kind, [])]
    how_to += [{"Frameworks": "frameworks.md"}]  # for all of them: each page links to it
    pages = {name: (ROOT / "docs" / name).read_text("utf-8") for row in how_to for name in row.values()}
    assert len(pages) > 10
    assert {name for name, text in pages.items() if len(text.partition(UNDO)[2]) < 80} == set()
    assert [name for name, text in pages.items() if "\n## " in text.partition(UNDO)[2]] == []
