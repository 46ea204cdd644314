"""Other people's fake provider (npm: @copilotkit/aimock) with fixtures of ours, as a process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from .process import Process, clean_env, free_port
from .proxy import DIRECT


class Aimock(Process):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        try:
            with DIRECT.open(f"{self.url}/health", timeout=60) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def journal(self) -> list[dict[str, Any]]:
        with DIRECT.open(f"{self.url}/v1/_requests", timeout=60) as answer:
            told: list[dict[str, Any]] = json.loads(answer.read())
        return told


def start(node: Path, folder: Path, fixtures: Sequence[Mapping[str, Any]]) -> Aimock:
    """Start it from the `node_modules` beside `node`/package.json; a request without a fixture gets an error (--strict)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": list(fixtures)}), "utf-8")
    port = free_port()
    script = node / "node_modules/@copilotkit/aimock/dist/cli.js"
    command = ["node", str(script), "-p", str(port), "-f", str(folder / "fixtures.json"), "--strict"]
    mock = Aimock([*command, "--validate-on-load", "--journal-max", "0"], folder, "aimock", clean_env())
    mock.port = port
    mock.wait_until(mock.is_ready)
    return mock


@contextmanager
def aimock(node: Path, folder: Path, fixtures: Sequence[Mapping[str, Any]]) -> Iterator[Aimock]:
    mock = start(node, folder, fixtures)
    try:
        yield mock
    finally:
        mock.end()
