"""How this package is named to an installer: by where it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.install import NAME, place, requirement_of, upgrade_of

GIT = {"url": "https://example.com/llmproxy.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


def noted(url: str, **more: object) -> str:
    """Return what an installer writes beside the package."""
    return json.dumps({"url": url} | more)


def test_a_clone_and_a_wheel_are_named_by_their_place(tmp_path: Path) -> None:
    """A blank in the path stays a URL's; `@` is what pip, uv and pipx all take."""
    clone = tmp_path / "my clone"
    clone.mkdir()
    (tmp_path / "x.whl").touch()
    for each in (clone, tmp_path / "x.whl"):
        assert requirement_of(noted(each.as_uri()), "proxy", "mcp") == f"{NAME}[proxy,mcp] @ {each.as_uri()}"
    assert upgrade_of(noted(clone.as_uri())).endswith(
        f"uv tool install --force '{NAME} @ {clone.as_uri()}'   (or the same with pip install --force-reinstall)"
    )


def test_a_repository_is_named_with_its_revision() -> None:
    """The tag or branch that was asked for, else the commit."""
    assert place(json.dumps(GIT)) == "git+https://example.com/llmproxy.git@abc"
    asked = {"vcs": "git", "commit_id": "abc", "requested_revision": "v1"}
    assert place(json.dumps(GIT | {"vcs_info": asked})) == "git+https://example.com/llmproxy.git@v1"


@pytest.mark.parametrize(
    "told", ["", "[]", "{", "{}", noted("file:///nosuch/x.whl"), noted("https://me:secret@example.com/x.whl")]
)
def test_without_such_a_place_it_is_the_index_s_name(told: str) -> None:
    """From an index, a file that is gone, a URL with a password."""
    assert requirement_of(told, "proxy") == f"{NAME}[proxy]"
    assert upgrade_of(told) == f"uv tool upgrade {NAME}   (or pip install --upgrade {NAME})"
