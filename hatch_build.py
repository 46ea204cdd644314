"""The package's page: README.md as the index shows it, where no link can be relative.

With the address of the repository (LLMPROXY_REPOSITORY, or what GitHub's own jobs are told), links lead to the files of
this version there; without it, their words stay and the link goes, since a link that leads nowhere is worse than none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]\n]+(?:\n[^\]\n]+)?)\]\((?!https?://|#)(?P<target>[^)\s]+)\)")


def repository_of(env: dict[str, str]) -> str:
    """Return the repository's address, empty where nobody knows it."""
    if env.get("LLMPROXY_REPOSITORY"):
        return env["LLMPROXY_REPOSITORY"].rstrip("/")
    if env.get("GITHUB_REPOSITORY"):
        return f"{env.get('GITHUB_SERVER_URL', 'https://github.com')}/{env['GITHUB_REPOSITORY']}"
    return ""


def page(readme: str, repository: str, version: str) -> str:
    """Return the text for the index."""

    def absolute(found: re.Match[str]) -> str:
        image, text, target = found["image"], found["text"], found["target"]
        if not repository:
            return "" if image else text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return _LINK.sub(absolute, readme)


class CustomMetadataHook(MetadataHookInterface):
    """Gives the build its page and its addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set what pyproject.toml calls dynamic."""
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        repository = repository_of(dict(os.environ))
        text = page(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        paths = {"Documentation": "/tree/main/docs", "Changes": "/blob/main/CHANGELOG.md", "Source": ""}
        metadata["urls"] = {name: repository + path for name, path in paths.items()} if repository else {}
