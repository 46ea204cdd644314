"""A copy of the package with something added to it, as a contributor adds it: what follows by itself is looked at from outside."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from .forked import forked
from .process import ROOT, clean_env


class Grown:
    """A copy of the package in a folder, and within `forking` processes that import it instead of ours."""

    programs: Path

    def __init__(self, folder: Path) -> None:
        """Copy it, with its byte code: the copy starts as quickly."""
        self.folder = folder
        shutil.copytree(ROOT / "llmproxy", folder / "llmproxy")

    @contextmanager
    def forking(self) -> Iterator[Self]:
        with forked(self.folder, {"PYTHONPATH": str(self.folder)}) as programs:
            self.programs = programs / "started"
            yield self

    @property
    def env(self) -> dict[str, str]:
        """What makes a Python import the copy, wherever it is started."""
        command = str(self.programs / "llmproxy")
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1", "LLMPROXY_COMMAND": command}

    def add(self, file: str, row: str, *, before: str) -> None:
        """Write a row into a table: before the only line that starts so. `file` is relative to the package."""
        path = self.folder / "llmproxy" / file
        lines = path.read_text("utf-8").splitlines(keepends=True)
        found = [number for number, line in enumerate(lines) if line.strip().startswith(before)]
        assert len(found) == 1, f"{len(found)} lines of {file} start with {before!r}"
        lines.insert(found[0], row if row.endswith("\n") else row + "\n")
        path.write_text("".join(lines), "utf-8")

    def write(self, file: str, text: str) -> None:
        """Write a new file of the package, or at the end of one."""
        with (self.folder / "llmproxy" / file).open("a", encoding="utf-8") as out:
            out.write(text)

    def python(self, code: str, *words: str) -> str:
        (file := self.folder / "asked.py").write_text(code)
        command = [str(self.programs / "python"), str(file), *words]
        return subprocess.run(
            command, env=clean_env(self.env), capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def run(self, name: str, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``llmproxy`` or ``pytest`` with words, in the folder of the copy unless another is named."""
        env = clean_env(self.env | {"COLUMNS": "1000", "NO_COLOR": "1"} | env)
        return subprocess.run(
            [self.programs / name, *words], cwd=cwd or self.folder, env=env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
