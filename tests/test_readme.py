"""The README says what is true, and docs/options.md has the table that the settings make."""

from __future__ import annotations

import re
import tomllib

from tests.support.doc_tables import options_table
from tests.support.process import ROOT

README = (ROOT / "README.md").read_text("utf-8")
OPTIONS = (ROOT / "docs/options.md").read_text("utf-8")


def test_the_option_table_is_the_settings_own() -> None:
    """It is made by options_table(); after a change of an option, paste it anew."""
    between = OPTIONS.split("<!-- options: made by options_table of tests/support/doc_tables.py -->\n")[1].split(
        "<!-- /options -->"
    )[0]
    assert between == options_table()


def test_every_local_link_leads_somewhere() -> None:
    """Files that the README points to exist."""
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_one_line_installs_what_is_shown() -> None:
    """`all` has every extra but Ray's, and Python's version stands beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(re.split(r"[\[\],]", extras["all"][0])[1:-1]) == set(extras) - {"all", "ray"}
    assert (
        f"uv tool install '.[all]'                           # in a clone, Python {project['requires-python'][2:]} or newer"
        in README
    )
